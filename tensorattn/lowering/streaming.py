"""Kernel → kernel: what is large and only passes through becomes loops over tiles, so that it never exists as a whole.

A softmax whose weights are summed away is one pass over tiles of a barred axis (`online`); anything else that is large
runs slice by slice along an axis of its own rows, or as a sum over slices (`slicing`). Both nest: heads and blocks of
rows outside, barred tiles inside. `tiling` says which loops there are and how long their tiles.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from tensorattn.ir import Index
from tensorattn.kernel import Contract, Fold, IfFinite, Instruction, Kernel, Largest, LogSumExp, Normalised
from tensorattn.lowering.blocking import blocked_rows, blocked_slices
from tensorattn.lowering.doubling import doubled
from tensorattn.lowering.flow import Flow
from tensorattn.lowering.liveness import makes, reads, without_dead
from tensorattn.lowering.looping import RefusalError
from tensorattn.lowering.narrowing import narrowed
from tensorattn.lowering.online import Cluster
from tensorattn.lowering.rescaling import weighed_in_twos
from tensorattn.lowering.slicing import Region, region, sliced
from tensorattn.lowering.tiling import is_head, largest, needed_rows, slice_rule
from tensorattn.lowering.unifying import unified
from tensorattn.parts import Register, TileRule
from tensorattn.sizes import Size

WEIGHTS = (Normalised, Largest)
TARGETS = (*WEIGHTS, LogSumExp, Fold, Contract, IfFinite)
TILE_ENTRIES = 1 << 20  # entries of the largest array of a tile: 4 MB of float32, about a core's share of cache


@dataclass(frozen=True, slots=True)
class Streamed:
    """The kernel with the axes that are cut, and for each large part left as it is the reason."""

    kernel: Kernel
    axes: tuple[str, ...]
    refused: tuple[str, ...]


def streamed(
    kernel: Kernel,
    sizes: Mapping[str, int],
    base: str = "2",
    *,
    only: frozenset[str] | None = None,
    tile_entries: int | None = None,
    asked: bool = True,
) -> Streamed:
    """Every softmax that admits it in loops, and all else that is large at these sizes.

    `base`: `2` where the back end's exp2 is faster than its exp, else `e`. `only`: the weights of these statements.
    `tile_entries`: what a tile may hold (default TILE_ENTRIES). `asked`: where nothing is that large, what is larger
    than all it is made of.
    """
    one = unified(replace(kernel, body=opened(kernel.body)))
    one = replace(one, body=doubled(one.body))
    pass_ = _Pass(base, TILE_ENTRIES if tile_entries is None else tile_entries, only)
    results = frozenset(o.register.name for o in one.outputs)
    body = pass_.run(one.body, results, sizes)
    if asked and not pass_.axes:
        pass_.wanted = True
        body = pass_.run(one.body, results, sizes)
    found = replace(one, body=narrowed(body)) if pass_.axes else kernel
    return Streamed(found, tuple(pass_.axes), tuple(dict.fromkeys(pass_.refused)))


def opened(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """A normaliser inside a guard (which only gradients need) stands by itself, and says that it is exposed."""
    out: list[Instruction] = []
    for instruction in body:
        if isinstance(instruction, IfFinite) and any(isinstance(i, Normalised) for i in instruction.fast):
            inner = opened(instruction.fast)
            out.extend(replace(i, exposed=True) if isinstance(i, Normalised) else i for i in inner)
        else:
            out.append(instruction)
    return tuple(out)


@dataclass(slots=True)
class _Pass:
    """What is common to a kernel and the bodies of its loops, and what was found."""

    base: str
    tile_entries: int
    only: frozenset[str] | None = None
    wanted: bool = False
    axes: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    def run(
        self, body: tuple[Instruction, ...], results: frozenset[str], sizes: Mapping[str, int], least: int = 0,
        around: Mapping[str, Size] = MappingProxyType({}),
    ) -> tuple[Instruction, ...]:  # fmt: skip
        """The body with loops; `around`: the lengths of the tiles of the loops it stands in."""
        done: set[str] = set()
        while True:
            body = without_dead(body, tuple(r for i in body for r in makes(i) if r.name in results))
            flow = Flow(body, results, sizes)
            target = self._target(flow, done)
            if target is None:
                return weighed_in_twos(body, results) if around and self.base == "2" else body
            done.add(flow.out(target).name)
            axes = {i for r in _sources(body[target]) for i in r.axes}
            above = flow.entries(axes) >= least
            try:
                new = self._looped(flow, target, around) if above else self._whole(flow, target, around)
            except RefusalError as refusal:
                self.refused.append(refusal.reason)
                continue
            body = new

    def _target(self, flow: Flow, done: set[str]) -> int | None:
        """The next weights, else the next reduction of what is too large for a tile and was made for it."""
        numbers = [n for n, i in enumerate(flow.body) if isinstance(i, TARGETS) and i.out.name not in done]
        weights = [n for n in numbers if isinstance(flow.body[n], WEIGHTS) and self._is_asked(flow.body[n])]
        return next(iter(weights or [n for n in numbers if self.only is None and self._is_large(flow, n)]), None)

    def _is_asked(self, instruction: Instruction) -> bool:
        return self.only is None or (isinstance(instruction, Normalised) and instruction.origin in self.only)

    def _is_large(self, flow: Flow, number: int) -> bool:
        made = [r for r in _sources(flow.body[number]) if not set(r.axes) <= set(flow.out(number).axes)]
        if self.wanted:
            return any(flow.grows(r) for r in made)
        return any(flow.entries(r.axes) > self.tile_entries and not flow.is_given(r) for r in made)

    def _looped(self, flow: Flow, target: int, around: Mapping[str, Size]) -> tuple[Instruction, ...]:
        """The body with the loops of one target. Raises: RefusalError."""
        if not isinstance(flow.body[target], Normalised):
            blocks = blocked_slices(flow, self.tile_entries)
            if blocks is not None and blocks[0].name not in around:
                with suppress(RefusalError):
                    return self._sliced(flow, target, around, "", blocks)
            return self._sliced(flow, target, around, "")
        try:
            cluster = Cluster(flow, target, self.tile_entries)
        except RefusalError as refusal:
            return self._sliced(flow, target, around, refusal.reason)
        left = cluster.left()
        if left:  # something else needs the scores too
            with suppress(RefusalError):
                return self._sliced(flow, target, around, "", left=left)
        axis, tile = needed_rows(flow, cluster.free, cluster.shared(), cluster.normalised.indices, self.tile_entries)
        blocks = blocked_rows(flow, cluster.normalised, cluster.free, cluster.shared())
        if blocks is not None and blocks[0].name not in around:
            with suppress(RefusalError):
                return self._sliced(flow, target, around, "", blocks)
        if axis and tile:
            with suppress(RefusalError):
                return self._sliced(flow, target, around, "", (axis, tile), left)
        return self._online(cluster)

    def _whole(self, flow: Flow, target: int, around: Mapping[str, Size]) -> tuple[Instruction, ...]:
        """In a slice: the weights as one tile. Raises: RefusalError."""
        found = flow.body[target]
        if around and isinstance(found, Normalised) and found.kind == "softmax":
            with suppress(RefusalError):
                return Cluster(flow, target, self.tile_entries).whole(self.base)
        return flow.body

    def _online(self, cluster: Cluster) -> tuple[Instruction, ...]:
        body = cluster.streamed(self.base)
        self.axes += [axis.name for axis in cluster.axes]
        return body

    def _sliced(
        self, flow: Flow, target: int, around: Mapping[str, Size], reason: str,
        chosen: tuple[Index, TileRule] | None = None, left: int | None = None,
    ) -> tuple[Instruction, ...]:  # fmt: skip
        """The loop over the axis chosen, or over the one that leaves the least whole. Raises: RefusalError."""
        found: list[Region] = []
        for axis in [chosen[0]] if chosen else _axes(flow, target):
            if axis.name in around:
                continue
            try:
                found.append(region(flow, target, axis, self.tile_entries))
            except RefusalError as refusal:
                reason = reason or refusal.reason
        if left is not None:
            found = [r for r in found if r.left < left or (chosen and r.left <= left)]
        if not found:
            raise RefusalError(reason)
        own = set(flow.out(target).axes)
        best = min(found, key=lambda r: (r.left + r.added, r.axis not in own, -flow.length(r.axis)))
        rows = flow.entries(own - {best.axis, *getattr(flow.body[target], "indices", ())})
        tile = chosen[1] if chosen else None
        if tile is None:
            best, tile = self._ruled(flow, best, found, rows)
        return self._region(flow, best, tile, around)

    def _ruled(self, flow: Flow, best: Region, found: list[Region], rows: int) -> tuple[Region, TileRule]:
        """The region and its tile: of an axis that all large products have first, where no tile is long enough."""
        tile, short = slice_rule(flow, best.registers(flow), best.axis, best.loop, rows, self.tile_entries)
        heads = [r for r in found if short and is_head(flow, r.loop, r.axis) and flow.length(r.axis) > 1]
        if not heads or best in heads:
            return best, tile
        outer = min(heads, key=lambda r: r.left)
        per = largest(flow, (r for r in best.registers(flow) if outer.axis in r.axes), {best.axis, outer.axis})
        return outer, TileRule(self.tile_entries, per * short)

    def _region(self, flow: Flow, best: Region, tile: TileRule, around: Mapping[str, Size]) -> tuple[Instruction, ...]:
        """The body with the loop of a region. Raises: RefusalError."""
        self.axes.append(best.axis.name)

        def inside(body: tuple[Instruction, ...], results: frozenset[str], length: int) -> tuple[Instruction, ...]:
            name = best.axis.name
            lengths = {**flow.sizes, name: length}
            return self.run(body, results, lengths, self.tile_entries + 1, {**around, name: Size.of(length)})

        return sliced(flow, best, tile, inside)


def _sources(instruction: Instruction) -> tuple[Register, ...]:
    """What weights are made of, or a reduction reduces."""
    match instruction:
        case Normalised(score=source) | LogSumExp(source=source) | Fold(source=source) | Largest(source=source):
            return (source,)
        case Contract(a=a, b=b):
            return a, b
        case IfFinite():
            return tuple(sorted(reads(instruction), key=lambda r: r.name))
    return ()


def _axes(flow: Flow, target: int) -> list[Index]:
    """The axes over which the instruction may be sliced: its rows first, then those over which it sums; those of one
    position only where there is no other."""
    instruction = flow.body[target]
    barred = set(instruction.indices) if isinstance(instruction, WEIGHTS) else set()
    rows = flow.out(target).axes
    found = dict.fromkeys((*rows, *(i for r in _sources(instruction) for i in r.axes)))
    axes = [i for i in found if i not in barred]
    return [i for i in axes if flow.length(i) > 1] or axes
