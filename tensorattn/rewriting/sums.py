"""Merging of nested sums and products: `(A B) C`, `sum[j](A B) C`, `sum[j](sum[k](x))` are one `Product`."""

from __future__ import annotations

from dataclasses import replace

from tensorattn.ir import Expr, Index, Map, Number, Product, Reduce, walk


def merge_sums(node: Expr) -> Expr:
    """`sum[j](x)` without a predicate as a product that sums j; a product inside a product as one product.

    Capture-free where every summed index has an identity of its own; a product that sums an index which also stands
    elsewhere in its parent stays as it is.
    """
    if isinstance(node, Reduce) and node.kind == "sum" and node.where is None:
        node = Product((node.body,), node.indices, span=node.span)
    if isinstance(node, Reduce) and node.kind in ("sum", "mean") and isinstance(_signed(node.body), Product):
        return replace(node, body=merge_sums(Product((node.body,), ())))
    if not isinstance(node, Product):
        return node
    factors: list[Expr] = []
    summed = list(node.summed)
    for place, factor in enumerate(node.factors):
        inner = _signed(factor)
        others = [*factors, *node.factors[place + 1 :]]
        if isinstance(inner, Product) and not (set(inner.summed) & (set(summed) | _indices(others))):
            factors += inner.factors
            summed += inner.summed
        else:
            factors.append(factor)
    if len(factors) == 1 and not summed:
        return factors[0]
    return Product(tuple(factors), tuple(summed), span=node.span)


def _signed(factor: Expr) -> Expr:
    """A negated factor as a product with −1."""
    match factor:
        case Map(function="negate", arguments=(Product(factors=factors, summed=summed),)):
            return Product((Number(-1), *factors), summed)
        case Map(function="negate", arguments=(inner,)):
            return Product((Number(-1), inner))
    return factor


def _indices(factors: list[Expr]) -> set[Index]:
    """Every index open or summed somewhere in the factors."""
    found: set[Index] = set()
    for factor in factors:
        for node in walk(factor):
            found |= node.free
            if isinstance(node, Product):
                found |= set(node.summed)
            if isinstance(node, Reduce):
                found |= set(node.indices)
    return found
