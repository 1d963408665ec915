"""Definitions below a predicate: `l = log(s)` read once, in `softmax[j : p](l)`, is put in its place.

A function with a singular derivative must see the predicate, so that what it excludes has gradient 0 (docs/design.md
§8); in a statement of its own it does not.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from tensorattn.ir import Add, Expr, Index, Map, Normalise, Reduce, Statement, Tensor, Top, rebuild, substitute, walk
from tensorattn.program import Program

SINGULAR = ("log", "sqrt", "power", "reciprocal")


def inline_below_predicates(program: Program, outputs: tuple[str, ...]) -> Program:
    """The program with such definitions in place; they are no longer statements."""
    uses = Counter(tensor.name for tensor in program.tensors)
    ready: dict[str, Statement] = {}
    kept: list[Statement] = []
    for statement in program.statements:
        statement = replace(statement, body=_rewritten(statement.body, ready, _most(statement)))
        kept.append(statement)
        if uses[statement.name] == 1 and statement.name not in outputs and _is_singular(statement):
            ready[statement.name] = statement
    used = {node.name for s in kept for node in walk(s.body) if isinstance(node, Tensor)}
    return replace(program, statements=tuple(s for s in kept if s.name in used or s.name in outputs))


def _is_singular(statement: Statement) -> bool:
    if any(len(axis) != 1 for axis in statement.axes):
        return False
    return any(
        isinstance(node, Map)
        and node.function in SINGULAR
        and any(isinstance(n, Tensor) and n.free for n in walk(node))
        for node in walk(statement.body)
    )


def _most(statement: Statement) -> int:
    """The highest binder number in a statement."""
    found = [index.number for index in statement.indices]

    def seen(index: Index) -> Index:
        found.append(index.number)
        return index

    substitute(statement.body, seen)
    return max(found, default=0)


def _rewritten(node: Expr, ready: dict[str, Statement], offset: int) -> Expr:
    """The node with the definitions in place below its predicates."""
    match node:
        case Normalise(where=where, score=score) if where is not None:
            return replace(node, score=_placed(score, ready, offset))
        case Reduce(kind="sum" | "mean", where=where, body=body) if where is not None:
            return replace(node, body=_placed(body, ready, offset, whole=True))
        case Reduce(where=where, body=body) | Top(where=where, body=body) if where is not None:
            return replace(node, body=_placed(body, ready, offset))
    return rebuild(node, lambda child: _rewritten(child, ready, offset))


def _placed(node: Expr, ready: dict[str, Statement], offset: int, *, whole: bool = False) -> Expr:
    """`whole`: as a sum of one term, so that the factors of a definition do not become those of the product around."""
    if isinstance(node, Tensor) and node.name in ready:
        slots = node.slots
        if len(set(slots)) == len(slots) and all(isinstance(slot, Index) for slot in slots):
            body = _renamed(ready[node.name], slots, offset)  # type: ignore[arg-type]
            return Add((body,)) if whole else body
        return node
    return rebuild(node, lambda child: _placed(child, ready, offset, whole=whole))


def _renamed(statement: Statement, slots: tuple[Index, ...], offset: int) -> Expr:
    """The body of a definition over the indices it is read through; its bound indices keep apart from all others."""
    axes = dict(zip(statement.indices, slots, strict=True))
    return substitute(statement.body, lambda i: axes.get(i) or Index(i.name, i.number + offset + 1))
