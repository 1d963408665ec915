"""Sums by segment: `Σ_n` of what has σ(n) = s, for every s (`rewriting/segments.py` makes them)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorattn import dtypes
from tensorattn.ir import Number, Reduce
from tensorattn.kernel import CheckRange, SegmentSum
from tensorattn.parts import Literal, Register
from tensorattn.rewriting.segments import Segments
from tensorattn.sizes import Size

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering


def lower(state: Lowering, node: Reduce, found: Segments) -> Register:
    """A sum or mean by segment; nothing there: 0. What is excluded is replaced by 0 and has no place to be checked."""
    b, dtype = state.builder, dtypes.work(state.typing.of(node))
    mask = None if found.where is None else state.array(found.where)
    segment = _checked(state, found, mask)
    if isinstance(node.body, Number) and node.kind == "sum":
        count = _count(state, found, segment, mask)
        return b.apply("multiply", count, Literal(node.body.value), dtype=dtype) if node.body.value != 1 else count
    with state.under(mask):
        body = state.array(node.body, dtype)
    if node.kind == "sum":
        return _summed(state, found, segment, body, mask)
    total = _summed(state, found, segment, b.array(body, "float64"), mask)  # of float32 it might overflow
    count = b.apply("maximum", _count(state, found, segment, mask), Literal(1), dtype="int64")
    return b.array(b.apply("divide", total, b.cast(count, "float64"), dtype="float64"), dtype)


def _checked(state: Lowering, found: Segments, mask: Register | None) -> Register:
    """The places in range; an error that names the table where an admitted one is not."""
    b, places = state.builder, state.array(found.places, "int64")
    admitted = b.all_of((state.admitted, mask))
    where = None if admitted is None else b.fold("any", admitted, places.axes)
    table, _, axis = found.segment.name.rpartition(".")
    what = f"position in axis {axis} of `{table}`"
    out = b.register(places.axes, "int64")
    return b.emit(CheckRange(out, places, Size.of(found.segment.name), where, what))


def _count(state: Lowering, found: Segments, segment: Register, mask: Register | None) -> Register:
    """How many entries each segment has; whole numbers add up exactly as floats, and faster."""
    b = state.builder
    return b.array(_summed(state, found, segment, b.array(Literal(1), "float64"), mask), "int64")


def _summed(state: Lowering, found: Segments, segment: Register, body: Register, mask: Register | None) -> Register:
    b = state.builder
    axes = {*body.axes, *segment.axes, *(mask.axes if mask is not None else ())}
    if mask is not None:
        body = b.apply("select", mask, body, Literal(0), dtype=body.dtype)
    body = b.broadcast(body, axes)
    kept = b.order(found.segment if index == found.axis else index for index in body.axes)
    return b.emit(SegmentSum(b.register(kept, body.dtype), body, segment, found.axis, found.segment))
