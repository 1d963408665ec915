"""Which barred tensor is the scorer of its group and which an echo, term by term (docs/language.md, “Bars”)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from tensorattn import tree as t
from tensorattn.ir import NORMALISERS
from tensorattn.source import Span


class Complain(Protocol):
    """Takes a complaint: code, what, where, repair, facts."""

    def __call__(self, code: str, what: str, spans: list[Span], hint: str, *facts: str) -> None: ...


@dataclass(slots=True)
class Barring:
    """The verdict on a statement: the bar slots that normalise, by where they stand; the others are echoes."""

    scorers: set[Span] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class _Seen:
    group: frozenset[str]
    tensor: t.Reference


def decide(body: t.Tree, complain: Complain) -> Barring:
    """Reads every term of a statement, the outermost first."""
    verdict = Barring()
    _expression(body, verdict, complain)
    return verdict


def _expression(node: t.Tree, verdict: Barring, complain: Complain) -> None:
    """Every term of an expression, and the expressions inside its factors."""
    if isinstance(node, t.SumNode):
        for _, term in node.terms:
            _term(term, verdict, complain)
    else:
        _term(node, verdict, complain)


def factors(node: t.Tree) -> Iterator[t.Tree]:
    """The factors of a term in reading order, looking through brackets that hold only a product."""
    match node:
        case t.ProductNode(units=units):
            for unit in units:
                yield from factors(unit)
        case t.Bracket(body=body) if only_product(body):
            yield from factors(body)
        case _:
            yield node


def only_product(node: t.Tree) -> bool:
    """Whether a bracket's body is one product: no sum, no comparison, no logic."""
    return not isinstance(node, t.SumNode) and not (isinstance(node, t.Call) and node.function in _LOGICAL)


_LOGICAL = {"and", "or", "not", "less", "less_equal", "greater", "greater_equal", "equal", "not_equal"}


def _term(node: t.Tree, verdict: Barring, complain: Complain) -> None:
    known: list[_Seen] = []
    deep: list[tuple[int, frozenset[str], Span]] = []
    listed = list(factors(node))
    for number, factor in enumerate(listed):
        if isinstance(factor, t.Reference):
            _tensor(factor, known, verdict, complain)
        inner = t.parts(factor)
        deep += [(number, group, span) for part in inner for group, span in _deep(part)]
        if isinstance(factor, t.Binding) and factor.kind in (*NORMALISERS, "softmax1"):
            deep.append((number, frozenset(n.text for n in factor.names), factor.span))
            _inside_normaliser(factor, complain)
    _repeated(listed, known, deep, complain)
    for factor in listed:
        if isinstance(factor, t.Reference):
            _inside_condition(factor, complain)
        for part in t.parts(factor):
            _expression(part, verdict, complain)


def _tensor(tensor: t.Reference, known: list[_Seen], verdict: Barring, complain: Complain) -> None:
    fresh = [bar for bar in tensor.bars if all(seen.group != bar.group for seen in known)]
    if len(fresh) > 1:
        _two_bars(tensor, fresh, complain)
        fresh = fresh[:1]
    for bar in tensor.bars:
        scorer = next((seen for seen in known if seen.group == bar.group), None)
        if scorer is not None:
            _echo(tensor, bar, scorer, bool(fresh), complain)
    for bar in fresh:
        partly = next((seen for seen in known if seen.group & bar.group), None)
        if partly is not None:
            shared = ", ".join(sorted(partly.group & bar.group))
            complain(
                "E-ECHO",
                f"the bar over {names(bar)} shares {shared} with the bar of `{partly.tensor.name.text}`, "
                "but not its whole group",
                [bar.span],
                "drop this bar, or write the same group",
            )
        verdict.scorers.add(bar.span)
        known.append(_Seen(bar.group, tensor))


def _two_bars(tensor: t.Reference, bars: list[t.BarSlot], complain: Complain) -> None:
    a, b = names(bars[0]), names(bars[1])
    name = tensor.name.text
    hint = (
        f"jointly normalised: one bar({a} {b}); the product of both: softmax[{a}]({name}…) softmax[{b}]({name}…); "
        f"one after the other: l1norm[{b}](softmax[{a}]({name}…))"
    )
    complain(
        "E-2BARS",
        f"`{name}` carries two separate bars, over {a} and over {b}",
        [bar.span for bar in bars],
        hint,
        "two bars on one tensor have several readings: joint, product, one after the other, doubly stochastic",
    )


