"""`Gather` and `Scatter` as source: plain axes stay as they are, the other positions become one advanced subscript."""

from __future__ import annotations

from collections import Counter

from tensorattn.backends.writing import Text, Writer, atom
from tensorattn.ir import Index
from tensorattn.kernel import Gather, Scatter
from tensorattn.parts import Register


def gather(writer: Writer, instruction: Gather) -> None:
    """Write `out[…] = table[p0, p1, …]`."""
    out, positions = instruction.out, instruction.positions
    plain, other = _parted(positions)
    dimensions = tuple(Index(f"dimension {n}") for n in range(len(positions)))
    table = writer.read(instruction.table, out.dtype)
    table = writer.permuted(Text(table.source, dimensions, table.owner), [dimensions[n] for n in (*plain, *other)])
    kept = tuple(plain.values())
    if not other:
        return writer.assign(out, Text(table.source, kept, table.owner))
    places = [positions[n] for n in other]
    shared = tuple(i for i in out.axes if any(i in (p.axes if isinstance(p, Register) else (p,)) for p in places))
    keys = [":"] * len(plain) + [_place(writer, p, shared) for p in places]
    source = f"occupied({table.source}, {len(plain)})[{', '.join(keys)}]"
    if not shared:  # read through positions of one entry: a lone number would be a view, or wait for the device
        source += f"[{', '.join([*(':' for _ in plain), '0'])}]"
    return writer.assign(out, Text(source, (*kept, *shared)))


def scatter(writer: Writer, instruction: Scatter) -> None:
    """Write `out[p0, p1, …] += source[…]`."""
    out, positions = instruction.out, instruction.positions
    plain, other = _parted(positions)
    kept = tuple(plain.values())
    shared = tuple(i for i in instruction.source.axes if i not in kept)
    source = writer.arranged(writer.read(instruction.source, out.dtype), (*kept, *shared))
    places = writer.tuple([_place(writer, positions[n], shared) for n in other])
    dimensions = (*plain, *other)
    shape = writer.tuple([writer.length(out.axes[n]) for n in dimensions])
    value = source.source if shared or not other else f"{atom(source.source)}[..., None]"  # positions of one entry
    text = f"scatter({value}, {len(plain)}, {places}, {shape})"
    writer.assign(out, Text(text, tuple(out.axes[n] for n in dimensions)))


def _parted(positions: tuple[Register | Index, ...]) -> tuple[dict[int, Index], list[int]]:
    """The dimensions that are read at an index of their own, and the others."""
    counted = Counter(p for p in positions if isinstance(p, Index))
    carried = {index for p in positions if isinstance(p, Register) for index in p.axes}
    plain = {n: p for n, p in enumerate(positions) if isinstance(p, Index) and counted[p] == 1 and p not in carried}
    return plain, [n for n in range(len(positions)) if n not in plain]


def _place(writer: Writer, position: Register | Index, shared: tuple[Index, ...]) -> str:
    """A position as an array that broadcasts over the shared axes."""
    match position:
        case Index():
            return writer.aligned(Text(writer.iota(writer.length(position)), (position,)), shared)
        case Register():
            source = writer.aligned(writer.read(position, "int64"), shared)
            return source if shared else f"{atom(source)}.reshape((1,))"
