"""Kernel → kernel: a softmax that is attention in all but its number of indices is handed to a kernel made for that.

The barred group becomes one key axis (`lowering/attention.py` says when). Where the keys and values have to be built
and are large, they are built in chunks along one barred index: the attention of a chunk gives an element of the monoid
(m, l, o) that a streamed softmax carries, so that any chunks merge exactly.
Below a predicate the operands are tested for finiteness first; where one is not finite, the dense instructions run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from tensorattn.ir import Index
from tensorattn.kernel import (
    Apply,
    Arrange,
    Attend,
    Cast,
    Fill,
    IfFinite,
    Instruction,
    Join,
    Kernel,
    Normalised,
    Stream,
)
from tensorattn.lowering.attention import Attention, Axes, attention, split_scales
from tensorattn.lowering.columns import Column, Columns
from tensorattn.lowering.copying import Copier
from tensorattn.lowering.flow import size_of
from tensorattn.lowering.liveness import makes, outside_reads, reads, without_dead
from tensorattn.lowering.looping import RefusalError
from tensorattn.lowering.merging import EXP, Maker, merge, quotients
from tensorattn.lowering.multilinear import Factor, Product, Reader, Scale, Term, plain_side
from tensorattn.lowering.sides import Sides
from tensorattn.lowering.views import is_view, viewed
from tensorattn.parts import Carry, Register, TileRule
from tensorattn.peaks import BOND
from tensorattn.sizes import Size

MOST_BUILT = 1 << 20  # entries of keys, values and masks that are built whole: 4 MB of float32
CHUNK_ENTRIES = 1 << 19  # of keys or values in a chunk: 2 MB of float32, which stays in cache. Measured.
MASK_ENTRIES = 1 << 20  # of a mask in a chunk


@dataclass(frozen=True, slots=True)
class Flattened:
    """The kernel with what is flattened: how many softmaxes, and why others are not."""

    kernel: Kernel
    count: int
    refused: tuple[str, ...]


def flattened(
    kernel: Kernel,
    sizes: Mapping[str, int],
    chunks: bool = True,
    *,
    only: frozenset[str] | None = None,
    chunk_entries: int | None = None,
    join: bool = True,
) -> Flattened:
    """Every softmax that admits it as attention with one key axis; `chunks`: in chunks where that saves memory.

    `only`: the softmaxes of these statements. `chunk_entries`: what a chunk may hold (default: what is fastest).
    `join`: terms between the same rows and keys are one product with a longer bond; else all but one are biases.
    """
    refused: list[str] = []
    done: set[str] = set()
    count = 0
    while True:
        normalisers = (i for i in plain_side(kernel.body) if isinstance(i, Normalised) and i.out.name not in done)
        found = next((i for i in normalisers if only is None or i.origin in only), None)
        if found is None:
            return Flattened(kernel, count, tuple(refused))
        done.add(found.out.name)
        try:
            flat = _Flat(kernel, attention(kernel, found, sizes, join=join), sizes, chunk_entries)
        except RefusalError as refusal:
            refused.append(refusal.reason)
            continue
        large = flat.built.value(flat.sizes) > flat.at_most(MOST_BUILT)
        body = flat.body(chunks and large and not flat.found.causal)
        kernel = replace(kernel, body=body, sizes=(*kernel.sizes, *flat.lengths))
        count += 1


def biased(kernel: Kernel) -> bool:
    """Whether an attention has a bias, which torch's kernels have no gradient for."""
    return any(isinstance(i, Attend) and i.bias is not None for i in plain_side(kernel.body))


def joined_keys(kernel: Kernel) -> bool:
    """Whether an attention has keys of several axes, so that the gradients of all keys are arrays."""
    return any(isinstance(i, Attend) and len(i.group) > 1 for i in plain_side(kernel.body))


