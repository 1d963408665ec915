"""What a plan costs: FLOPs, exps, bytes moved and peak bytes, as polynomials in the sizes, read off its kernel.

Forward. In a streamed kernel the length of a tile and the number of tiles are symbols of their own, `tile_nu` and
`tiles_nu`, whose values follow from the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from tensorattn.dtypes import predicates
from tensorattn.ir import Affine, Index, Tensor, walk
from tensorattn.kernel import (
    Apply,
    Contract,
    Fold,
    Gather,
    IfFinite,
    Instruction,
    Kernel,
    LogSumExp,
    Normalised,
    Register,
    Slice,
    Stream,
    TileRule,
    Weigh,
)
from tensorattn.lowering import lower
from tensorattn.lowering.liveness import makes, reads
from tensorattn.peaks import entries, is_view, peaks, size_in_bytes, total
from tensorattn.plan import Plan
from tensorattn.program import Program
from tensorattn.sizes import Size

EXPONENTIAL = frozenset("exp exp2 tanh sigmoid elu gelu silu softplus".split())


@dataclass(frozen=True, slots=True)
class Counted:
    """A cost at given sizes, in integers."""

    flops: int
    exps: int
    bytes_moved: int
    peak_bytes: int


@dataclass(frozen=True, slots=True)
class Tiles:
    """The symbols of a stream: the `length` of a tile and the `count` of tiles along an axis of this size."""

    length: str
    count: str
    size: Size
    rule: TileRule

    def at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Their values."""
        positions = max(self.rule.entries // max(self.rule.per.value(sizes), 1), 1)
        size = self.size.value(sizes)
        return {self.length: min(positions, size), self.count: -(-size // positions)}

    def to_sympy(self, plain: Callable[[str], Any]) -> dict[str, Any]:
        """The same as sympy expressions in the sizes."""
        import sympy

        size, per = self.size.to_sympy(plain), sympy.Max(1, self.rule.per.to_sympy(plain))
        positions = sympy.Max(1, sympy.floor(self.rule.entries / per))
        return {self.length: sympy.Min(positions, size), self.count: sympy.ceiling(size / positions)}


@dataclass(frozen=True, slots=True)
class Cost:
    """Polynomials in the sizes; the peak is the largest of several, one for each place in the kernel."""

    flops: Size
    exps: Size
    bytes_moved: Size
    peaks: tuple[Size, ...]
    tiles: tuple[Tiles, ...] = ()

    def at(self, sizes: Mapping[str, int]) -> Counted:
        """The cost at these sizes, in exact integers."""
        sizes = dict(sizes)
        for tiles in self.tiles:
            sizes |= tiles.at(sizes)
        peak = max((p.value(sizes) for p in self.peaks), default=0)
        values = (p.value(sizes) for p in (self.flops, self.exps, self.bytes_moved))
        return Counted(*values, max(peak, 0))

    def given(self, sizes: Mapping[str, int]) -> Cost:
        """The cost with these sizes in place of their symbols; sizes that are not given stay symbols."""
        known = dict(sizes)
        for tiles in self.tiles:
            if (tiles.size.symbols | tiles.rule.per.symbols) <= known.keys():
                known |= tiles.at(known)
        numbers = {name: Size.of(size) for name, size in known.items()}
        open_tiles = tuple(
            replace(t, size=t.size.substitute(numbers), rule=replace(t.rule, per=t.rule.per.substitute(numbers)))
            for t in self.tiles
            if t.length not in known
        )
        flops, exps, moved = (s.substitute(numbers) for s in (self.flops, self.exps, self.bytes_moved))
        return Cost(flops, exps, moved, tuple(p.substitute(numbers) for p in self.peaks), open_tiles)

    @property
    def peak_bytes(self) -> Any:
        """The peak beyond inputs and outputs as a sympy expression, a sympy integer where it is known."""
        import sympy

        def plain(name: str) -> Any:
            return sympy.Symbol(name, integer=True, positive=True)

        values = {name: value for tiles in self.tiles for name, value in tiles.to_sympy(plain).items()}
        return sympy.Max(0, *(peak.to_sympy(lambda name: values.get(name, plain(name))) for peak in self.peaks))

    @property
    def amounts(self) -> dict[str, int | str]:
        """`flops`, `exps`, `bytes_moved` and `peak_bytes`: an integer each, or the polynomial as text."""
        sizes = {"flops": self.flops, "exps": self.exps, "bytes_moved": self.bytes_moved}
        found: dict[str, int | str] = {n: str(s) if s.constant is None else s.constant for n, s in sizes.items()}
        known = max([0, *(peak.constant for peak in self.peaks if peak.constant is not None)])
        unknown = sorted({str(peak) for peak in self.peaks if peak.constant is None})
        terms = [str(known), *unknown] if known or len(unknown) == 1 else unknown
        return {**found, "peak_bytes": f"max({', '.join(terms)})" if unknown else known}

    def __str__(self) -> str:
        lines = [f"{name:12}{amount}" for name, amount in self.amounts.items()]
        for tiles in self.tiles:
            positions = f"max({tiles.rule.entries} // ({tiles.rule.per}), 1)"
            lines.append(f"where {tiles.length} = min({positions}, {tiles.size}), {tiles.count} tiles of it")
        return "\n".join(lines)


def cost(plan: Plan, dtypes: Mapping[str, str] | None = None) -> Cost:
    """The cost of a plan for inputs of these dtypes (default: what each place asks for, floats are float64)."""
    known = default_dtypes(plan.program) | dict(dtypes or {})
    return kernel_cost(lower(plan, {name: known[name] for name in plan.inputs}))


def default_dtypes(program: Program) -> dict[str, str]:
    """Predicates are truths, index tensors and scalars in slots integers, all else float64."""
    found = dict.fromkeys(program.inputs, "float64")
    for statement in program.statements:
        for node in walk(statement.body):
            found |= {p.name: "bool" for p in predicates(node) if isinstance(p, Tensor) and p.name in found}
            if isinstance(node, Tensor):
                atoms = [a for s in node.slots if isinstance(s, Affine) for _, a in s.terms if isinstance(a, Tensor)]
                found |= {a.name: "int64" for a in atoms if a.name in found}
    return found


def kernel_cost(kernel: Kernel) -> Cost:
    """The cost of a kernel whose branches all take their fast side."""
    found: list[Tiles] = []
    body = tuple(_tiled(i, found) if isinstance(i, Stream) else i for i in _straight(kernel.body))
    flops = exps = moved = Size()
    rounds = iter(found)
    for instruction in body:
        counts = (_flops(instruction), _exps(instruction), _moved(instruction))
        if isinstance(instruction, Stream):
            tiles, inner = next(rounds), (*instruction.body, *instruction.merge)
            counts = tuple(total(_looped(count(i), tiles) for i in inner) for count in (_flops, _exps, _moved))  # type: ignore[assignment]
        flops, exps, moved = flops + counts[0], exps + counts[1], moved + counts[2]
    return Cost(flops, exps, moved, peaks(kernel, body), tuple(found))


def _straight(body: Iterable[Instruction]) -> Iterable[Instruction]:
    for instruction in body:
        match instruction:
            case IfFinite(fast=fast):
                yield from _straight(fast)
            case Stream(body=inner):
                yield replace(instruction, body=tuple(_straight(inner)))
            case _:
                yield instruction


def _tiled(stream: Stream, found: list[Tiles]) -> Stream:
    """The stream with an index of its own for the axis inside a tile."""
    number = "" if not found else str(len(found) + 1)
    length, count = (f"{word}_{stream.axis.name}{number}" for word in ("tile", "tiles"))
    rule = stream.tile if isinstance(stream.tile, TileRule) else TileRule(stream.tile, Size.of(1))
    found.append(Tiles(length, count, stream.size, rule))
    body, merge = (
        tuple(
            replace(i, out=_reindexed(i.out, stream.axis, Index(length)))
            if isinstance(i, Slice)
            else _reindexed(i, stream.axis, Index(length))
            for i in part
        )
        for part in (stream.body, stream.merge)
    )
    return replace(stream, body=body, merge=merge)


def _reindexed(value: Any, old: Index, new: Index) -> Any:
    """A part of an instruction with one index replaced, at every depth."""
    if isinstance(value, Index):
        return new if value == old else value
    if isinstance(value, tuple):
        return tuple(_reindexed(part, old, new) for part in value)
    if is_dataclass(value) and not isinstance(value, Size):
        parts = {f.name: _reindexed(getattr(value, f.name), old, new) for f in fields(value) if f.init}
        return replace(value, **parts)  # type: ignore[type-var]
    return value


def _looped(size: Size, tiles: Tiles) -> Size:
    """What all rounds cost together: along the axis the tiles make up the whole, all else is done in each."""
    along = Size(tuple((m, c) for m, c in size.terms if tiles.length in dict(m)))
    each = size - along
    return along.substitute({tiles.length: tiles.size}) + each * Size.of(tiles.count)


def _flops(instruction: Instruction) -> Size:
    match instruction:
        case Contract(a=a, b=b):
            return entries((*a.axes, *b.axes)) * 2
        case Apply(out=out):
            return entries(out.axes)
        case Fold(source=source):
            return entries(source.axes)
        case LogSumExp(source=source) | Normalised(score=source) | Weigh(score=source):
            return entries(source.axes) * 4
    return Size()


def _moved(instruction: Instruction) -> Size:
    """Bytes read and written; of a table that is gathered from, as many as are taken."""
    if is_view(instruction):
        return Size()
    if isinstance(instruction, Gather):
        out = instruction.out
        return size_in_bytes(out) * 2 + total(
            size_in_bytes(p) for p in instruction.positions if isinstance(p, Register)
        )
    return total(size_in_bytes(r) for r in (*makes(instruction), *reads(instruction)))


def _exps(instruction: Instruction) -> Size:
    match instruction:
        case Apply(out=out, function=function) if function in EXPONENTIAL:
            return entries(out.axes)
        case LogSumExp(source=source) | Normalised(kind="softmax", score=source) | Weigh(score=source):
            return entries(source.axes)
    return Size()
