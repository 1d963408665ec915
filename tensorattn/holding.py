"""The bytes that an attention holds beside its operands and its result.

`stored`: the axes of registers in the order in which memory holds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorattn.ir import Index
from tensorattn.lowering.products import Axes, neighbours
from tensorattn.lowering.views import BYTES, entries, size_in_bytes
from tensorattn.parts import Register
from tensorattn.records import Chunked, Flash, FlashBack
from tensorattn.sizes import Size


def attended(instruction: Chunked, stored: Mapping[Register, Axes]) -> Size:
    """The scores of a chunk of keys and where they are masked; the scaled query; what a chunk adds to the result; and
    what belongs to a row: log Σ exp."""
    i, each = instruction, BYTES[instruction.out.dtype]
    masked = i.where is not None or i.causal
    rows = i.rows if i.apart else (*i.batch, *i.rows)
    found = entries((*rows, i.chunk)) * (each + masked) + entries((*i.batch, *i.rows)) * each
    found = found + (entries((*rows, *i.bond)) + entries((*rows, *i.values))) * each
    for one, parts in ((i.query, (i.rows, i.bond)), (i.key, (i.group, i.bond)), (i.value, (i.group, i.values))):
        found = found + _reshaped(one, parts, stored)
    for one in (i.bias, i.where):
        found = found + (Size() if one is None else _reshaped(one, (i.rows, i.group), stored))
    return found


def fused(instruction: Flash, stored: Mapping[Register, Axes]) -> Size:
    """A block of scores of one thread, the log Σ exp, and where the values were widened a result of that width."""
    i, each = instruction, BYTES[instruction.out.dtype]
    rows = tuple(index for index in i.scores if index in i.query.axes and index not in i.batch)
    group = tuple(index for index in i.scores if index not in (*i.batch, *rows))
    found = (entries((*i.batch, *rows)) + i.held // 2) * each
    if not set(i.width) <= set(i.out.axes):
        found = found + entries((*i.batch, *rows, *i.width)) * each
    for one in (i.query, i.key, i.value, *i.given):
        found = found + _reshaped(one, (rows, group), stored)
    return found


def fused_back(instruction: FlashBack, stored: Mapping[Register, Axes]) -> Size:
    """What the threads hold, and a copy of the cotangent where the rows of a part of the batch are no neighbours."""
    of, bar = instruction.of, instruction.kept[-1]
    found = Size.of(of.held * BYTES[bar.dtype])
    rows = tuple(index for index in of.scores if index in of.query.axes and index not in of.batch)
    cut = _cut(of, rows, stored)
    order = (*of.several[:cut], *rows, *of.several[cut:])
    ordered = tuple(index for index in stored[bar] if index in order) == order
    return found if ordered else found + size_in_bytes(bar)


def _cut(of: Flash, rows: Axes, stored: Mapping[Register, Axes]) -> int:
    """How many axes of the batch are the first of the two dimensions that the kernel has for them."""
    query, batch = stored[of.query], of.several
    inside = bool(batch and rows) and batch[-1] in query and query.index(batch[-1]) > query.index(rows[-1])
    best = len(batch) - inside
    shown = [of.query, of.key, of.value, *([of.mask] if of.mask and {*rows} & {*of.mask.axes} else [])]

    def copied(cut: int) -> tuple[int, bool]:
        parts = batch[:cut], batch[cut:]
        moved = ([part for part in parts if {*part} & {*x.axes} and not neighbours(part, stored[x])] for x in shown)
        return sum(map(bool, moved)), cut != best

    return min(range(1, len(batch) + 1), key=copied) if len(batch) > 1 else best


def _reshaped(one: Register, groups: Iterable[Sequence[Index]], stored: Mapping[Register, Axes]) -> Size:
    """The bytes of a copy with one dimension for each group of axes, filled up where some are missing; none where the
    groups are neighbours in memory."""
    shown = [tuple(group) for group in groups if any(index in one.axes for index in group)]
    if all(neighbours(group, stored[one]) for group in shown):
        return Size()
    return entries((*one.axes, *(i for group in shown for i in group))) * BYTES[one.dtype]
