"""The loops of a kernel as its cost sees them: symbols for lengths and counts of tiles, and how often a round runs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

from tensorattn.ir import Index
from tensorattn.kernel import Arrange, Attempt, IfBounded, IfFinite, Instruction, Kernel, Slice, Stream
from tensorattn.lowering.intervals import span
from tensorattn.lowering.liveness import outside_reads
from tensorattn.parts import Edge, Narrowed, TileRule
from tensorattn.sizes import Size


@dataclass(frozen=True, slots=True)
class Tiles:
    """The symbols of a stream: the `length` of a tile and the `count` of tiles along an axis of this size.

    `most`: the size where it is largest, which a tile is cut to; `size` is what it is on average.
    """

    axis: str
    length: str
    count: str
    size: Size
    rule: TileRule
    most: Size

    @property
    def positions(self) -> str:
        """How many positions a tile has, as text."""
        return f"max({self.rule.entries} // ({self.rule.per}), 1)"

    def substitute(self, sizes: Mapping[str, Size]) -> Tiles:
        """The same with these sizes in place of their symbols."""
        size, most, per = (s.substitute(sizes) for s in (self.size, self.most, self.rule.per))
        return replace(self, size=size, most=most, rule=replace(self.rule, per=per))

    @property
    def symbols(self) -> frozenset[str]:
        """What its values depend on."""
        return self.size.symbols | self.most.symbols | self.rule.per.symbols

    def at(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Their values; the sizes include the tiles of the loops around."""
        positions = max(self.rule.entries // max(self.rule.per.value(sizes), 1), 1)
        return {
            self.length: min(positions, self.most.value(sizes)),
            self.count: -(-self.size.value(sizes) // positions),
        }

    def to_sympy(self, plain: Callable[[str], Any]) -> dict[str, Any]:
        """The same as sympy expressions in the sizes."""
        length = _tile_function()(self.most.to_sympy(plain), self.rule.per.to_sympy(plain), self.rule.entries)
        import sympy

        return {self.length: length, self.count: sympy.ceiling(self.size.to_sympy(plain) / length)}


@functools.cache
def _tile_function() -> Any:
    """The length of a tile as a sympy function that has a value for numbers only.

    Of minima and floors of products sympy believes what is not so: that ⌊100 / (a·b)⌋ is at least 1.
    """
    import sympy

    class tile(sympy.Function):  # noqa: N801 (its name is what is printed)
        nargs = 3
        is_integer = is_positive = True

        @classmethod
        def eval(cls, size: Any, per: Any, entries: Any) -> Any:  # type: ignore[override]
            if size.is_Integer and per.is_Integer:
                return sympy.Integer(min(int(size), max(int(entries) // max(int(per), 1), 1)))
            return None

    return tile


def with_tiles(tiles: Iterable[Tiles], sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes with those of the tiles that follow from them."""
    known = dict(sizes)
    for each in tiles:
        if each.symbols <= known.keys():
            known |= each.at(known)
    return known


@dataclass(frozen=True, slots=True)
class Stretch:
    """The symbol for how long an axis is in a loop that cuts it to where something is admitted, on average and most.

    `whole`: how long it is altogether, which it may be said to exceed.
    """

    name: str
    mean: Size
    most: Size
    whole: Size

    @staticmethod
    def of(name: str, cut: Narrowed, length: Callable[[Index], Size]) -> Stretch:
        """Both sides of a window move with a tile; where one side moves, half of the axis is left out."""
        whole, found = Size.of(cut.axis.name), span(cut)
        if found is not None:
            at_most = sum(((length(index) - 1) * k for k, index in found[0]), found[1])
            return Stretch(name, at_most, at_most, whole)
        moving = {what.axis for bound in (*cut.low, *cut.high) for _, what in bound.terms if isinstance(what, Edge)}
        if len(moving) != 1:
            return Stretch(name, whole, whole, whole)
        return Stretch(name, (whole + length(*moving)) * Fraction(1, 2), whole, whole)


def resolved(
    stretches: Iterable[Stretch], which: str, tiles: tuple[Tiles, ...], sizes: Mapping[str, int]
) -> dict[str, Size]:
    """How long each stretch is, on average (`mean`) or at most (`most`), without the symbols of those around it.

    `sizes`: those that are known, at which no stretch is longer than its axis.
    """
    found: dict[str, Size] = {}
    for stretch in stretches:
        length, whole = getattr(stretch, which).substitute(found), stretch.whole.substitute(found)
        known = with_tiles(with_stretches(tiles, found), sizes) if sizes else {}
        if length.symbols | whole.symbols <= known.keys() and whole.value(known) < length.value(known):
            length = whole
        found[stretch.name] = length
    return found


def with_stretches(tiles: Iterable[Tiles], lengths: Mapping[str, Size]) -> tuple[Tiles, ...]:
    """The tiles in terms of sizes and other tiles alone."""
    return tuple(t.substitute(lengths) for t in tiles)


def tiled(kernel: Kernel) -> tuple[tuple[Instruction, ...], tuple[Tiles, ...], tuple[Stretch, ...]]:
    """The body without branches, in which every loop has an index of its own for the axis inside a tile."""
    found: list[Tiles] = []
    stretches: list[Stretch] = []
    body = tuple(_tiled(i, found, stretches, {}) for i in straight(kernel.body))
    return body, tuple(found), tuple(stretches)


Placed = tuple[Instruction, tuple[Tiles, ...]]


def placed(body: tuple[Instruction, ...], found: tuple[Tiles, ...]) -> list[Placed]:
    """Every instruction but the loops themselves, with the loops around it, the outermost first."""
    rounds = iter(found)

    def inside(body: Iterable[Instruction], around: tuple[Tiles, ...]) -> Iterable[Placed]:
        for instruction in body:
            if isinstance(instruction, Stream):
                yield from inside((*instruction.body, *instruction.merge), (*around, next(rounds)))
            else:
                yield instruction, around

    return list(inside(body, ()))


def straight(body: Iterable[Instruction]) -> Iterable[Instruction]:
    """The instructions without branches: each takes its fast side."""
    for instruction in body:
        match instruction:
            case IfFinite(fast=fast):
                yield from straight(fast)
            case Attempt(fast=fast, fallback=fallback):  # what the fallback reads has to wait for the test
                yield from straight(fast)
                waiting = sorted(outside_reads(fallback), key=lambda r: r.name)
                yield from (Arrange(replace(r, name=f"{r.name} waiting"), r) for r in waiting)
            case IfBounded(fast=fast):
                yield from straight(fast)
            case Stream(body=inner):
                yield replace(instruction, body=tuple(straight(inner)))
            case _:
                yield instruction


def _tiled(
    instruction: Instruction, found: list[Tiles], stretches: list[Stretch], around: Mapping[str, Size]
) -> Instruction:
    """A stream with an index of its own for the axis inside a tile, those in it too.

    `around`: the lengths of the tiles of the axes that enclosing streams cut.
    """
    if not isinstance(instruction, Stream):
        return instruction
    stream = instruction
    number = "" if not found else str(len(found) + 1)
    length, count = (f"{word}_{stream.axis.name}{number}" for word in ("tile", "tiles"))
    rule = stream.tile if isinstance(stream.tile, TileRule) else TileRule(stream.tile, Size.of(1))
    inner = {**around, stream.axis.name: Size.of(length)}
    size = most = stream.size
    if stream.live is not None:
        live = Stretch.of("", stream.live, partial(_length, inner))
        size, most = live.mean, live.most
    found.append(Tiles(stream.axis.name, length, count, size, replace(rule, per=rule.per.substitute(around)), most))
    cuts = [(stream.axis, Index(length))]
    for narrowed in stream.narrowed:
        stretch = Stretch.of(f"live_{narrowed.axis.name}{number}", narrowed, partial(_length, inner))
        stretches.append(stretch)
        inner[narrowed.axis.name] = Size.of(stretch.name)
        cuts.append((narrowed.axis, Index(stretch.name)))
    for old, new in cuts:
        body, merge = (tuple(_cut(i, old, new) for i in part) for part in (stream.body, stream.merge))
        stacked = tuple(replace(s, part=_reindexed(s.part, old, new)) for s in stream.stacked)
        stream = replace(stream, body=body, merge=merge, stacked=stacked)
    return replace(stream, body=tuple(_tiled(i, found, stretches, inner) for i in stream.body))


def _length(around: Mapping[str, Size], axis: Index) -> Size:
    """The length of the tile of an axis; within an outer loop the axis is the one inside its tile already."""
    return around.get(axis.name, Size.of(axis.name))


def _cut(instruction: Instruction, old: Index, new: Index) -> Instruction:
    """An instruction of a stream over `old` in terms of the index inside a tile: slices are made of what is whole."""
    if isinstance(instruction, Slice) and instruction.axis == old:
        return replace(instruction, out=_reindexed(instruction.out, old, new))
    return _reindexed(instruction, old, new)


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


def looped(size: Size, around: tuple[Tiles, ...]) -> Size:
    """What all rounds cost together: along the axis the tiles make up the whole, all else is done in each."""
    for tiles in around:
        total = Size()
        for monomial, coefficient in size.terms:
            powers = dict(monomial)
            once = powers.pop(tiles.length, 0) - 1
            rounds = tiles.size if once >= 0 else Size.of(tiles.count)
            rest = Size(
                ((tuple(sorted({**powers, **({tiles.length: once} if once > 0 else {})}.items())), coefficient),)
            )
            total = total + rest * rounds
        size = total
    return size
