"""Kernel → kernel: tiles, and what loops sum and stack, with their axes in the order that suits matrix products.

A product of many rows with few columns is slow where the large operand is read across its rows, Pᵀ k, and these begin
at multiples of 2 KB from each other, which share a few places of the cache: at half the speed, measured. Then the tile
is kept transposed, or the result is made as kᵀ P. A sum over rounds is kept as it comes and brought into order once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from tensorattn.kernel import Apply, Arrange, Contract, Fold, Instruction, Stream
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.narrowing import is_sum
from tensorattn.lowering.products import Axes, Product, product
from tensorattn.lowering.tiling import CONFLICT
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register, TileRule

FEW_COLUMNS, LARGER = 128, 4  # up to so many, of so many times as many rows
WORTH_A_COPY = 256  # so many summed entries, and few columns, make up for bringing a result into order
FEWER_COLUMNS = 48


def oriented(body: tuple[Instruction, ...], sizes: Mapping[str, int]) -> tuple[Instruction, ...]:
    """The body with its loops, those inside others first; `sizes`: those it is planned for."""
    found: list[Instruction] = []
    for instruction in body:
        found += _Loop(instruction, sizes).oriented() if isinstance(instruction, Stream) else [instruction]
    return tuple(found)


class _Loop:
    """A loop, with the lengths of the axes inside."""

    def __init__(self, stream: Stream, sizes: Mapping[str, int]) -> None:
        self.lengths = {**sizes, stream.axis.name: _positions(stream, sizes)}
        self.stream = replace(stream, body=oriented(stream.body, self.lengths))
        self.ends = {*stream.merged, *(p.part for p in (*stream.carry, *stream.stacked))}
        self.ends |= {r for i in stream.merge for r in reads(i)}
        self.sums = _sums(self.stream)

    def oriented(self) -> list[Instruction]:
        """The loop, and what brings its sums into order after it."""
        if not self.stream.narrowed:
            self.stream = replace(self.stream, body=self._tiles(self.stream.body))
        new, copies = self._results()
        return [renamed(self.stream, new), *copies]

    def _tiles(self, body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        """The body with tiles transposed where products are slow, and fewer are then."""
        tried: set[str] = set()
        for step in (i for i in body if isinstance(i, Contract)):
            tile = self._slow(step)
            if tile is None or tile.name in tried:
                continue
            alike = _alike(tile, body)
            tried |= {r.name for r in alike}
            if not alike or alike & self.ends:
                continue
            made = _product(step)
            axes = (*made.batch, *made.left, *made.inner)
            changed = renamed(body, {r.name: replace(r, axes=axes) for r in alike})
            before, after = self._price(body, tried), self._price(changed, tried)
            if after < before:
                body = changed
        return body

    def _price(self, body: Iterable[Instruction], names: set[str]) -> tuple[int, int]:
        """The copies of products with these registers, and the entries that slow ones multiply.

        A sum over rounds may come in any order.
        """
        copies, slow = 0, 0
        for step in body:
            if not isinstance(step, Contract) or not names & {step.out.name, step.a.name, step.b.name}:
                continue
            made = _product(step)
            copies += made.copies(step.a.axes) + made.copies(step.b.axes) + (made.axes != step.out.axes)
            if self._slow(step) is not None and step.out not in self.sums:
                slow += self._entries((*made.axes, *made.inner))
        return copies, slow

    def _slow(self, step: Contract) -> Register | None:
        """The operand that a product reads across its rows, slowly; None where there is none."""
        made = _product(step)
        large = step.b if made.turned else step.a
        if not (made.inner and made.left and made.right) or large.axes != (*made.batch, *made.inner, *made.left):
            return None
        rows, columns = self._entries(made.left), self._entries(made.right)
        return large if columns <= FEW_COLUMNS and rows >= LARGER * columns and not rows % CONFLICT else None

    def _results(self) -> tuple[dict[str, Register], list[Instruction]]:
        """What products leave as it comes, with the states of its sums, by name; and what brings those into order."""
        makers = {i.out: i for i in self.stream.body if isinstance(i, Contract)}
        new: dict[str, Register] = {}
        copies: list[Instruction] = []
        read = {r for i in (*self.stream.body, *self.stream.merge) for r in reads(i)}
        for part in (s.part for s in self.stream.stacked if s.part in makers and s.part not in read):
            if self._is_worth_a_copy(makers[part]):
                new[part.name] = self._as_fast(makers[part])
        for carry, total in zip(self.stream.carry, self.stream.merged, strict=True):
            state, part = carry.state, carry.part
            fast = self._as_fast(makers[part]) if part in self.sums else part
            if fast != part:
                made = replace(fast, name=f"{state.name}made", dtype=state.dtype)
                new |= {state.name: made, part.name: fast, total.name: replace(total, axes=fast.axes)}
                copies.append(Arrange(state, made, packed=True))
        return new, copies

    def _as_fast(self, step: Contract) -> Register:
        """The result of a product with its axes as it is made fastest; as it is where it is no product of matrices."""
        made = _product(step)
        if set(made.axes) != {*step.out.axes} or not made.inner:
            return step.out
        turned = self._slow(step) is not None
        return replace(step.out, axes=(*made.batch, *made.right, *made.left) if turned else made.axes)

    def _is_worth_a_copy(self, step: Contract) -> bool:
        made = _product(step)
        few = self._entries(made.right) <= FEWER_COLUMNS and self._entries(made.inner) >= WORTH_A_COPY
        return few and self._slow(step) is not None

    def _entries(self, axes: Axes) -> int:
        return prod(self.lengths.get(index.name, 1) for index in {*axes})


def _product(step: Contract) -> Product:
    return product(step.a.axes, step.b.axes, step.out.axes)


def _positions(stream: Stream, sizes: Mapping[str, int]) -> int:
    """How many positions a tile has at these sizes."""
    size = stream.size.value({name: sizes.get(name, 1) for name in stream.size.symbols})
    if not isinstance(stream.tile, TileRule):
        return min(stream.tile, size)
    per = stream.tile.per.value({name: sizes.get(name, 1) for name in stream.tile.per.symbols})
    return max(min(stream.tile.entries // max(per, 1), size), 1)


def _sums(stream: Stream) -> set[Register]:
    """The products of a round that are only added to a state."""
    made = {i.out for i in stream.body if isinstance(i, Contract)} - {r for i in stream.body for r in reads(i)}
    parts = {c.part for c in stream.carry if c.part.axes == c.state.axes and is_sum(stream, c)}
    return made & parts


def _alike(tile: Register, body: tuple[Instruction, ...]) -> set[Register]:
    """The tiles that are made of one another entry by entry; none where one is not made here, or else than by products
    and steps entry by entry, or is read by something else."""
    alike, grown = {tile}, True
    while grown:
        grown = False
        for step in body:
            touched = {*makes(step), *reads(step)}
            if not alike & touched:
                continue
            whole = {r for r in touched if {*r.axes} == {*tile.axes}}
            if isinstance(step, Apply):
                if any(r.dtype != tile.dtype for r in touched) or step.out not in whole:
                    return set()
                grown |= not whole <= alike
                alike |= whole
            elif not isinstance(step, (Contract, Fold)):
                return set()
    return alike if alike <= {r for step in body for r in makes(step)} else set()
