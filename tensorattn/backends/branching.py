"""Branches on what the values are, as source."""

from __future__ import annotations

from tensorattn.backends.limits import LOOK
from tensorattn.backends.looping import WriteAll
from tensorattn.backends.writing import INPUT, Writer
from tensorattn.kernel import Attempt, IfBounded, IfFinite, Stream
from tensorattn.parts import Ceiling, Joint, Limiting, Literal, Norm, Stretch, TileRule


def write_if_finite(writer: Writer, instruction: IfFinite, write_all: WriteAll) -> None:
    values = [writer.name(v) for v in instruction.values if v.dtype.startswith("float")]
    if not values:
        return write_all(writer, instruction.fast)
    name, known = writer.join(instruction.out), {*writer.owners, INPUT}
    writer.line(f"if all_finite({', '.join(values)}):")
    with writer.indented():
        write_all(writer, instruction.fast)
    owner = writer.owners[name]
    writer.line("else:")
    with writer.indented():
        write_all(writer, instruction.safe)
    writer.owners[name] = _owner(name, {owner, writer.owners[name]}, known)
    return None


def _owner(name: str, found: set[str], known: set[str]) -> str:
    """Whose memory a result has that was in that of one of these, `known` before the branch or made in it."""
    return found.pop() if len(found) == 1 else INPUT if found & known else name


def write_attempt(writer: Writer, instruction: Attempt, write_all: WriteAll) -> None:
    """The fast side straight on; then a branch whose first side only lets go of what the fallback alone would need."""
    names, known = [writer.join(out) for out in instruction.outs], {*writer.owners, INPUT}
    write_all(writer, instruction.fast)
    owners = {name: {writer.owners[name]} for name in names}
    writer.line(f"if holds({writer.read(instruction.test).source}):")
    with writer.indented():
        writer.line("pass")
    writer.line("else:")
    with writer.indented():
        write_all(writer, instruction.fallback)
    for name, found in owners.items():
        writer.owners[name] = _owner(name, {*found, writer.owners[name]}, known)


def write_if_bounded(writer: Writer, instruction: IfBounded, write_all: WriteAll) -> None:
    tests, room = [], _room(instruction)
    for bound, least, most in instruction.limits:
        tests.append((f"{least!r} <= " if least > 0 else "") + f"{_number(writer, bound, room)} <= {most!r}")
    if writer.words.looks is not None:
        writer.needs_owned = writer.needs_device = True
        tests.insert(0, writer.words.looks)
    names = [writer.join(out) for out in instruction.outs]
    found = []
    for word, side in ((f"if {' and '.join(tests)}", instruction.fast), ("else", instruction.safe)):
        writer.line(f"{word}:")
        with writer.indented():
            write_all(writer, side)
        found.append([writer.owners[name] for name in names])
    for name, *owners in zip(names, *found, strict=True):
        writer.owners[name] = INPUT if INPUT in owners else name


def _room(instruction: IfBounded) -> str:
    """The argument for the entries that a look may hold: no more than a tile of the loop does, where these are few."""
    tiles = [i.tile for i in instruction.safe if isinstance(i, Stream)]
    entries = min((tile.entries for tile in tiles if isinstance(tile, TileRule)), default=LOOK)
    return f", room={entries}" if entries < LOOK else ""


def _number(writer: Writer, bound: Limiting, room: str) -> str:
    """A bound as a Python number."""
    match bound:
        case Literal(value=value):
            return writer.number(value)
        case Norm(source=source, over=over):
            return f"longest({writer.read(source).source}, {writer.dims(source.axes, over)}{room})"
        case Stretch(source=source, rows=rows, columns=columns):
            dims = [writer.dims(source.axes, group) for group in (rows, columns)]
            return f"longest_image({writer.read(source).source}, {', '.join(dims)}{room})"
        case Joint():
            return _joint(writer, bound, room)
        case Ceiling(kind=kind, of=of):
            parts = [_number(writer, part, room) for part in of]
            if kind == "inverse":
                return f"(1 / max({parts[0]}, 1))"
            if kind == "least":
                return f"min({', '.join(parts)})"
            return f"({(' + ' if kind == 'sum' else ' * ').join(parts)})"


def _joint(writer: Writer, bound: Joint, room: str) -> str:
    """Both arrays as (pairs that go together, places, entries of a norm)."""
    both = [i for i in bound.a.axes if i in bound.b.axes and i not in bound.over]
    texts = []
    for register in (bound.a, bound.b):
        groups = [both, [i for i in register.axes if i not in (*both, *bound.over)], bound.over]
        texts.append(writer.reshaped(writer.read(register), [i for group in groups for i in group], groups))
    return f"longest_pair({', '.join(texts)}, {writer.product(bound.rows)}{room})"
