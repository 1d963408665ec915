"""`Gather` as source: plain axes are kept as they are, the other positions become one advanced subscript."""

from __future__ import annotations

from collections import Counter

from tensorattn.backends.writing import Text, Writer, atom
from tensorattn.ir import Index
from tensorattn.kernel import Gather
from tensorattn.parts import Register


def gather(writer: Writer, instruction: Gather) -> None:
    """Write `out[…] = table[p0, p1, …]`."""
    out, positions = instruction.out, instruction.positions
    counted = Counter(p for p in positions if isinstance(p, Index))
    carried = {index for p in positions if isinstance(p, Register) for index in p.axes}
    plain = [n for n, p in enumerate(positions) if isinstance(p, Index) and counted[p] == 1 and p not in carried]
    other = [n for n in range(len(positions)) if n not in plain]
    dimensions = tuple(Index(f"dimension {n}") for n in range(len(positions)))
    table = writer.read(instruction.table, out.dtype)
    table = writer.permuted(Text(table.source, dimensions, table.owner), [dimensions[n] for n in (*plain, *other)])
    kept = tuple(positions[n] for n in plain)
    if not other:
        return writer.assign(out, Text(table.source, kept, table.owner))
    places = [positions[n] for n in other]
    shared = tuple(i for i in out.axes if any(i in (p.axes if isinstance(p, Register) else (p,)) for p in places))
    keys = [":"] * len(plain) + [_place(writer, p, shared) for p in places]
    source = f"{atom(table.source)}[{', '.join(keys)}]"
    if not shared:  # read through positions of one entry: a lone number would be a view, or wait for the device
        source += f"[{', '.join([*(':' for _ in plain), '0'])}]"
    return writer.assign(out, Text(source, (*kept, *shared)))


def _place(writer: Writer, position: Register | Index, shared: tuple[Index, ...]) -> str:
    """A position as an array that broadcasts over the shared axes."""
    match position:
        case Index():
            return writer.aligned(Text(writer.iota(writer.length(position)), (position,)), shared)
        case Register():
            source = writer.aligned(writer.read(position, "int64"), shared)
            return source if shared else f"{atom(source)}.reshape((1,))"
