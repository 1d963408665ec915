"""Tree → IR: scopes, the summation convention, bars, names. Raises the first complaint in reading order."""

from __future__ import annotations

from tensorattn import tree as t
from tensorattn.barring import decide
from tensorattn.errors import NotationError, suggest
from tensorattn.expressions import Resolver
from tensorattn.ir import BATCH, Index, Statement
from tensorattn.names import Names, collect
from tensorattn.parsing import parse_tree, raise_first
from tensorattn.program import Program
from tensorattn.scanning import MOST_AXES
from tensorattn.scope import Part, close, renumber
from tensorattn.source import Source, Span

BARE = "out"  # the name of the result of a bare expression


def resolve(source: Source, statements: tuple[t.StatementNode, ...] | None = None) -> Program:
    """A text, or the tree of one in another spelling, as a program."""
    nodes = parse_tree(source) if statements is None else statements
    complaints: list[NotationError] = []
    found = collect(nodes)
    _check_definitions(nodes, found, source, complaints)
    resolved = []
    for node in nodes:
        maker = _StatementResolver(found, source, complaints)
        resolved.append(maker.statement(node, alone=len(nodes) == 1))
    raise_first(complaints)
    return Program(tuple(resolved), source)


def _check_definitions(
    nodes: tuple[t.StatementNode, ...], names: Names, source: Source, complaints: list[NotationError]
) -> None:
    """No redefinition, no use before definition, no self-reference."""

    def complain(code: str, what: str, spans: list[Span], hint: str) -> None:
        complaints.append(NotationError(code, what, source=source, spans=spans, hint=hint))

    defined: dict[str, Span] = {}
    for node in nodes:
        target = node.target.name if node.target else None
        for reference in names.references(node.body):
            used = reference.name
            if target and used.text == target.text:
                complain(
                    "E-RECUR",
                    f"`{target.text}` is defined by itself",
                    [target.span, used.span],
                    "a recurrence has no closed index formula; unroll it into named statements, or loop over calls",
                )
            elif used.text not in defined and used.text in names.targets and not names.is_position(reference):
                complain(
                    "E-REDEF",
                    f"`{used.text}` is used before its definition",
                    [used.span],
                    "move the definition up, or rename one of the two",
                )
        if target:
            if target.text in defined:
                complain(
                    "E-REDEF",
                    f"`{target.text}` is defined twice",
                    [defined[target.text], target.span],
                    "give the second statement a name of its own",
                )
            defined.setdefault(target.text, target.span)


