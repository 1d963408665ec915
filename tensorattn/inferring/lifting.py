"""A vector–Jacobian product → the Jacobian: the cotangent is a delta, and what depends on it has further axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensorattn.differentiating.collecting import as_expression
from tensorattn.differentiating.contexts import simple
from tensorattn.differentiating.expressions import call, where
from tensorattn.differentiating.statements import Book
from tensorattn.errors import BindingError
from tensorattn.ir import (
    Affine,
    Constant,
    Expr,
    Index,
    Number,
    Position,
    Product,
    Slot,
    Split,
    Statement,
    Tensor,
    rebuild,
    walk,
)
from tensorattn.program import Program
from tensorattn.rewriting.deltas import eliminate_deltas
from tensorattn.rewriting.sums import merge_sums

Axis = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Lifting:
    """The seed that is set to a delta, the further axes and, by axis of the seed, which of them (None: a tied axis)."""

    book: Book
    seed: str
    axes: tuple[Axis, ...]
    places: tuple[int | None, ...]

    def lifted(self, program: Program) -> Program:
        """The program with the seed set, and the further axes on every statement that depends on it."""
        dependent = {self.seed}
        made: list[Statement] = []
        for statement in program.statements:
            reads = any(isinstance(n, Tensor) and n.name in dependent for n in walk(statement.body))
            if reads:
                dependent.add(statement.name)
                statement = self._statement(statement, dependent)
            made.append(statement)
        return Program(tuple(made))

    def _statement(self, statement: Statement, dependent: set[str]) -> Statement:
        own = {index.name for index in statement.indices}
        axes = tuple(tuple(self._axis_index(index, own) for index in axis) for axis in self.axes)
        body = self._body(statement.body, dependent, axes)
        return self.book.made(statement.name, (*statement.axes, *axes), statement.upper, body)

    def _axis_index(self, index: Index, own: set[str]) -> Index:
        """A further axis, of another name where the statement has an axis of this one."""
        return Index(self.book.copy_name(index.name, 1), index.number) if index.name in own else index

    def _body(self, node: Expr, dependent: set[str], axes: tuple[Axis, ...]) -> Expr:
        if isinstance(node, Tensor) and node.name == self.seed:
            return self._delta(node.slots, axes)
        node = rebuild(node, lambda child: self._body(child, dependent, axes))
        if isinstance(node, Tensor) and node.name in dependent:
            extra: tuple[Slot, ...] = tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in axes)
            return Tensor(node.name, (*node.slots, *extra), node.upper)
        if not isinstance(node, Product):
            return node
        merged = eliminate_deltas(merge_sums(node))
        return simple(merged.factors, merged.summed) if isinstance(merged, Product) else merged

    def _delta(self, slots: Sequence[Slot], axes: tuple[Axis, ...]) -> Expr:
        """1 where the seed's own position is the one asked for."""
        factors: list[Expr] = []
        for slot, place in zip(slots, self.places, strict=True):
            if place is None:
                factors += _spread(slot)
                continue
            inner = slot.indices if isinstance(slot, Split) else (slot,)
            if len(inner) != len(axes[place]):  # a whole axis read where it is a merged group elsewhere
                raise BindingError(
                    "E-GRAD",
                    "an axis of the output is a merged group in one place and whole in another",
                    hint="leave the axis split in the output; merge it in a statement of its own after the posterior",
                )
            for index, further in zip(inner, axes[place], strict=True):
                if isinstance(index, Affine):
                    same = call("equal", as_expression(index), Position(further))
                    factors.append(where(same, Number(1), Number(0)))
                else:
                    factors.append(Constant("delta", (index, further)))
        return simple(tuple(factors), ()) if factors else Number(1)


def _spread(slot: Slot) -> Iterable[Expr]:
    """`ones` over what a tied axis of the seed is read at."""
    indices = slot.indices if isinstance(slot, Split) else (slot,) if isinstance(slot, Index) else ()
    return [Constant("ones", tuple(indices))] if indices else []
