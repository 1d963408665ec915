"""The one place that says which loops a plan has and how long their tiles are, from the sizes at hand.

A tile of a softmax holds `rows × positions` scores: few enough for the cache, with so many positions that the operands
of a row are used often. All rows stand inside; where even the least number of positions does not fit beside them, axes
that stand in both operands of the scores (heads) are looped over outside, and then blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorattn.ir import Index
from tensorattn.kernel import Contract, IfFinite, Normalised, Stream
from tensorattn.lowering.flow import Flow, size_of
from tensorattn.lowering.liveness import makes
from tensorattn.parts import Register, TileRule
from tensorattn.sizes import Size

LEAST_POSITIONS = 512  # of the barred axes in a tile, so that a row's operands are used that often
REUSE = 64  # rows or positions below which matrix products are bound by memory
SMALL_PRODUCT = 8  # products whose arrays are all smaller than the largest by this factor do not matter
FEWEST_ARRAYS, MOST_ARRAYS = 2, 4  # of a slice that is dense inside, among which its memory is shared


def least_positions(flow: Flow, barred: Iterable[Index], tile_entries: int) -> Size:
    """The fewest positions of the barred axes that a tile has to have: all of them if there are few."""
    barred = tuple(barred)
    least = min(LEAST_POSITIONS, max(tile_entries // REUSE, 1))
    return size_of(barred) if flow.entries(barred) <= least else Size.of(least)


def needed_rows(
    flow: Flow, free: Sequence[Index], shared: frozenset[Index], barred: Sequence[Index], tile_entries: int
) -> tuple[Index, TileRule] | tuple[None, None]:
    """The free axis that a loop outside has to cut first, if one, with its tile.

    `shared`: the free axes that stand in both operands of the scores.
    """
    least = least_positions(flow, barred, tile_entries)
    tile = size_of(free) * least
    above = tile.value(dict.fromkeys(tile.symbols, 1) | _lengths(flow, tile)) > tile_entries
    wide = [i for i in free if flow.length(i) > 1]
    if not above or not wide:
        return None, None
    heads = [i for i in wide if i in shared]
    axis = heads[0] if heads and len(wide) > 1 else max(wide, key=flow.length)
    return axis, TileRule(held(tile_entries), size_of(i for i in free if i != axis) * least)


def held(tile_entries: int, *, narrowed: bool = False) -> int:
    """The scores of a softmax that a tile holds: half of what it may, about what a core caches.

    `narrowed`: a predicate leaves a part of most tiles out.
    """
    return tile_entries if narrowed else max(tile_entries // 2, 1)


def _lengths(flow: Flow, size: Size) -> dict[str, int]:
    return {name: flow.sizes.get(name, 1) for name in size.symbols}


def barred_axes(
    flow: Flow, free: Sequence[Index], barred: Sequence[Index], tile_entries: int, chain: Iterable[int]
) -> list[Index]:
    """The barred axes to cut, outermost first: the longest, and more while one position of those is too large.

    `chain`: the steps that sum the weights. Of the axes of which one position fits, the one is cut that most of them
    hold, for a step without it runs anew in every round.
    """
    ordered = sorted(sorted(barred), key=flow.length, reverse=True)

    def others(index: Index) -> int:
        return flow.entries(i for i in (*free, *ordered) if i != index)

    def repeated(index: Index) -> int:
        held = ({i for r in (flow.out(n), *flow.read[n]) for i in r.axes} for n in steps)
        return sum(flow.entries(axes) for axes in held if index not in axes)

    steps = tuple(chain)
    cut = [min((i for i in ordered if others(i) <= tile_entries), key=repeated, default=ordered[0])]
    for index in (i for i in ordered if i not in cut):
        if flow.entries(free) * flow.entries(i for i in ordered if i not in cut) <= tile_entries:
            break
        cut.append(index)
    return cut


def rule(flow: Flow, registers: Iterable[Register], axis: Index, tile_entries: int) -> TileRule:
    """As many positions of the axis as keep the largest of the registers within a tile."""
    per = [size_of(i for i in r.axes if i != axis) for r in registers if axis in r.axes]
    return TileRule(tile_entries, max((Size.of(1), *per), key=lambda size: size.value(_lengths(flow, size))))


def largest(flow: Flow, registers: Iterable[Register], without: set[Index]) -> Size:
    """The entries of the largest of the registers at one place along some axes."""
    sizes = [size_of(i for i in r.axes if i not in without) for r in registers]
    return max((Size.of(1), *sizes), key=lambda size: size.value(_lengths(flow, size)))


def slice_rule(
    flow: Flow, registers: Iterable[Register], axis: Index, loop: Iterable[int], rows: int, tile_entries: int
) -> tuple[TileRule, int]:
    """The tile of a loop over an axis whose body is dense, with `rows` at each position where it multiplies nothing.

    Smaller than a tile, for there are several arrays like the largest at once; but not so small that the operands are
    read for a few rows only. With it, how many positions there should be if those are too many for a tile, else 0.
    """
    arrays = min(max(_arrays(flow, loop), FEWEST_ARRAYS), MOST_ARRAYS)
    found = rule(flow, registers, axis, max(tile_entries // arrays, 1))
    per = found.per.value(_lengths(flow, found.per))
    positions = -(-REUSE // max(reuse(flow, loop, axis, rows), 1))
    wanted = min(positions * per, tile_entries)
    short = positions if 2 * tile_entries < min(positions, flow.length(axis)) * per else 0
    entries = max(found.entries, wanted)
    return TileRule(entries, found.per), short


def tile_positions(stream: Stream, sizes: Mapping[str, int]) -> int:
    """How many positions a tile has at these sizes."""
    size = stream.size.value({name: sizes.get(name, 1) for name in stream.size.symbols})
    if not isinstance(stream.tile, TileRule):
        return min(stream.tile, size)
    per = stream.tile.per.value({name: sizes.get(name, 1) for name in stream.tile.per.symbols})
    return max(min(stream.tile.entries // max(per, 1), size), 1)


def _arrays(flow: Flow, loop: Iterable[int]) -> int:
    """How many large arrays a loop makes: what is elementwise is written over results of products, but for masks."""
    loop = tuple(loop)
    sizes = [flow.entries(out) for _, _, out in _multiplied(flow, loop)]
    made = [r for n in loop for r in makes(flow.body[n])]
    masks = [r for r in made if r.dtype == "bool" and 2 * flow.entries(r.axes) >= max(sizes, default=1)]
    sizes += [flow.entries(i.out.axes) for i in (flow.body[n] for n in loop) if isinstance(i, Normalised)]
    return MOST_ARRAYS if masks else sum(2 * size >= max(sizes) for size in sizes)


def reuse(flow: Flow, loop: Iterable[int], axis: Index, rows: int) -> int:
    """How often, at each position of the axis, the matrix products of a loop use what they read, at least."""
    found = []
    for a, b, out in _products(flow, loop):
        if axis in a and axis in b and axis in out:
            continue
        group = (a & b) - out if axis in a and axis in b else a - b if axis in a else b - a
        if axis in a | b:
            found.append(flow.entries(group - {axis}))
    return min(found, default=rows)


def is_head(flow: Flow, loop: Iterable[int], axis: Index) -> bool:
    """Whether all the matrix products of a loop have the axis in both operands and in the result."""
    return all(axis in a & b & out for a, b, out in _products(flow, loop))


def _products(flow: Flow, loop: Iterable[int]) -> list[tuple[frozenset[Index], frozenset[Index], frozenset[Index]]]:
    """The axes of the operands and the result of the large products with a sum."""
    found = _multiplied(flow, loop)
    sizes = [max(map(flow.entries, axes)) for axes in found]
    return [axes for axes, size in zip(found, sizes, strict=True) if SMALL_PRODUCT * size > max(sizes)]


def _multiplied(flow: Flow, loop: Iterable[int]) -> list[tuple[frozenset[Index], frozenset[Index], frozenset[Index]]]:
    inner = [i.fast if isinstance(i, IfFinite) else (i,) for i in (flow.body[n] for n in loop)]
    found = [(i.a, i.b, i.out) for body in inner for i in body if isinstance(i, Contract)]
    return [(frozenset(a.axes), frozenset(b.axes), frozenset(out.axes)) for a, b, out in found]
