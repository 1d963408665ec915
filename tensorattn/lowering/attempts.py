"""Kernel → kernel: loops in both bodies of an attempt.

The fallback streams, so that it needs no more memory than a streamed plan; of the fast side large products are made
slice by slice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensorattn.kernel import Attempt, Instruction, Kernel, Load, Output
from tensorattn.lowering.liveness import made_within, outside_reads
from tensorattn.lowering.streaming import streamed
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register


def attempts_streamed(
    kernel: Kernel, sizes: Mapping[str, int], base: str, tile_entries: int | None = None, stem: str = "a"
) -> Kernel:
    """The kernel with loops in the bodies of its attempts, whatever the size of the softmax.

    `stem`: the beginning of the names of what these make, for sides may read the same registers.
    """
    body = list(kernel.body)
    for number, made in enumerate(body):
        if isinstance(made, Attempt):
            sides = []
            for word, side, results in (("f", made.fast, (*made.outs, made.test)), ("s", made.fallback, made.outs)):
                inner = _side(kernel, side, results)
                name = f"{stem}{number}{word}"
                inner = attempts_streamed(inner, sizes, base, tile_entries, name)
                looped = streamed(inner, sizes, base, asked=word == "s", tile_entries=tile_entries).kernel.body
                sides.append(_named(looped, inner.body, results, f"{name}_"))
            body[number] = replace(made, fast=sides[0], fallback=sides[1])
    return replace(kernel, body=tuple(body))


def ratios_sliced(kernel: Kernel, sizes: Mapping[str, int], base: str) -> Kernel | None:
    """The kernel with loops in the fast sides of its attempts; None where they hold nothing larger than a tile."""
    body, found = list(kernel.body), False
    for number, made in enumerate(body):
        if isinstance(made, Attempt):
            looped = streamed(_side(kernel, made.fast, (*made.outs, made.test)), sizes, base, asked=False)
            body[number], found = replace(made, fast=looped.kernel.body), found or bool(looped.axes)
    return replace(kernel, body=tuple(body)) if found else None


def _side(kernel: Kernel, body: tuple[Instruction, ...], results: tuple[Register, ...]) -> Kernel:
    outputs = tuple(Output(r.name, r, tuple((index,) for index in r.axes), r.dtype) for r in results)
    return replace(kernel, body=body, outputs=outputs)


def _named(
    looped: tuple[Instruction, ...], plain: tuple[Instruction, ...], results: tuple[Register, ...], stem: str
) -> tuple[Instruction, ...]:
    """The body with loops, unless that changes what passes between it and the rest; new registers bear the stem."""
    known, made = set(made_within(plain)), set(made_within(looped))
    if not (outside_reads(looped) <= outside_reads(plain) and known & set(results) <= made):
        return plain
    new = {r.name: replace(r, name=f"{stem}{r.name}") for r in made if r.name not in {k.name for k in known}}
    return tuple(renamed(i, new) for i in looped)


def with_loads_before(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The body with what both sides of an attempt load loaded before it, so that the inputs are seen from outside."""
    found: list[Instruction] = []
    for instruction in body:
        if isinstance(instruction, Attempt):
            sides = [with_loads_before(side) for side in (instruction.fast, instruction.fallback)]
            found += [i for side in sides for i in side if isinstance(i, Load)]
            fast, fallback = (tuple(i for i in side if not isinstance(i, Load)) for side in sides)
            instruction = replace(instruction, fast=fast, fallback=fallback)
        found.append(instruction)
    return tuple(found)
