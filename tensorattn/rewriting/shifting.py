"""R1, shift invariance: `softmax[j](s_<i j> + c) = softmax[j](s_<i j>)` where c does not hold j.

What is dropped must be finite whatever the data is: an infinite or NaN shift makes a row 0 or NaN. So numbers, sizes
and positions are dropped, inputs are not. And no accuracy must be lost: in `s_j - i + j` the positions cancel before
anything is rounded, in `s_j + j` they do not (at j = 2000 a float32 score has 4 digits left). So every term that stays
must be rounded itself: a sum over data.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite

from tensorattn.ir import Add, Constant, Expr, Extent, Map, Normalise, Number, Position, Product, Tensor, walk
from tensorattn.rewriting.scores import terms, total


def drop_shifts(node: Expr) -> Expr:
    """A softmax without the terms of its score that shift whole rows; a sink would have to be shifted, too."""
    if not (isinstance(node, Normalise) and node.kind == "softmax" and not node.options):
        return node
    parts = terms(node)
    kept = [t for t in parts if t.free & set(node.indices) or not _is_finite(t)]
    if len(kept) == len(parts) or not all(map(_is_rounded, kept)):
        return node
    smaller = replace(node, score=total(kept))
    return smaller if smaller.free == node.free else node


def _is_finite(node: Expr) -> bool:
    """Whether the value is a finite number for any data and sizes."""
    match node:
        case Number(value=value):
            return isfinite(value)
        case Extent() | Position() | Constant():
            return True
        case Map(function="sqrt", arguments=(Extent(),)):
            return True
        case Map(function="reciprocal", arguments=(Number(value=value),)):
            return bool(value)
        case Map(function="negate" | "abs" | "sign" | "minimum" | "maximum", arguments=parts) | Add(terms=parts):
            return all(map(_is_finite, parts))
        case Product(factors=parts):
            return all(map(_is_finite, parts))
    return False


def _is_rounded(term: Expr) -> bool:
    """Whether a sum over data is in the term, so that it is no exact number that another could cancel."""
    return any(
        isinstance(n, Product) and n.summed and any(isinstance(f, Tensor) for f in n.factors) for n in walk(term)
    )
