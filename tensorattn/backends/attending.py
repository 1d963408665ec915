"""`Attend` as source: operands brought to (batch…, rows, features), one call, and the result's axes taken apart."""

from __future__ import annotations

from collections.abc import Sequence

from tensorattn.backends.writing import Writer, atom
from tensorattn.ir import Index
from tensorattn.kernel import Attend
from tensorattn.lowering.liveness import makes
from tensorattn.parts import Literal, Register

Axes = tuple[Index, ...]


def attend(writer: Writer, instruction: Attend) -> None:
    """Write `out = attend(query, key, value, …)`, or `out, greatest, total = …`."""
    i = instruction
    parts = [
        _operand(writer, i.query, i.batch, (i.rows, i.bond)),
        _operand(writer, i.key, i.batch, (i.group, i.bond)),
        _operand(writer, i.value, i.batch, (i.group, i.values)),
        _ratio(writer, i.scale),
    ]
    for word, mask in (("bias", i.bias), ("where", i.where)):
        if mask is not None:
            parts.append(f"{word}={_operand(writer, mask, i.batch, (i.rows, i.group), broadcast=True)}")
    parts += ["causal=True"] if i.causal else []
    parts += ["parts=True"] if i.total is not None else []
    halves = {writer.halves.get(operand.name) for operand in (i.query, i.key, i.value)}
    if len(halves) == 1 and None not in halves and writer.words.device is not None and i.total is i.bias is None:
        parts += [f"half={writer.words.dtype(*halves)}"]  # type: ignore[arg-type]
    made = makes(i)
    names = [writer.join(register) for register in made]
    writer.owners.update({name: name for name in names})
    writer.line(f"{', '.join(names)} = attend({', '.join(parts)})")
    for name, register, groups in zip(names, made, ((i.rows, i.values), (i.rows,), (i.rows,)), strict=False):
        if any(len(group) != 1 for group in groups):
            writer.line(f"{name} = {name}.reshape({writer.shape(register.axes)})")


def _operand(
    writer: Writer, register: Register, batch: Axes, groups: tuple[Axes, ...], *, broadcast: bool = False
) -> str:
    """The register as (batch…, one dimension a group); a batch axis it lacks has size 1.

    `broadcast`: so has a group of which it has no index; of which it has some, the others are filled in.
    """
    value, kept = writer.read(register), []
    for group in groups:
        present = not broadcast or any(index in register.axes for index in group)
        kept.append(group if present else ())
    lead = tuple(index for index in batch if index in register.axes)
    value = writer.arranged(value, (*lead, *(index for group in kept for index in group)))
    if all(len(group) == 1 or not (have or not broadcast) for group, have in zip(groups, kept, strict=True)):
        return writer.aligned(value, (*batch, *(group[0] for group in groups)), whole=True)
    shape = [writer.length(index) if index in lead else "1" for index in batch]
    return f"{atom(value.source)}.reshape({writer.tuple([*shape, *map(writer.product, kept)])})"


def _ratio(writer: Writer, scale: tuple[tuple[Literal, ...], tuple[Literal, ...]]) -> str:
    """The scale as a number, or a pair of numbers where a divisor may be 0."""
    above, below = (_product(writer, literals) for literals in scale)
    return above if not scale[1] else f"({above}, {below})"


def _product(writer: Writer, literals: Sequence[Literal]) -> str:
    return " * ".join(writer.number(literal.value) for literal in literals) or "1.0"
