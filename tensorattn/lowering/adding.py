"""Kernel → kernel: a product that something is added to takes it along: Σ a·b + c is one call, and no pass over it.

In a loop over tiles a score is made, a bias is added to it, and what is constant along a row is taken off; of these the
product takes one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from tensorattn.kernel import Apply, Contract, Instruction, Kernel, Stream
from tensorattn.lowering.liveness import INNER, reads
from tensorattn.lowering.products import neighbours, product
from tensorattn.parts import Register, Summand


def with_sums(kernel: Kernel) -> Kernel:
    """The kernel in whose loops products take along what is added to them."""
    return replace(kernel, body=tuple(map(_inside, kernel.body)))


def _inside(instruction: Instruction) -> Instruction:
    parts = {name: tuple(map(_inside, inner)) for name in INNER if (inner := getattr(instruction, name, ()))}
    changed = replace(instruction, **parts)
    if not isinstance(changed, Stream):
        return changed
    ends = {*changed.merged, *(p.part for p in (*changed.carry, *changed.stacked))}
    return replace(changed, body=_body(changed.body, ends | {r for i in changed.merge for r in reads(i)}))


def _body(body: tuple[Instruction, ...], ends: set[Register]) -> tuple[Instruction, ...]:
    """The body with every product taking along what it can; `ends` are needed afterwards."""
    for step in body:
        if isinstance(step, Contract) and step.added is None:
            changed = _taken(step, body, ends)
            if changed is not None:
                return _body(changed, ends)
    return body


def _taken(step: Contract, body: tuple[Instruction, ...], ends: set[Register]) -> tuple[Instruction, ...] | None:
    """The body with the smallest of what is added to a product taken along; None where nothing fits.

    (Σ a·b + x) − y is (Σ a·b − y) + x.
    """
    chain = _chain(step, body, ends)
    taken = [Summand(link.other, _signs(chain, n)) for n, link in enumerate(chain)]
    fitting = [n for n, link in enumerate(chain) if fits(step, taken[n]) and (not n or link.signs[0] > 0)]
    if not fitting:
        return None
    alone = {*step.a.axes} ^ {*step.b.axes}  # of the rows or of the columns: what has both is as large as the product
    best = min(fitting, key=lambda n: len(alone & {*chain[n].other.axes}))
    before, link = [one.reader for one in chain[:best]], chain[best]
    if before:
        before[-1] = replace(before[-1], out=link.reader.out)
        made: list[Instruction] = [replace(step, added=taken[best]), *before]
    else:
        made = [replace(step, out=link.reader.out, added=taken[best])]
    gone = [step, *(one.reader for one in chain[:best])]
    return tuple(new for i in body if i not in gone for new in (made if i == link.reader else [i]))


class _Link(NamedTuple):
    """A sum that only one sum reads: what is added to it there, with the signs of both."""

    reader: Apply
    other: Register
    signs: tuple[int, int]


def _signs(chain: Sequence[_Link], place: int) -> tuple[int, int]:
    """Those of the product and of what a link adds, where the product takes that along before the links before it."""
    if not place:
        return chain[0].signs
    return 1, prod(one.signs[0] for one in chain[:place]) * chain[place].signs[1]


def _chain(step: Contract, body: tuple[Instruction, ...], ends: set[Register]) -> list[_Link]:
    """The sums that a product goes into, each read by the next alone."""
    found: list[_Link] = []
    total = step.out
    while total not in ends:
        readers = [i for i in body if total in reads(i)]
        if len(readers) != 1 or (link := _link(readers[0], total)) is None:
            break
        found.append(link)
        total = link.reader.out
    return found


def _link(reader: Instruction, total: Register) -> _Link | None:
    match reader:
        case Apply(function="add" | "subtract" as function, arguments=(Register() as first, Register() as second)):
            other, minus = (second if first == total else first), function == "subtract"
            signs = (-1 if minus and second == total else 1, -1 if minus and first == total else 1)
            same = reader.out.axes == total.axes and reader.out.dtype == total.dtype
            return _Link(reader, other, signs) if same and other != total else None
    return None


def fits(step: Contract, added: Summand) -> bool:
    """Whether one call makes a product and its sum: what is added has all axes of rows and columns, in their order.

    What is constant along one of both is small: it may be brought into that shape, or negated.
    """
    other = added.register
    made = product(step.a.axes, step.b.axes, step.out.axes)
    if set(made.axes) != {*step.out.axes} or not (made.inner and made.left and made.right):
        return False
    sides = made.left, made.right
    small = any({*side}.isdisjoint(other.axes) for side in sides)
    ordered = all({*side} <= {*other.axes} and neighbours(side, other.axes) for side in sides)
    batched = len(made.batch) < 2 or all({*made.batch} <= {*r.axes} for r in (step.a, step.b))
    floats = other.dtype == step.out.dtype and step.out.dtype.startswith("float")
    return (small or (ordered and added.signs[1] > 0)) and batched and floats
