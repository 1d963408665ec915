"""Kernel → kernel: what the rounds of a loop read again and again lies in memory as their products need it.

An operand whose summed axes stand between those of its rows is copied into order by every product that takes it. Where
no round changes the operand, every round would make the same copy; here it is made once, before the loop.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tensorattn.kernel import Arrange, Contract, Instruction, Stream
from tensorattn.lowering.liveness import made_within, with_bodies
from tensorattn.lowering.products import Axes, product
from tensorattn.parts import Register


def packed(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The body with the operands of its loops in order, those of loops in loops too."""
    found: list[Instruction] = []
    for instruction in body:
        if isinstance(instruction, Stream):
            before = _Copies(instruction)
            instruction = replace(instruction, body=_products(instruction.body, before.product))
            found += before.made
        found.append(with_bodies(instruction, packed))
    return tuple(found)


def _products(body: tuple[Instruction, ...], change: Callable[[Contract], Contract]) -> tuple[Instruction, ...]:
    """The body with every product changed, those in its branches and loops too."""
    inside = partial(_products, change=change)
    return tuple(change(i) if isinstance(i, Contract) else with_bodies(i, inside) for i in body)


class _Copies:
    """The operands that a loop does not change, copied into the orders in which its products take them."""

    def __init__(self, stream: Stream) -> None:
        self.made: list[Arrange] = []
        self._inside = {register.name for register in made_within((stream,))}

    def product(self, step: Contract) -> Contract:
        """The same with the copies for operands."""
        if step.along is not None:
            return step
        a = self._operand(step.a, step.b, step.out)
        return replace(step, a=a, b=self._operand(step.b, step.a, step.out))

    def _operand(self, operand: Register, other: Register, out: Register) -> Register:
        if operand.name in self._inside or other.name not in self._inside:
            return operand
        ready = (operand, *(copy.out for copy in self.made if copy.source == operand))
        wanted = _order(operand.axes, other.axes, out.axes)
        if wanted is None:
            return operand
        for register in ready:
            if not product(register.axes, other.axes, out.axes).copies(register.axes):
                return register
        order = "".join(f"_{operand.axes.index(index)}" for index in wanted)  # another loop may want another
        copy = replace(operand, name=f"{operand.name}in{order}", axes=wanted)
        self.made.append(Arrange(copy, operand, packed=True))
        return copy


def _order(operand: Axes, other: Axes, out: Axes) -> Axes | None:
    """The axes of an operand as a product with `other` takes them; None where it is no product of matrices."""
    made = product(operand, other, out)
    batch = tuple(index for index in made.batch if index in operand)
    inner = tuple(index for index in other if index in made.inner)
    outer = tuple(index for index in out if index in operand and index not in batch)
    whole = len(operand) == len(batch) + len(inner) + len(outer)
    return (*batch, *inner, *outer) if inner and whole else None
