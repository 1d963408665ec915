"""Kernel → kernel: one index where statements had several for the same axis, and one instruction for equal ones.

A definition that is read in another statement is a `View` under that statement's indices. Where no instruction holds
both indices the two are made one, the view goes, and two softmaxes of one score are seen to be of one score.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

from tensorattn.ir import Index
from tensorattn.kernel import Attempt, Gather, IfFinite, Instruction, Kernel, Load, Normalised, Stream, View
from tensorattn.lowering.liveness import makes, reads
from tensorattn.parts import Literal, Register
from tensorattn.sizes import Size


def unified(kernel: Kernel) -> Kernel:
    """The kernel without views that only rename, as far as that can be, and without what is computed twice."""
    names = _Names(kernel)
    for instruction in _every(kernel.body):
        for old, new in _renames(instruction):
            names.join(old, new)
    body = tuple(renamed(i, {}, names.of) for i in kernel.body)
    outputs = tuple(renamed(o, {}, names.of) for o in kernel.outputs)
    return _shared(replace(kernel, body=body, outputs=outputs))


def _every(body: Iterable[Instruction]) -> Iterable[Instruction]:
    for instruction in body:
        yield instruction
        if isinstance(instruction, IfFinite):
            yield from _every((*instruction.fast, *instruction.safe))
        if isinstance(instruction, Attempt):
            yield from _every((*instruction.fast, *instruction.fallback))


def _is_rename(view: View) -> bool:
    flat = [index for split in view.splits for index in split]
    return all(len(split) == 1 for split in view.splits) and len(set(flat)) == len(flat)


def _renames(instruction: Instruction) -> list[tuple[Index, Index]]:
    """The pairs of indices that stand for one axis, of a view and of a table read at an index: to keep, to give up."""
    match instruction:
        case View(source=source) if _is_rename(instruction):
            return [(old, new) for old, (new,) in zip(source.axes, instruction.splits, strict=True)]
        case Gather(table=table, positions=positions):
            pairs = zip(table.axes, positions, strict=True)
            return [(new, old) for old, new in pairs if isinstance(new, Index)]
    return []


class _Names:
    """Indices joined into groups, of which no instruction holds two members."""

    def __init__(self, kernel: Kernel) -> None:
        self.first: dict[Index, Index] = {}
        places = [place for i in _every(kernel.body) for place in _places(i)]
        places += [{index for axis in o.axes for index in axis} | set(o.register.axes) for o in kernel.outputs]
        self.places = [place for place in places if len(place) > 1]

    def of(self, index: Index) -> Index:
        while index in self.first:
            index = self.first[index]
        return index

    def join(self, old: Index, new: Index) -> None:
        """Make the two one, unless an instruction tells them apart."""
        old, new = self.of(old), self.of(new)
        if old != new and not any({old, new} <= {self.of(i) for i in place} for place in self.places):
            self.first[new] = old


def _places(instruction: Instruction) -> list[set[Index]]:
    """The sets of indices of an instruction that have to stay apart. Of a view each side is a set of its own."""
    match instruction:
        case View(out=out, source=source, splits=splits):
            return [set(out.axes) | {i for s in splits for i in s}, set(source.axes)]
        case Load(splits=splits):
            return [{i for s in splits for i in s}]
        case Gather(out=out, table=table, positions=positions):
            read = {i for p in positions for i in (p.axes if isinstance(p, Register) else (p,))}
            return [set(out.axes) | read, set(table.axes)]
        case IfFinite(out=out, values=values):  # what stands inside is looked at by itself
            return [set(out.axes), *(set(v.axes) for v in values)]
        case Attempt(outs=outs):
            return [set(out.axes) for out in outs]
    return [_indices(instruction)]


def _indices(value: Any) -> set[Index]:
    if isinstance(value, Index):
        return {value}
    if isinstance(value, tuple):
        return {i for part in value for i in _indices(part)}
    if is_dataclass(value) and not isinstance(value, (Size, Literal)):
        return {i for f in fields(value) for i in _indices(getattr(value, f.name))}
    return set()


def renamed(value: Any, registers: Mapping[str, Register], index: Callable[[Index], Index] = lambda i: i) -> Any:
    """An instruction with registers and indices replaced, at every depth."""
    if isinstance(value, Register):
        found = registers.get(value.name)
        return found or Register(value.name, tuple(index(i) for i in value.axes), value.dtype)
    if isinstance(value, Index):
        return index(value)
    if isinstance(value, tuple):
        return tuple(renamed(v, registers, index) for v in value)
    if is_dataclass(value) and not isinstance(value, (Size, Literal)):
        parts = {f.name: renamed(getattr(value, f.name), registers, index) for f in fields(value) if f.init}
        return replace(value, **parts)  # type: ignore[type-var]
    return value


def _shared(kernel: Kernel) -> Kernel:
    """Views that rename nothing any more are gone, and so is the second of two equal instructions."""
    same: dict[str, Register] = {}
    known: dict[Any, Register] = {}
    body: list[Instruction] = []
    for instruction in kernel.body:
        instruction = renamed(instruction, same)
        if isinstance(instruction, (Stream, IfFinite, Attempt)) or len(makes(instruction)) != 1:
            body.append(instruction)
            continue
        out: Register = instruction.out
        plain = isinstance(instruction, View) and _is_rename(instruction) and out.axes == instruction.source.axes
        key = replace(instruction, out=replace(out, name=""))
        found = instruction.source if plain else known.get(key)
        if found is None or (isinstance(instruction, Normalised) and _feeds_itself(kernel.body, found, instruction)):
            known.setdefault(key, out)
            body.append(instruction)
        else:
            same[out.name] = found
    outputs = tuple(replace(o, register=same.get(o.register.name, o.register)) for o in kernel.outputs)
    return replace(kernel, body=tuple(body), outputs=outputs)


def _feeds_itself(body: tuple[Instruction, ...], first: Register, second: Normalised) -> bool:
    """Whether values of the second weights are made from results of the first: no loop could make both at once."""
    after = {first.name}
    chain: set[str] = set()
    for instruction in body:
        read = {r.name for r in reads(instruction)}
        out = makes(instruction)
        if read & chain:
            if (read - chain) & after:
                return True
            chain |= {r.name for r in out if set(r.axes) & set(second.indices)}
        if second.out.name in {r.name for r in out}:
            chain.add(second.out.name)
        elif read & after:
            after |= {r.name for r in out}
    return False
