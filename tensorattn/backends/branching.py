"""Branches on what the values are, as source."""

from __future__ import annotations

from tensorattn.backends.looping import WriteAll
from tensorattn.backends.writing import INPUT, Writer
from tensorattn.kernel import IfFinite


def write_if_finite(writer: Writer, instruction: IfFinite, write_all: WriteAll) -> None:
    values = [writer.name(v) for v in instruction.values if v.dtype.startswith("float")]
    if not values:
        return write_all(writer, instruction.fast)
    name = writer.join(instruction.out)
    writer.line(f"if all_finite({', '.join(values)}):")
    with writer.indented():
        write_all(writer, instruction.fast)
    owner = writer.owners[name]
    writer.line("else:")
    with writer.indented():
        write_all(writer, instruction.safe)
    writer.owners[name] = owner if owner == writer.owners[name] else INPUT
    return None
