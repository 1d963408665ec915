"""A set of instructions becomes the body of a loop: what moves in with it, what is sliced, where the loop stands."""

from __future__ import annotations

from dataclasses import dataclass

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Cast, Contract, Fill, Gather, Instruction, Slice
from tensorattn.lowering.flow import Flow
from tensorattn.lowering.liveness import makes
from tensorattn.parts import Register


@dataclass
class RefusalError(Exception):
    """Why something cannot be put in loops, made an attention, or factored."""

    reason: str


def drawn_in(flow: Flow, loop: set[int], axis: Index, others: set[Index], entries: int) -> set[int]:
    """The instructions that only the loop needs and that it had better run itself, over stretches of the axis.

    Those are the ones whose result holds one of the `others` beside the axis (scores, masks of positions, products of
    operands) or is larger than what they read along the axis: computed where they are used, they never exist as a
    whole. All else is computed once before the loop and sliced, unless it has more than this many `entries`; and so is
    what does not hold the axis: if it is that large, it is made anew in every round rather than held.
    """
    inside = set(loop)
    for number in range(max(loop), -1, -1):
        if number in inside or not _is_single(flow.body[number]):
            continue
        out = flow.out(number)
        if flow.kept(number, inside) or out.name not in flow.users or flow.is_given(out):
            continue
        large = flow.entries(out.axes) > entries
        if axis not in out.axes:
            if large and not any(axis in r.axes for r in flow.read[number]) and _is_plain(flow.body[number]):
                inside.add(number)
            continue
        read = sum(flow.entries(r.axes) for r in flow.read[number] if axis in r.axes)
        grows = others & set(out.axes) or flow.entries(out.axes) > read
        if flow.may_move(number, axis) and (large or grows):
            inside.add(number)
    return inside


def _is_single(instruction: Instruction) -> bool:
    return hasattr(instruction, "out") and len(makes(instruction)) == 1


def _is_plain(instruction: Instruction) -> bool:
    """Whether it is cheap beside what reads its result: nothing is summed."""
    if isinstance(instruction, Contract):
        return {*instruction.a.axes, *instruction.b.axes} <= set(instruction.out.axes)
    return isinstance(instruction, (Apply, Cast, Arrange, Fill, Gather))


def slices(flow: Flow, loop: set[int], axis: Index, stem: str) -> tuple[dict[str, Register], list[Instruction]]:
    """What the loop reads from outside along the axis, cut: the new registers by old name, and the instructions."""
    made = {r.name for n in loop for r in makes(flow.body[n])}
    needed = {r for n in loop for r in flow.read[n] if r.name not in made and axis in r.axes}
    ordered = sorted(needed, key=lambda r: r.name)
    cut = {r.name: Register(f"{r.name}s{stem}", r.axes, r.dtype) for r in ordered}
    return cut, [Slice(cut[r.name], r, axis) for r in ordered]


def placed(flow: Flow, loop: set[int], new: list[Instruction]) -> tuple[Instruction, ...]:
    """The body with the loop in one place: after all it needs, before all that needs it.

    Raises: RefusalError where something outside the loop needs a part of it for another part.
    """
    before = flow.earlier(loop) - loop
    if before & flow.later(loop):
        raise RefusalError("what the loop needs depends on its own result")
    place = max(before, default=-1) + 1
    early = [n for n in range(place) if n not in loop and n not in flow.later(loop)]
    late = [n for n in range(len(flow.body)) if n not in loop and n not in early]
    return (*(flow.body[n] for n in early), *new, *(flow.body[n] for n in late))
