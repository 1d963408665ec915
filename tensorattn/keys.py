"""The canonical key of a program: what equality, hashes and caches compare."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import replace

from tensorattn.ir import (
    BATCH,
    Concatenate,
    Constant,
    Expr,
    Extent,
    Index,
    Normalise,
    Position,
    Product,
    Reduce,
    Split,
    Statement,
    Tensor,
    Top,
    rebuild,
    substitute,
    walk,
)
from tensorattn.program import Program


def key(program: Program) -> str:
    """Statements with bound indices numbered by occurrence, and the partition of sizes that the names imply."""
    classes = _size_classes(program)
    parts = [_statement_key(s, classes) for s in program.statements]
    axes = [classes.label(("axis", t.name, n)) for t in program.tensors for n, _ in enumerate(t.slots)]
    return "\n".join([*parts, repr(axes)])


def size_classes(program: Program) -> Callable[[str], Hashable]:
    """What tells index names apart whose sizes are not proven equal: by standing in one slot of one tensor."""
    classes = _size_classes(program)
    return lambda name: classes.find(("name", name))


def _size_classes(program: Program) -> _Classes:
    classes = _Classes()
    for statement in program.statements:
        for number, axis in enumerate(statement.axes):
            if len(axis) == 1:
                classes.join(("axis", statement.name, number), ("name", axis[0].name))
        for node in walk(statement.body):
            _join(node, classes)
    return classes


def indices_of(expr: Expr) -> Iterator[Index]:
    """Every index of an expression, bound ones included, in reading order."""
    for node in walk(expr):
        match node:
            case Position(index=index):
                yield index
            case Tensor(slots=slots):
                for slot in slots:
                    if isinstance(slot, Index):
                        yield slot
                    elif isinstance(slot, Split):
                        yield from slot.indices
            case Constant(indices=indices) | Product(summed=indices):
                yield from indices
            case Reduce(indices=indices) | Normalise(indices=indices) | Top(indices=indices):
                yield from indices
            case Concatenate(index=index, parts=parts):
                yield from (index, *parts)


def _statement_key(statement: Statement, classes: _Classes) -> str:
    free = set(statement.indices)
    numbers: dict[Index, Index] = {}

    def new(index: Index) -> Index:
        if index in free or index.name == BATCH:
            return index
        return numbers.setdefault(index, Index(f"#{len(numbers)}"))

    def extents(node: Expr) -> Expr:
        if isinstance(node, Extent):
            return replace(node, name=f"={classes.label(('name', node.name))}")
        return _sorted_sums(rebuild(node, extents))

    body = extents(substitute(statement.body, new))
    sizes = [classes.label(("name", i.name)) for i in (*statement.indices, *numbers)]
    return repr((statement.name, statement.axes, statement.upper, body, sizes))


def _sorted_sums(node: Expr) -> Expr:
    """The order of the indices of a sum, a binder or a bar means nothing."""
    if isinstance(node, Product):
        return replace(node, summed=tuple(sorted(node.summed)))
    if isinstance(node, (Reduce, Normalise)):
        return replace(node, indices=tuple(sorted(node.indices)))
    return node


def _join(node: Expr, classes: _Classes) -> None:
    if isinstance(node, Tensor):
        for number, slot in enumerate(node.slots):
            if isinstance(slot, Index) and slot.name != BATCH:
                classes.join(("axis", node.name, number), ("name", slot.name))
    elif isinstance(node, Constant) and node.kind != "ones":
        for index in node.indices[1:]:
            classes.join(("name", node.indices[0].name), ("name", index.name))


class _Classes:
    """Union–find over tensor axes and index names; a class is labelled when first asked for."""

    def __init__(self) -> None:
        self.parent: dict[tuple[object, ...], tuple[object, ...]] = {}
        self.labels: dict[tuple[object, ...], int] = {}

    def find(self, node: tuple[object, ...]) -> tuple[object, ...]:
        while node in self.parent:
            node = self.parent[node]
        return node

    def join(self, a: tuple[object, ...], b: tuple[object, ...]) -> None:
        a, b = self.find(a), self.find(b)
        if a != b:
            self.parent[a] = b

    def label(self, node: tuple[object, ...]) -> int:
        return self.labels.setdefault(self.find(node), len(self.labels))
