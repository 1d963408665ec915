"""One evaluation for equal expressions of a program, in whatever statements they stand and however they name indices.

Two softmaxes of one score share its product; equal softmaxes with different values share the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tensorattn.alike import Form, form
from tensorattn.ir import Expr, Index, Normalise, Statement, Tensor, walk
from tensorattn.kernel import View
from tensorattn.lowering.building import Builder
from tensorattn.parts import Literal, Operand, Register
from tensorattn.plan import Plan


@dataclass(frozen=True, slots=True)
class _Kept:
    indices: tuple[Index, ...]
    value: Operand
    statement: str


class Shared:
    """What is computed so far, by form.

    In a dense plan everything is shared. In one with loops only equal weights are, and what no loop makes: a score that
    two loops read is made in each, tile by tile, and not kept whole for both.
    """

    def __init__(self, plan: Plan) -> None:
        self.dense = plan.kind == "dense"
        self.table: dict[object, _Kept] = {}
        self.sources: dict[str, frozenset[str]] = {}
        self.scores: tuple[Normalise, ...] = ()
        self.statement = ""

    def enter(self, statement: Statement) -> None:
        """From here on, expressions are of this statement."""
        nodes = tuple(walk(statement.body))
        read = {n.name for n in nodes if isinstance(n, Tensor)}
        self.sources[statement.name] = frozenset(read.union(*(self.sources.get(name, ()) for name in read)))
        self.scores = tuple(n for n in nodes if isinstance(n, Normalise))
        self.statement = statement.name

    def lower(
        self, node: Expr, place: tuple[Register | None, bool], builder: Builder, make: Callable[[Expr], Operand]
    ) -> Operand:
        """The value of a node: what an equal one gave, else made. `place`: what else the value depends on."""
        if isinstance(node, Tensor) or not self._may_share(node):
            return make(node)
        found = form(node)
        known = self.table.get((found.expression, place))
        if known is not None and self._is_usable(known, found, place):
            return _renamed(builder, known, found.indices)
        value = make(node)
        self.table[found.expression, place] = _Kept(found.indices, value, self.statement)
        return value

    def _may_share(self, node: Expr) -> bool:
        if self.dense or isinstance(node, Normalise):
            return True
        return not any(_meets(node.free, weights) for weights in self.scores)

    def _is_usable(self, known: _Kept, found: Form, place: tuple[Register | None, bool]) -> bool:
        """A loop reads its operands under their own names, and may not need its own result."""
        if known.indices == found.indices:
            return self.dense or known.statement not in self.sources[self.statement]
        return self.dense and place[0] is None


def _meets(free: Iterable[Index], weights: Normalise) -> bool:
    """Whether an array over these indices is as large as the scores along a barred axis and one more."""
    common = weights.free.intersection(free)
    return len(common) > 1 and not common.isdisjoint(weights.indices)


def _renamed(builder: Builder, known: _Kept, indices: tuple[Index, ...]) -> Operand:
    """A value read through other index names."""
    value = known.value
    if known.indices == indices or isinstance(value, Literal):
        return value
    names = dict(zip(known.indices, indices, strict=True))
    builder.order(indices)  # so that new indices have a rank
    axes = tuple(names[axis] for axis in value.axes)
    return builder.emit(View(builder.register(axes, value.dtype), value, tuple((axis,) for axis in axes)))
