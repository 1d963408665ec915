"""Which axis of an output is one of the weights': the two run together through every statement between them."""

from __future__ import annotations

from collections.abc import Mapping

from tensorattn.ir import Concatenate, Expr, Index, Normalise, Tensor, Top, walk
from tensorattn.program import Program

Ties = Mapping[int, int]  # the number of an axis of the weights → that of the axis of a statement


def ties(program: Program, source: str, rank: int, output: str) -> Ties:
    """The axes of `output` at a position of which only that position along an axis of the input `source` has influence.

    Every reading on the way goes through a plain slot that is a free index, and nothing normalises along it.
    """
    known: dict[str, Ties] = {source: {axis: axis for axis in range(rank)}}
    for statement in program.statements:
        readings = [n for n in walk(statement.body) if isinstance(n, Tensor) and n.name in known]
        if not readings:
            continue
        places = {axis[0]: n for n, axis in enumerate(statement.axes) if len(axis) == 1}
        places = {index: n for index, n in places.items() if not _mixes(statement.body, index, known)}
        found: dict[int, int] = {}
        for axis in range(rank):
            slots = {_slot(reading, known[reading.name].get(axis)) for reading in readings}
            index = slots.pop() if len(slots) == 1 else None
            if index is not None and index in places:
                found[axis] = places[index]
        known[statement.name] = found
    return known.get(output, {})


def _slot(reading: Tensor, place: int | None) -> Index | None:
    slot = reading.slots[place] if place is not None else None
    return slot if isinstance(slot, Index) else None


def _mixes(node: Expr, index: Index, known: Mapping[str, Ties]) -> bool:
    """Whether something runs along an index over what depends on the weights."""
    for part in walk(node):
        along = part.indices if isinstance(part, (Normalise, Top)) else ()
        if isinstance(part, Concatenate):
            along = (part.index, *part.parts)
        if index in along and any(isinstance(n, Tensor) and n.name in known for n in walk(part)):
            return True
    return False
