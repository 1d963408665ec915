"""Loops over tiles as source."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

from tensorattn.backends.writing import Text, Writer
from tensorattn.kernel import Fold, Instruction, Slice, Stream
from tensorattn.lowering.buffers import Room, places
from tensorattn.lowering.intervals import span
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.narrowing import is_sum
from tensorattn.parts import Bound, Edge, Narrowed, Register, TileRule

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
    bounds = [writer.names.of("local", f"{name}{stream.axis.name}{stream.axis.number}") for name in LOCALS]
    start, stop, length = bounds
    size = writer.number(stream.size)
    for carry in stream.carry:
        unit = writer.filled(writer.shape(carry.state.axes), carry.unit, carry.state.dtype)
        writer.join(carry.state)
        writer.assign(carry.state, Text(unit, carry.state.axes))
    pieces = [writer.names.of("local", f"pieces {stack.out.name}") for stack in stream.stacked]
    for stack, name in zip(stream.stacked, pieces, strict=True):  # 0 where the loop does not run
        zero = "" if stream.live is None else writer.filled(writer.shape(stack.out.axes), 0, stack.out.dtype)
        writer.line(f"{name} = [{zero}]")
    tile = _write_tile(writer, stream, size)
    with writer.tile(stream.axis, start, stop, tile, tile), ExitStack() as most:
        for narrowed in stream.narrowed:
            most.enter_context(_at_most(writer, narrowed))
        rooms = _write_rooms(writer, stream)
    first, end = _live(writer, stream.live, size)
    writer.line(f"for {start} in range({first}, {end}, {tile}):")
    with writer.indented(), writer.tile(stream.axis, *bounds, tile=tile), writer.placed(*rooms), ExitStack() as cuts:
        writer.line(f"{stop} = min({start} + {tile}, {end})")
        writer.line(f"{length} = {stop} - {start}")
        for narrowed in stream.narrowed:
            cuts.enter_context(_narrowed(writer, narrowed))
        _write_round(writer, stream, write_all)
        for stack, name in zip(stream.stacked, pieces, strict=True):
            part = writer.arranged(writer.read(stack.part, stack.out.dtype), stack.out.axes)
            dim = stack.out.axes.index(stream.axis)
            writer.line(f"put({name}, {part.source}, {dim}, {start}, {size})")
        values = _carried(writer, stream)
    for carry, value in zip(stream.carry, values, strict=True):
        writer.owners[writer.name(carry.state)] = value.owner or writer.name(carry.state)
    for stack, name in zip(stream.stacked, pieces, strict=True):
        dim = stack.out.axes.index(stream.axis)
        nothing = writer.filled(writer.shape(stack.out.axes), 0, stack.out.dtype)
        writer.assign(stack.out, Text(f"joined({name}, {dim}) if {name} else {nothing}", stack.out.axes))


def _write_round(writer: Writer, stream: Stream, write_all: WriteAll) -> None:
    """What a round makes, merged with the states."""
    added = _added(stream)
    for instruction in stream.body:
        if makes(instruction)[0] in added:
            _write_added(writer, instruction, *added[instruction.out])  # type: ignore[arg-type,union-attr]
        else:
            write_all(writer, (instruction,))
    done = {merged for _, merged in added.values()}
    for instruction in stream.merge:
        if not (done.intersection(makes(instruction)) or _write_sum(writer, stream, instruction)):
            write_all(writer, (instruction,))


def _write_sum(writer: Writer, stream: Stream, merge: Instruction) -> bool:
    """The line that adds a part to the state, where it is one of a stretch of another axis; else nothing."""
    cut = {narrowed.axis for narrowed in stream.narrowed}
    for carry, merged in zip(stream.carry, stream.merged, strict=True):
        axes = carry.state.axes
        if makes(merge) == (merged,) and cut & {*axes} & {*carry.part.axes} and is_sum(stream, carry):
            part = writer.arranged(writer.read(carry.part, carry.state.dtype), axes).source
            places = [f"({axes.index(axis)}, {', '.join(writer.bounds[axis])})" for axis in axes if axis in cut]
            own = "True" if writer.words.owned is None else "own"
            writer.needs_owned = True
            text = f"add_at({writer.name(carry.state)}, {part}, {writer.tuple(places)}, {own})"
            writer.assign(merged, Text(text, axes))
            return True
    return False


def _added(stream: Stream) -> dict[Register, tuple[Register, Register]]:
    """Sums over axes within a tile that are only added to a state: by what they make, the state and what it becomes."""
    alike = [makes(i)[0] for i in stream.body if isinstance(i, Fold) and _keeps_order(i)]
    cut = {narrowed.axis for narrowed in stream.narrowed}
    used = Counter(r for i in (*stream.body, *stream.merge) for r in reads(i))
    used.update(stack.part for stack in stream.stacked)
    found = {}
    for carry, merged in zip(stream.carry, stream.merged, strict=True):
        state, part = carry.state, carry.part
        same = part.axes == state.axes and part.dtype == state.dtype
        if part in alike and used[part] == 1 and is_sum(stream, carry) and same and not cut & {*state.axes}:
            found[part] = state, merged
    return found


def _keeps_order(fold: Fold) -> bool:
    kept = tuple(index for index in fold.source.axes if index in fold.out.axes)
    return fold.kind == "sum" and kept == fold.out.axes != fold.source.axes and fold.source.dtype == fold.out.dtype


def _write_added(writer: Writer, fold: Fold, state: Register, merged: Register) -> None:
    """The line that adds what is summed to the state, without a pass for the sum where a tile has one position."""
    source, writer.needs_owned = writer.read(fold.source), True
    dims = writer.dims(source.axes, [index for index in source.axes if index not in fold.out.axes])
    own = "True" if writer.words.owned is None else "own"
    text = f"add_sum({writer.name(state)}, {source.source}, {dims}, {own})"
    writer.assign(merged, Text(text, merged.axes))


def _write_tile(writer: Writer, stream: Stream, size: str) -> str:
    """How many positions a tile has."""
    tile = writer.names.of("local", f"tile{stream.axis.name}{stream.axis.number}")
    positions = str(stream.tile)
    if isinstance(stream.tile, TileRule):
        positions = f"{stream.tile.entries} // max({writer.tiled(stream.tile.per)}, 1)"
    most = size if stream.live is None else _most(writer, stream.live)
    writer.line(f"{tile} = max(min({positions}, {most}), 1)")
    return tile


def _live(writer: Writer, live: Narrowed | None, size: str) -> tuple[str, str]:
    """The stretch a loop runs over."""
    if live is None:
        return "0", size
    low, high = (writer.names.of("local", f"{name}{live.axis.name}{live.axis.number}") for name in ("low", "high"))
    lows = ["0", *(f"-({_numerator(writer, b)})" for b in live.low)]
    highs = [size, *(f"{_numerator(writer, b)} + 1" for b in live.high)]
    writer.line(f"{low} = {_extreme('max', lows)}")
    writer.line(f"{high} = {_extreme('min', highs)}")
    return low, high


def _narrowed(writer: Writer, narrowed: Narrowed) -> AbstractContextManager[None]:
    """The lines that say where anything can be admitted: at least one position, if the axis has any."""
    axis = narrowed.axis
    low, high, length = (writer.names.of("local", f"{n}{axis.name}{axis.number}") for n in ("low", "high", "length"))
    size = writer.length(axis)
    lows = _extreme("max", [f"-({_numerator(writer, b)})" for b in narrowed.low])
    highs = _extreme("min", [f"{_numerator(writer, b)}" for b in narrowed.high])
    writer.line(f"{low} = max(min({lows}, {size} - 1), 0)" if narrowed.low else f"{low} = 0")
    writer.line(f"{high} = min(max({highs}, {low}) + 1, {size})" if narrowed.high else f"{high} = {size}")
    writer.line(f"{length} = {high} - {low}")
    return writer.tile(axis, low, high, length, length)


def _at_most(writer: Writer, narrowed: Narrowed) -> AbstractContextManager[None]:
    """The axis as long as it gets in any round."""
    most = _most(writer, narrowed)
    return writer.tile(narrowed.axis, "0", most, most, most)


def _most(writer: Writer, narrowed: Narrowed) -> str:
    """What no stretch of the axis exceeds."""
    size, found = writer.length(narrowed.axis), span(narrowed)
    if found is None:
        return size
    steps = [f"{writer.number(k)} * ({writer.length(index)} - 1)" for k, index in found[0]]
    return f"max(min({size}, {' + '.join([*steps, writer.number(found[1])])}), 1)"


def _extreme(function: str, values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"{function}({', '.join(values)})"


def _numerator(writer: Writer, bound: Bound) -> str:
    """The floor of the bound."""
    words = []
    for coefficient, what in bound.terms:
        if isinstance(what, Edge):
            first, stop = writer.bounds[what.axis]
            word = f"({stop} - 1)" if what.last else first
        else:
            word = f"int({writer.read(what).source})"
        words.append(word if coefficient == 1 else f"{writer.number(coefficient)} * {word}")
    if bound.constant.terms or not words:
        words.append(writer.number(bound.constant if bound.constant.constant is None else bound.constant.constant))
    total = " + ".join(words)
    return total if bound.divisor == 1 else f"({total}) // {bound.divisor}"


def _carried(writer: Writer, stream: Stream) -> list[Text]:
    """The line that carries the merged state into the next round, and what it carries."""
    values = [
        writer.arranged(writer.read(merged, carry.state.dtype), carry.state.axes)
        for carry, merged in zip(stream.carry, stream.merged, strict=True)
    ]
    if values:
        states = ", ".join(writer.name(carry.state) for carry in stream.carry)
        writer.line(f"{states} = {', '.join(value.source for value in values)}")
    return values


def _write_rooms(writer: Writer, stream: Stream) -> tuple[Mapping[str, Room | Register], Mapping[Room, str]]:
    """The memory that the rounds share, and what they write to it."""
    found = places(stream)
    names = {}
    first = next(iter(makes(stream))).name  # a room belongs to one loop
    for room in found.rooms:
        name = writer.names.of("local", f"room{room.number} {first}")
        made = writer.words.room.format(size=writer.product(room.axes), dtype=writer.words.dtype(room.dtype))
        writer.line(f"{name} = {made}")
        writer.arrays.add(name)
        names[room] = name
    if names and writer.words.owned is not None:
        writer.needs_owned = writer.needs_device = True
    return found.of, names
