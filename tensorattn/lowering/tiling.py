"""The one place that says which loops a plan has and how long their tiles are, from the sizes at hand.

A tile of a softmax holds `rows × positions` scores: few enough for the cache, with so many positions that the operands
of a row are used often. All rows stand inside; where even the least number of positions does not fit beside them, axes
that stand in both operands of the scores (heads) are looped over outside, and then blocks of rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tensorattn.ir import Index
from tensorattn.lowering.flow import Flow, size_of
from tensorattn.parts import Register, TileRule
from tensorattn.sizes import Size

LEAST_POSITIONS = 512  # of the barred axes in a tile, so that a row's operands are used that often
REUSE = 64  # rows or positions below which matrix products are bound by memory
DENSE_SHARE = 16  # a slice that is dense inside holds several arrays at once: each has this part of a tile


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
    return axis, TileRule(tile_entries, size_of(i for i in free if i != axis) * least)


def _lengths(flow: Flow, size: Size) -> dict[str, int]:
    return {name: flow.sizes.get(name, 1) for name in size.symbols}


def barred_axes(flow: Flow, free: Sequence[Index], barred: Sequence[Index], tile_entries: int) -> list[Index]:
    """The barred axes to cut, outermost first: the longest, and more while one position of those is too large."""
    ordered = sorted(sorted(barred), key=flow.length, reverse=True)
    cut = ordered[:1]
    for index in ordered[1:]:
        if flow.entries(free) * flow.entries(i for i in ordered if i not in cut) <= tile_entries:
            break
        cut.append(index)
    return cut


def rule(flow: Flow, registers: Iterable[Register], axis: Index, tile_entries: int) -> TileRule:
    """As many positions of the axis as keep the largest of the registers within a tile."""
    per = [size_of(i for i in r.axes if i != axis) for r in registers if axis in r.axes]
    return TileRule(tile_entries, max((Size.of(1), *per), key=lambda size: size.value(_lengths(flow, size))))


def slice_rule(flow: Flow, registers: Iterable[Register], axis: Index, rows: int, tile_entries: int) -> TileRule:
    """The tile of a loop over a free axis whose body is dense, with `rows` at each position.

    Smaller than a tile of a softmax, for there are several arrays like the largest at once; but not so small that the
    operands are read for a few rows only.
    """
    found = rule(flow, registers, axis, max(tile_entries // DENSE_SHARE, 1))
    per = found.per.value(_lengths(flow, found.per))
    wanted = min(-(-REUSE // max(rows, 1)) * per, tile_entries)
    return TileRule(max(found.entries, wanted), found.per)
