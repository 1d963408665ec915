"""Reductions over the axis of a loop: every tile gives a part, and parts combine as a commutative monoid."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Contract, Fold, IfFinite, Instruction, LogSumExp, Scatter
from tensorattn.lowering.liveness import reads
from tensorattn.lowering.pointwise import is_linear, is_pointwise
from tensorattn.parts import Carry, Literal, Register

MONOIDS = {
    "sum": (0, "add"), "prod": (1, "multiply"), "max": (-inf, "maximum"), "min": (inf, "minimum"),
    "any": (False, "or"), "all": (True, "and"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Root:
    """What a loop carries for a reduction: the unit, and the function that combines two parts."""

    unit: float
    function: str


SUM = Root(*MONOIDS["sum"])


def root(instruction: Instruction, axis: Index) -> Root | None:
    """The monoid of a reduction over the axis; None where the instruction is none, or has no unit of its dtype."""
    out = getattr(instruction, "out", None)
    if out is None or axis in out.axes or not any(axis in r.axes for r in reads(instruction)):
        return None
    match instruction:
        case Contract() | Scatter():
            return SUM
        case Fold(kind=kind) if out.dtype != "int64" or kind in ("sum", "prod"):
            return Root(*MONOIDS[kind])
        case LogSumExp():
            return Root(-inf, "lse")
        case IfFinite(fast=fast, safe=safe) if _is_additive(fast, axis) and _runs_on_stretches(safe, axis):
            return SUM
    return None


def _is_additive(body: tuple[Instruction, ...], axis: Index) -> bool:
    """Whether what the body leaves is a sum over the axis, then only linear in it."""
    if not _runs_on_stretches(body, axis):
        return False
    sums: set[str] = set()
    for made in body:
        live = any(r.name in sums for r in reads(made))
        if live and not is_linear(made, sums):
            return False
        if live or root(made, axis) == SUM:
            sums.add(made.out.name)  # type: ignore[union-attr]
    return body[-1].out.name in sums  # type: ignore[union-attr]


def _runs_on_stretches(body: tuple[Instruction, ...], axis: Index) -> bool:
    """Whether a stretch of the axis is enough for every instruction: it runs along it, or sums over it.

    The safe side of a guard marks with NaN or ±∞ what an entry that is no finite number reaches. It reaches the same
    from a stretch, and marks add up: so the sum of the parts is the guarded sum.
    """
    for made in body:
        out = made.out  # type: ignore[union-attr]
        if axis in out.axes:
            if not is_pointwise(made, axis):
                return False
        elif any(axis in r.axes for r in reads(made)) and root(made, axis) != SUM:
            return False
    return True


def carry(result: Register, part: Register, how: Root) -> tuple[Carry, list[Instruction], Register]:
    """The state that becomes the result, the instructions that merge a part into it, and what they make."""

    def make(name: str, dtype: str = result.dtype) -> Register:
        return Register(f"{name}_{part.name}", result.axes, dtype)

    merged = make("both")
    state = Carry(result, how.unit, part)
    if how.function != "lse":
        return state, [Apply(merged, how.function, (result, part))], merged
    high, size, far, shift = make("high"), make("size"), make("far", "bool"), make("shift")
    steps: list[Instruction] = [
        Apply(high, "maximum", (result, part)),
        Apply(size, "abs", (high,)),
        Apply(far, "equal", (size, Literal(inf))),
        Apply(shift, "select", (far, Literal(0.0), high)),
    ]
    terms = []
    for number, side in enumerate((result, part)):
        less, term = make(f"less{number}"), make(f"term{number}")
        steps += [Apply(less, "subtract", (side, shift)), Apply(term, "exp", (less,))]
        terms.append(term)
    total, none, safe, log, sum_ = make("total"), make("none", "bool"), make("safe"), make("log"), make("sum")
    steps += [
        Apply(total, "add", tuple(terms)),
        Apply(none, "equal", (total, Literal(0))),
        Apply(safe, "select", (none, Literal(1.0), total)),
        Apply(log, "log", (safe,)),
        Apply(sum_, "add", (log, shift)),
        Apply(merged, "select", (none, Literal(-inf), sum_)),
    ]
    return state, steps, merged