class _Flat:
    """One softmax in its kernel, as attention."""

    def __init__(
        self, kernel: Kernel, found: Attention, sizes: Mapping[str, int], chunk_entries: int | None = None
    ) -> None:
        self.kernel, self.found, self.sizes, self.chunk_entries = kernel, found, sizes, chunk_entries
        self.weights = found.normalised
        self.reader = Reader(kernel.body)
        self.sides = Sides(f"s{self.weights.out.name}", self.weights.score.dtype, sizes)
        self.make = Maker(self.weights.out.name, self.weights.score.dtype)
        self.tested: set[Register] = set()
        scale, rest = split_scales(found.scales, found.bond) if not found.joins else (((), ()), list(found.scales))
        f, sides, bond = found, self.sides, found.bond
        query = sides.built("q", f.query, (*f.has(f.query), *f.rows, *f.bond))
        query = sides.scaled("q", query, rest)
        group = [i for i in f.group if not f.joins or any(i in factor.axes for factor in f.key)]
        key = sides.built("k", f.key, (*f.has(f.key), *group, *f.bond))
        self.lengths: tuple[tuple[str, Size], ...] = ()
        if f.joins:
            query, key, bond = self._joined(query, key)
        value = sides.built("v", f.value, (*f.has(f.value), *f.group, *f.values))
        self.tested |= {r for r in outside_reads(tuple(sides.steps)) if r.dtype.startswith("float")}
        self.tested |= {r for r in (query, key, value) if r.name not in {i.out.name for i in sides.steps}}  # type: ignore[union-attr]
        self.tested |= {r for r in outside_reads(f.tail) if r != f.result}
        where = None if f.causal else self.weights.where
        self.attend = Attend(
            self.make("y", (*f.batch, *f.rows, *f.values)), query, key, value, self._bias(), where,
            f.batch, f.rows, bond, f.group, f.values, scale, f.causal,
        )  # fmt: skip
        self.built = self._built()

    def _joined(self, query: Register, key: Register) -> tuple[Register, Register, tuple[Index, ...]]:
        """Query and key with the terms joined along one bond: a sum of products is a longer product.

        Columns stand first (`columns.py` says why), each along an index of size 1.
        """
        f, sides, single = self.found, self.sides, Index(f"{BOND}one_{self.weights.out.name}")
        columns = self._columns()
        sources = [*(c.query for c in columns), query], [*(c.key for c in columns), key]
        bonds = [*[single] * len(columns), *f.bond]
        for part in f.more:
            left = sides.built("q", part.query, (*f.has(part.query), *f.rows, part.bond))
            sources[0].append(sides.scaled("q", left, part.scales))
            group = (i for i in f.group if any(i in factor.axes for factor in part.key))  # the others: when joined
            sources[1].append(sides.built("k", part.key, (*f.has(part.key), *group, part.bond)))
            bonds.append(part.bond)
        whole = Index(f"{BOND}{self.weights.out.name}")
        length = sum((Size.of(1) if i == single else Size.of(i.name) for i in bonds), Size())
        self.lengths = ((single.name, Size.of(1)), (whole.name, length))
        self.sizes = {
            **self.sizes,
            single.name: 1,
            whole.name: length.value({n: self.sizes.get(n, 1) for n in length.symbols}),
        }
        joined = []
        for word, parts, axes in (("q", sources[0], f.rows), ("k", sources[1], f.group)):
            held = {i for register in parts for i in register.axes}
            out = sides.register(word, (*(i for i in f.batch if i in held), *axes, whole))
            joined.append(sides.emit(Join(out, whole, tuple(parts), tuple(bonds))))
        return joined[0], joined[1], (whole,)

    def _columns(self) -> list[Column]:
        """The biases that are columns, those of positions first."""
        f = self.found
        if not (f.positions or f.of_keys):
            return []
        make = Columns(self.sides)
        found = [column for part in f.positions for column in make.of_positions(part)]
        return found + [Column(make.one, self._term(term)) for term in f.of_keys]

    def at_most(self, entries: int) -> int:
        """This many entries, or fewer where a chunk may hold no more."""
        return entries if self.chunk_entries is None else min(entries, self.chunk_entries)

    def _bias(self) -> Register | None:
        """The sum of the biases, the smaller ones first."""
        terms = sorted(self.found.biases, key=lambda t: len(t.factor.axes) if t.factor is not None else 0)
        total: Register | None = None
        for term in terms:
            part = self._term(term)
            if total is None:
                total = part
                continue
            axes = [i for i in self.weights.score.axes if i in {*total.axes, *part.axes}]
            total = self.sides.emit(Apply(self.sides.register("b", axes), "add", (total, part)))
        return total

    def _term(self, term: Term) -> Register:
        sides = self.sides
        if term.factor is None:
            one = sides.emit(Fill(sides.register("b", ()), 1.0))
            return sides.scaled("b", one, term.scales)
        found = self.reader.product(term.factor, set(self.weights.score.axes)) if term.scales else Product()
        if len(found.factors) > 1 and all(f.register.dtype == sides.dtype for f in found.factors):
            return self._scaled_product(found, term.scales, term.factor.axes)
        register = sides.named("b", term.factor)
        if register.dtype != sides.dtype:
            register = sides.emit(Cast(sides.register("b", register.axes), register))
        return sides.scaled("b", register, term.scales)

    def _scaled_product(self, found: Product, scales: tuple[Scale, ...], axes: Axes) -> Register:
        """A bias that is a product: made from its factors, so that the smallest of them is scaled and not the whole."""
        first, *rest = sorted(found.factors, key=lambda f: len(f.axes))
        self.tested |= {f.register for f in found.factors}
        small = self.sides.named("b", first)
        small = self.sides.scaled("b", small, (*found.scales, *scales))
        return self.sides.built("b", [Factor(small, first.axes), *rest], axes)

    def _built(self) -> Size:
        """The entries of keys, values and masks over rows and keys that are no inputs as they are."""
        made = {i.out.name: i for i in self.sides.steps}  # type: ignore[union-attr]
        whole = []
        for register in (self.attend.key, self.attend.value):
            root = register
            while root.name in made and is_view(made[root.name]):
                root = viewed(made[root.name])
            whole += [register] if root.name in made else []
        masks = [r for r in (self.attend.bias, self.attend.where) if r is not None]
        loads = {r.name for i in self.kernel.body if not isinstance(i, (Apply, IfFinite, Cast)) for r in makes(i)}
        rows = {*self.found.rows}
        whole += [r for r in masks if r.name not in loads and rows & {*r.axes}]
        return sum((size_of(r.axes) for r in whole), Size())

    # the new body ------------------------------------------------------------------------------------------------

    def body(self, chunked: bool) -> tuple[Instruction, ...]:
        """The kernel's body with the result made by attention, and without what only the weights needed."""
        body, last = self.kernel.body, self.found.last
        copier = Copier(body, last, f"c_{self.weights.out.name}")
        steps = self._chunks(copier) if chunked else self._whole(copier)
        fast = (*copier.before, *steps)
        guarded = self.weights.where is not None or any(
            isinstance(i, IfFinite) and makes(i)[0].name in self._needed() for i in body[: last + 1]
        )
        kept = tuple(o.register for o in self.kernel.outputs)
        if not guarded:
            return without_dead((*body[:last], *fast, *body[last + 1 :]), kept)
        values = tuple(sorted(self._tested(copier), key=lambda r: r.name))
        safe = self._exclusive({*outside_reads(fast), *values})
        moved = tuple(body[n] for n in safe)
        branch = IfFinite(makes(body[last])[0], values, fast, (*moved, body[last]))
        rest = (*(i for n, i in enumerate(body[:last]) if n not in safe), branch, *body[last + 1 :])
        return without_dead(rest, kept)

    def _needed(self) -> set[str]:
        """The registers that the result is made of, through all sides of branches."""
        needed = {r.name for i in self.kernel.body[self.found.last :][:1] for r in (*reads(i), *makes(i))}
        for instruction in reversed(self.kernel.body[: self.found.last]):
            if needed & {r.name for r in makes(instruction)}:
                needed |= {r.name for r in reads(instruction)}
        return needed

    def _tested(self, copier: Copier) -> set[Register]:
        """What has to be finite for the fast side: the registers at hand that query, key and value are made of."""
        return {r for register in self.tested for r in copier.roots(register) if r.dtype.startswith("float")}

    def _exclusive(self, shared: set[Register]) -> list[int]:
        """The instructions before the last that only the result needs, and the fast side does not."""
        body, last = self.kernel.body, self.found.last
        kept = {r.name for r in shared} | {o.register.name for o in self.kernel.outputs}
        kept |= {r.name for i in body[last + 1 :] for r in reads(i)}
        chosen: list[int] = []
        for number in range(last - 1, -1, -1):
            made = {r.name for r in makes(body[number])}
            if made & kept:
                kept |= {r.name for r in reads(body[number])}
            else:
                chosen.append(number)
        return chosen[::-1]

    # the fast side -----------------------------------------------------------------------------------------------

    def _whole(self, copier: Copier) -> list[Instruction]:
        """One call for all keys."""
        f, make = self.found, self.make
        sink = dict(self.weights.options).get("sink")
        if sink is None:
            steps = copier.outside((*self.sides.steps, self.attend))
        else:
            greatest, total = (make(n, (*f.batch, *f.rows)) for n in "ml")
            attend = replace(self.attend, greatest=greatest, total=total)
            steps = copier.outside((*self.sides.steps, attend))
            steps += quotients(make, [make("d", attend.out.axes)], (greatest, total, [attend.out]), sink, "e").steps
        return steps + self._result(steps[-1].out, copier)  # type: ignore[union-attr]

    def _result(self, out: Register, copier: Copier) -> list[Instruction]:
        """What scales the sum, the axes of the result, and what follows on the plain side of a branch."""
        made, f = Sides(f"r{self.weights.out.name}", self.sides.dtype, self.sizes), self.found
        scaled = made.scaled("r", out, f.outer)
        if not f.tail:
            return [*made.steps, Arrange(f.result, scaled)]
        arranged = replace(f.result, name=f"{f.result.name}{copier.suffix}")
        return [*made.steps, Arrange(arranged, scaled), *copier.tail(f.tail, f.result, arranged)]

    def _chunks(self, copier: Copier) -> list[Instruction]:
        """A loop over chunks of one barred axis."""
        f, make = self.found, self.make
        axis = max(f.group, key=lambda i: self.sizes.get(i.name, 1))
        free = (*f.batch, *f.rows)
        part, state = make("ot", self.attend.out.axes), make("o", self.attend.out.axes)
        greatest, total = (make("m", free), make("mt", free)), (make("l", free), make("lt", free))
        attend = replace(self.attend, out=part, greatest=greatest[1], total=total[1])
        inside = copier.loop((*self.sides.steps, attend), axis, {*free, *f.group} - {axis})
        body = without_dead(tuple(inside), (part, greatest[1], total[1]))
        merging, merged = merge(make, greatest, [total, (state, part)], EXP["e"], floored=False)
        carry = (Carry(greatest[0], -inf, greatest[1]), Carry(total[0], 0, total[1]), Carry(state, 0, part))
        stream = Stream(axis, Size.of(axis.name), self._tile(axis), body, carry, tuple(merging), tuple(merged))
        sink, done = dict(self.weights.options).get("sink"), make("d", part.axes)
        steps = [stream, *quotients(make, [done], (greatest[0], total[0], [state]), sink, "e").steps]
        return steps + self._result(done, copier)

    def _tile(self, axis: Index) -> TileRule:
        """As many positions as keep the largest of keys and values, or a mask, of a chunk small."""
        rules = []
        for register, entries in (
            (self.attend.key, CHUNK_ENTRIES), (self.attend.value, CHUNK_ENTRIES),
            (self.attend.bias, MASK_ENTRIES), (self.attend.where, MASK_ENTRIES),
        ):  # fmt: skip
            if register is not None and axis in register.axes:
                rules.append(TileRule(self.at_most(entries), size_of(i for i in register.axes if i != axis)))
        sizes = self.sizes
        return min(rules, key=lambda r: r.entries / max(r.per.value({n: sizes.get(n, 1) for n in r.per.symbols}), 1))
