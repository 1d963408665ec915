"""How an expression sees an index: through one tensor of integers, or otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensorattn.ir import Affine, Expr, Index, Position, Tensor, children


@dataclass(frozen=True, slots=True)
class Lookup:
    """A table read at a position that a tensor of integers gives: the tensor, the table and the axis."""

    places: Tensor
    table: str
    axis: int

    @property
    def name(self) -> str:
        """The size of the axis, and the name of an index that runs along it."""
        return f"{self.table}.{self.axis}"


def lookup_of(score: Expr, index: Index) -> Lookup | None:
    """The one map through which a score sees an index; None where it sees it in any other way."""
    found = set(_seen(score, index))
    lookup = found.pop() if len(found) == 1 else None
    if lookup is None or not all(isinstance(slot, Index) for slot in lookup.places.slots):
        return None
    return lookup


def _seen(node: Expr, index: Index) -> Iterator[Lookup | None]:
    """How parts of an expression see the index: through maps, or otherwise (None)."""
    if index not in node.free:
        return
    if not isinstance(node, Tensor):
        if isinstance(node, Position):
            yield None
        below = [child for child in children(node) if index in child.free]
        if not below:
            yield None
        for child in below:
            yield from _seen(child, index)
        return
    for axis, slot in enumerate(node.slots):
        match slot:
            case Affine(terms=((1, Tensor() as places),), constant=0) if index in places.free:
                yield Lookup(replace(places, span=None), node.name, axis)
            case _ if index in ({slot} if isinstance(slot, Index) else slot.free):
                yield None
