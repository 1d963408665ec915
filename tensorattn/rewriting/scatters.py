"""Sums that data sort by position: `sum[n : p == σ_n](x_n)` adds each x_n to the place that σ says, one pass over n.

As a product with the truth `p == σ_n` it would be a product with a one-hot matrix. Places that no p is are left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorattn.ir import Expr, Index, Map, Position, Product, Reduce, Tensor, walk
from tensorattn.rewriting.scores import conjunction, conjuncts
from tensorattn.rewriting.sums import merge_sums


@dataclass(frozen=True, slots=True)
class Scatters:
    """`places`: for each index of the result that data give, the expression that gives it; `where`: what else holds."""

    places: tuple[tuple[Index, Expr], ...]
    where: Expr | None

    @property
    def free(self) -> frozenset[Index]:
        """The indices of the places and of the rest of the predicate."""
        found = [places.free for _, places in self.places]
        return frozenset().union(*found, self.where.free if self.where is not None else ())

    @property
    def condition(self) -> Expr | None:
        """The predicate that says so."""
        placed = (Map("equal", (Position(index), places)) for index, places in self.places)
        return conjunction((*placed, *conjuncts(self.where)))


def scatters(node: Expr) -> Scatters | None:
    """How a sum is one by places that data give, if it is."""
    if not isinstance(node, Reduce) or node.kind != "sum":
        return None
    parts = conjuncts(node.where)
    places: dict[Index, Expr] = {}
    rest: list[Expr] = []
    for part in parts:
        found = _place(part, node.indices)
        others = frozenset().union(node.body.free, *(p.free for p in parts if p is not part))
        if found is None or found[0] in others:
            rest.append(part)
        else:
            places[found[0]] = found[1]
    return Scatters(tuple(places.items()), conjunction(rest)) if places else None


def _place(part: Expr, summed: tuple[Index, ...]) -> tuple[Index, Expr] | None:
    """`p == data`: the index p, which is not summed, and the data, which have a summed index and not p."""
    match part:
        case Map(function="equal", arguments=(Position(index=index), places)):
            pass
        case Map(function="equal", arguments=(places, Position(index=index))):
            pass
        case _:
            return None
    data = any(isinstance(n, Tensor) for n in walk(places))
    if not data or index in summed or index in places.free or places.free.isdisjoint(summed):
        return None
    return index, places


def sum_apart(node: Expr) -> Expr:
    """Such a sum in which the indices that neither places nor predicates have are summed in a product of their own."""
    found = scatters(node)
    if found is None:
        return node
    assert isinstance(node, Reduce)
    inner = tuple(i for i in node.indices if i not in found.free)
    outer = tuple(i for i in node.indices if i in found.free)
    if not inner or not outer:
        return node
    return replace(node, indices=outer, body=merge_sums(Product((node.body,), inner)))
