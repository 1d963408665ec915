"""Sums by places that data give (`rewriting/scatters.py`), as one `Scatter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tensorattn import dtypes
from tensorattn.ir import Expr, Index, Reduce
from tensorattn.kernel import CheckRange, Scatter
from tensorattn.parts import Literal, Register
from tensorattn.rewriting.scatters import Scatters
from tensorattn.sizes import Size

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering


def lower(state: Lowering, node: Reduce, found: Scatters) -> Register:
    """Every admitted entry at its place; what has none among the places there are is left out."""
    b, dtype = state.builder, dtypes.work(state.typing.of(node))
    places, mask = _placed(state, found)
    with state.under(mask):
        body = state.array(node.body, dtype)
    return _scattered(state, node, places, b.apply("select", mask, body, Literal(0), dtype=dtype))


def some(state: Lowering, node: Reduce, found: Scatters) -> Register:
    """Which places have an admitted entry."""
    b = state.builder
    places, mask = _placed(state, found)
    return b.apply("greater", _scattered(state, node, places, b.array(mask, "int64")), Literal(0), dtype="bool")


def _placed(state: Lowering, found: Scatters) -> tuple[dict[Index, Register], Register]:
    """The places, and which entries are admitted and have one."""
    mask = None if found.where is None else state.array(found.where)
    places: dict[Index, Register] = {}
    for index, expression in found.places:
        places[index], there = _place(state, index, expression)
        mask = state.builder.all_of((mask, there))
    assert mask is not None
    return places, mask


def _scattered(state: Lowering, node: Reduce, places: Mapping[Index, Register], body: Register) -> Register:
    b = state.builder
    kept = b.order(node.free)
    at = tuple(places.get(index, index) for index in kept)
    needed = {i for p in at for i in (p.axes if isinstance(p, Register) else (p,))}
    body = b.broadcast(body, (*node.indices, *needed))
    source = b.fold("sum", body, needed) if set(body.axes) != needed else body
    return b.emit(Scatter(b.register(kept, body.dtype), source, at))


def _place(state: Lowering, index: Index, expression: Expr) -> tuple[Register, Register]:
    """The places as positions in range, and which of the entries have one."""
    b, size = state.builder, Size.of(index.name)
    value = state.array(expression)
    there = b.all_of(
        (
            b.apply("greater_equal", value, Literal(0), dtype="bool"),
            b.apply("less", value, b.cast(Literal(size), value.dtype), dtype="bool"),
        )
    )
    assert there is not None
    if value.dtype.startswith("float"):
        value = b.apply("select", there, value, Literal(0), dtype=value.dtype)
        whole = b.array(value, "int64")
        same = b.all_of((there, b.apply("equal", b.array(whole, value.dtype), value, dtype="bool")))
        assert same is not None
        value, there = whole, same
    value = b.array(value, "int64")
    out = b.register(value.axes, "int64")
    return b.emit(CheckRange(out, value, size, there, f"position of {index.name}")), there
