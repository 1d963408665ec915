"""What a part of a matrix formula is once its axes are known: its tree, and which axis is which."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorattn import tree as t
from tensorattn.source import Span


@dataclass(frozen=True, slots=True)
class Value:
    """Axes are numbers of `Axes`; in the tree an index is written as such a number until all are known.

    A column has `rows` only, a row `columns` only, a scalar neither. `flexible`: a declared vector, which is a row on
    the left of a matrix and a column on its right; `implied`: a row that comes of such a vector. `contracted`: the
    axes that its products sum; `summing`: whether one of them does so outside of functions. `repeated`: open axes
    that a product inside a factor would sum too early; `doubled`: those that stand in several factors.
    """

    tree: t.Tree
    span: Span
    rows: int | None = None
    columns: int | None = None
    lead: tuple[int, ...] = ()
    batch: bool = False
    flexible: bool = False
    implied: bool = False
    contracted: tuple[int, ...] = ()
    summing: bool = False
    repeated: frozenset[int] = frozenset()
    doubled: frozenset[int] = frozenset()

    @property
    def is_scalar(self) -> bool:
        return self.rows is None and self.columns is None

    @property
    def is_matrix(self) -> bool:
        return self.rows is not None and self.columns is not None

    @property
    def is_vector(self) -> bool:
        return not self.is_scalar and not self.is_matrix

    @property
    def early(self) -> frozenset[int]:
        """The open axes that this, as one factor, would sum before a product around it does."""
        return self.repeated | self.doubled

    @property
    def axes(self) -> tuple[int, ...]:
        """All, in the order of the array."""
        return (*self.lead, *(a for a in (self.rows, self.columns) if a is not None))

    def transposed(self, span: Span) -> Value:
        return replace(self, rows=self.columns, columns=self.rows, flexible=False, implied=False, span=span)

    def as_row(self) -> Value:
        """A flexible vector as a row."""
        return replace(self, rows=None, columns=self.rows, flexible=False, implied=True) if self.flexible else self

    def factors(self) -> tuple[tuple[t.Tree, ...], tuple[str, ...]]:
        """The units and operators that it adds to a product."""
        tree = self.tree
        while isinstance(tree, t.Bracket) and isinstance(tree.body, (t.ProductNode, t.Bracket)):
            tree = tree.body
        if isinstance(tree, t.ProductNode):
            return tree.units, tree.operators
        return (self.unit(),), ("*",)

    def unit(self) -> t.Tree:
        """Its tree as one factor."""
        bare = (t.SumNode, t.ProductNode, t.PowerNode)
        return t.Bracket(self.tree, self.span) if isinstance(self.tree, bare) else self.tree
