"""Elimination of Kronecker deltas: `Σ_j delta_<i j> x_<j k> = x_<i k>`."""

from __future__ import annotations

from tensorattn.ir import Concatenate, Constant, Expr, Index, Normalise, Product, Top, substitute, walk


def eliminate_deltas(node: Expr) -> Expr:
    """A product without the deltas that hold one of its summed indices: the index is replaced by its partner.

    A delta whose indices are all open outside stays. `delta_<i i>` of one summed index is `ones_<i>`.
    """
    if not isinstance(node, Product):
        return node
    while (smaller := _eliminate_one(node)) is not None:
        node = smaller
    return node


def _eliminate_one(node: Product) -> Product | None:
    for place, delta in enumerate(node.factors):
        if not (isinstance(delta, Constant) and delta.kind == "delta"):
            continue
        indices = tuple(dict.fromkeys(delta.indices))
        others = (*node.factors[:place], *node.factors[place + 1 :])
        if len(indices) == 1:
            return Product((*others, Constant("ones", indices)), node.summed, span=node.span)
        for old in indices:
            if old in node.summed:
                for new in sorted((i for i in indices if i != old), key=lambda i: i in node.summed):
                    if all(_renames(factor, old, new) for factor in others):
                        return _renamed(node, others, indices, old, new)
    return None


def _renamed(node: Product, others: tuple[Expr, ...], indices: tuple[Index, ...], old: Index, new: Index) -> Product:
    def rename(index: Index) -> Index:
        return new if index == old else index

    left = tuple(index for index in indices if index != old)
    rest = Constant("delta", left) if len(left) > 1 else Constant("ones", left)
    factors = (*(substitute(factor, rename) for factor in others), rest)
    return Product(factors, tuple(index for index in node.summed if index != old), span=node.span)


def _renames(factor: Expr, old: Index, new: Index) -> bool:
    """Whether `old` may be called `new` in the factor: not where a normaliser over `old` also holds `new`."""
    for node in walk(factor):
        binds = node.indices if isinstance(node, (Normalise, Top)) else ()
        if isinstance(node, Concatenate):
            binds = (node.index,)
        if (old in binds and new in node.free) or (new in binds and old in node.free):
            return False
    return True
