"""How many rows a block has where a predicate ties the rows to the barred axes: few enough that dead tiles are skipped.

With causal or windowed predicates a block of rows reaches only a stretch of each barred axis (`narrowing`). Small
blocks waste fewer entries, large ones have fewer rounds and better matrix products; the least total is taken, counted
over the blocks at the sizes at hand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Instruction, Normalised
from tensorattn.lowering.flow import Flow
from tensorattn.lowering.intervals import Constraint, constraints, filled, interval
from tensorattn.lowering.tiling import REUSE, reuse
from tensorattn.parts import Bound, Edge, Register, TileRule
from tensorattn.sizes import Size

FINE = (1, 2, 3, 4, 6, 8)  # of slices, in which other axes make up the products
BLOCKS = (16, 32, 64, 128, 256, 512, 1024)
SHARE = 3  # of a tile, for what is admitted of a slice on average: about three arrays like it are alive at once
ROUND = 1 << 15  # entries that can be weighed in the time that a round of the loop takes by itself
ROWS = 24  # a matrix product of as many rows runs at half its speed
WORTH = 1.25  # what it has to gain
SAMPLED = 256  # blocks that are looked at, so that planning takes as long for any length


def blocked_rows(
    flow: Flow, found: Normalised, free: Sequence[Index], shared: frozenset[Index]
) -> tuple[Index, TileRule] | None:
    """The free axis to cut into blocks and their length; None where no predicate makes that worth while."""
    makers = {flow.out(n).name: i for n, i in enumerate(flow.body) if hasattr(i, "out")}
    rules = constraints(found.where or filled(found.score, makers), makers)
    tied = [i for i in free if any(i in dict(c.form.positions) for c in rules) and flow.length(i) > BLOCKS[0]]
    if not tied:
        return None
    axis = max(tied, key=flow.length)
    others = prod(flow.length(i) for i in free if i != axis and i not in shared)
    length = flow.length(axis)
    prices = {
        block: _weighed(flow, rules, axis, found.indices, block, others) + ROUND * -(-length // block)
        for block in (*(b for b in BLOCKS if b < length), length)
    }
    whole = prices.pop(length)
    best = min(prices, key=prices.__getitem__, default=None)
    if best is None or prices[best] * WORTH > whole:
        return None
    return axis, TileRule(best, Size.of(1))


def blocked_slices(flow: Flow, tile_entries: int) -> tuple[Index, TileRule] | None:
    """The axis to cut first, and how finely, where exponentials below a predicate are made anew, as for gradients.

    All of a slice is held at once, so that what is admitted of it, on average, is to be a part of a tile; but a matrix
    product with few rows is slow (`tiling.slice_rule` does the same where no predicate ties the axis).
    """
    makers = {flow.out(n).name: i for n, i in enumerate(flow.body) if hasattr(i, "out")}
    found = [pair for i in flow.body if (pair := _excluding(i, makers)) is not None]
    if not found:
        return None
    largest, where = max(found, key=lambda pair: flow.entries(pair[0].axes))
    axes, rules = largest.axes, constraints(where, makers)
    tied = [i for i in axes if any(i in dict(c.form.positions) for c in rules)]
    alone = prod(flow.length(i) for i in axes if i not in tied)
    prices: dict[tuple[Index, int], float] = {}
    for axis in (i for i in tied if flow.length(i) > BLOCKS[0]):
        barred = [i for i in tied if i != axis]
        rows = max(min(reuse(flow, range(len(flow.body)), axis, alone), alone), 1)  # an empty axis leaves nothing
        for block in (b for b in (*FINE, *BLOCKS) if b < flow.length(axis)):
            rounds = -(-flow.length(axis) // block)
            entries = _weighed(flow, rules, axis, barred, block, rows) * alone / rows
            most = tile_entries if block * rows <= REUSE else tile_entries // SHARE
            if entries <= most * rounds or block == FINE[0]:
                prices[axis, block] = entries + ROUND * rounds
    best = min(prices, key=prices.__getitem__, default=None)
    if best is None or prices[best] * WORTH > flow.entries(axes):
        return None
    return best[0], TileRule(best[1], Size.of(1))


def _excluding(instruction: Instruction, makers: Mapping[str, Instruction]) -> tuple[Register, Register] | None:
    """What it is an exponential of, and the predicate below which."""
    match instruction:
        case Apply(function="exp" | "exp2", arguments=(Register() as score,)):
            where = filled(score, makers)
            return None if where is None else (score, where)
    return None


def _weighed(
    flow: Flow, rules: Iterable[Constraint], axis: Index, barred: Sequence[Index], block: int, others: int
) -> float:
    """Entries weighed in all blocks; where these are many, by some of them at equal distances."""
    cut = frozenset({axis})
    bounds = [interval(rules, index, cut) for index in barred]
    length, total = flow.length(axis), 0.0
    starts = range(0, length, block)
    step = -(-len(starts) // SAMPLED)
    for start in starts[step // 2 :: step]:
        rows = min(block, length - start)
        edges = {axis: (start, start + rows - 1)}
        sides = zip(barred, bounds, strict=True)
        reach = prod(_reach(low, high, flow.length(index), edges, flow.sizes) for index, (low, high) in sides)
        total += (rows + ROWS / others) * others * reach
    return total * len(starts) / len(starts[step // 2 :: step])


def _reach(
    low: Iterable[Bound], high: Iterable[Bound], size: int, edges: Mapping[Index, tuple[int, int]],
    sizes: Mapping[str, int],
) -> int:  # fmt: skip
    """How many positions lie between the bounds."""
    least = max([0, *(-v for b in low if (v := _value(b, edges, sizes)) is not None)])
    most = min([size - 1, *(v for b in high if (v := _value(b, edges, sizes)) is not None)])
    return max(most - least + 1, 0)


def _value(bound: Bound, edges: Mapping[Index, tuple[int, int]], sizes: Mapping[str, int]) -> int | None:
    """The floor of a bound; None where it depends on a number that only a call knows."""
    total = bound.constant.value({name: sizes.get(name, 1) for name in bound.constant.symbols})
    for coefficient, what in bound.terms:
        if not isinstance(what, Edge):
            return None
        total += coefficient * edges[what.axis][what.last]
    return total // bound.divisor
