"""Sums over nothing, at sizes that are known: Σ_j of no tuple is 0 whatever the factors hold that lack j.

A product is contracted pair by pair, and 0 · NaN is NaN where one pair is multiplied with an empty sum. Below a
predicate that excludes every tuple it is what it should be, and so is its gradient. The predicate is for this sum
alone: `+ 0` keeps it from the product around, for what is 0 there is a number like any.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from functools import partial

from tensorattn.ir import Add, Expr, Index, Map, Number, Position, Product, Reduce, rebuild
from tensorattn.predicates import bringing, brings
from tensorattn.program import Program


def without_empty_sums(program: Program, empty: Set[str]) -> Program:
    """The program with a predicate on every sum and mean over an index among the `empty` ones."""
    masked = bringing(program)
    statements = tuple(replace(s, body=_guarded(s.body, empty, masked)) for s in program.statements)
    return replace(program, statements=statements)


def _guarded(node: Expr, empty: Set[str], masked: Set[str]) -> Expr:
    node = _with_divisors_inside(node, empty)
    inner = rebuild(node, partial(_guarded, empty=empty, masked=masked))
    match inner:
        case Product(factors=factors, summed=summed) if index := _first(summed, empty):
            found = Reduce("sum", summed, _product(factors), _never(index))
        case Reduce(kind="sum" | "mean", indices=indices, where=None) if index := _first(indices, empty):
            found = replace(inner, where=_never(index))
        case Add(terms=terms):
            return replace(inner, terms=tuple(t for term in terms for t in _terms(term)))
        case _:
            return inner
    return found if brings(node, masked) else Add((found, Number(0)))


def _with_divisors_inside(node: Expr, empty: Set[str]) -> Expr:
    """A product in which the first empty sum takes what divides it: with no tuple there is nothing to divide."""
    if not isinstance(node, Product):
        return node
    sums = [f for f in node.factors if isinstance(f, Reduce) and f.kind in ("sum", "mean") and _first(f.indices, empty)]
    divisors = [f for f in node.factors if isinstance(f, Map) and f.function == "reciprocal"]
    if not (sums and divisors):
        return node
    whole = replace(sums[0], body=Product((sums[0].body, *divisors), ()))
    factors = tuple(whole if f is sums[0] else f for f in node.factors if f not in divisors)
    return factors[0] if len(factors) == 1 and not node.summed else replace(node, factors=factors)


def _terms(node: Expr) -> tuple[Expr, ...]:
    return node.terms if isinstance(node, Add) else (node,)


def _product(factors: tuple[Expr, ...]) -> Expr:
    return factors[0] if len(factors) == 1 else Product(factors, ())


def _first(indices: tuple[Index, ...], empty: Set[str]) -> Index | None:
    return next((index for index in indices if index.name in empty), None)


def _never(index: Index) -> Expr:
    return Map("less", (Position(index), Number(0)))
