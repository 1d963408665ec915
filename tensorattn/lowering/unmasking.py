"""A mask over barred indices alone moves from finite weights to what they are multiplied with: Σ (w m) v = Σ w (m v).

The weights have an entry for every row, the mask and what is summed with it have not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tensorattn.kernel import Apply, Cast, Contract, Instruction, Weigh
from tensorattn.lowering.intervals import filled
from tensorattn.lowering.liveness import makes, reads
from tensorattn.parts import Literal, Register


def unmasked(body: Sequence[Instruction], weigh: Weigh, exp: str, ends: Iterable[Register]) -> list[Instruction] | None:
    """The body with base^score of every entry in the place of the weights; None where their mask has to stay on them.

    It moves where every reader sums them with something that is 0 outside the mask already, or that has barred axes
    alone.
    """
    where, weights = weigh.where, weigh.out
    if where is None or not set(where.axes) <= set(weigh.indices) or weights in ends:
        return None
    makers = {made.name: i for i in body for made in makes(i)}
    found: list[Instruction] = []
    for instruction in body:
        if instruction is weigh:
            mask = Register(f"{weights.name}m", where.axes, weights.dtype)
            found += [Apply(weights, exp, (weigh.score,)), Cast(mask, where), Contract(weigh.total, weights, mask)]
        elif weights not in reads(instruction):
            found.append(instruction)
        elif (moved := _moved(instruction, weigh, makers.get(_other(instruction, weights).name))) is not None:
            found += moved
        else:
            return None
    return found


def unzeroed(body: Sequence[Instruction], weigh: Weigh) -> list[Instruction]:
    """The body whose finite values are not made 0 where a score of −∞ has left weights of 0."""
    makers = {made.name: i for i in body for made in makes(i)}
    where, weights = filled(weigh.score, makers), weigh.out

    def value(register: Register) -> Register:
        match makers.get(register.name):
            case Apply(function="select" | "where", arguments=(by, Register() as inner, Literal(value=0))):
                return inner if by == where and {*inner.axes} == {*register.axes} else register
        return register

    summed = [isinstance(i, Contract) and weights in (i.a, i.b) for i in body]
    pairs = zip(body, summed, strict=True)
    return [replace(i, a=value(i.a), b=value(i.b)) if ours else i for i, ours in pairs]  # type: ignore[union-attr]


def _other(instruction: Instruction, weights: Register) -> Register:
    """What the weights are multiplied with; the weights themselves where that is nothing else."""
    if not isinstance(instruction, Contract):
        return weights
    return instruction.b if instruction.a == weights else instruction.a


def _moved(reader: Instruction, weigh: Weigh, maker: Instruction | None) -> list[Instruction] | None:
    other, where = _other(reader, weigh.out), weigh.where
    if other == weigh.out or where is None or not isinstance(reader, Contract):
        return None
    match maker:
        case Apply(function="select" | "where", arguments=(Register() as by, _, Literal(value=0))) if by == where:
            return [reader]
    if not set(other.axes) <= set(weigh.indices):
        return None
    axes = tuple(index for index in weigh.indices if index in {*other.axes, *where.axes})
    zeroed = Register(f"{other.name}{weigh.out.name}z", axes, other.dtype)
    return [Apply(zeroed, "select", (where, other, Literal(0.0))), replace(reader, a=weigh.out, b=zeroed)]
