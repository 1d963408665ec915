"""A softmax whose weights are only summed away, as one pass over tiles of its barred axes.

The dense kernel computes weights W = softmax(s) and results R = L(W), L linear (contractions and products). Here the
part of the kernel that holds the barred axis moves into a `Stream`: a tile of scores gives p = exp(s − m), its sum l
and o = L(p); (m, l, o) with m₁∨m₂ and rescaling is a commutative monoid, and R = o / l at the end. Any tiling is exact.
What does not hold the barred axis beside another axis of the score stays outside and is sliced. The log Σ exp of the
same scores is m + log l.

Source: Milakov and Gimelshein 2018 (online softmax); the linear map L is general here.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Contract, Instruction, LogSumExp, Normalised, Stream, Weigh
from tensorattn.lowering.flow import Flow, names_of
from tensorattn.lowering.intervals import filled
from tensorattn.lowering.liveness import makes, reads, without_dead
from tensorattn.lowering.looping import RefusalError, drawn_in, placed, slices
from tensorattn.lowering.merging import EXP, Maker, merge, quotients
from tensorattn.lowering.pointwise import is_linear
from tensorattn.lowering.rescaling import Scaling
from tensorattn.lowering.spoiling import is_part_excluded, spoiled
from tensorattn.lowering.tiling import barred_axes, held, rule
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Carry, Literal, Register
from tensorattn.sizes import Size


class Cluster:
    """One softmax, the linear chain that sums its weights away, and what both are made of.

    Raises: RefusalError where it is no such thing.
    """

    def __init__(self, flow: Flow, target: int, tile_entries: int) -> None:
        self.flow, self.target, self.tile_entries = flow, target, tile_entries
        found = flow.body[target]
        assert isinstance(found, Normalised)
        self.normalised = found
        self.group = frozenset(found.indices)
        self.free = tuple(i for i in found.score.axes if i not in self.group)
        if found.kind != "softmax":
            raise RefusalError(f"{found.kind} over {names_of(self.group)} needs the whole row at once")
        self.chain, self.results = self._chain()
        self.logarithms = self._logarithms()
        makers = {made.name: i for i in flow.body for made in makes(i)}
        self.narrowed = (found.where or filled(found.score, makers)) is not None
        chain = () if self.narrowed else self.chain  # a predicate may leave tiles of the longest axis out
        self.axes = barred_axes(flow, self.free, found.indices, tile_entries, chain)
        core = {target, *self.chain}
        others = set(found.score.axes) - {self.axes[0]}
        self.inside = sorted(self._drawn_in(core, others) - core)

    # what is streamed ----------------------------------------------------------------------------------------------

    def _chain(self) -> tuple[list[int], list[Register]]:
        """The instructions that are linear in the weights, up to results without a barred axis."""
        live, chain, results = {self.normalised.out.name}, [], []
        for number, instruction in enumerate(self.flow.body):
            if not any(r.name in live for r in reads(instruction)):
                continue
            own = {r.name for r in results}  # whole after the loop only, so that no step of it may read them
            if not is_linear(instruction, live) or any(r.name in own for r in reads(instruction)):
                raise RefusalError(f"the weights over {names_of(self.group)} are used other than in sums of products")
            chain.append(number)
            out = self.flow.out(number)
            if set(out.axes) & self.group:
                live.add(out.name)
            else:
                results.append(out)
        if live & self.flow.results:
            raise RefusalError(f"the weights over {names_of(self.group)} are asked for")
        if not results or any(not set(self.free) <= set(r.axes) for r in results):
            raise RefusalError(f"an index of the score over {names_of(self.group)} is summed with the weights")
        return chain, results

    def _logarithms(self) -> list[int]:
        """The log Σ exp of the same scores over the same group, where the loop itself does not need it."""
        found, needed = self.normalised, self.flow.earlier(self.chain)
        return [
            n
            for n, i in enumerate(self.flow.body)
            if isinstance(i, LogSumExp) and i.source == found.score and i.where == found.where
            and set(i.out.axes) == set(self.free) and n not in needed
        ]  # fmt: skip

    def _drawn_in(self, core: set[int], others: set[Index]) -> set[int]:
        after, options = set(self.logarithms), {o for _, o in self.normalised.options}  # a sink joins after the loop
        loop = drawn_in(self.flow, core | after, self.axes[0], others, self.tile_entries) - after
        loop -= self.flow.later({self.target}) - core
        while needed := {n for n in loop - core if self.flow.kept(n, loop | after) or self.flow.out(n) in options}:
            loop -= needed
        return loop

    @property
    def loop(self) -> set[int]:
        """All the instructions that the loop replaces."""
        return {self.target, *self.chain, *self.inside, *self.logarithms}

    def left(self) -> int:
        """How large the largest array is, of those like the scores, that the kernel has to make as a whole."""
        made = {self.flow.out(n).name for n in self.loop}
        outside = {r for n in self.loop for r in self.flow.read[n] if r.name not in made}
        full = set(self.normalised.score.axes)
        sizes = [(self.flow.entries(r.axes), full <= set(r.axes)) for r in outside if not self.flow.is_given(r)]
        return max((size for size, like in sizes if like or size > self.tile_entries), default=0)

    def shared(self) -> frozenset[Index]:
        """The free axes that stand in both operands of all the products that make scores."""
        found = set(self.free)
        for number in self.inside:
            made = self.flow.body[number]
            if isinstance(made, Contract) and set(self.normalised.score.axes) <= set(made.out.axes):
                found &= set(made.a.axes) & set(made.b.axes)
        return frozenset(found)

    # the loop ------------------------------------------------------------------------------------------------------

    def streamed(self, base: str) -> tuple[Instruction, ...]:
        """The body with the loop in place of the cluster."""
        scaling = Scaling(self.flow.body, set(self.inside), self.normalised.score, base)
        made = (*(self.flow.body[n] for n in self.inside), *scaling.inside)
        return placed(self.flow, self.loop, [*scaling.outside, *self._loop(scaling, made, tuple(self.axes))])

    def whole(self, base: str) -> tuple[Instruction, ...]:
        """The body with the cluster as one tile, for weights of which all are held at once: no row is divided twice."""
        inside = set(self.inside) if self.flow.users[self.normalised.score.name] <= self.loop else set()
        scaling = Scaling(self.flow.body, inside, self.normalised.score, base)
        loop = self.loop - set(self.inside)
        return placed(self.flow, loop, [*scaling.outside, *scaling.inside, *self._loop(scaling, (), ())])

    def _loop(self, scaling: Scaling, inside: tuple[Instruction, ...], axes: tuple[Index, ...]) -> list[Instruction]:
        found, flow = self.normalised, self.flow
        make = Maker(found.out.name, found.score.dtype)
        weigh = Weigh(
            found.out, make("mt", self.free), make("lt", self.free), found.indices, scaling.score, found.where,
            scaling.base,
        )  # fmt: skip
        parts = {r.name: make(f"ot{n}", r.axes) for n, r in self._numbered()}
        summed = [renamed(flow.body[n], parts) for n in self.chain]
        tile = _Tile((*inside, weigh, *summed), (weigh.greatest, weigh.total, *parts.values()))
        for depth in reversed(range(len(axes))):
            tile = self._nested(tile, depth, scaling.base)
        greatest, total, *sums = tile.results
        sink = dict(found.options).get("sink")
        ratio = quotients(make, self.results, (greatest, total, sums), sink, scaling.base)
        steps = [*tile.steps, *self._logs(make, greatest, total, scaling.base), *ratio.before]
        if not is_part_excluded(flow, found, self.chain):
            return [*steps, *ratio.after]
        spoilt = spoiled(make, found, scaling.score, ratio.below)
        tile = _Tile((*inside, *spoilt.weights, *summed), tuple(parts.values()))
        for depth in reversed(range(len(axes))):
            tile = self._nested(tile, depth, None)
        return [*steps, *spoilt.before, spoilt.attempt(self.results, ratio.after, tile.steps, tile.results)]

    def _nested(self, tile: _Tile, depth: int, base: str | None) -> _Tile:
        """The loop over an axis, with what has to run before it in the loop around; `base`: None of plain sums."""
        axis, found = self.axes[depth], self.normalised
        make = Maker(f"{found.out.name}d{depth}" if depth else found.out.name, found.score.dtype)
        inside, outside = tile.along(axis) if depth else (tile.steps, ())
        flow = Flow(inside, frozenset(), {**self.flow.sizes, **{a.name: 1 for a in self.axes[:depth]}})
        cut, steps = slices(flow, set(range(len(inside))), axis, make.stem)
        body = without_dead((*steps, *(renamed(i, cut) for i in inside)), tile.results)
        sums = tuple(make(f"o{n}", r.axes) for n, r in self._numbered())
        state = sums if base is None else (make("m", self.free), make("l", self.free), *sums)
        if base is None:
            merged = [make(f"ab{n}", r.axes) for n, r in self._numbered()]
            ends = zip(merged, state, tile.results, strict=True)
            merging: list[Instruction] = [Apply(out, "add", (one, other)) for out, one, other in ends]
        else:
            pairs = list(zip(state[1:], tile.results[1:], strict=True))
            floored = any(isinstance(i, Weigh) for i in body)
            body = tuple(replace(i, floor=state[0]) if isinstance(i, Weigh) else i for i in body)
            merging, merged = merge(make, (state[0], tile.results[0]), pairs, EXP[base], floored=floored)
        units = (*(() if base is None else (-inf,)), *(0 for _ in state))
        carry = tuple(Carry(*c) for c in zip(state, units, tile.results, strict=False))
        entries = held(self.tile_entries, narrowed=self.narrowed)
        length = rule(flow, (r for i in inside for r in makes(i)), axis, entries)
        stream = Stream(axis, Size.of(axis.name), length, body, carry, tuple(merging), tuple(merged))
        return _Tile((*outside, stream), state)

    def _numbered(self) -> list[tuple[int, Register]]:
        return list(enumerate(self.results))

    def _logs(self, make: Maker, greatest: Register, total: Register, base: str) -> list[Instruction]:
        """log Σ exp = m + log l; +∞ among the scores is the result, though l is then no number."""
        results = [self.flow.out(n) for n in self.logarithms]
        if not results:
            return []
        far, none = make("far", self.free, "bool"), make("nothing", self.free, "bool")
        safe, least, units, whole = (make(n, self.free) for n in ("some", "logl", "units", "lse"))
        return [
            Apply(far, "equal", (greatest, Literal(inf))),
            Apply(none, "equal", (total, Literal(0))),
            Apply(safe, "select", (none, Literal(1.0), total)),
            Apply(least, "log", (safe,)),
            Apply(units, "multiply", (greatest, Literal(log(2) if base == "2" else 1.0))),
            Apply(whole, "add", (least, units)),
            *(Apply(r, "select", (far, Literal(inf), whole)) for r in results),
        ]


@dataclass(frozen=True, slots=True)
class _Tile:
    """The steps of a tile, and what they leave: its maximum, its sum, its parts of the results."""

    steps: tuple[Instruction, ...]
    results: tuple[Register, ...]

    def along(self, axis: Index) -> tuple[tuple[Instruction, ...], tuple[Instruction, ...]]:
        """The steps that hold the axis or need one that does, and the others."""
        inside: list[Instruction] = []
        outside: list[Instruction] = []
        touched: set[str] = set()
        for step in self.steps:
            read = reads(step)
            holds = any(axis in r.axes or r.name in touched for r in (*makes(step), *read))
            (inside if holds else outside).append(step)
            if holds:
                touched |= {r.name for r in makes(step)}
        return tuple(inside), tuple(outside)
