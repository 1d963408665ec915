"""Kernel → kernel: a product that something is added to takes it along: Σ a·b + c is one call, and no pass over it.

In a loop over tiles a score is made, a bias is added to it, or what is constant along a row is taken off; and what a
round leaves is added to a running sum.
"""

from __future__ import annotations

from dataclasses import replace

from tensorattn.kernel import Apply, Contract, Instruction, Kernel, Stream
from tensorattn.lowering.liveness import makes, reads, with_bodies
from tensorattn.lowering.narrowing import is_sum
from tensorattn.lowering.products import neighbours, product_of
from tensorattn.parts import Carry, Register, Summand


def with_sums(kernel: Kernel) -> Kernel:
    """The kernel in whose loops products take along what is added to them."""
    return replace(kernel, body=_inside_all(kernel.body))


def _inside_all(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    return tuple(map(_inside, body))


def _inside(instruction: Instruction) -> Instruction:
    changed = with_bodies(instruction, _inside_all)
    if not isinstance(changed, Stream):
        return changed
    ends = {*changed.merged, *(p.part for p in (*changed.carry, *changed.stacked))}
    changed = replace(changed, body=_body(changed.body, ends | {r for i in changed.merge for r in reads(i)}))
    for carry in changed.carry:
        changed = _onto(changed, carry)
    return changed


def _onto(stream: Stream, carry: Carry) -> Stream:
    """The loop in which a product that is only added to a state of the same axes takes that along."""
    merged, cut = stream.merged[stream.carry.index(carry)], {narrowed.axis for narrowed in stream.narrowed}
    readers = [i for i in (*stream.body, *stream.merge) if carry.part in reads(i)]
    step = next((i for i in stream.body if isinstance(i, Contract) and i.out == carry.part), None)
    state, added = carry.state, Summand(carry.state, (1, 1))
    alike = {*state.axes} == {*carry.part.axes} and not cut & {*state.axes}
    alone = len(readers) == 1 and all(stack.part != carry.part for stack in stream.stacked)
    if step is None or step.added is not None or not (alike and alone and is_sum(stream, carry) and fits(step, added)):
        return stream
    made = replace(step, out=merged, added=added)
    return replace(
        stream,
        body=tuple(made if i == step else i for i in stream.body),
        merge=tuple(i for i in stream.merge if i not in readers),
        carry=tuple(replace(c, part=merged) if c == carry else c for c in stream.carry),
    )


def _body(body: tuple[Instruction, ...], ends: set[Register]) -> tuple[Instruction, ...]:
    """The body with every product taking along what it can; `ends` are needed afterwards."""
    for step in body:
        if isinstance(step, Contract) and step.added is None:
            changed = _taken(step, body, ends)
            if changed is not None:
                return _body(changed, ends)
    return body


def _taken(step: Contract, body: tuple[Instruction, ...], ends: set[Register]) -> tuple[Instruction, ...] | None:
    """The body with the first thing that is added to a product taken along; None where it does not fit.

    Only the first: the scores of the backward pass are added up in the order of the forward pass, and round alike.
    """
    readers = [i for i in body if step.out in reads(i)]
    added = _summand(readers[0], step.out) if len(readers) == 1 and step.out not in ends else None
    if added is None or not fits(step, added):
        return None
    made = replace(step, out=makes(readers[0])[0], added=added)
    return tuple(made if i == readers[0] else i for i in body if i != step)


def _summand(reader: Instruction, product: Register) -> Summand | None:
    """What is added to a product, with the signs of both."""
    match reader:
        case Apply(function="add" | "subtract" as function, arguments=(Register() as first, Register() as second)):
            other, minus = (second if first == product else first), function == "subtract"
            signs = (-1 if minus and second == product else 1, -1 if minus and first == product else 1)
            same = reader.out.axes == product.axes and reader.out.dtype == product.dtype
            return Summand(other, signs) if same and other != product else None
    return None


def fits(step: Contract, added: Summand) -> bool:
    """Whether one call makes a product and its sum: what is added has all axes of rows and columns, in their order.

    What is constant along one of both is small: it may be brought into that shape, or negated.
    """
    other = added.register
    made = product_of(step, onto=True)
    if set(made.axes) != {*step.out.axes} or not (made.inner and made.left and made.right):
        return False
    sides = made.left, made.right
    small = any({*side}.isdisjoint(other.axes) for side in sides)
    ordered = all({*side} <= {*other.axes} and neighbours(side, other.axes) for side in sides)
    batched = len(made.batch) < 2 or all({*made.batch} <= {*r.axes, step.along} for r in (step.a, step.b))
    floats = other.dtype == step.out.dtype and step.out.dtype.startswith("float")
    return (small or (ordered and added.signs[1] > 0)) and batched and floats
