"""Kernel → kernel: loops in both bodies of an attempt.

The fallback streams, so that it needs no more memory than a streamed plan; of the fast side large products are made
slice by slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensorattn.kernel import Attempt, Instruction, Kernel, Output
from tensorattn.lowering.liveness import outside_reads
from tensorattn.lowering.streaming import streamed
from tensorattn.parts import Register


def attempts_streamed(kernel: Kernel, sizes: Mapping[str, int], base: str, tile_entries: int | None = None) -> Kernel:
    """The kernel with loops in the bodies of its attempts, whatever the size of the softmax."""
    return replace(kernel, body=tuple(_streamed(i, kernel, sizes, base, tile_entries) for i in kernel.body))


def _streamed(
    instruction: Instruction, kernel: Kernel, sizes: Mapping[str, int], base: str, tile_entries: int | None
) -> Instruction:
    if not isinstance(instruction, Attempt):
        return instruction
    out, test = instruction.out, instruction.test
    fast = _body(instruction.fast, (out, test), kernel, sizes, base, tile_entries, asked=False)
    fallback = _body(instruction.fallback, (out,), kernel, sizes, base, tile_entries, asked=True)
    return replace(instruction, fast=fast, fallback=fallback)


def _body(
    body: tuple[Instruction, ...],
    results: tuple[Register, ...],
    kernel: Kernel,
    sizes: Mapping[str, int],
    base: str,
    tile_entries: int | None,
    *,
    asked: bool,
) -> tuple[Instruction, ...]:
    """The body with loops, unless that changes what passes between it and the rest."""
    outputs = tuple(Output(r.name, r, tuple((index,) for index in r.axes), r.dtype) for r in results)
    inner = attempts_streamed(replace(kernel, body=body, outputs=outputs), sizes, base, tile_entries)
    found = streamed(inner, sizes, base, asked=asked, tile_entries=tile_entries).kernel.body
    same = getattr(found[-1], "out", None) == results[0] and outside_reads(found) <= outside_reads(inner.body)
    return found if same else inner.body
