"""What the rules on scores share: the terms of a score, the conjuncts of a predicate, and what holds an index."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tensorattn.ir import Add, Constant, Expr, Index, Map, Normalise, Number, Product, Tensor, walk


def terms(weights: Normalise) -> tuple[Expr, ...]:
    """The terms whose sum is the score of a normaliser, each without the `ones` that only spread it."""
    barred = frozenset(weights.indices)
    return tuple(_unspread(term, barred) for term in _terms(weights.score))


def _terms(score: Expr) -> tuple[Expr, ...]:
    """The terms of a sum.

    A sign or a factor of numbers and sizes multiplies each; one that is data does not: where it is infinite,
    c (a + b) and c a + c b differ.
    """
    match score:
        case Add(terms=parts):
            return tuple(term for part in parts for term in _terms(part))
        case Map(function="negate", arguments=(inner,)):
            return tuple(_negated(term) for term in _terms(inner))
        case Product(factors=factors, summed=()):
            sums = [n for n, factor in enumerate(factors) if isinstance(factor, Add)]
            rest = [factor for n, factor in enumerate(factors) if n not in sums]
            if len(sums) == 1 and not any(map(_varies, rest)):
                return tuple(_product((*rest, term)) for term in _terms(factors[sums[0]]))
    return (score,)


def _unspread(term: Expr, barred: frozenset[Index]) -> Expr:
    """A normaliser spreads its score over its indices itself."""
    match term:
        case Constant(kind="ones") if term.free <= barred:
            return Number(1)
        case Product(factors=factors, summed=summed):
            kept = tuple(f for f in factors if not is_ones(f) or not f.free <= barred.difference(summed))
            if len(kept) == len(factors):
                return term
            return kept[0] if len(kept) == 1 and not summed else replace(term, factors=kept)
        case Map(function="negate", arguments=(inner,)):
            return _negated(_unspread(inner, barred))
    return term


def is_ones(node: Expr) -> bool:
    """Whether it is the constant that only spreads a term."""
    return isinstance(node, Constant) and node.kind == "ones"


def total(parts: Sequence[Expr]) -> Expr:
    """The sum of terms; of none: 0."""
    if not parts:
        return Number(0)
    return parts[0] if len(parts) == 1 else Add(tuple(parts))


def conjuncts(where: Expr | None) -> tuple[Expr, ...]:
    """The conditions that all have to hold."""
    match where:
        case None:
            return ()
        case Map(function="and", arguments=parts):
            return tuple(conjunct for part in parts for conjunct in conjuncts(part))
    return (where,)


def conjunction(parts: Iterable[Expr]) -> Expr | None:
    """The condition that all of these hold; of none: None."""
    found = tuple(dict.fromkeys(parts))
    return Map("and", found) if len(found) > 1 else next(iter(found), None)


def support(parts: Iterable[Expr]) -> frozenset[Index]:
    """The indices open in any of these."""
    return frozenset().union(*(part.free for part in parts))


def _negated(term: Expr) -> Expr:
    match term:
        case Map(function="negate", arguments=(inner,)):
            return inner
    return Map("negate", (term,))


def _product(factors: tuple[Expr, ...]) -> Expr:
    """A product of factors; those of a product among them join it."""
    *rest, last = factors
    if isinstance(last, Product):
        return Product((*rest, *last.factors), last.summed, span=last.span)
    return Product(factors)


def _varies(factor: Expr) -> bool:
    """Whether a factor has indices or data in it."""
    return bool(factor.free) or any(isinstance(node, Tensor) for node in walk(factor))
