"""Which instructions are needed: what a result does not depend on is dropped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, replace

from tensorattn.kernel import Attempt, IfBounded, IfFinite, Instruction, Stream
from tensorattn.parts import Ceiling, Joint, Norm, Register, Stretch, Summand
from tensorattn.records import Record

Body = tuple[Instruction, ...]


def reads(instruction: Instruction | Record) -> frozenset[Register]:
    """The registers an instruction reads; for a branch, those that either side reads from outside."""
    if isinstance(instruction, IfFinite):
        found = set(instruction.values)
        for side in (instruction.fast, instruction.safe):
            found |= outside_reads(side)
        return frozenset(found)
    if isinstance(instruction, Attempt):
        own = {r for i in instruction.fast for r in makes(i)}
        found = outside_reads(instruction.fast) | outside_reads(instruction.fallback)
        return frozenset(found | ({instruction.test} - own))
    if isinstance(instruction, IfBounded):
        looked = _registers(instruction.limits)
        return frozenset({*looked, *outside_reads(instruction.fast), *outside_reads(instruction.safe)})
    if isinstance(instruction, Stream):
        inner = outside_reads((*instruction.body, *instruction.merge))
        return frozenset(inner - {c.state for c in instruction.carry})
    parts = (getattr(instruction, f.name) for f in fields(instruction) if f.name not in MADE)
    return frozenset(register for part in parts for register in _registers(part))


def outside_reads(body: tuple[Instruction, ...]) -> set[Register]:
    """The registers that a body reads and does not make itself."""
    made: set[Register] = set()
    found: set[Register] = set()
    for instruction in body:
        found |= reads(instruction) - made
        made.update(makes(instruction))
    return found


MADE = ("out", "greatest", "total", "outs")  # the fields of instructions that name what they make


def makes(instruction: Instruction | Record) -> tuple[Register, ...]:
    """The registers an instruction makes."""
    if isinstance(instruction, Stream):
        return (*(carry.state for carry in instruction.carry), *(stack.out for stack in instruction.stacked))
    outs = getattr(instruction, "outs", None)
    if outs is not None:
        return outs
    return tuple(made for name in MADE if isinstance(made := getattr(instruction, name, None), Register))


INNER = ("fast", "safe", "fallback", "body", "merge")  # the fields of instructions that are bodies


def made_within(body: Iterable[Instruction]) -> Iterator[Register]:
    """The registers that a body makes, those of its branches and loops too."""
    for instruction in body:
        yield from makes(instruction)
        for name in INNER:
            yield from made_within(getattr(instruction, name, ()))


def with_bodies(instruction: Instruction, change: Callable[[Body], Body]) -> Instruction:
    """The instruction with its bodies changed, if it has any."""
    parts = {name: change(inner) for name in INNER if (inner := getattr(instruction, name, ()))}
    return replace(instruction, **parts) if parts else instruction


def _registers(value: object) -> Iterator[Register]:
    if isinstance(value, Register):
        yield value
    elif isinstance(value, tuple):
        for part in value:
            yield from _registers(part)
    elif isinstance(value, Joint):
        yield from (value.a, value.b)
    elif isinstance(value, Summand):
        yield value.register
    elif isinstance(value, (Ceiling, Norm, Stretch)):
        yield from _registers(value.of if isinstance(value, Ceiling) else value.source)


def without_dead(body: tuple[Instruction, ...], results: tuple[Register, ...]) -> tuple[Instruction, ...]:
    """The body without the instructions that no result needs."""
    needed = set(results)
    kept = []
    for instruction in reversed(body):
        if needed.intersection(makes(instruction)):
            kept.append(instruction)
            needed |= reads(instruction)
    return tuple(reversed(kept))
