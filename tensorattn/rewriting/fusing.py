"""Definitions read once are put in their place, so that a plan sees a score, its softmax and the values as one.

`S^<mu nu> = q^mu_i k^nu_i; y^mu = S^<mu bar(nu)> v^nu` becomes `y^mu = softmax[nu](q^mu_i k^nu_i) v^nu`: rules see the
terms of the score, and what stands below a predicate sees it (a function with a singular derivative must, so that what
the predicate excludes has gradient 0; docs/design.md §8). Nothing is computed twice, for only one reading is replaced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from tensorattn.ir import (
    Add,
    Expr,
    Index,
    Normalise,
    Product,
    Reduce,
    Statement,
    Tensor,
    highest_number,
    rebuild,
    substitute,
    walk,
)
from tensorattn.program import Program
from tensorattn.rewriting.sums import merge_sums


def with_origins(program: Program) -> Program:
    """The program whose normalisers know the statement they were written in, wherever they are placed."""
    return replace(program, statements=tuple(replace(s, body=_with_origin(s.body, s.name)) for s in program.statements))


def _with_origin(node: Expr, name: str) -> Expr:
    node = rebuild(node, lambda child: _with_origin(child, name))
    return replace(node, origin=name) if isinstance(node, Normalise) else node


def fuse(program: Program, outputs: tuple[str, ...], placed: frozenset[str] = frozenset()) -> Program:
    """The program with every definition that is read once, whole and through distinct plain slots, in its place.

    `placed`: definitions that are put in place wherever they are read so. Another one without indices stays: it scales
    what it stands in, and as a factor among others it would be multiplied with an array of its own.
    """
    uses = Counter(tensor.name for tensor in program.tensors)
    ready: dict[str, Statement] = {}
    kept: list[Statement] = []
    for statement in program.statements:
        statement = replace(statement, body=_Placing(ready, _highest(statement)).placed(statement.body))
        kept.append(statement)
        once = uses[statement.name] == 1 or statement.name in placed
        plain = (statement.axes or statement.name in placed) and all(len(axis) == 1 for axis in statement.axes)
        if once and plain and statement.name not in outputs:
            ready[statement.name] = statement
    used = {node.name for s in kept for node in walk(s.body) if isinstance(node, Tensor)}
    return replace(program, statements=tuple(s for s in kept if s.name in used or s.name in outputs))


@dataclass(slots=True)
class _Placing:
    """Definitions put in place in one statement; `highest`: of the numbers that its binders have so far."""

    ready: dict[str, Statement]
    highest: int

    def placed(self, node: Expr) -> Expr:
        match node:
            case Tensor():
                return self._body(node)
            case Reduce(kind="sum" | "mean", where=where) if where is not None:
                body = self.placed(node.body)
                whole = body if body == node.body else Add((body,))  # its factors are none of a product under `where`
                return replace(node, where=self.placed(where), body=whole)
        node = rebuild(node, self.placed)
        return merge_sums(node) if isinstance(node, Product) else node

    def _body(self, read: Tensor) -> Expr:
        """What a tensor is defined by, where it can stand here, else the tensor."""
        statement = self.ready.get(read.name)
        plain = all(isinstance(slot, Index) for slot in read.slots)
        if statement is None or not plain or len(set(read.slots)) != len(read.slots):
            return read
        axes = dict(zip(statement.indices, read.slots, strict=True))
        offset, self.highest = self.highest, self.highest + _highest(statement)
        return substitute(statement.body, lambda i: axes.get(i) or Index(i.name, i.number + offset))  # type: ignore[return-value]


def _highest(statement: Statement) -> int:
    """A number above that of every binder of the statement."""
    return max(highest_number(statement.body), *(index.number for index in statement.indices), 0) + 1