def _echo(tensor: t.Reference, bar: t.BarSlot, scorer: _Seen, has_new: bool, complain: Complain) -> None:
    repair = f"drop the bar: plain {names(bar)} reads the same values; or write softmax[{names(bar)}](…)"
    if bar.where is not None:
        complain(
            "E-ECHO",
            f"the condition of bar({names(bar)}) is repeated",
            [bar.span],
            "state the condition once, at the scorer; " + repair,
        )
        return
    if tensor.name.text == scorer.tensor.name.text and plain_names(tensor) == plain_names(scorer.tensor):
        twice = f"`{tensor.name.text}` stands twice under bar({names(bar)})"
        what = f"{twice}: the same weights twice, or weights times scores?"
        complain(
            "E-ECHO",
            what,
            [bar.span],
            f"for the scores drop the second bar; for the squared weights write softmax[{names(bar)}](…)**2",
        )
        return
    if has_new:
        return
    at = tensor.slots.index(bar)
    own = set(plain_names(scorer.tensor))
    early = [s for s in tensor.slots[:at] if isinstance(s, t.AffineSlot) and s.plain and s.plain.text not in own]
    if not early:
        return
    shown = ", ".join(s.plain.text for s in early if s.plain)
    complain(
        "E-ECHO",
        f"`{tensor.name.text}` repeats bar({names(bar)}) of `{scorer.tensor.name.text}`, but its own index {shown} "
        "stands before the group: which of the two is the score?",
        [bar.span],
        repair,
        f"the first tensor with bar({names(bar)}) is the score: {scorer.tensor.name.text}",
    )


def _deep(node: t.Tree) -> Iterator[tuple[frozenset[str], Span]]:
    """Bars and explicit normalisers at any depth."""
    if isinstance(node, t.Reference):
        for bar in node.bars:
            yield bar.group, bar.span
    if isinstance(node, t.Binding) and node.kind in (*NORMALISERS, "softmax1"):
        yield frozenset(n.text for n in node.names), node.span
    for part in t.parts(node):
        yield from _deep(part)


def _repeated(
    listed: list[t.Tree], known: list[_Seen], deep: list[tuple[int, frozenset[str], Span]], complain: Complain
) -> None:
    """A group that a factor repeats at depth, beside a bar on another factor."""
    shallow = [(n, bar.group, bar.span) for n, f in enumerate(listed) if isinstance(f, t.Reference) for bar in f.bars]
    barred_deep = [d for d in deep if _is_bar(listed[d[0]], d[2])]
    for number, group, span in deep:
        others = [g for n, g, _ in (*shallow, *barred_deep) if n != number and g & group]
        if not others or (
            span not in {s for _, _, s in barred_deep} and not any(g & group for _, g, _ in (*shallow, *barred_deep))
        ):
            continue
        shown = " ".join(sorted(group & others[0]))
        complain(
            "E-ECHO",
            f"{shown} is normalised twice in one term: here and by another factor's bar",
            [span],
            f"drop one bar, or write every normaliser explicitly: softmax[{shown}](…)",
            "the first tensor with a bar in a term is normalised; a later bar of the same group is an echo only on a "
            "tensor of the same product",
        )
        return


def _is_bar(factor: t.Tree, span: Span) -> bool:
    return any(isinstance(f, t.Reference) and any(b.span == span for b in f.bars) for f in _all(factor))


def _all(node: t.Tree) -> Iterator[t.Tree]:
    yield node
    for part in t.parts(node):
        yield from _all(part)


def _inside_condition(tensor: t.Reference, complain: Complain) -> None:
    for bar in tensor.bars:
        for group, span in _deep(bar.where) if bar.where is not None else ():
            if group & bar.group:
                shown = " ".join(sorted(group & bar.group))
                complain(
                    "E-ECHO",
                    f"the condition of bar({names(bar)}) normalises {shown} too",
                    [span],
                    "compute the condition in a statement of its own, or write both explicitly: "
                    f"softmax[{shown} : …](…)",
                )


def _inside_normaliser(node: t.Binding, complain: Complain) -> None:
    group = {n.text for n in node.names}
    for inner in (n for part in t.parts(node) for n in _all(part)):
        if isinstance(inner, t.Reference):
            for bar in inner.bars:
                if bar.group & group:
                    shown = " ".join(sorted(bar.group & group))
                    complain(
                        "E-ECHO",
                        f"a bar over {shown} inside {node.kind}[{' '.join(n.text for n in node.names)}]",
                        [bar.span],
                        f"drop the bar, or write it as softmax[{shown}](…)",
                    )


def plain_names(tensor: t.Reference) -> list[str]:
    """Names of the plain slots of a tensor."""
    return [s.plain.text for s in tensor.slots if isinstance(s, t.AffineSlot) and s.plain]


def names(bar: t.BarSlot) -> str:
    return " ".join(n.text for n in bar.names)
