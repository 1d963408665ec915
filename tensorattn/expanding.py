"""Program and rank → program without `...`: the index of all leading batch axes becomes `rank` ones."""

from __future__ import annotations

from dataclasses import replace

from tensorattn.ir import BATCH, Constant, Expr, Index, Map, Position, Slot, Statement, Tensor, rebuild
from tensorattn.program import Program


def batch_indices(rank: int) -> tuple[Index, ...]:
    """The ordinary indices that `...` stands for."""
    return tuple(Index(f"{BATCH}{position}") for position in range(rank))


def expand(program: Program, rank: int) -> Program:
    """The program with the index `...` replaced by `...0`, `...1`, … in slots, statement axes and `uniform`."""
    if not program.batched and not any(i.name == BATCH for s in program.statements for i in s.indices):
        return program
    batch = batch_indices(rank)
    return replace(program, statements=tuple(_statement(s, batch) for s in program.statements))


def _statement(statement: Statement, batch: tuple[Index, ...]) -> Statement:
    heads = [axis[0] if axis else None for axis in statement.axes]
    place = next((n for n, head in enumerate(heads) if head is not None and head.name == BATCH), None)
    body = _expression(statement.body, batch)
    if place is None:
        return replace(statement, body=body)
    axes = (*statement.axes[:place], *((index,) for index in batch), *statement.axes[place + 1 :])
    return replace(statement, axes=axes, body=body, upper=_upper(statement.upper, place, batch))


def _upper(upper: int, place: int, batch: tuple[Index, ...]) -> int:
    return upper + len(batch) - 1 if place < upper else upper


def _expression(node: Expr, batch: tuple[Index, ...]) -> Expr:
    node = rebuild(node, lambda child: _expression(child, batch))
    match node:
        case Tensor(slots=slots, upper=upper, slot_spans=spans):
            place = _place(slots)
            if place is None:
                return node
            if len(spans) == len(slots):
                spans = (*spans[:place], *(spans[place],) * len(batch), *spans[place + 1 :])
            slots = (*slots[:place], *batch, *slots[place + 1 :])
            return replace(node, slots=slots, upper=_upper(upper, place, batch), slot_spans=spans)
        case Map(arguments=arguments) if Position(Index(BATCH)) in arguments:
            place = arguments.index(Position(Index(BATCH)))
            return replace(node, arguments=(*arguments[:place], *map(Position, batch), *arguments[place + 1 :]))
        case Constant(indices=indices, upper=upper):
            place = _place(indices)
            if place is None:
                return node
            indices = (*indices[:place], *batch, *indices[place + 1 :])
            return replace(node, indices=indices, upper=_upper(upper, place, batch))
    return node


def _place(slots: tuple[Slot, ...]) -> int | None:
    return next((n for n, slot in enumerate(slots) if isinstance(slot, Index) and slot.name == BATCH), None)
