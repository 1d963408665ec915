"""Loops over tiles as source."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tensorattn.backends.writing import Text, Writer
from tensorattn.kernel import Instruction, Slice, Stream, TileRule

LOCALS = ("start", "stop", "length")
WriteAll = Callable[[Writer, Sequence[Instruction]], None]


def write_slice(writer: Writer, instruction: Slice) -> None:
    start, stop = writer.bounds[instruction.axis]
    source = writer.read(instruction.source)
    before = ":, " * source.axes.index(instruction.axis)
    cut = Text(f"{source.source}[{before}{start}:{stop}]", source.axes, source.owner)
    writer.assign(instruction.out, cut)


def write_stream(writer: Writer, stream: Stream, write_all: WriteAll) -> None:
    """The loop over tiles; the last tile may be shorter, and no tile at all leaves the units."""
    places = [writer.names.of("local", f"{name}{stream.axis.name}{stream.axis.number}") for name in LOCALS]
    start, stop, length = places
    size = writer.number(stream.size)
    for carry in stream.carry:
        unit = writer.filled(writer.shape(carry.state.axes), carry.unit, carry.state.dtype)
        writer.join(carry.state)
        writer.assign(carry.state, Text(unit, carry.state.axes))
    tile = str(stream.tile)
    if isinstance(stream.tile, TileRule):
        tile = writer.names.of("local", f"tile{stream.axis.name}{stream.axis.number}")
        writer.line(f"{tile} = max({stream.tile.entries} // max({writer.number(stream.tile.per)}, 1), 1)")
    writer.line(f"for {start} in range(0, {size}, {tile}):")
    with writer.indented(), writer.tile(stream.axis, *places):
        writer.line(f"{stop} = min({start} + {tile}, {size})")
        writer.line(f"{length} = {stop} - {start}")
        write_all(writer, stream.body)
        write_all(writer, stream.merge)
        states = ", ".join(writer.name(carry.state) for carry in stream.carry)
        values = [
            writer.arranged(writer.read(merged, carry.state.dtype), carry.state.axes)
            for carry, merged in zip(stream.carry, stream.merged, strict=True)
        ]
        writer.line(f"{states} = {', '.join(value.source for value in values)}")
    for carry, value in zip(stream.carry, values, strict=True):
        writer.owners[writer.name(carry.state)] = value.owner or writer.name(carry.state)
