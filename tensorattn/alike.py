"""Expressions that are equal whatever their indices are called."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tensorattn.ir import Expr, Extent, Index, Product, Split, Tensor, rebuild, substitute, walk


@dataclass(frozen=True, slots=True)
class Form:
    """An expression with its indices numbered by occurrence: equal expressions have equal forms.

    `indices` are the open ones in that order. An index loses its name only where a plain slot of the expression itself
    fixes its size, so that equal forms have equal sizes.
    """

    expression: Expr
    indices: tuple[Index, ...]


def form(node: Expr) -> Form:
    """The form of an expression."""
    sized = {i for n in walk(node) if isinstance(n, Tensor) for s in n.slots for i in _plain(s)}
    numbers: dict[Index, Index] = {}

    def new(index: Index) -> Index:
        found = numbers.get(index)
        if found is None:
            found = numbers[index] = Index("" if index in sized else index.name, len(numbers))
        return found

    expression = substitute(node, new)
    last_first = sorted(sized, key=lambda index: -numbers[index].number)
    extents = {index.name: f"|{numbers[index].number}|" for index in last_first}
    return Form(_plainer(expression, extents), tuple(i for i in numbers if i in node.free))


def _plain(slot: object) -> tuple[Index, ...]:
    match slot:
        case Index():
            return (slot,)
        case Split(indices=indices) if len(indices) == 1:
            return indices
    return ()  # only the product of the sizes of a split is fixed


def _plainer(node: Expr, extents: dict[str, str]) -> Expr:
    """Sizes by the indices that have them; summed indices as a set."""
    if isinstance(node, Extent):
        return Extent(extents.get(node.name, node.name))
    node = rebuild(node, lambda child: _plainer(child, extents))
    return replace(node, summed=tuple(sorted(node.summed))) if isinstance(node, Product) else node
