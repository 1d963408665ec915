"""Kernel → kernel: the axes of products in the order in which the operands lie in memory.

A product without a sum, `v^nu_n w^rho_n`, may have its axes in any order, as every reader takes them by index. It is
fastest where the last axis of the operands stays last; what reads it as a matrix needs only that the axes of a group
stay neighbours. What loops make, sum and stack is oriented first (`orienting.py`), and what they read again and again
packed last (`packing.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Contract, Fold, IfFinite, Instruction, Kernel, Stream
from tensorattn.lowering.hoisting import hoisted
from tensorattn.lowering.liveness import reads
from tensorattn.lowering.orienting import oriented
from tensorattn.lowering.packing import packed
from tensorattn.lowering.products import neighbours
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register


def laid_out(kernel: Kernel, sizes: Mapping[str, int] | None = None) -> Kernel:
    """The kernel with its products in good order, those in its loops too; `sizes`: those it is planned for."""
    given = {output.register.name for output in kernel.outputs}
    body = oriented(hoisted(kernel.body, sizes or {}), sizes or {})
    body, _ = _settled(tuple(_ordered(i) if isinstance(i, Stream) else i for i in body), (), given)
    return replace(kernel, body=packed(body))


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
        case Apply(out=out, arguments=arguments) if out.dtype != "bool":
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
            return same and neighbours(inner, order) and neighbours(outer, order)
        case IfFinite(fast=fast, safe=safe):
            return all(_takes(i, register, order) for side in (fast, safe) for i in side if register in reads(i))
        case Apply() | Fold():
            return True
    return False
