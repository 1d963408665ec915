"""Whether two expressions are one: up to the order of factors, terms and conjuncts, and the names of bound indices.

Nothing is expanded or cancelled, so that expressions that match hold the same numbers, NaN and ±∞ among them; only the
rounding of a sum in another order may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tensorattn.ir import (
    Add,
    Affine,
    Concatenate,
    Constant,
    Expr,
    Index,
    Map,
    Normalise,
    Number,
    Position,
    Product,
    Reduce,
    Slot,
    Split,
    Tensor,
    Top,
)

MOST_STEPS = 10_000  # of a search; what takes longer does not match
FLIPPED = {"greater": "less", "greater_equal": "less_equal"}
UNORDERED = frozenset({"and", "or", "maximum", "minimum", "equal", "not_equal"})

SizeOf = Callable[[str], Hashable]  # index name → what is equal where sizes are proven equal


def alike(a: Expr, b: Expr, size: SizeOf) -> bool:
    """Whether the expressions are one. A search without result in MOST_STEPS steps says no."""
    try:
        return next(_Matcher(size).nodes(a, b, _Scope()), None) is not None
    except _TooLongError:
        return False


class _TooLongError(Exception):
    pass


@dataclass(frozen=True)
class _Scope:
    """The indices bound so far on each side, and which of them stand for one another."""

    left: frozenset[Index] = frozenset()
    right: frozenset[Index] = frozenset()
    pairs: Mapping[Index, Index] = field(default_factory=dict)

    def binding(self, left: Sequence[Index], right: Sequence[Index]) -> _Scope:
        return replace(self, left=self.left | set(left), right=self.right | set(right))


Way = Callable[..., Iterator[_Scope]]


class _Matcher:
    """Every way to match, one scope each: bound indices are paired as they are met."""

    def __init__(self, size: SizeOf) -> None:
        self.size, self.steps = size, 0

    def index(self, a: Index, b: Index, scope: _Scope) -> Iterator[_Scope]:
        if a in scope.pairs or b in scope.pairs.values():
            if scope.pairs.get(a) == b:
                yield scope
        elif a in scope.left or b in scope.right:
            if a in scope.left and b in scope.right and self.size(a.name) == self.size(b.name):
                yield replace(scope, pairs={**scope.pairs, a: b})
        elif a == b:
            yield scope

    def nodes(self, a: Expr, b: Expr, scope: _Scope) -> Iterator[_Scope]:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise _TooLongError
        match a, b:
            case Position(index=i), Position(index=j):
                yield from self.index(i, j, scope)
            case Tensor(name=name), Tensor(name=other) if name == other and len(a.slots) == len(b.slots):
                yield from self.each(self.slot, a.slots, b.slots, scope)
            case Constant(kind=kind), Constant(kind=other) if kind == other:
                way = self.each if kind == "eps" else self.bag
                yield from way(self.index, a.indices, b.indices, scope)
            case Product(), Product():
                yield from self.bound(a.summed, b.summed, a.factors, b.factors, self.bag, scope)
            case Add(), Add():
                yield from self.bag(self.nodes, a.terms, b.terms, scope)
            case Map(), Map():
                yield from self.maps(a, b, scope)
            case Reduce(), Reduce() if a.kind == b.kind and (a.where is None) == (b.where is None):
                parts = [(n.body,) if n.where is None else (n.where, n.body) for n in (a, b)]
                yield from self.bound(a.indices, b.indices, *parts, way=self.each, scope=scope)
            case Normalise(), Normalise() if _form(a) == _form(b):
                for inner in self.bag(self.index, a.indices, b.indices, scope):
                    yield from self.each(self.nodes, _parts(a), _parts(b), inner)
            case Top(), Top() if a == b:  # equal entries are told apart by their places, so no other pairing will do
                yield from self.each(self.index, sorted(a.free), sorted(a.free), scope)
            case Concatenate(), Concatenate() if [p.name for p in a.parts] == [p.name for p in b.parts]:
                inner = scope.binding(a.parts, b.parts)
                for found in self.each(self.index, (a.index, *a.parts), (b.index, *b.parts), inner):
                    for last in self.each(self.nodes, a.arguments, b.arguments, found):
                        yield _left(last, scope, a.parts)
            case _ if not a.free and a == b and isinstance(a, type(b)):
                yield scope

    def maps(self, a: Map, b: Map, scope: _Scope) -> Iterator[_Scope]:
        a, b = _flipped(a), _flipped(b)
        if a.function != b.function or len(a.arguments) != len(b.arguments):
            return
        if a.function in UNORDERED:
            flat = [_parts_of(n, n.function) if n.function in ("and", "or") else n.arguments for n in (a, b)]
            yield from self.bag(self.nodes, *flat, scope=scope)
            return
        yield from self.each(self.nodes, a.arguments, b.arguments, scope)
        if _is_even(a) and isinstance(b.arguments[0], Add):
            negated = Add(tuple(map(_negated, b.arguments[0].terms)))
            yield from self.each(self.nodes, a.arguments, (negated, *b.arguments[1:]), scope)

    def slot(self, a: Slot, b: Slot, scope: _Scope) -> Iterator[_Scope]:
        match a, b:
            case Index(), Index():
                yield from self.index(a, b, scope)
            case Split(), Split() if len(a.indices) == len(b.indices):
                yield from self.each(self.index, a.indices, b.indices, scope)
            case Affine(), Affine() if a.constant == b.constant:
                yield from self.bag(self.times, a.terms, b.terms, scope)

    def times(self, a: tuple[int, Expr], b: tuple[int, Expr], scope: _Scope) -> Iterator[_Scope]:
        if a[0] == b[0]:
            yield from self.nodes(a[1], b[1], scope)

    # several at once ------------------------------------------------------------------------------------------------

    def each(self, way: Way, a: Sequence[Any], b: Sequence[Any], scope: _Scope) -> Iterator[_Scope]:
        """In order."""
        if len(a) == len(b):
            if not a:
                yield scope
            else:
                for inner in way(a[0], b[0], scope):
                    yield from self.each(way, a[1:], b[1:], inner)

    def bag(self, way: Way, a: Sequence[Any], b: Sequence[Any], scope: _Scope) -> Iterator[_Scope]:
        """In any order."""
        if len(a) == len(b):
            if not a:
                yield scope
            for place, other in enumerate(b):
                if a:
                    for inner in way(a[0], other, scope):
                        yield from self.bag(way, a[1:], (*b[:place], *b[place + 1 :]), inner)

    def bound(
        self,
        left: Sequence[Index],
        right: Sequence[Index],
        a: Sequence[Expr],
        b: Sequence[Expr],
        way: Way,
        scope: _Scope,
    ) -> Iterator[_Scope]:
        """Parts below a binder; indices that stand in none of them count by their sizes."""
        if len(left) != len(right):
            return
        for found in way(self.nodes, a, b, scope.binding(left, right)):
            used = {found.pairs[i] for i in left if i in found.pairs}
            sizes = [
                sorted(repr(self.size(i.name)) for i in lone)
                for lone in (
                    [i for i in left if i not in found.pairs],
                    [i for i in right if i not in used],
                )
            ]
            if sizes[0] == sizes[1]:
                yield _left(found, scope, left)


def _left(inner: _Scope, outer: _Scope, bound: Sequence[Index]) -> _Scope:
    """The scope after a binder: what was paired of the outer indices stays."""
    return replace(outer, pairs={i: j for i, j in inner.pairs.items() if i not in bound})


def _form(node: Normalise) -> tuple[str, bool, tuple[str, ...]]:
    return node.kind, node.where is None, tuple(name for name, _ in node.options)


def _parts(node: Normalise) -> tuple[Expr, ...]:
    return (*(() if node.where is None else (node.where,)), *(o for _, o in node.options), node.score)


def _parts_of(node: Expr, function: str) -> tuple[Expr, ...]:
    """The arguments of an associative function, those of nested ones too."""
    if isinstance(node, Map) and node.function == function:
        return tuple(part for argument in node.arguments for part in _parts_of(argument, function))
    return (node,)


def _flipped(node: Map) -> Map:
    if node.function in FLIPPED:
        return Map(FLIPPED[node.function], node.arguments[::-1])
    return node


def _is_even(node: Map) -> bool:
    """Whether the function is the same of −x as of x, exactly."""
    if node.function == "power":
        exponent = node.arguments[1]
        return isinstance(exponent, Number) and isinstance(exponent.value, int) and exponent.value % 2 == 0
    return node.function in ("abs", "cos")


def _negated(term: Expr) -> Expr:
    match term:
        case Map(function="negate", arguments=(inner,)):
            return inner
        case Number(value=value):
            return Number(-value)
    return Map("negate", (term,))
