"""Kernel → kernel: what a loop makes of short slices, entry by entry, it makes once, of all there is, before.

A call on a few entries costs as much as one on thousands. The scales and normalisers of rows are such: beside a tile of
scores they are small as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Contract, Instruction, Slice, Stream
from tensorattn.lowering.liveness import outside_reads, reads
from tensorattn.lowering.tiling import tile_positions
from tensorattn.lowering.unifying import renamed

SHARE = 2  # of the largest product of a round is what may be made as a whole


def hoisted(body: Iterable[Instruction], sizes: Mapping[str, int]) -> tuple[Instruction, ...]:
    """The body with its loops, those inside others first; `sizes`: those it is planned for."""
    found: list[Instruction] = []
    for instruction in body:
        if isinstance(instruction, Stream):
            lengths = {**sizes, instruction.axis.name: tile_positions(instruction, sizes)}
            instruction = replace(instruction, body=hoisted(instruction.body, lengths))
            products = [i.out.axes for i in instruction.body if isinstance(i, Contract)]
            room = max((_entries(axes, lengths) for axes in products), default=0) // SHARE
            before, instruction = _parted(instruction, sizes, room)
            found += before
        found.append(instruction)
    return tuple(found)


def _parted(stream: Stream, sizes: Mapping[str, int], room: int) -> tuple[list[Instruction], Stream]:
    """What is made before a loop, each of at most so many entries, and the loop with slices of that.

    What multiplies as a matrix stays where its slices would not be one piece of memory.
    """
    states = {carry.state for carry in stream.carry}
    whole = {r: r for r in outside_reads(stream.body) - states}
    matrices = {r for i in stream.body if isinstance(i, Contract) for r in (i.a, i.b) if stream.axis in r.axes[1:]}
    before: list[Instruction] = []
    body: list[Instruction] = []

    def small(step: Apply) -> bool:
        most = max((_entries(r.axes, sizes) for r in reads(step)), default=0)
        return 0 < _entries(step.out.axes, sizes) <= min(most, room)

    for step in stream.body:
        match step:
            case Slice(out=out, source=source, axis=axis) if axis == stream.axis and source in whole:
                whole[out] = whole[source]
            case Apply(out=out) if reads(step) <= whole.keys() and out not in matrices and small(step):
                cut = stream.axis in out.axes
                whole[out] = replace(out, name=f"{out.name}all") if cut else out
                before.append(renamed(step, {r.name: whole[r] for r in (out, *reads(step))}))
                if not cut:
                    continue
                step = Slice(out, whole[out], stream.axis)
        body.append(step)
    ends = {*stream.merged, *(p.part for p in (*stream.carry, *stream.stacked))}
    needed = ends.union(*map(reads, (*body, *stream.merge)))
    kept = tuple(i for i in body if not isinstance(i, Slice) or i.out in needed)
    return before, replace(stream, body=kept)


def _entries(axes: Iterable[Index], sizes: Mapping[str, int]) -> int:
    return prod(sizes.get(index.name, 1) for index in axes)
