"""Kernel → kernel: tiles, and what loops sum and stack, with their axes in the order that suits matrix products.

A product of many rows with few columns is slow where the large operand is read across its rows, Pᵀ k, and these begin
at multiples of 2 KB from each other, which share a few places of the cache: at half the speed, measured. Then the tile
is kept transposed, or the result is made as kᵀ P. A sum over rounds is kept as it comes and brought into order once.

The axis that a loop cuts stands first in its tiles where products copy less then; and a sum over two axes, between
which an operand holds another, is made place by place along one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Contract, Fold, Instruction, Stream, Weigh
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.narrowing import is_sum
from tensorattn.lowering.products import Axes, Product, product_of
from tensorattn.lowering.tiling import tile_positions
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Register

CONFLICT = 512  # entries: rows that begin at multiples of it share few places of the cache
FEW_COLUMNS, LARGER = 128, 4  # up to so many, of so many times as many rows
WORTH_A_COPY = 256  # so many summed entries, and few columns, make up for bringing a result into order
FEWER_COLUMNS = 48
A_CALL = 1 << 11  # entries that are copied in the time of a call: with fewer at a place, a copy is faster
MOVING = (Apply, Contract, Fold, Weigh)


def oriented(body: tuple[Instruction, ...], sizes: Mapping[str, int]) -> tuple[Instruction, ...]:
    """The body with its loops, those inside others first; `sizes`: those it is planned for."""
    found: list[Instruction] = []
    for instruction in body:
        found += _Loop(instruction, sizes).oriented() if isinstance(instruction, Stream) else [instruction]
    return tuple(found)


class _Loop:
    """A loop, with the lengths of the axes inside."""

    def __init__(self, stream: Stream, sizes: Mapping[str, int]) -> None:
        self.lengths = {**sizes, stream.axis.name: tile_positions(stream, sizes)}
        self.stream = replace(stream, body=oriented(stream.body, self.lengths))
        self.ends = {*stream.merged, *(p.part for p in (*stream.carry, *stream.stacked))}
        self.ends |= {r for i in stream.merge for r in reads(i)}
        self.sums = _sums(self.stream)

    def oriented(self) -> list[Instruction]:
        """The loop, and what brings its sums into order after it."""
        if not self.stream.narrowed:
            body = self._tiles(self._led(self.stream.body))
            self.stream = replace(self.stream, body=tuple(map(self._apart, body)))
        new, copies = self._results()
        return [renamed(self.stream, new), *copies]

    def _led(self, body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
        """The body with the axis that is cut in front of its tiles, where products copy less then."""
        axis, ends = self.stream.axis, {r.name for r in self.ends}
        steps = [i for i in body if isinstance(i, MOVING)]
        made = {r.name: r for i in steps for r in makes(i) if axis in r.axes and r.name not in ends}
        others = {r for i in body if not isinstance(i, MOVING) for r in (*makes(i), *reads(i))}
        products = [i for i in steps if isinstance(i, Contract) and _made(i).inner]
        if not products or any(r.name in made for r in others):
            return body
        heads = frozenset.intersection(*(frozenset(_made(i).batch) for i in products)) - {axis}
        front = {n: replace(r, axes=_in_front(r.axes, axis, heads)) for n, r in made.items()}
        changed = tuple(map(self._repeated, renamed(body, front)))
        return changed if self._copied(changed) < self._copied(body) else body

    def _copied(self, body: Iterable[Instruction]) -> int:
        """The entries that products copy, and that steps entry by entry read or write in another order."""
        total = 0
        for step in body:
            if isinstance(step, Contract):
                total += self._copies(step)
            elif isinstance(step, (Apply, Weigh)):
                total += sum(self._entries(r.axes) for r in reads(step) if not _is_ordered(r.axes, step.out.axes))
        return total

    def _copies(self, step: Contract) -> int:
        """The entries that a product copies, of its operands and of a result that is no sum, which may come anyhow."""
        made = _made(step)
        if not made.inner:
            return 0
        copied = [r.axes for r in (step.a, step.b) if made.copies(r.axes)]
        if step.along in step.out.axes and len(made.batch) > 1:
            copied += [(step.along, *r.axes) for r in (step.a, step.b) if step.along not in r.axes]
        if made.axes != step.out.axes and step.out not in self.sums:
            copied.append(step.out.axes)
        return sum(map(self._entries, copied))

    def _repeated(self, step: Instruction) -> Instruction:
        """A product with the places of the loop's axis multiplied one by one, where it copies less then."""
        axis = self.stream.axis
        if not isinstance(step, Contract) or (axis in step.a.axes) == (axis in step.b.axes):
            return step
        changed = replace(step, along=axis)
        return changed if axis in step.out.axes and self._is_less(changed, step, axis) else step

    def _apart(self, step: Instruction) -> Instruction:
        """A sum over rounds with the products along one of its axes added up, where that copies less."""
        if not isinstance(step, Contract) or step.out not in self.sums or _made(step).batch:
            return step
        for index in _made(step).inner:
            changed = replace(step, along=index)
            last = index in (step.a.axes[-1], step.b.axes[-1])
            if not last and _made(changed).inner and self._is_less(changed, step, index):
                return changed
        return step

    def _is_less(self, changed: Contract, step: Contract, axis: Index) -> bool:
        """Whether a product place by place copies less than as a whole, by more than its calls cost."""
        saved = self._copies(step) - self._copies(changed)
        return saved >= A_CALL * self._entries((axis,)) and saved > 0

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
            made = _made(step)
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
            made = _made(step)
            copies += made.copies(step.a.axes) + made.copies(step.b.axes) + (made.axes != step.out.axes)
            if self._slow(step) is not None and step.out not in self.sums:
                slow += self._entries((*made.axes, *made.inner))
        return copies, slow

    def _slow(self, step: Contract) -> Register | None:
        """The operand that a product reads across its rows, slowly; None where there is none."""
        made, large = _made(step), self._across(step)
        rows, columns = self._entries(made.left), self._entries(made.right)
        few = columns <= FEW_COLUMNS and rows >= LARGER * columns
        return large if few and not rows % CONFLICT else None

    def _across(self, step: Contract) -> Register | None:
        """The first operand where a product reads it across its rows."""
        made = _made(step)
        large = step.b if made.turned else step.a
        whole = made.inner and made.left and made.right
        return large if whole and large.axes == (*made.batch, *made.inner, *made.left) else None

    def _results(self) -> tuple[dict[str, Register], list[Instruction]]:
        """What products leave as it comes, with the states of its sums, by name; and what brings those into order."""
        makers = {i.out: i for i in self.stream.body if isinstance(i, Contract)}
        new: dict[str, Register] = {}
        copies: list[Instruction] = []
        read = {r for i in (*self.stream.body, *self.stream.merge) for r in reads(i)}
        for part in (s.part for s in self.stream.stacked if s.part in makers and s.part not in read):
            if self._is_worth_a_copy(makers[part]):
                new[part.name] = self._as_fast(makers[part], turned=True)
        for carry, total in zip(self.stream.carry, self.stream.merged, strict=True):
            state, part = carry.state, carry.part
            fast = part
            if part in self.sums:
                made = _made(makers[part])
                longer = self._entries(made.left) > self._entries(made.right)
                fast = self._as_fast(makers[part], turned=longer and self._across(makers[part]) is not None)
            if fast != part:
                made = replace(fast, name=f"{state.name}made", dtype=state.dtype)
                new |= {state.name: made, part.name: fast, total.name: replace(total, axes=fast.axes)}
                copies.append(Arrange(state, made, packed=True))
        return new, copies

    def _as_fast(self, step: Contract, *, turned: bool) -> Register:
        """The result of a product with its axes as it is made fastest; as it is where it is no product of matrices."""
        made = _made(step)
        if set(made.axes) != {*step.out.axes} or not made.inner:
            return step.out
        return replace(step.out, axes=(*made.batch, *made.right, *made.left) if turned else made.axes)

    def _is_worth_a_copy(self, step: Contract) -> bool:
        made = _made(step)
        few = self._entries(made.right) <= FEWER_COLUMNS and self._entries(made.inner) >= WORTH_A_COPY
        return few and self._slow(step) is not None

    def _entries(self, axes: Axes) -> int:
        return prod(self.lengths.get(index.name, 1) for index in {*axes})


def _made(step: Contract) -> Product:
    return product_of(step, onto=True)


def _in_front(axes: Axes, axis: Index, heads: frozenset[Index]) -> Axes:
    """The axes with one of them right behind the heads that stand first."""
    first = next((n for n, index in enumerate(axes) if index not in heads), len(axes))
    return (*axes[:first], axis, *(index for index in axes[first:] if index != axis))


def _is_ordered(axes: Axes, out: Axes) -> bool:
    return [index for index in out if index in axes] == [index for index in axes if index in out]


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
