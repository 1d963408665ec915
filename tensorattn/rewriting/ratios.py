"""Softmax written out: `exp(s_<i j>) / sum[p](exp(s_<i p>))` and `l1norm[j](exp(s_<i j>))` become `softmax[j](s)`.

With `1 +` or `exp(z_i) +` below the line it is `softmax1[j](s)` or `softmax[j; sink=z_i](s)`.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from math import isfinite, log

from tensorattn.alike import form
from tensorattn.ir import (
    Add,
    Affine,
    Expr,
    Index,
    Map,
    Normalise,
    Number,
    Product,
    Reduce,
    Split,
    Tensor,
    substitute,
    walk,
)
from tensorattn.ordering import reading_order

_MOST_INDICES = 3  # of one joint normaliser that is looked for


def recognise_l1norm(node: Expr) -> Expr:
    """`l1norm[j : p](exp(s))` as `softmax[j : p](s)`."""
    match node:
        case Normalise(kind="l1norm", options=(), score=Map(function="exp", arguments=(score,))):
            return Normalise("softmax", node.indices, score, node.where, span=node.span, origin=node.origin)
    return node


def recognise_ratio(node: Expr) -> Expr:
    """A product with the factors `exp(s)` and `1 / Σ_p exp(s')`, where s' is s with j renamed to p, as a softmax.

    Sound where p and j have one size (they stand in one slot of one tensor) and j is not open in the sum.
    """
    if not isinstance(node, Product):
        return node
    factors = list(node.factors)
    for below in [f for f in factors if isinstance(f, Map) and f.function == "reciprocal"]:
        for above in [f for f in factors if isinstance(f, Map) and f.function == "exp"]:
            weights = _softmax(above, below.arguments[0])
            if weights is not None:
                factors.remove(below)
                factors[factors.index(above)] = weights
                break
    if len(factors) == len(node.factors):
        return node
    return factors[0] if len(factors) == 1 and not node.summed else Product(tuple(factors), node.summed, span=node.span)


def _softmax(above: Map, total: Expr) -> Normalise | None:
    """The weights `above / total`; a term of the total beside the sum is a sink."""
    if not isinstance(total, Add):
        return _weights(above, total)
    for n, term in enumerate(total.terms):
        rest = (*total.terms[:n], *total.terms[n + 1 :])
        found, sink = _weights(above, term), _logarithm(rest[0]) if len(rest) == 1 else None
        if found is not None and sink is not None and sink.free.isdisjoint(found.indices):
            return replace(found, options=(("sink", sink),))
    return None


def _logarithm(node: Expr) -> Expr | None:
    """Of a positive number, or of an exponential."""
    match node:
        case Number(value=value) if value > 0 and isfinite(value):
            return Number(0) if value == 1 else Number(log(value))
        case Map(function="exp", arguments=(inner,)):
            return inner
    return None


def _weights(above: Map, total: Expr) -> Normalise | None:
    match total:
        case Product(factors=(Map(function="exp", arguments=(renamed,)),), summed=bound) if bound:
            pass
        case Reduce(kind="sum", where=None, body=Map(function="exp", arguments=(renamed,)), indices=bound):
            pass
        case _:
            return None
    score = above.arguments[0]
    indices = tuple(index for index in reading_order(score) if index in score.free - total.free)
    if len(indices) != len(bound) or len(indices) > _MOST_INDICES or not set(bound) <= renamed.free:
        return None
    for order in permutations(indices):
        names = dict(zip(bound, order, strict=True))
        same = form(substitute(renamed, lambda i, names=names: names.get(i, i))) == form(score)
        if same and all(_sized(score, j) for j in order):
            return Normalise("softmax", order, score, span=above.span)
    return None


def _sized(score: Expr, index: Index) -> bool:
    """Whether the index has its size from a plain slot of the score."""
    for node in walk(score):
        if isinstance(node, Tensor):
            plain = [slot for slot in node.slots if not isinstance(slot, Affine)]
            if any(index in (slot.indices if isinstance(slot, Split) else (slot,)) for slot in plain):
                return True
    return False
