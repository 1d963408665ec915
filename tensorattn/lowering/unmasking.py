"""A mask over barred indices alone moves from finite weights to what they are multiplied with: Σ (w m) v = Σ w (m v).

The weights have an entry for every row, the mask and what is summed with it have not. So has an addend of the score
over barred indices alone: Σ e^(s + b) v = Σ e^s (e^b v).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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


def parted(body: Sequence[Instruction], weigh: Weigh, exp: str, ends: Iterable[Register]) -> list[Instruction] | None:
    """The body with base^rest of every entry in the place of the weights, where the score is the rest and an addend of
    barred axes alone; None where that has to stay on them.

    All values are finite, so that those are not made 0 where the addend is −∞, and its factor 0.
    """
    makers = {made.name: i for i in body for made in makes(i)}
    parts, weights, where = _parts(weigh, makers), weigh.out, filled(weigh.score, makers)
    if parts is None or weights in ends:
        return None
    rest, addend = parts
    factor = Register(f"{weights.name}f", addend.axes, addend.dtype)
    found: list[Instruction] = []
    for instruction in body:
        if instruction is weigh:
            found += [Apply(factor, exp, (addend,)), Apply(weights, exp, (rest,))]
            found.append(Contract(weigh.total, weights, factor))
        elif weights not in reads(instruction):
            found.append(instruction)
        else:
            other = _other(instruction, weights)
            if other == weights or not {*factor.axes} <= {*other.axes}:
                return None
            scaled = Register(f"{other.name}{weights.name}f", other.axes, other.dtype)
            found += [Apply(scaled, "multiply", (_unzeroed(makers.get(other.name), other, where), factor))]
            found.append(replace(instruction, a=weights, b=scaled))
    return found


def _parts(weigh: Weigh, makers: Mapping[str, Instruction]) -> tuple[Register, Register] | None:
    """The score as a part for every entry, and one that has barred axes alone."""
    match makers.get(weigh.score.name):
        case Apply(function="add", arguments=(Register() as a, Register() as b)) if weigh.where is None:
            for rest, addend in ((a, b), (b, a)):
                alone = {*addend.axes} <= {*weigh.indices} and {*weigh.score.axes} > {*weigh.indices}
                if alone and {*rest.axes} == {*weigh.score.axes} and rest.dtype == addend.dtype:
                    return rest, addend
    return None


def _unzeroed(maker: Instruction | None, register: Register, where: Register | None) -> Register:
    """What is made 0 outside a predicate, without that."""
    match maker:
        case Apply(function="select" | "where", arguments=(by, Register() as inner, Literal(value=0))):
            return inner if by == where and {*inner.axes} == {*register.axes} else register
    return register


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
