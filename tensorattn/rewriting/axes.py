"""Merged axes that are only read split again: `z_<t (h d)> = …; y = z_<t (h d)> …` is `z_<t h d>`.

A merged axis hides its parts from every rule that looks at indices; an axis of the result stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensorattn.ir import Expr, Slot, Split, Statement, Tensor, rebuild, walk
from tensorattn.program import Program


def split_axes(program: Program, outputs: tuple[str, ...]) -> Program:
    """The program in which merged axes of definitions are axes of their own, where every reading names their parts.

    The parts have the same names there, one by one, and so the same sizes.
    """
    merged = {s.name: s for s in program.statements if s.name not in outputs and any(len(a) > 1 for a in s.axes)}
    for statement in program.statements:
        for node in walk(statement.body):
            if isinstance(node, Tensor) and node.name in merged and not _is_split(node, merged[node.name]):
                del merged[node.name]
    if not merged:
        return program
    statements = []
    for statement in program.statements:
        if statement.name in merged:
            upper = sum(len(axis) for axis in statement.axes[: statement.upper])
            statement = replace(statement, axes=tuple((i,) for i in statement.indices), upper=upper)
        statements.append(replace(statement, body=_read(statement.body, merged)))
    return replace(program, statements=tuple(statements))


def _is_split(node: Tensor, statement: Statement) -> bool:
    for slot, axis in zip(node.slots, statement.axes, strict=True):
        if len(axis) > 1 and not (isinstance(slot, Split) and _names(slot) == tuple(i.name for i in axis)):
            return False
    return True


def _names(slot: Split) -> tuple[str, ...]:
    return tuple(index.name for index in slot.indices)


def _read(node: Expr, merged: Mapping[str, Statement]) -> Expr:
    node = rebuild(node, lambda child: _read(child, merged))
    if not isinstance(node, Tensor) or node.name not in merged:
        return node
    slots: list[Slot] = []
    upper = 0
    for number, (slot, axis) in enumerate(zip(node.slots, merged[node.name].axes, strict=True)):
        slots += slot.indices if len(axis) > 1 else (slot,)  # type: ignore[union-attr]
        upper = len(slots) if number < node.upper else upper
    return replace(node, slots=tuple(slots), upper=upper, slot_spans=())
