"""Definitions read once are put in their place, so that a plan sees a score, its softmax and the values as one.

`S^<mu nu> = q^mu_i k^nu_i; y^mu = S^<mu bar(nu)> v^nu` becomes `y^mu = softmax[nu](q^mu_i k^nu_i) v^nu`: the scores can
then be made tile by tile. Nothing is computed twice, for only one reading is replaced.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tensorattn.ir import Expr, Index, Product, Statement, Tensor, rebuild, substitute, walk
from tensorattn.program import Program


def fuse(program: Program, outputs: tuple[str, ...]) -> Program:
    """The program with every definition that is read once, whole and through distinct plain slots, in its place."""
    uses = Counter(tensor.name for tensor in program.tensors)
    ready: dict[str, Statement] = {}
    kept: list[Statement] = []
    for statement in program.statements:
        statement = replace(statement, body=_placed(statement.body, ready, _most(statement)))
        kept.append(statement)
        if uses[statement.name] == 1 and statement.name not in outputs and all(len(a) == 1 for a in statement.axes):
            ready[statement.name] = statement
    used = {node.name for s in kept for node in walk(s.body) if isinstance(node, Tensor)}
    return replace(program, statements=tuple(s for s in kept if s.name in used or s.name in outputs))


def _placed(node: Expr, ready: dict[str, Statement], offset: int) -> Expr:
    if isinstance(node, Tensor) and node.name in ready and _is_whole(node):
        statement = ready[node.name]
        axes = dict(zip(statement.indices, node.slots, strict=True))
        return substitute(statement.body, lambda i: axes.get(i) or Index(i.name, i.number + offset))  # type: ignore[return-value]
    node = rebuild(node, lambda child: _placed(child, ready, offset))
    return _flat(node) if isinstance(node, Product) else node


def _is_whole(tensor: Tensor) -> bool:
    return len(set(tensor.slots)) == len(tensor.slots) and all(isinstance(slot, Index) for slot in tensor.slots)


def _flat(node: Product) -> Product:
    """A product placed in a product joins it: its bound indices have numbers of their own."""
    factors, summed = [], list(node.summed)
    for factor in node.factors:
        if isinstance(factor, Product):
            factors.extend(factor.factors)
            summed.extend(factor.summed)
        else:
            factors.append(factor)
    return replace(node, factors=tuple(factors), summed=tuple(summed))


def _most(statement: Statement) -> int:
    """A number above every binder of the statement."""
    found = [index.number for index in statement.indices]

    def seen(index: Index) -> Index:
        found.append(index.number)
        return index

    substitute(statement.body, seen)
    return max(found, default=0) + 1
