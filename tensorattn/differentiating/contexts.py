"""What stands around a node: its cotangent as a sum of a product, not yet written out.

`Σ_{indices of the scope that the node lacks} ± Π factors`, over the tuples that the guards admit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tensorattn.differentiating.expressions import both, call, constant, negate, number, where
from tensorattn.ir import (
    BATCH,
    Affine,
    Constant,
    Expr,
    Extent,
    Index,
    Map,
    Number,
    Product,
    Reduce,
    Tensor,
    substitute,
    walk,
)
from tensorattn.keys import indices_of

if TYPE_CHECKING:
    from tensorattn.differentiating.statements import Book


@dataclass(frozen=True, slots=True)
class Context:
    """`scope`: all indices that run here. `guards`: predicates; what one of them excludes has the gradient 0."""

    factors: tuple[Expr, ...]
    scope: tuple[Index, ...]
    guards: tuple[Expr, ...] = ()
    negative: bool = False

    def times(self, *factors: Expr) -> Context:
        """With further factors; their signs are that of the whole."""
        signed = [f for f in factors if isinstance(f, Map) and f.function == "negate"]
        plain = tuple(f.arguments[0] if f in signed else f for f in factors)
        return replace(self, factors=(*self.factors, *plain), negative=self.negative ^ (len(signed) % 2 == 1))

    def within(self, indices: Iterable[Index]) -> Context:
        """Below a binder or a sum over these indices."""
        return replace(self, scope=tuple(dict.fromkeys((*self.scope, *indices))))

    def under(self, *guards: Expr | None) -> Context:
        """Below further predicates."""
        return replace(self, guards=(*self.guards, *(g for g in guards if g is not None)))

    def negated(self) -> Context:
        return replace(self, negative=not self.negative)

    def renamed(self, names: dict[Index, Index]) -> Context:
        def new(index: Index) -> Index:
            return names.get(index, index)

        return replace(
            self,
            factors=tuple(substitute(f, new) for f in self.factors),
            guards=tuple(substitute(g, new) for g in self.guards),
            scope=tuple(dict.fromkeys(map(new, self.scope))),
        )

    @property
    def used(self) -> frozenset[Index]:
        """The indices that factors or guards have."""
        return frozenset().union(*(e.free for e in (*self.factors, *self.guards)))

    def summed(self, axes: Iterable[Index]) -> tuple[Index, ...]:
        """The indices that are summed where the result has these axes."""
        return tuple(i for i in self.scope if i not in set(axes) and i in self.used)

    def selects(self, axes: Iterable[Index]) -> bool:
        """Whether the guards stand in a `where`: no sum is left that could take them as its predicate."""
        return bool(self.guards) and not self.summed(axes)

    def written(self, axes: Iterable[Index], book: Book) -> Expr:
        """The cotangent over these axes, those that it has; what it takes besides is written into the book."""
        axes = set(axes)
        summed = self.summed(axes)
        lone = tuple(i for i in self.scope if i not in axes and i not in self.used and i.name != BATCH)
        factors, inner = flat(self.factors, book.identity)
        means = tuple(i for i in lone if call("reciprocal", Extent(i.name)) in factors)
        for index in means:
            factors = without(factors, call("reciprocal", Extent(index.name)))
        body = simple(factors, inner if self.guards else (*inner, *summed))
        if self.guards and summed:
            body = Reduce("sum", summed, body, both(*self.guards))
        elif self.guards:
            body = self._selected(body, axes, book)
        body = repeated("mean", means, body, axes)
        body = repeated("sum", tuple(i for i in lone if i not in means), body, axes)
        return negate(body) if self.negative else body

    def _selected(self, body: Expr, axes: set[Index], book: Book) -> Expr:
        """The body where the guards admit it. Positions that only they keep in range stand beside weights with them."""
        guard = both(*self.guards)
        along = [i for i in self.scope if i in axes and i in guard.free]
        if not along or not reads_by_position(body):
            return where(guard, body, Number(0))
        return simple((body, *book.admitted(guard, along[0])), ())


def repeated(kind: str, indices: tuple[Index, ...], body: Expr, axes: Iterable[Index]) -> Expr:
    """The sum or mean of a body over indices that it lacks: 0 where one of them is empty.

    Where something else has the name of one of them, a choice says so.
    """
    if not indices:
        return body
    if not {i.name for i in indices} & {i.name for i in (*axes, *indices_of(body))}:
        return Reduce(kind, indices, body)
    extents = tuple(Extent(i.name) for i in indices)
    count = extents[0] if len(extents) == 1 else Product(extents, ())
    whole = body if kind == "mean" else Product((body, *extents), ())
    return where(call("less", Number(0), count), whole, Number(0))


def without(factors: tuple[Expr, ...], one: Expr) -> tuple[Expr, ...]:
    """The factors less the first that is this one."""
    place = factors.index(one)
    return (*factors[:place], *factors[place + 1 :])


def flat(factors: Iterable[Expr], fresh: Callable[[Index], Index]) -> tuple[tuple[Expr, ...], tuple[Index, ...]]:
    """The factors of a product with those of products among them, whose sums get identities of their own."""
    out: list[Expr] = []
    summed: list[Index] = []
    for factor in factors:
        if not isinstance(factor, Product):
            out.append(factor)
            continue
        names = {index: fresh(index) for index in factor.summed}
        inner = substitute(factor, lambda i, names=names: names.get(i, i))
        below, more = flat(inner.factors, fresh)  # type: ignore[union-attr]
        out += below
        summed += [*inner.summed, *more]  # type: ignore[union-attr]
    return tuple(out), tuple(summed)


def simple(factors: tuple[Expr, ...], summed: tuple[Index, ...]) -> Expr:
    """The product with its numbers in one, in front, and without `ones` that others make superfluous."""
    value: int | float = 1
    kept: list[Expr] = []
    for factor in factors:
        known = constant(factor)
        if known is None:
            kept.append(factor)
        else:
            value *= known
    for ones in [f for f in kept if isinstance(f, Constant) and f.kind == "ones"]:
        if ones.free <= frozenset().union(*(_fixed(f) for f in kept if f is not ones)):
            kept.remove(ones)
    if value == 0:
        return Number(0)
    whole = (*kept,) if value == 1 and kept else (number(value), *kept)
    if len(whole) > 1 and constant(whole[0]) is not None and constant(whole[0]) < 0:  # type: ignore[operator]
        return negate(simple((number(-value), *kept), summed))
    first = next((n for n, f in enumerate(whole) if not _divides(f)), 0)
    whole = (whole[first], *whole[:first], *whole[first + 1 :])
    return whole[0] if len(whole) == 1 and not summed else Product(whole, summed)


def _divides(factor: Expr) -> bool:
    return isinstance(factor, Map) and factor.function == "reciprocal"


def _fixed(factor: Expr) -> frozenset[Index]:
    """The indices that stand in a plain slot of a factor."""
    return frozenset(s for s in factor.slots if isinstance(s, Index)) if isinstance(factor, Tensor) else frozenset()


def reads_by_position(node: Expr) -> bool:
    """Whether a tensor is read at computed positions, which only a predicate may keep in range."""
    return any(isinstance(n, Tensor) and any(isinstance(s, Affine) and s.terms for s in n.slots) for n in walk(node))
