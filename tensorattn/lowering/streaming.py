"""Kernel → kernel: a softmax whose weights are only summed away becomes one pass over tiles of a barred axis.

The dense kernel computes weights W = softmax(s) and results R = L(W), L linear (contractions and products). Here the
part of the kernel that holds the barred axis moves into a `Stream`: a tile of scores gives p = exp(s − m), its sum l
and o = L(p); (m, l, o) with m₁∨m₂ and rescaling is a commutative monoid, and R = o / l at the end. Any tiling is exact.
What does not hold the barred axis beside another axis of the score stays outside and is sliced.

Source: Milakov and Gimelshein 2018 (online softmax); the linear map L is general here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from math import inf, prod
from typing import Any

from tensorattn.ir import Index
from tensorattn.kernel import (
    Apply,
    Arrange,
    Carry,
    Cast,
    Contract,
    Fold,
    IfFinite,
    Instruction,
    Kernel,
    Literal,
    Normalised,
    Register,
    Slice,
    Stream,
    TileRule,
    Weigh,
)
from tensorattn.lowering.liveness import makes, reads, without_dead
from tensorattn.lowering.merging import EXP, Maker, merge, quotients
from tensorattn.lowering.rescaling import Scaling
from tensorattn.sizes import Size

TILE_ENTRIES = 1 << 20  # entries of the largest array of a tile: 4 MB of float32, about a core's share of cache
POINTWISE = (Apply, Cast, Arrange, Contract, Fold, Normalised, IfFinite)


@dataclass(frozen=True, slots=True)
class Limit:
    """The choice made holds while `entries` is at least (`above`) or below `bound`."""

    entries: Size
    bound: int
    above: bool


@dataclass(frozen=True, slots=True)
class Streamed:
    """The kernel with what is streamed, for each softmax left dense the reason, and the limits of the choice."""

    kernel: Kernel
    axes: tuple[str, ...]
    refused: tuple[str, ...]
    limits: tuple[Limit, ...]


@dataclass(frozen=True, slots=True)
class RefusalError(Exception):
    """Why a softmax cannot be streamed."""

    reason: str


def streamed(kernel: Kernel, sizes: Mapping[str, int], least_entries: int = 0, base: str = "2") -> Streamed:
    """Every softmax of at least `least_entries` weights (at these sizes) that admits it, as a stream.

    `base`: `2` where the back end's exp2 is faster than its exp, else `e`.
    """
    axes: list[str] = []
    refused: list[str] = []
    limits: list[Limit] = []
    done: set[str] = set()
    while True:
        body = _opened(kernel.body)
        found = next((i for i in body if isinstance(i, Normalised) and i.out.name not in done), None)
        if found is None:
            opened = replace(kernel, body=body) if axes else kernel
            return Streamed(opened, tuple(axes), tuple(refused), tuple(limits))
        done.add(found.out.name)
        try:
            cut, axis = _Cluster(body, kernel, found, sizes).streamed(base)
        except RefusalError as refusal:
            refused.append(refusal.reason)
            continue
        entries = _entries(found.out.axes)
        above = prod(sizes.get(i.name, 1) for i in found.out.axes) >= least_entries
        limits.append(Limit(entries, least_entries, above))
        if above:
            kernel = replace(kernel, body=cut)
            axes.append(axis.name)


def _opened(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """A normaliser inside a guard (which only gradients need) stands by itself."""
    out: list[Instruction] = []
    for instruction in body:
        guards = isinstance(instruction, IfFinite) and any(isinstance(i, Normalised) for i in instruction.fast)
        out.extend(_opened(instruction.fast) if guards else (instruction,))  # type: ignore[union-attr]
    return tuple(out)


class _Cluster:
    """One softmax, the linear chain that sums its weights away, and what both are made of."""

    def __init__(
        self, body: tuple[Instruction, ...], kernel: Kernel, found: Normalised, sizes: Mapping[str, int]
    ) -> None:
        self.body, self.kernel, self.normalised, self.sizes = body, kernel, found, sizes
        self.makers = {r.name: n for n, i in enumerate(body) for r in makes(i)}
        self.group = frozenset(found.indices)
        if found.kind != "softmax":
            raise RefusalError(f"{found.kind} over {_names(found.indices)} needs the whole row at once")
        self.chain, self.results = self._chain()
        self.axis = self._axis()
        self.inside = self._inside()

    # what is streamed ----------------------------------------------------------------------------------------------

    def _chain(self) -> tuple[list[int], list[Register]]:
        """The instructions that are linear in the weights, up to results without a barred axis."""
        live, chain, results = {self.normalised.out.name}, [], []
        for number, instruction in enumerate(self.body):
            touched = [r for r in reads(instruction) if r.name in live]
            if not touched:
                continue
            if not _is_linear(instruction, live):
                raise RefusalError(f"the weights over {_names(self.group)} are used other than in sums of products")
            chain.append(number)
            out = instruction.out  # type: ignore[union-attr]
            if set(out.axes) & self.group:
                live.add(out.name)
            else:
                results.append(out)
        if live & {o.register.name for o in self.kernel.outputs}:
            raise RefusalError(f"the weights over {_names(self.group)} are asked for")
        free = set(self.normalised.score.axes) - self.group
        if not results or any(not free <= set(r.axes) for r in results):
            raise RefusalError(f"an index of the score over {_names(self.group)} is summed with the weights")
        return chain, results

    def _axis(self) -> Index:
        """The barred axis to cut: the longest."""
        return max(sorted(self.group), key=lambda i: self.sizes.get(i.name, 1))

    def _inside(self) -> list[int]:
        """The instructions to move into the loop: pointwise along the axis, and holding another axis of the score."""
        others = set(self.normalised.score.axes) - {self.axis}
        loop = {self.makers[self.normalised.out.name], *self.chain}
        users: dict[str, set[int]] = {}
        for number, instruction in enumerate(self.body):
            for register in reads(instruction):
                users.setdefault(register.name, set()).add(number)
        kept = {o.register.name for o in self.kernel.outputs}
        for number in range(max(loop), -1, -1):
            instruction = self.body[number]
            if number in loop or isinstance(instruction, Stream) or not isinstance(instruction, POINTWISE):
                continue
            out = instruction.out
            wanted = users.get(out.name, set())
            holds = self.axis in out.axes and others & set(out.axes)
            if holds and wanted and wanted <= loop and out.name not in kept and _is_pointwise(instruction, self.axis):
                loop.add(number)
        return sorted(loop - {self.makers[self.normalised.out.name], *self.chain})

    # the loop ------------------------------------------------------------------------------------------------------

    def streamed(self, base: str) -> tuple[tuple[Instruction, ...], Index]:
        at = self.makers[self.normalised.out.name]
        loop = {at, *self.chain, *self.inside}
        made = {self.body[n].out.name for n in loop}  # type: ignore[union-attr]
        needed = {r for n in loop for r in reads(self.body[n]) if r.name not in made}
        scaling = Scaling(self.body, set(self.inside), self.normalised.score, base)
        stream, after = self._loop(needed, scaling)
        place = max([n + 1 for n, i in enumerate(self.body) if n not in loop and set(makes(i)) & needed], default=0)
        users = [
            n
            for n, i in enumerate(self.body)
            if n not in loop and {r.name for r in reads(i)} & {r.name for r in self.results}
        ]
        if users and min(users) < place:
            raise RefusalError(f"what the sum over {_names(self.group)} needs depends on its own result")
        before = [i for n, i in enumerate(self.body[:place]) if n not in loop]
        rest = [i for n, i in enumerate(self.body[place:], place) if n not in loop]
        return (*before, *scaling.outside, stream, *after, *rest), self.axis

    def _loop(self, needed: set[Register], scaling: Scaling) -> tuple[Stream, list[Instruction]]:
        found, axis = self.normalised, self.axis
        score, base = scaling.score, scaling.base
        needed = needed | {i.out for i in scaling.outside}  # type: ignore[union-attr]
        cut = {r.name: replace(r, name=f"{r.name}s{found.out.name}") for r in needed if axis in r.axes}
        slices = [Slice(cut[r.name], r, axis) for r in sorted(needed, key=lambda r: r.name) if r.name in cut]
        free = tuple(i for i in found.score.axes if i not in self.group)
        make = Maker(found.out.name, found.score.dtype)
        greatest, total = make("m", free), make("l", free)
        tile_greatest, tile_total = make("mt", free), make("lt", free)
        parts = {r.name: make(f"ot{n}", r.axes) for n, r in enumerate(self.results)}
        sums = [make(f"o{n}", r.axes) for n, r in enumerate(self.results)]
        renamed = {**cut, **parts}
        made = [*(self.body[n] for n in self.inside), *scaling.inside]
        where = found.where and renamed.get(found.where.name, found.where)
        weigh = Weigh(found.out, tile_greatest, tile_total, found.indices, renamed.get(score.name, score), where, base)
        steps = [
            *slices,
            *(_renamed(i, renamed) for i in made),
            weigh,
            *(_renamed(self.body[n], renamed) for n in self.chain),
        ]
        body = without_dead(tuple(steps), (tile_greatest, tile_total, *parts.values()))
        pairs = [(total, tile_total), *zip(sums, parts.values(), strict=True)]
        merging, merged = merge(make, (greatest, tile_greatest), pairs, EXP[base])
        carry = (
            Carry(greatest, -inf, tile_greatest),
            Carry(total, 0, tile_total),
            *(Carry(s, 0, p) for s, p in zip(sums, parts.values(), strict=True)),
        )
        stream = Stream(axis, Size.of(axis.name), self._tile(), body, carry, tuple(merging), tuple(merged))
        sink = dict(found.options).get("sink")
        return stream, quotients(make, self.results, (greatest, total, sums), sink, base)

    def _tile(self) -> TileRule:
        """As many positions as keep the largest array of a tile within the cache."""
        per = [Size.of(1)]
        for number in [*self.inside, *self.chain, self.makers[self.normalised.out.name]]:
            out = self.body[number].out  # type: ignore[union-attr]
            if self.axis in out.axes:
                per.append(_entries(i for i in out.axes if i != self.axis))
        largest = max(per, key=lambda size: size.value({n: self.sizes.get(n, 1) for n in size.symbols}))
        return TileRule(TILE_ENTRIES, largest)


# what an instruction does ---------------------------------------------------------------------------------------------


def _is_linear(instruction: Instruction, live: set[str]) -> bool:
    """Whether the instruction is linear in the one weight it reads."""
    match instruction:
        case Contract(a=a, b=b):
            return (a.name in live) != (b.name in live)
        case Apply(function="multiply", arguments=arguments):
            return sum(isinstance(a, Register) and a.name in live for a in arguments) == 1
        case Apply(function="divide", arguments=(above, below)):
            return (
                isinstance(above, Register)
                and above.name in live
                and not (isinstance(below, Register) and below.name in live)
            )
        case Apply(function="negate") | Arrange() | Fold(kind="sum"):
            return True
        case IfFinite(fast=fast):
            known = set(live)
            for inner in fast:
                if {r.name for r in reads(inner)} & known:
                    if not _is_linear(inner, known):
                        return False
                    known.add(inner.out.name)  # type: ignore[union-attr]
            return True
    return False


def _is_pointwise(instruction: Instruction, axis: Index) -> bool:
    """Whether a stretch of the result along the axis needs only that stretch of the operands."""
    if isinstance(instruction, Normalised):
        return axis not in instruction.indices
    if isinstance(instruction, IfFinite):
        return all(
            axis in i.out.axes or axis not in _axes(i) for side in (instruction.fast, instruction.safe) for i in side
        )  # type: ignore[union-attr]
    return True


def _axes(instruction: Instruction) -> set[Index]:
    return {i for r in reads(instruction) for i in r.axes}


def _renamed(value: Any, names: Mapping[str, Register]) -> Any:
    """An instruction with registers replaced, at every depth."""
    if isinstance(value, Register):
        return names.get(value.name, value)
    if isinstance(value, tuple):
        return tuple(_renamed(v, names) for v in value)
    if is_dataclass(value) and not isinstance(value, (Index, Size, Literal)):
        return replace(value, **{f.name: _renamed(getattr(value, f.name), names) for f in fields(value) if f.init})  # type: ignore[type-var]
    return value


def _entries(indices: Iterable[Index]) -> Size:
    return Size.product(i.name for i in indices)


def _names(indices: Iterable[Index]) -> str:
    return " ".join(i.name for i in sorted(indices))