class _StatementResolver(Resolver):
    """One statement: its left side, its body, and what must not be left over."""

    def statement(self, node: t.StatementNode, alone: bool) -> Statement:
        self.scorers = decide(node.body, self.complain).scorers
        if node.target is None:
            return self._bare_program(node, alone)
        self.names.current = node.target.name.text
        axes, spans = self._axes(node.target)
        free = {index.name: index for axis in axes for index in axis}
        part = self.expression(node.body, {BATCH: Index(BATCH), **free})
        self._left_over(part, free)
        for name, span in spans.items():
            if name not in part.opened and name not in part.reduced:
                self._undetermined(node, name, span, part)
        if BATCH in part.opened and BATCH not in free:
            self.complain(
                "E-BATCH",
                "`...` stands on the right but not on the left",
                part.opened[BATCH],
                f"write {node.target.name.text}^<... …> on the left",
            )
        body = renumber(part.expr, frozenset(free.values()) | {Index(BATCH)})
        return Statement(node.target.name.text, axes, body, node.target.upper, node.span)

    def _undetermined(self, node: t.StatementNode, name: str, span: Span, part: Part) -> None:
        assert node.target is not None
        target = node.target.name.text
        near = suggest(name, list(part.opened))
        hint = f"broadcast on purpose with ones_<{name}>, or use {name} on the right"
        what = f"the index {name} of the result `{target}` does not occur on the right"
        fact = f"indices on the right: {' '.join(n for n in part.opened if n != BATCH) or 'none'}"
        self.complain("E-UNDETERMINED", what, [span], f"{near} Else {hint}" if near else hint, fact)

    def _axes(self, target: t.Reference) -> tuple[tuple[tuple[Index, ...], ...], dict[str, Span]]:
        axes: list[tuple[Index, ...]] = []
        spans: dict[str, list[Span]] = {}
        for slot in target.slots:
            match slot:
                case t.BatchSlot(span=span):
                    axes.append((Index(BATCH),))
                    spans.setdefault(BATCH, []).append(span)
                case t.SplitSlot(names=names):
                    axes.append(tuple(Index(n.text) for n in names))
                    for n in names:
                        spans.setdefault(n.text, []).append(n.span)
                case t.AffineSlot() if slot.plain is not None:
                    axes.append((Index(slot.plain.text),))
                    spans.setdefault(slot.plain.text, []).append(slot.plain.span)
                case t.BarSlot(span=span):
                    axes.extend((Index(n.text),) for n in slot.names)
                    plain = self.source.text[target.span.start : target.span.end].replace(
                        self.text(span), " ".join(n.text for n in slot.names)
                    )
                    self.complain(
                        "E-LHSBAR",
                        "a bar on the left side",
                        [span],
                        f"the bar belongs to the score on the right; the left side names plain indices: {plain} = …",
                    )
                case t.AffineSlot(span=span):
                    self.complain(
                        "E-SYNTAX",
                        "the left side takes plain indices or merged groups `(h d)`",
                        [span],
                        "bring the arithmetic to the right side, e.g. as x_<i+1>",
                    )
        self._check_axes(target, axes, spans)
        return tuple(axes), {name: found[0] for name, found in spans.items()}

    def _check_axes(self, target: t.Reference, axes: list[tuple[Index, ...]], spans: dict[str, list[Span]]) -> None:
        """Complaints of too many axes, and of an index that stands twice on the left side."""
        if len(axes) > MOST_AXES:
            what = f"a result of {len(axes)} axes, more than the {MOST_AXES} that array libraries hold"
            self.complain("E-LIMIT", what, [target.span], "merge axes: y_<(i j) k>")
        for name, found in spans.items():
            if len(found) > 1:
                hint = f"a diagonal takes another index and delta, e.g. D_<{name} j> = a_{name} delta_<{name} j>"
                self.complain("E-LHSDUP", f"{name} repeats on the left side", found, hint)

    def _left_over(self, part: Part, free: dict[str, Index]) -> None:
        """Every index that is neither free nor summed dangles."""
        stray: dict[str, list[Span]] = {}
        for name, spans in part.opened.items():
            if name in free or name == BATCH:
                continue
            if name in part.contracted:
                self.scope_error(name, [*part.contracted[name], *spans])
            else:
                stray[name] = spans
        self.dangling(stray, list(free), [*free, *part.opened, *part.contracted])

    def _bare_program(self, node: t.StatementNode, alone: bool) -> Statement:
        if not alone:
            line = self.source.text[: node.span.start].rsplit("\n", 1)[-1].strip()
            begins = line in ("+", "-") or self.text(node.span)[:1] in ("+", "-")
            what = "a line begins with an operator" if begins else "a statement without a left side stands among others"
            hint = (
                "end the line before with the operator; a newline ends a statement"
                if begins
                else "give every statement a left side, y^<…> = …"
            )
            self.complain("E-SYNTAX", what, [node.span], hint)
        for reference in self.names.references(node.body):
            if reference.name.text == BARE:
                self.complain(
                    "E-NAME",
                    f"the result of a bare expression is called `{BARE}`, which this tensor is called too",
                    [reference.name.span],
                    "give the formula a left side, or rename the tensor",
                )
        part = self.expression(node.body, {BATCH: Index(BATCH)})
        kept = [name for name in part.opened if name != BATCH]
        whole = not isinstance(_unbracketed(node.body), (t.ProductNode, t.SumNode))
        barred = {n: part.opened[n] for n in kept if n in self.barred_names and not whole}
        self.dangling(barred, [n for n in kept if n not in barred], kept)
        for name in kept:
            if name in part.contracted:
                self.scope_error(name, [*part.contracted[name], *part.opened[name]])
        places = {**self.first_named, **self.first_seen}
        order = sorted(kept, key=lambda n: (not self.first_upper.get(n, False), places[n]))
        free = {name: Index(name) for name in order}
        batch = [(Index(BATCH),)] if BATCH in part.opened else []
        upper = [n for n in order if self.first_upper.get(n, False)]
        expr = close(part.expr, free)
        axes = (*batch, *((free[n],) for n in order))
        count = len(upper) + (len(batch) if upper or not order else 0)
        return Statement(BARE, axes, renumber(expr, frozenset(free.values()) | {Index(BATCH)}), count, node.span)


def _unbracketed(node: t.Tree) -> t.Tree:
    while isinstance(node, t.Bracket):
        node = node.body
    return node
