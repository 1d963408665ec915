"""What a loop over an axis may do with an instruction: whether a stretch of the result needs only stretches."""

from __future__ import annotations

from collections.abc import Iterable

from tensorattn.ir import Index
from tensorattn.kernel import (
    Accumulate,
    Apply,
    Arrange,
    Cast,
    CheckRange,
    Contract,
    Fill,
    Fold,
    Gather,
    IfFinite,
    Instruction,
    Join,
    Largest,
    LogSumExp,
    Normalised,
    Scatter,
    SegmentSum,
)
from tensorattn.lowering.liveness import makes, reads
from tensorattn.parts import Register


def axes_read(instruction: Instruction) -> set[Index]:
    """The axes of all operands."""
    return {i for r in reads(instruction) for i in r.axes}


def is_pointwise(instruction: Instruction, axis: Index) -> bool:
    """Whether a stretch of the result along the axis, which it has, needs only that stretch of the operands."""
    match instruction:
        case Apply(out=out) | Cast(out=out) | Arrange(out=out) | Contract(out=out) | Fill(out=out):
            return axis in out.axes
        case Fold(out=out) | LogSumExp(out=out):
            return axis in out.axes
        case Normalised(out=out, indices=indices) | Largest(out=out, indices=indices):
            return axis in out.axes and axis not in indices
        case Join(out=out, axis=joined, parts=parts):
            return axis in out.axes and axis != joined and axis not in parts
        case SegmentSum(out=out, axis=summed, segment=segment):
            return axis in out.axes and axis not in (summed, segment)
        case Scatter(out=out, positions=positions):
            own = [n for n, p in enumerate(positions) if p == axis]
            elsewhere = any(axis in p.axes for p in positions if isinstance(p, Register))
            return len(own) == 1 and out.axes[own[0]] == axis and not elsewhere
        case Accumulate(out=out, axis=summed, along=along):
            return axis in out.axes and axis not in (summed, along)
        case CheckRange(out=out):  # positions count as admitted where any tuple over the axes they lack admits them
            return axis in out.axes
        case Gather():
            return _gathers_pointwise(instruction, axis)
        case IfFinite(out=out, fast=fast, safe=safe):
            return axis in out.axes and all(_keeps(i, axis) for i in (*fast, *safe))
    return False


def _keeps(instruction: Instruction, axis: Index) -> bool:
    made = {i for r in makes(instruction) for i in r.axes}
    return is_pointwise(instruction, axis) or axis not in made | axes_read(instruction)


def _gathers_pointwise(gather: Gather, axis: Index) -> bool:
    """The table may be cut only where the axis itself is the position."""
    table = gather.table.axes
    here = [n for n, p in enumerate(gather.positions) if p == axis]
    cut = [n for n, i in enumerate(table) if i == axis]
    return axis in gather.out.axes and here == cut and len(here) <= 1


def is_linear(instruction: Instruction, live: Iterable[str]) -> bool:
    """Whether the instruction is linear in the one operand of the `live` ones that it reads."""
    live = set(live)
    match instruction:
        case Contract(a=a, b=b):
            return (a.name in live) != (b.name in live)
        case Apply(function="multiply", arguments=arguments):
            return sum(isinstance(a, Register) and a.name in live for a in arguments) == 1
        case Apply(function="divide", arguments=(above, below)):
            return (
                isinstance(above, Register)
                and above.name in live
                and not (isinstance(below, Register) and below.name in live)
            )
        case Apply(function="negate") | Arrange() | Fold(kind="sum") | Accumulate(kind="sum"):
            return True
        case IfFinite(fast=fast):
            known = set(live)
            for inner in fast:
                if {r.name for r in reads(inner)} & known:
                    if not is_linear(inner, known):
                        return False
                    known.add(inner.out.name)  # type: ignore[union-attr]
            return True
    return False
