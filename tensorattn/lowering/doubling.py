"""Truths of positions that a loop needs folded before it starts are made twice: whole for the fold, and in the loop."""

from __future__ import annotations

from dataclasses import replace

from tensorattn.kernel import Apply, Arrange, Cast, Fill, Fold, Instruction, Iota, Load, View
from tensorattn.lowering.flow import Flow
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register

GIVEN = (Iota, Load)
CHEAP = (Apply, Arrange, Cast, Fill, View, *GIVEN)


def doubled(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The body in which such a fold reads a copy: `any j ≤ i` says which places a table is read at, and what is read
    there is used with j ≤ i itself. As one array it would have to be whole before the loop that runs along it.
    """
    flow = Flow(body, frozenset(), {})
    out: list[Instruction] = []
    for number, instruction in enumerate(body):
        if isinstance(instruction, Fold) and instruction.kind in ("any", "all"):
            out += _with_copy(flow, number, instruction)
        else:
            out.append(instruction)
    return tuple(out)


def _with_copy(flow: Flow, number: int, fold: Fold) -> list[Instruction]:
    """The fold after a copy of what it folds, where it meets what else is made of that."""
    maker = flow.makers.get(fold.source.name)
    if maker is None:
        return [fold]
    others = flow.users[fold.source.name] - {number}
    if not flow.later(others) & flow.later({number}):
        return [fold]
    made = sorted(flow.earlier({maker}))
    if not all(isinstance(flow.body[n], CHEAP) for n in made):
        return [fold]
    copied = [n for n in made if not isinstance(flow.body[n], GIVEN)]
    names = {flow.out(n).name: _again(flow.out(n), fold) for n in copied}
    return [*(renamed(flow.body[n], names) for n in copied), renamed(fold, names)]


def _again(register: Register, fold: Fold) -> Register:
    return replace(register, name=f"{register.name}of{fold.out.name}")
