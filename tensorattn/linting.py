"""Formulas that are valid but read like a slip."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorattn.ir import (
    Add,
    Expr,
    Index,
    Map,
    Normalise,
    Position,
    Product,
    Split,
    Tensor,
    Top,
    normalised_reductions,
    walk,
)
from tensorattn.program import Program
from tensorattn.source import Span


@dataclass(frozen=True, slots=True)
class Lint:
    """What reads like a slip, where, and how to say it on purpose."""

    message: str
    hint: str
    span: Span | None


def lints(program: Program) -> tuple[Lint, ...]:
    """All lints in reading order; a program that was not written, but made, holds no slips of a writer."""
    if program.source is None:
        return ()
    found = [lint for s in program.statements for node in walk(s.body) for lint in _of(node)]
    return tuple(dict.fromkeys(found))


def _of(node: Expr) -> Iterator[Lint]:
    match node:
        case Tensor():
            yield from _diagonal(node)
        case Normalise():
            yield from _normaliser(node)
        case Product():
            yield from _product(node)
        case Add():
            yield from _sum(node)
        case Map(function="sqrt" | "reciprocal", arguments=(Position(index=index),)):
            name = index.name
            yield Lint(
                f"the position {name} stands directly under a root or a division",
                f"the size is |{name}|; for the position write ({name} + 0)",
                node.span,
            )


def _diagonal(tensor: Tensor) -> Iterator[Lint]:
    plain = [
        i for s in tensor.slots for i in ([s] if isinstance(s, Index) else s.indices if isinstance(s, Split) else ())
    ]
    for index in dict.fromkeys(plain):
        if plain.count(index) > 1:
            yield Lint(
                f"`{tensor.name}` is read on its diagonal: {index.name} stands in two of its slots",
                "if a matrix product is meant use two letters",
                tensor.span,
            )


def _normaliser(node: Normalise) -> Iterator[Lint]:
    score = node.score
    if (
        isinstance(score, Product)
        and not score.summed
        and sum(bool(f.free) and isinstance(f, Tensor) for f in score.factors) >= 2
    ):
        yield Lint(
            "the score is a product that contracts nothing",
            "if a dot product is meant, give both factors a common index",
            node.span,
        )
    where = node.where
    if isinstance(where, Map) and where.function == "and" and any(isinstance(w, Top) for w in where.arguments):
        yield Lint(
            "a condition stands beside `top`: it does not restrict the ranking",
            "to rank only admitted entries write top[j : condition; k](x)",
            node.span,
        )


def _product(node: Product) -> Iterator[Lint]:
    barred = [r.weights for r in normalised_reductions(node) if r.product is node]
    groups = {i for f in node.factors if isinstance(f, Normalise) for i in f.indices}
    for index in node.summed:
        holders = [f for f in node.factors if index in f.free]
        if len(holders) >= 3 and index not in groups:
            yield Lint(
                f"the index {index.name} is summed over {len(holders)} factors at once",
                "write the sum as sum[…](…) if it is meant",
                node.span or _first_span(holders),
            )
        for f in barred:
            if index in f.score.free and index not in groups:
                yield Lint(
                    f"weights normalised over {' '.join(i.name for i in f.indices)} are summed over {index.name} too",
                    f"if they should sum to 1 jointly: bar({' '.join(i.name for i in f.indices)} {index.name})",
                    f.span,
                )


def _first_span(nodes: list[Expr]) -> Span | None:
    return next((n.span for n in nodes if n.span), None)


def _sum(node: Add) -> Iterator[Lint]:
    plus = [t for t in node.terms if not (isinstance(t, Map) and t.function == "negate")]
    barred = [(t, n) for t in plus for n in _shallow_normalisers(t)]
    for term, normaliser in barred:
        kept = set(normaliser.indices) & term.free
        for other in plus:
            if other is term or not kept & other.free:
                continue
            name = " ".join(sorted(i.name for i in kept))
            both = any(o is other for o, _ in barred)
            what = (
                "two separately normalised terms are added"
                if both
                else "normalised weights are added to a term that is not normalised"
            )
            yield Lint(
                f"{what}, both carrying {name}", f"the softmax of a sum is softmax[{name}](A + B)", normaliser.span
            )
            return


def _shallow_normalisers(term: Expr) -> Iterator[Normalise]:
    """Normalisers that are the term or a factor of it and came from a bar or a softmax over one tensor."""
    factors = term.factors if isinstance(term, Product) else (term,)
    for factor in factors:
        if isinstance(factor, Normalise) and isinstance(factor.score, Tensor):
            yield factor
