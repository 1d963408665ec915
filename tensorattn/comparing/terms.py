"""Expression → sum of terms `coefficient · Π factor^exponent`, summed over indices: products distributed.

Numbers are exact fractions. Every summed index gets a new identity on the way, so nothing is captured. Equal terms
stand for equal functions of finite real numbers; a predicate of a sum is a factor that is 0 or 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from itertools import count
from math import isqrt

from tensorattn.ir import (
    Add,
    Concatenate,
    Constant,
    Expr,
    Extent,
    Index,
    Map,
    Number,
    Product,
    Reduce,
    children,
    rebuild,
    substitute,
)
from tensorattn.rewriting.deltas import eliminate_deltas

MOST_TERMS = 64  # of one sum of products; above it factors stay as they are
MOST_POWER = 4


class TooLargeError(Exception):
    """The normal form would take too long; other means decide."""


@dataclass(frozen=True, slots=True)
class Term:
    """`coefficient · Σ_summed Π factor^exponent`."""

    coefficient: Fraction
    factors: tuple[tuple[Expr, Fraction], ...] = ()
    summed: tuple[Index, ...] = ()

    @property
    def free(self) -> frozenset[Index]:
        return frozenset().union(*(f.free for f, _ in self.factors)) - frozenset(self.summed)


ONE = Term(Fraction(1))


class Expander:
    """Makes terms; a counter keeps the indices it binds apart from all others."""

    def __init__(self, first: int) -> None:
        self.numbers = count(first)

    def fresh(self, indices: Iterable[Index]) -> dict[Index, Index]:
        """New identities for bound indices; their names, and so their sizes, stay."""
        return {i: Index(i.name, next(self.numbers)) for i in indices}

    def terms(self, node: Expr) -> tuple[Term, ...]:
        """The terms of an expression, not yet collected."""
        match node:
            case Number(value=value):
                return (Term(exact(value)),) if value else ()
            case Add(terms=parts):
                return tuple(t for part in parts for t in self.terms(part))
            case Map(function="negate", arguments=(inner,)):
                return tuple(replace(t, coefficient=-t.coefficient) for t in self.terms(inner))
            case Map(function="reciprocal", arguments=(inner,)):
                return self.inverse(node, inner)
            case Map(function="power", arguments=(base, exponent)) if (number := self.constant(exponent)) is not None:
                return self.power(node, base, number)
            case Map(function="sqrt", arguments=(inner,)):
                return self.root(node, inner)
            case Map(function="exp", arguments=(Number(value=0),)):
                return (ONE,)
            case Constant(kind="ones"):
                return (ONE,)
            case Product():
                return self.product(node)
            case Reduce(kind="sum", indices=indices, body=body, where=where):
                factors = (body,) if where is None else (body, where)
                return self.product(Product(factors, indices))
            case Reduce(kind="mean", indices=indices, body=body, where=None):
                shares = tuple(Map("reciprocal", (Extent(i.name),)) for i in indices)
                return self.product(Product((body, *shares), indices))
        return (Term(Fraction(1), ((node, Fraction(1)),)),)

    def product(self, node: Product) -> tuple[Term, ...]:
        new = self.fresh(node.summed)
        factors = [substitute(f, lambda i: new.get(i, i)) for f in node.factors]
        summed = tuple(new.values())
        total: tuple[Term, ...] = (Term(Fraction(1), (), summed),)
        for factor in factors:
            parts = self.terms(factor)
            if len(parts) * len(total) > MOST_TERMS:
                parts = (Term(Fraction(1), ((factor, Fraction(1)),)),)
            total = tuple(_times(a, self.apart(b)) for a in total for b in parts)
        return tuple(t for term in total for t in self.settled(term))

    def apart(self, term: Term) -> Term:
        """The term with new identities for its summed indices: one factor may stand in several products."""
        new = self.fresh(term.summed)
        factors = tuple((substitute(f, lambda i: new.get(i, i)), e) for f, e in term.factors)
        return Term(term.coefficient, factors, tuple(new.values()))

    def settled(self, term: Term) -> tuple[Term, ...]:
        """Deltas eliminated, sums over concatenated axes split, sums of nothing counted, equal factors collected."""
        term = _collected(_without_deltas(term))
        for index in term.summed:
            parts = self.split(term, index)
            if parts is not None:
                return tuple(t for part in parts for t in self.product(part))
        lone = [i for i in term.summed if not any(i in f.free for f, _ in term.factors)]
        sizes = tuple((Extent(i.name), Fraction(1)) for i in lone)
        return (
            _collected(Term(term.coefficient, (*term.factors, *sizes), tuple(i for i in term.summed if i not in lone))),
        )

    def split(self, term: Term, index: Index) -> list[Product] | None:
        """`Σ_a cat[a = m + j](A, B) x_a` part by part, where every factor with `a` is such a union of equal parts."""
        holders = [f for f, _ in term.factors if index in f.free]
        first = next(iter(holders), None)
        if not isinstance(first, Concatenate) or term.coefficient == 0:
            return None
        names = [p.name for p in first.parts]
        for f in holders:
            alike = isinstance(f, Concatenate) and f.index == index and [p.name for p in f.parts] == names
            if not alike or any(index in a.free for a in f.arguments):  # type: ignore[union-attr]
                return None
        return [self.part(term, index, place) for place in range(len(names))]

    def part(self, term: Term, index: Index, place: int) -> Product:
        bound: Index | None = None
        factors: list[Expr] = [_number(term.coefficient)]
        for factor, exponent in term.factors:
            if isinstance(factor, Concatenate) and factor.index == index:
                own = factor.parts[place]
                bound = bound or next(iter(self.fresh([own]).values()))
                new = {own: bound}
                factor = substitute(factor.arguments[place], lambda i, new=new: new.get(i, i))
            factors.append(_raised(factor, exponent))
        return Product(tuple(factors), (*(i for i in term.summed if i != index), *([bound] if bound else [])))

    def power(self, node: Expr, base: Expr, exponent: Fraction) -> tuple[Term, ...]:
        parts = self.terms(base)
        if exponent == 0:
            return (ONE,)
        if exponent == Fraction(1, 2):
            return self.root(node, base)
        if exponent.denominator == 1 and len(parts) == 1 and not parts[0].summed:
            return (_collected(_raise(parts[0], exponent)),)
        if exponent.denominator == 1 and 1 < exponent <= MOST_POWER and len(parts) ** int(exponent) <= MOST_TERMS:
            return self.product(Product((base,) * int(exponent)))
        if exponent < 0:
            below = self.power(Map("power", (base, _number(-exponent))), base, -exponent)
            if len(below) == 1 and not below[0].summed:
                return (_collected(_raise(below[0], Fraction(-1))),)
            return (Term(Fraction(1), ((Map("power", (base, _number(-exponent))), Fraction(-1)),)),)
        return (Term(Fraction(1), ((node, Fraction(1)),)),)

    def constant(self, node: Expr) -> Fraction | None:
        """The value of an expression that holds literals alone."""
        if node.free:
            return None
        parts = self.terms(node)
        if any(t.factors for t in parts):
            return None
        return sum((t.coefficient for t in parts), start=Fraction(0))

    def inverse(self, node: Expr, inner: Expr) -> tuple[Term, ...]:
        parts = self.terms(inner)
        if len(parts) == 1 and not parts[0].summed:
            return (_collected(_raise(parts[0], Fraction(-1))),)
        return (Term(Fraction(1), ((inner, Fraction(-1)),)),) if parts else (Term(Fraction(1), ((node, Fraction(1)),)),)

    def root(self, node: Expr, inner: Expr) -> tuple[Term, ...]:
        """`sqrt` of a product of sizes and a positive number, which are no less than 0."""
        parts = self.terms(inner)
        sizes = len(parts) == 1 and not parts[0].summed and all(isinstance(f, Extent) for f, _ in parts[0].factors)
        if not sizes or parts[0].coefficient <= 0:
            return (Term(Fraction(1), ((Map("sqrt", (inner,)), Fraction(1)),)),)
        term = parts[0]
        factors = tuple((f, e / 2) for f, e in term.factors)
        root = Fraction(isqrt(term.coefficient.numerator), isqrt(term.coefficient.denominator))
        if root * root == term.coefficient:
            return (Term(root, factors),)
        return (Term(Fraction(1), (*factors, (Map("sqrt", (_number(term.coefficient),)), Fraction(1)))),)


def exact(value: int | float) -> Fraction:
    """A literal as it is written: 0.1 is one tenth."""
    if isinstance(value, float) and value not in (float("inf"), float("-inf")) and value == value:
        return Fraction(repr(value))
    if isinstance(value, int):
        return Fraction(value)
    raise TooLargeError


def _number(value: Fraction) -> Expr:
    if value.denominator == 1:
        return Number(int(value))
    return Product((Number(value.numerator), Map("reciprocal", (Number(value.denominator),))))


def _raised(factor: Expr, exponent: Fraction) -> Expr:
    if exponent == 1:
        return factor
    if exponent == -1:
        return Map("reciprocal", (factor,))
    return Map("power", (factor, _number(exponent)))


def _times(a: Term, b: Term) -> Term:
    return Term(a.coefficient * b.coefficient, a.factors + b.factors, a.summed + b.summed)


def _raise(term: Term, exponent: Fraction) -> Term:
    coefficient = term.coefficient ** int(exponent)
    return Term(coefficient, tuple((f, e * exponent) for f, e in term.factors))


def _collected(term: Term) -> Term:
    """Equal factors as one power, gone where the exponents cancel. Sizes do not cancel: they may be 0."""
    exponents: dict[tuple[Expr, bool], Fraction] = {}
    for factor, exponent in term.factors:
        known = factor, isinstance(factor, Extent) and exponent < 0
        exponents[known] = exponents.get(known, Fraction(0)) + exponent
    return replace(term, factors=tuple((f, e) for (f, _), e in exponents.items() if e))


def _without_deltas(term: Term) -> Term:
    deltas = [
        f
        for f, _ in term.factors
        if isinstance(f, Constant) and f.kind == "delta" and set(f.indices) & set(term.summed)
    ]
    if not deltas or any(e != 1 for f, e in term.factors if f in deltas):
        return term
    product = eliminate_deltas(Product(tuple(_raised(f, e) for f, e in term.factors), term.summed))
    assert isinstance(product, Product)
    factors = [_lowered(f) for f in product.factors if not (isinstance(f, Constant) and f.kind == "ones")]
    return Term(term.coefficient, tuple(factors), product.summed)


def _lowered(factor: Expr) -> tuple[Expr, Fraction]:
    """The inverse of `_raised`."""
    match factor:
        case Map(function="reciprocal", arguments=(inner,)):
            return inner, Fraction(-1)
        case Map(function="power", arguments=(inner, Number(value=value))):
            return inner, Fraction(value)
    return factor, Fraction(1)


def simplified(node: Expr) -> Expr:
    """Inverse functions cancelled, nested logic flattened, children first."""
    node = rebuild(node, simplified)
    match node:
        case Map(function="exp", arguments=(Map(function="log", arguments=(inner,)),)):
            return inner
        case Map(function="log", arguments=(Map(function="exp", arguments=(inner,)),)):
            return inner
        case Map(function="not", arguments=(Map(function="not", arguments=(inner,)),)):
            return inner
        case Map(function="and" | "or" as function, arguments=arguments):
            flat = [
                p for a in arguments for p in (children(a) if isinstance(a, Map) and a.function == function else (a,))
            ]
            return Map(function, tuple(dict.fromkeys(flat)))
    return node


def scaled(terms: Iterable[Term], factor: Fraction) -> tuple[Term, ...]:
    """Every term times a number."""
    return tuple(replace(t, coefficient=t.coefficient * factor) for t in terms)


def difference(a: tuple[Term, ...], b: tuple[Term, ...]) -> tuple[Term, ...]:
    """`a − b`."""
    return reduce(lambda x, y: (*x, y), scaled(b, Fraction(-1)), a)
