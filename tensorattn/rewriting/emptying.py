"""Sums over nothing: Σ_j of no tuple is 0 whatever the factors hold that lack j.

A product is contracted pair by pair, and 0 · NaN is NaN where one pair is multiplied with an empty sum. Below a
predicate that excludes every tuple it is what it should be, and so is its gradient. The predicate is for this sum
alone: `+ 0` keeps it from the product around, for what is 0 there is a number like any.

A tracer knows no sizes, and a predicate costs what a mask costs at all sizes. There what lacks j is 0 where `|j|` is;
what is made of weights or of other sums stays as it is, for plans look for it, and the whole sum is 0 there instead.
Below a predicate of their own, sums need nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from functools import partial

from tensorattn.dtypes import Typing, is_float
from tensorattn.ir import (
    Add,
    Expr,
    Extent,
    Index,
    Map,
    Normalise,
    Number,
    Position,
    Product,
    Reduce,
    Tensor,
    Top,
    rebuild,
    walk,
)
from tensorattn.predicates import bringing, brings
from tensorattn.program import Program


def without_empty_sums(program: Program, empty: Set[str]) -> Program:
    """The program with a predicate on every sum and mean over an index among the `empty` ones."""
    masked = bringing(program)
    statements = tuple(replace(s, body=_guarded(s.body, empty, masked)) for s in program.statements)
    return replace(program, statements=statements)


def with_doubtful_sums(program: Program, known: Set[str], typing: Typing) -> Program:
    """The program with sums and means that are 0 where they turn out to be empty: over indices not `known` to be more.

    Below a predicate of its own, a sum is left as it is, and so are integers, which are never NaN.
    """
    masked, defined = bringing(program), frozenset(program.defined)
    settle = partial(_settled, doubt=_Doubt(known, masked, defined, typing))
    return replace(program, statements=tuple(replace(s, body=settle(s.body)) for s in program.statements))


def _guarded(node: Expr, empty: Set[str], masked: Set[str]) -> Expr:
    node = _undivided(node, tuple(i for one in _sums(node) for i in one.indices if i.name in empty)[:1])
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


def _undivided(node: Expr, indices: tuple[Index, ...]) -> Expr:
    """A product whose divisors are 1 where one of the indices is empty: with no tuple there is nothing to divide."""
    if not (indices and isinstance(node, Product)):
        return node
    return replace(node, factors=tuple(_divisor(f, indices) if _is_divisor(f) else f for f in node.factors))


def _sums(node: Expr) -> list[Reduce]:
    """The factors of a product that are sums or means."""
    factors = node.factors if isinstance(node, Product) else ()
    return [f for f in factors if isinstance(f, Reduce) and f.kind in ("sum", "mean")]


def _terms(node: Expr) -> tuple[Expr, ...]:
    return node.terms if isinstance(node, Add) else (node,)


def _product(factors: tuple[Expr, ...]) -> Expr:
    return factors[0] if len(factors) == 1 else Product(factors, ())


def _first(indices: tuple[Index, ...], empty: Set[str]) -> Index | None:
    return next((index for index in indices if index.name in empty), None)


def _never(index: Index) -> Expr:
    return Map("less", (Position(index), Number(0)))


# At sizes that are not known --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Doubt:
    """Which indices are known not to be empty, which definitions bring predicates or are there at all, and dtypes."""

    known: Set[str]
    masked: Set[str]
    defined: Set[str]
    typing: Typing

    def of(self, summed: tuple[Index, ...]) -> tuple[Index, ...]:
        return tuple(index for index in summed if index.name not in self.known)

    def is_exact(self, node: Expr) -> bool:
        return not is_float(self.typing.of(node))

    def is_data(self, node: Expr) -> bool:
        """Whether an expression is made of inputs, entry by entry, and by no exponential, a part of a softmax."""
        return not any(
            isinstance(part, (Normalise, Product, Reduce, Top))
            or (isinstance(part, Map) and part.function == "exp")
            or (isinstance(part, Tensor) and part.name in self.defined)
            for part in walk(node)
        )


def _settled(node: Expr, doubt: _Doubt) -> Expr:
    masked, sums = brings(node, doubt.masked), _sums(node)
    node = rebuild(node, partial(_settled, doubt=doubt))
    match node:
        case Product(summed=summed) if not masked:
            doubtful = tuple(dict.fromkeys(i for one in sums for i in doubt.of(one.indices)))
            return _settled_sum(_undivided(node, doubtful), doubt.of(summed), doubt)
        case Reduce(kind="sum", indices=indices, where=None):
            return _settled_sum(node, doubt.of(indices), doubt)
        case Reduce(kind="mean", indices=indices, where=None) if doubt.of(indices):
            body = _unless_empty(node.body, doubt.of(indices), doubt)
            return _choice(doubt.of(indices), replace(node, body=body), 0)
    return node


def _settled_sum(node: Expr, summed: tuple[Index, ...], doubt: _Doubt) -> Expr:
    """A sum whose factors are 0 where an index that they lack is empty; or all of it is, where that is not enough."""
    if isinstance(node, Product):
        whole = replace(node, factors=tuple(_unless_empty(f, summed, doubt) for f in node.factors))
    else:
        assert isinstance(node, Reduce)
        whole = replace(node, body=_unless_empty(node.body, summed, doubt))
    left = tuple(dict.fromkeys(_left(node if isinstance(node, Product) else node.body, summed, doubt)))
    return _choice(left, whole, 0) if left else whole


def _unless_empty(node: Expr, indices: tuple[Index, ...], doubt: _Doubt) -> Expr:
    """The expression with 0 for the data in its products (1 for divisors) where an index that they lack is empty."""
    if isinstance(node, Product):
        return replace(node, factors=tuple(_unless_empty(f, indices, doubt) for f in node.factors))
    lacking = tuple(index for index in indices if index not in node.free)
    if not lacking or not doubt.is_data(node) or doubt.is_exact(node):
        return node
    return _divisor(node, lacking) if _is_divisor(node) else _choice(lacking, node, 0)


def _left(node: Expr, indices: tuple[Index, ...], doubt: _Doubt) -> Iterator[Index]:
    """The indices that something lacks which is no data."""
    if isinstance(node, Product):
        for factor in node.factors:
            yield from _left(factor, indices, doubt)
    elif not (doubt.is_data(node) or doubt.is_exact(node)):
        yield from (index for index in indices if index not in node.free)


def _divisor(node: Expr, indices: tuple[Index, ...]) -> Expr:
    """A divisor that is 1 where one of the indices is empty."""
    assert isinstance(node, Map)
    return replace(node, arguments=(_choice(indices, node.arguments[0], 1),))


def _choice(indices: tuple[Index, ...], node: Expr, otherwise: int) -> Expr:
    """The expression where none of the indices is empty."""
    filled = Map("less", (Number(0), _product(tuple(Extent(i.name) for i in indices))))
    return Map("where", (filled, node, Number(otherwise)))


def _is_divisor(node: Expr) -> bool:
    return isinstance(node, Map) and node.function == "reciprocal"
