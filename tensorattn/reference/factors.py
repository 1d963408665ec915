"""What a factor of a product is."""

from __future__ import annotations

from collections.abc import Mapping

from tensorattn.ir import Constant, Expr, Map, Product, Reduce, Tensor, walk


def count_data(node: Expr) -> int:
    """How many factors of a product are more than numbers, sizes and deltas; a bracket around a product is none."""
    match node:
        case Product(factors=factors):
            return sum(map(count_data, factors))
        case Reduce(kind="sum", where=None, body=inner) | Map(function="negate", arguments=(inner,)):
            return count_data(inner)
        case Constant(kind="delta" | "ones"):
            return 0
        case _:
            return int(bool(node.free) or any(isinstance(part, Tensor) for part in walk(node)))


def is_nothing(node: Expr, sizes: Mapping[str, int]) -> bool:
    """Whether a factor is a sum or mean over an empty index."""
    return isinstance(node, Reduce) and node.kind in ("sum", "mean") and any(sizes[i.name] == 0 for i in node.indices)


def divides(node: Expr) -> bool:
    """Whether a factor is what the others are divided by."""
    return isinstance(node, Map) and node.function == "reciprocal"
