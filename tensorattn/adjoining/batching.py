"""Kernel → kernel: for many inputs at once, some of them along a new first axis, as torch.vmap asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tensorattn.ir import Index
from tensorattn.kernel import Arrange, Attempt, Fold, Gather, IfFinite, Instruction, Kernel, Load, Output, Scatter, View
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register
from tensorattn.sizes import Axis, Quotient, SizeRead

WHOLE = ("score", "source", "positions")  # operands that have all axes of the result, and perhaps more
BATCH_AXIS = "vmap"  # the name of the axis; its size is the length of the first axis of an input


def batched(kernel: Kernel, which: Sequence[bool]) -> Kernel:
    """The kernel with one more first axis on the inputs that have it, and on what depends on them."""
    names = frozenset(name for name, there in zip(kernel.inputs, which, strict=True) if there)
    known = {name for name, _ in kernel.sizes}
    axis = Index(next(name for n in range(len(known) + 1) if (name := f"{BATCH_AXIS}{n}") not in known))
    lifted: dict[str, Register] = {}
    body = [i for made in kernel.body for i in _lifted(made, names, axis, lifted)]
    outputs = tuple(_output(output, lifted.get(output.register.name), axis) for output in kernel.outputs)
    sizes = tuple((name, _shifted(read, names)) for name, read in kernel.sizes)
    first = next(name for name in kernel.inputs if name in names)
    return replace(kernel, body=tuple(body), outputs=outputs, sizes=((axis.name, Axis(first, 0)), *sizes))


def _output(output: Output, register: Register | None, axis: Index) -> Output:
    return output if register is None else replace(output, register=register, axes=((axis,), *output.axes))


def _lifted(made: Instruction, names: frozenset[str], axis: Index, lifted: dict[str, Register]) -> list[Instruction]:
    """The instruction with the axis on its result, where an operand has it."""
    if isinstance(made, Load):
        if made.input not in names:
            return [made]
        lifted[made.out.name] = out = replace(made.out, axes=(axis, *made.out.axes))
        return [replace(made, out=out, splits=((axis,), *made.splits))]
    if not any(r.name in lifted for r in reads(made)):
        return [made]
    match made:
        case View(source=source, splits=splits):
            lifted[made.out.name] = out = replace(made.out, axes=(axis, *made.out.axes))
            return [View(out, lifted[source.name], ((axis,), *splits))]
        case Gather(table=table, positions=positions):
            return [_gathered(made, table, positions, axis, lifted)]
        case Scatter(source=source, positions=positions):
            return _scattered(made, source, positions, axis, lifted)
        case IfFinite(fast=fast, safe=safe):
            lifted[made.out.name] = out = replace(made.out, axes=(axis, *made.out.axes))
            sides = (_side(side, (out,), names, axis, lifted)[0] for side in (fast, safe))
            values = tuple(lifted.get(v.name, v) for v in made.values)
            return [IfFinite(out, values, *sides)]
        case Attempt():
            return [_attempted(made, names, axis, lifted)]
    for out in makes(made):
        lifted[out.name] = replace(out, axes=(axis, *out.axes))
    return [*_whole(made, axis, lifted), renamed(made, lifted)]


def _whole(made: Any, axis: Index, lifted: dict[str, Register]) -> list[Instruction]:
    """The axis on what has to have all axes of the result, where only another operand has it."""
    source = next((x for name in WHOLE if (x := getattr(made, name, None)) is not None), None)
    if source is None or source.name in lifted:
        return []
    lifted[source.name] = wide = Register(f"{axis.name}{source.name}", (axis, *source.axes), source.dtype)
    return [Arrange(wide, source)]


def _gathered(
    made: Gather, table: Register, positions: tuple[Register | Index, ...], axis: Index, lifted: Mapping[str, Register]
) -> Gather:
    out = replace(made.out, axes=(axis, *made.out.axes))
    lifted[made.out.name] = out  # type: ignore[index]
    places = tuple(lifted.get(p.name, p) if isinstance(p, Register) else p for p in positions)
    if table.name in lifted:
        return Gather(out, lifted[table.name], (axis, *places))
    return Gather(out, table, places)


def _scattered(
    made: Scatter, source: Register, positions: tuple[Register | Index, ...], axis: Index, lifted: dict[str, Register]
) -> list[Instruction]:
    out = replace(made.out, axes=(axis, *made.out.axes))
    lifted[made.out.name] = out
    places = tuple(lifted.get(p.name, p) if isinstance(p, Register) else p for p in positions)
    before: list[Instruction] = []
    wide = lifted.get(source.name)
    if wide is None:
        wide = Register(f"{axis.name}{made.out.name}", (axis, *source.axes), source.dtype)
        before = [Arrange(wide, source)]
    return [*before, Scatter(out, wide, (axis, *places))]


def _side(
    side: tuple[Instruction, ...], outs: tuple[Register, ...], names: frozenset[str], axis: Index,
    lifted: Mapping[str, Register],
) -> tuple[tuple[Instruction, ...], dict[str, Register]]:  # fmt: skip
    """A side of a branch that makes `outs` with the axis, and what else has it there."""
    inner = {name: register for name, register in lifted.items() if name not in {out.name for out in outs}}
    body = [i for made in side for i in _lifted(made, names, axis, inner)]
    for out in outs:
        if inner.get(out.name) != out:  # the same for all
            narrow = Register(f"{axis.name}{out.name}", tuple(i for i in out.axes if i != axis), out.dtype)
            body = [renamed(i, {out.name: narrow}) for i in body]
            body.append(Arrange(out, narrow))
    return tuple(body), inner


def _attempted(made: Attempt, names: frozenset[str], axis: Index, lifted: dict[str, Register]) -> Attempt:
    """For all at once: the test has to hold for each."""
    outs = tuple(replace(out, axes=(axis, *out.axes)) for out in made.outs)
    lifted |= {out.name: out for out in outs}
    fast, inner = _side(made.fast, outs, names, axis, lifted)
    fallback, _ = _side(made.fallback, outs, names, axis, lifted)
    test = made.test
    if (each := inner.get(test.name)) is not None:
        test = Register(f"{axis.name}{test.name}", (), test.dtype)
        fast = (*fast, Fold(test, "all", each))
    return Attempt(outs, test, fast, fallback)


def _shifted(read: SizeRead, names: frozenset[str]) -> SizeRead:
    match read:
        case Axis(input=name, axis=axis) if name in names:
            return Axis(name, axis + 1)
        case Quotient(of=Axis(input=name, axis=axis), by=by) if name in names:
            return Quotient(Axis(name, axis + 1), by)
    return read
