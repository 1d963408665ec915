"""Instructions copied to another place: before it, or into a loop over one axis, where slices are made again."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Cast, Contract, Fold, IfFinite, Instruction, Slice, View
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.multilinear import plain_side
from tensorattn.lowering.pointwise import is_pointwise
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register

AGAIN = (Apply, Cast, Arrange, Contract, Fold, IfFinite)


class Copier:
    """What stands before instruction `place` of a body, for use there; what is made inside a branch is made again."""

    def __init__(self, body: tuple[Instruction, ...], place: int, suffix: str) -> None:
        self.visible = {made.name: i for i in body[:place] for made in makes(i)}
        self.hidden = {made.name: i for i in plain_side(body[: place + 1]) for made in makes(i)}
        self.suffix = suffix
        self.copies: dict[str, Register] = {}
        self.before: list[Instruction] = []

    def outside(self, steps: tuple[Instruction, ...]) -> list[Instruction]:
        """The steps with what they read at hand, after what is made again in `before`."""
        made = {r.name for i in steps for r in makes(i)}
        names = {r.name: self._outer(r) for r in _wanted(steps, made)}
        return list(renamed(steps, names))

    def loop(self, steps: tuple[Instruction, ...], axis: Index, others: set[Index]) -> list[Instruction]:
        """The body of a loop over the axis, which `before` precedes: the steps with what they read, cut along the axis.

        What holds the axis beside another one of `others` is made again in the loop, so that it is never whole. Steps
        that do not depend on the place in the loop come before it.
        """
        for view in (i for i in steps if isinstance(i, View)):  # its source has the axis under another name
            self.before += self.outside((view,))
            self.visible[view.out.name] = view
        steps = tuple(i for i in steps if not isinstance(i, View))
        made = {r.name for i in steps for r in makes(i)}
        inside: list[Instruction] = []
        cut: dict[str, Register] = {}
        names = {r.name: self._inner(r, axis, others, inside, cut) for r in _wanted(steps, made)}
        changing = {r.name for r in cut.values()}
        for step in renamed(steps, names):
            made_here = makes(step)  # one that is only spread along the axis varies in length
            varies = bool(changing & {r.name for r in reads(step)}) or any(axis in r.axes for r in made_here)
            changing |= {r.name for r in made_here} if varies else set()
            (inside if varies else self.before).append(step)
        return inside

    def tail(self, steps: tuple[Instruction, ...], old: Register, new: Register) -> list[Instruction]:
        """The steps with `old` replaced; what they make gets names of its own, but for what the last of them makes."""
        own = {r.name: replace(r, name=f"{r.name}{self.suffix}") for i in steps[:-1] for r in makes(i)}
        made = {r.name for i in steps for r in makes(i)} | {old.name}
        names = {r.name: self._outer(r) for r in _wanted(steps, made)}
        return list(renamed(steps, {**names, **own, old.name: new}))

    def roots(self, register: Register) -> set[Register]:
        """The registers at hand that a register is made of; itself where it is at hand."""
        if register.name in self.visible:
            return {register}
        return {root for r in reads(self.hidden[register.name]) for root in self.roots(r)}

    def _outer(self, register: Register) -> Register:
        if register.name in self.visible:
            return register
        if register.name not in self.copies:
            maker = self.hidden[register.name]
            names = {r.name: self._outer(r) for r in reads(maker)}
            self.copies[register.name] = replace(register, name=f"{register.name}{self.suffix}")
            self.before.append(_copied(maker, names, self.suffix))
        return self.copies[register.name]

    def _inner(
        self, register: Register, axis: Index, others: set[Index], inside: list[Instruction], cut: dict[str, Register]
    ) -> Register:
        if axis not in register.axes:
            return self._outer(register)
        if register.name not in cut:
            maker = self.visible.get(register.name) or self.hidden[register.name]
            again = isinstance(maker, AGAIN) and is_pointwise(maker, axis) and others & set(register.axes)
            suffix = f"s{self.suffix}"
            out = replace(register, name=f"{register.name}{suffix}")
            if again:
                names = {r.name: self._inner(r, axis, others, inside, cut) for r in reads(maker)}
                inside.append(_copied(maker, names, suffix))
            else:
                inside.append(Slice(out, self._outer(register), axis))
            cut[register.name] = out
        return cut[register.name]


def _wanted(steps: tuple[Instruction, ...], made: set[str]) -> list[Register]:
    """The registers read that the steps do not make, each once."""
    found = {r.name: r for i in steps for r in reads(i) if r.name not in made}
    return [found[name] for name in sorted(found)]


def _copied(instruction: Instruction, names: dict[str, Register], suffix: str) -> Instruction:
    """The instruction with what it reads renamed, and whatever it makes under names of its own."""
    own = {r.name: replace(r, name=f"{r.name}{suffix}") for r in _made(instruction)}
    return renamed(instruction, {**names, **own})


def _made(instruction: Instruction) -> Iterable[Register]:
    yield from makes(instruction)
    if isinstance(instruction, IfFinite):
        for side in (instruction.fast, instruction.safe):
            for inner in side:
                yield from _made(inner)
