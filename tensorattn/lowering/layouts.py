"""Kernel → kernel: the axes of products in the order in which the operands lie in memory.

A product without a sum, `v^nu_n w^rho_n`, may have its axes in any order, as every reader takes them by index. It is
fastest where the last axis of the operands stays last; what reads it as a matrix needs only that the axes of a group
stay neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Contract, Fold, IfFinite, Instruction, Kernel, Stream
from tensorattn.lowering.liveness import reads
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register

Axes = tuple[Index, ...]


def laid_out(kernel: Kernel) -> Kernel:
    """The kernel with its products in good order, those in its loops too."""
    given = {output.register.name for output in kernel.outputs}
    body, _ = _settled(tuple(_ordered(i) if isinstance(i, Stream) else i for i in kernel.body), (), given)
    return replace(kernel, body=body)


def _ordered(stream: Stream) -> Stream:
    body = tuple(_ordered(i) if isinstance(i, Stream) else i for i in stream.body)
    kept = {r.name for r in (*stream.merged, *(p.part for p in (*stream.carry, *stream.stacked)))}
    body, merge = _settled(body, stream.merge, kept)
    return replace(stream, body=body, merge=merge)


def _settled(
    body: tuple[Instruction, ...], after: tuple[Instruction, ...], kept: set[str]
) -> tuple[tuple[Instruction, ...], tuple[Instruction, ...]]:
    """Both parts with the products of the first in good order, except those that are `kept` as they are."""
    while True:
        for instruction in body:
            better = _better(instruction, (*body, *after))
            if better is not None and better.name not in kept:
                after = renamed(after, {better.name: better})
                body = renamed(body, {better.name: better})
                break
        else:
            return body, after


def _better(made: Instruction, body: Sequence[Instruction]) -> Register | None:
    """The result of a product with its axes in better order; None where they are as they should be, or must be."""
    match made:
        case Contract(out=out, a=a, b=b):
            operands = [a, b]
        case Apply(function="multiply", out=out, arguments=arguments):
            operands = [r for r in arguments if isinstance(r, Register)]
        case _:
            return None
    if set(out.axes) != {i for r in operands for i in r.axes}:
        return None
    order = merged([r.axes for r in operands], out.axes)
    readers = [i for i in body if out in reads(i)]
    if order is None or order == out.axes or not all(_takes(i, out, order) for i in readers):
        return None
    return replace(out, axes=order)


def merged(orders: Sequence[Sequence[Index]], wanted: Sequence[Index]) -> tuple[Index, ...] | None:
    """All of `wanted` in an order that keeps the others, else as wanted; None where they disagree."""
    before: dict[Index, set[Index]] = {index: set() for index in wanted}
    for axes in orders:
        for first, second in pairwise(axes):
            before[second].add(first)
    order: list[Index] = []
    while len(order) < len(wanted):
        ready = [i for i in wanted if i not in order and before[i] <= set(order)]
        if not ready:
            return None
        order.append(ready[0])
    return tuple(order)


def _takes(reader: Instruction, register: Register, order: Sequence[Index]) -> bool:
    """Whether the reader takes the register by index, and in this order without a copy."""
    match reader:
        case Contract(out=out, a=a, b=b):
            other = b if a == register else a
            inner = [i for i in order if i not in out.axes]
            outer = [i for i in order if i in out.axes and i not in other.axes]
            same = inner == [i for i in register.axes if i in inner]
            return same and _neighbours(inner, order) and _neighbours(outer, order)
        case IfFinite(fast=fast, safe=safe):
            return all(_takes(i, register, order) for side in (fast, safe) for i in side if register in reads(i))
        case Apply() | Fold():
            return True
    return False


def repeating(value: Axes, other: Axes, out: Axes) -> Index | None:
    """The first axis of `other` along which a product with `value` is to be made anew; None: one product will do.

    As one matrix, `other` would have to be copied, for what is summed stands between the axes of its rows; it is many
    times as large as the value. As many matrices, all of them times the same value, it stays where it is. A value that
    would be copied as well gains nothing: with one for each place of both, every pair of places is a product.
    """
    inner = [i for i in other if i in value]
    outer = [i for i in other if i in out and i not in value]
    if not inner or any(i in out for i in inner) or len(outer) < 2 or outer[0] != other[0]:
        return None
    own = [i for i in value if i in out]
    if (_neighbours(outer, other) and _neighbours(inner, other)) or not _neighbours(own, value):
        return None
    rest = [i for i in outer if i != other[0]]
    return other[0] if _neighbours(rest, other) and _neighbours(inner, other) else None


def _neighbours(group: Sequence[Index], axes: Sequence[Index]) -> bool:
    places = [axes.index(index) for index in group]
    return all(q == p + 1 for p, q in pairwise(places))


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a sum as matrices, `left × inner` times `inner × right`, for every place of `batch`.

    `turned`: the second operand stands on the left.
    """

    batch: Axes
    left: Axes
    right: Axes
    inner: Axes
    turned: bool

    @property
    def axes(self) -> Axes:
        """The axes of the result, in the order in which it is made."""
        return (*self.batch, *self.left, *self.right)


def product(a: Axes, b: Axes, out: Axes) -> Product:
    """How a product of operands with these axes is made: with as few copies as can be of what they hold."""
    repeated = {repeating(a, b, out), repeating(b, a, out)}
    batch = tuple(index for index in out if (index in a and index in b) or index in repeated)
    left = tuple(index for index in a if index in out and index not in (*b, *batch))
    right = tuple(index for index in b if index in out and index not in (*a, *batch))
    present = tuple(index for index in out if index in (*batch, *left, *right))
    turned = present != (*batch, *left, *right) and present == (*batch, *right, *left)
    if turned:
        a, b, left, right = b, a, right, left
    inner = tuple(index for index in a if index in b and index not in out)
    in_b = tuple(index for index in b if index in inner)

    def copies(order: Axes) -> int:
        return _is_copied(a, batch, left, order) + _is_copied(b, batch, right, order)

    return Product(batch, left, right, min(inner, in_b, key=copies), turned)


def orders(batch: Axes, outer: Axes, inner: Axes) -> tuple[Axes, Axes]:
    """The orders of axes that a reshape turns into a matrix without a copy: rows × inner, and inner × rows."""
    return (*batch, *outer, *inner), (*batch, *inner, *outer)


def _is_copied(axes: Axes, batch: Axes, outer: Axes, inner: Axes) -> bool:
    """Whether an operand has to be copied to be matrices of these axes."""
    held = tuple(index for index in batch if index in axes)
    return axes not in orders(held, outer, inner) and (len(outer) > 1 or len(inner) > 1)
