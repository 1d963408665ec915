"""Sizes from the inputs' shapes, and `...` written out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from tensorattn.errors import ShapeError
from tensorattn.ir import (
    BATCH,
    Concatenate,
    Constant,
    Expr,
    Extent,
    Index,
    Map,
    Position,
    Slot,
    Split,
    Statement,
    Tensor,
    rebuild,
    walk,
)
from tensorattn.program import Program


@dataclass(frozen=True, slots=True)
class Equal:
    """`length · the product of left = the product of right`: index names on both sides."""

    length: int
    left: tuple[str, ...]
    right: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class SumOf:
    """`total = the sum of parts`."""

    total: str
    parts: tuple[str, ...]


def expanded(program: Program, ranks: Mapping[str, int]) -> tuple[Statement, ...]:
    """The statements with `...` replaced by as many indices as the inputs' ranks leave over.

    Raises: ShapeError (E-RANK, E-BATCH).
    """
    found: dict[int, str] = {}
    for tensor in program.tensors:
        if tensor.name in ranks and any(_is_batch(s) for s in tensor.slots):
            extra = ranks[tensor.name] - (len(tensor.slots) - 1)
            if extra < 0:
                raise ShapeError("E-RANK", f"`{tensor.name}` has {ranks[tensor.name]} axes, too few")
            found.setdefault(extra, tensor.name)
    if len(found) > 1:
        raise ShapeError("E-BATCH", "inputs disagree on the number of batch axes", facts=[str(found)])
    batch = tuple(Index(f"{BATCH}{n}") for n in range(next(iter(found), 0)))
    return tuple(_expanded_statement(s, batch) for s in program.statements)


def _is_batch(slot: Slot) -> bool:
    return isinstance(slot, Index) and slot.name == BATCH


def _expanded_statement(statement: Statement, batch: Sequence[Index]) -> Statement:
    axes: list[tuple[Index, ...]] = []
    for axis in statement.axes:
        axes += [(index,) for index in batch] if _is_batch(axis[0]) else [axis]
    return replace(statement, axes=tuple(axes), body=_expanded_expression(statement.body, batch))


def _expanded_expression(node: Expr, batch: Sequence[Index]) -> Expr:
    node = rebuild(node, lambda child: _expanded_expression(child, batch))
    if isinstance(node, Map):
        keys = [[*map(Position, batch)] if a == Position(Index(BATCH)) else [a] for a in node.arguments]
        return replace(node, arguments=tuple(itertools.chain.from_iterable(keys)))
    if not isinstance(node, Tensor):
        return node
    slots: list[Slot] = []
    for slot in node.slots:
        slots += batch if _is_batch(slot) else [slot]
    return replace(node, slots=tuple(slots))


def sizes_of(
    statements: Sequence[Statement], shapes: Mapping[str, Sequence[int]], given: Mapping[str, int]
) -> dict[str, int]:
    """The size of every index name, from the shapes of the inputs and the sizes given.

    Raises: ShapeError (E-RANK, E-EXTENT, E-SPLIT).
    """
    rules = [rule for s in statements for node in walk(s.body) for rule in _rules(node, shapes, statements)]
    sizes = dict(given)
    while any(_learn(rule, sizes) for rule in rules):
        pass
    for rule in rules:
        _verify(rule, sizes)
    for name in _names(statements):
        if name not in sizes:
            raise ShapeError("E-EXTENT", f"nothing fixes the size of `{name}`", hint=f"pass sizes={{'{name}': …}}")
    return sizes


def _names(statements: Sequence[Statement]) -> Iterator[str]:
    for statement in statements:
        for node in walk(statement.body):
            yield from (index.name for index in node.free | set(getattr(node, "indices", ())))
            yield from (index.name for index in getattr(node, "parts", ()))
            if isinstance(node, Extent):
                yield node.name


def _rules(node: Expr, shapes: Mapping[str, Sequence[int]], statements: Sequence[Statement]) -> Iterator[Equal | SumOf]:
    match node:
        case Tensor(name=name, slots=slots):
            axes = _axes(name, shapes, statements)
            if len(axes) != len(slots):
                raise ShapeError("E-RANK", f"`{name}` has {len(axes)} axes and is read with {len(slots)} indices")
            for number, (slot, axis) in enumerate(zip(slots, axes, strict=True)):
                yield from _slot_rules(slot, axis, f"axis {number} of `{name}`")
        case Constant(kind="delta", indices=indices):
            yield from (Equal(1, (indices[0].name,), (i.name,), "delta") for i in indices[1:])
        case Constant(kind="eps", indices=indices):
            yield from (Equal(len(indices), (), (i.name,), "eps") for i in indices)
        case Concatenate(index=index, parts=parts):
            yield SumOf(index.name, tuple(p.name for p in parts))


def _axes(
    name: str, shapes: Mapping[str, Sequence[int]], statements: Sequence[Statement]
) -> list[int] | list[tuple[str, ...]]:
    """An input's lengths, or the index names of a statement's axes."""
    if name in shapes:
        return list(shapes[name])
    statement = next(s for s in statements if s.name == name)
    return [tuple(index.name for index in axis) for axis in statement.axes]


def _slot_rules(slot: Slot, axis: int | tuple[str, ...], where: str) -> Iterator[Equal]:
    length, names = (axis, ()) if isinstance(axis, int) else (1, axis)
    match slot:
        case Index(name=name):
            yield Equal(length, names, (name,), where)
        case Split(indices=indices):
            yield Equal(length, names, tuple(i.name for i in indices), where)


def _learn(rule: Equal | SumOf, sizes: dict[str, int]) -> bool:
    """Whether the rule gave one more size."""
    match rule:
        case SumOf(total=total, parts=parts):
            unknown = [n for n in (total, *parts) if n not in sizes]
            if len(unknown) != 1:
                return False
            rest = sum(sizes[p] for p in parts if p in sizes)
            sizes[unknown[0]] = rest if unknown[0] == total else sizes[total] - rest
            return True
        case Equal(length=length, left=left, right=right):
            unknown = [n for n in (*left, *right) if n not in sizes]
            if len(unknown) != 1:
                return False
            whole, part = (left, right) if unknown[0] in right else (right, left)
            whole_size, known = (math.prod(sizes[n] for n in names if n in sizes) for names in (whole, part))
            whole_size, known = (whole_size * length, known) if part is right else (whole_size, known * length)
            if known == 0:
                return False
            sizes[unknown[0]] = whole_size // known
            return True


def _verify(rule: Equal | SumOf, sizes: Mapping[str, int]) -> None:
    match rule:
        case SumOf(total=total, parts=parts):
            if {total, *parts} <= sizes.keys() and sizes[total] != sum(sizes[p] for p in parts):
                raise ShapeError("E-EXTENT", f"|{total}| is not the sum of |{'| + |'.join(parts)}|")
        case Equal(length=length, left=left, right=right, where=where):
            if not {*left, *right} <= sizes.keys():
                return
            found, wanted = length * math.prod(sizes[n] for n in left), math.prod(sizes[n] for n in right)
            if found != wanted:
                code = "E-EXTENT" if len(right) == 1 else "E-SPLIT"
                raise ShapeError(code, f"{where} has length {found}", facts=[f"{n} = {sizes[n]}" for n in right])
