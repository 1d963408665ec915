"""Softmax written out: `exp(s_<i j>) / sum[p](exp(s_<i p>))` and `l1norm[j](exp(s_<i j>))` become `softmax[j](s)`.

With `1 +` or `exp(z_i) +` below the line it is `softmax1[j](s)` or `softmax[j; sink=z_i](s)`. Sums below one predicate,
as in `sum[j : j <= i](exp(s_<i j>) v_j) / sum[p : p <= i](exp(s_<i p>))`, are weights below it. In the place of `exp`
may stand another function that is positive by its form and underflows, as `sigmoid`: s is its logarithm.
"""

from __future__ import annotations

from collections.abc import Mapping
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
from tensorattn.rewriting.sums import merge_sums

_MOST_INDICES = 3  # of one joint normaliser that is looked for


def exponent(node: Expr) -> Expr | None:
    """The logarithm of an exponential, a sigmoid or a power of a positive number, written without it; else None."""
    match node:
        case Map(function="exp", arguments=(inner,)):
            return inner
        case Map(function="sigmoid", arguments=(inner,)):
            return Map("negate", (Map("softplus", (Map("negate", (inner,)),)),))
        case Map(function="power", arguments=(Number(value=base), inner)) if base > 0 and base != 1 and isfinite(base):
            return Product((Number(log(base)), inner))
        case Map(
            function="power", arguments=(Map(function="exp" | "sigmoid") as base, Number(value=value) as times)
        ) if value:
            inner = exponent(base)
            return None if inner is None else Product((times, inner))
    return None


def recognise_l1norm(node: Expr) -> Expr:
    """`l1norm[j : p](exp(s))` as `softmax[j : p](s)`."""
    if isinstance(node, Normalise) and node.kind == "l1norm" and not node.options:
        score = exponent(node.score)
        if score is not None and score.free.issuperset(node.indices):
            return Normalise("softmax", node.indices, score, node.where, span=node.span, origin=node.origin)
    return node


def recognise_ratio(node: Expr) -> Expr:
    """A product with the factors `exp(s)` and `1 / Σ_p exp(s')`, where s' is s with j renamed to p, as a softmax.

    Sound where p and j have one size (they stand in one slot of one tensor) and j is not open in the sum. Below a
    predicate, `sum[j : c](exp(s) v)`, the sum must have the same one, and a row that admits nothing is 0.
    """
    match node:
        case Product(factors=factors, summed=summed):
            found = _weighted(factors, summed, None) or _masked(factors, summed)
        case Reduce(kind="sum", where=where) if where is not None:
            found = _below(node, _dividing(_factors(_alone(node.body))))
        case _:
            return node
    if found is None and not any(isinstance(f, Product) for f in _factors(node)):
        return node
    return merge_sums(found or node)  # weights below a predicate have become a product, which may stand in another one


def _factors(node: Expr) -> tuple[Expr, ...]:
    return node.factors if isinstance(node, Product) else (node,)


def _alone(node: Expr) -> Expr:
    """What a definition put in place below a predicate holds, which is a sum of one term there."""
    return node.terms[0] if isinstance(node, Add) and len(node.terms) == 1 else node


def _dividing(factors: tuple[Expr, ...]) -> list[Map]:
    return [f for f in factors if isinstance(f, Map) and f.function == "reciprocal"]


def _weighted(factors: tuple[Expr, ...], summed: tuple[Index, ...], where: Expr | None) -> Product | None:
    """The product with every exponential that one of its factors divides by its sum as weights."""
    left = list(factors)
    for below in _dividing(factors):
        for above in [f for f in left if exponent(f) is not None]:
            weights = _softmax(above, below.arguments[0], where)
            if weights is not None:
                left.remove(below)
                left[left.index(above)] = weights
                break
    return None if len(left) == len(factors) else Product(tuple(left), summed)


def _masked(factors: tuple[Expr, ...], summed: tuple[Index, ...]) -> Product | None:
    """The product with a factor `sum[j : c](exp(s) v)` that another one divides by `sum[p : c](exp(s))` as one."""
    for place, factor in enumerate(factors):
        if not isinstance(factor, Reduce) or factor.kind != "sum" or factor.where is None:
            continue
        for below in _dividing(factors):
            if (found := _below(factor, [below])) is not None:
                others = (f for f in (*factors[:place], *factors[place + 1 :]) if f is not below)
                return Product((found, *others), summed)
    return None


def _below(node: Reduce, dividing: list[Map]) -> Expr | None:
    """A sum below a predicate, divided by these factors, with weights below it: what they exclude contributes 0."""
    body = _alone(node.body)
    own, summed = _factors(body), body.summed if isinstance(body, Product) else ()
    beside = tuple(below for below in dividing if below not in own)
    for where in (node.where, None):
        found = _weighted((*own, *beside), summed, where)
        if found is None or any(below in found.factors for below in beside):
            continue
        if where is None:
            return replace(node, body=found)
        return Product(found.factors, (*summed, *node.indices), span=node.span)
    return None


def _softmax(above: Expr, total: Expr, where: Expr | None) -> Normalise | None:
    """The weights `above / total` below a predicate; a term of the total beside the sum is a sink."""
    if not isinstance(total, Add):
        return _weights(above, total, where)
    for n, term in enumerate(total.terms):
        rest = (*total.terms[:n], *total.terms[n + 1 :])
        found, sink = _weights(above, term, where), _logarithm(rest[0]) if len(rest) == 1 else None
        if found is not None and sink is not None and sink.free.isdisjoint(found.indices):
            return replace(found, options=(("sink", sink),))
    return None


def _logarithm(node: Expr) -> Expr | None:
    """Of a positive number, or of an exponential."""
    match node:
        case Number(value=value) if value > 0 and isfinite(value):
            return Number(0) if value == 1 else Number(log(value))
    return exponent(node)


def _weights(above: Expr, total: Expr, where: Expr | None) -> Normalise | None:
    admitted: Expr | None = None
    match total:
        case Product(factors=(entry,), summed=bound) if bound:
            pass
        case Reduce(kind="sum", where=admitted, body=body, indices=bound):
            entry = _alone(body)
        case _:
            return None
    renamed, score = exponent(entry), exponent(above)
    if renamed is None or score is None:
        return None
    indices = tuple(index for index in reading_order(score) if index in score.free - total.free)
    if len(indices) != len(bound) or len(indices) > _MOST_INDICES or not set(bound) <= renamed.free:
        return None
    for order in permutations(indices):
        names = dict(zip(bound, order, strict=True))
        same = _is_renamed(renamed, names, score) and _is_renamed(admitted, names, where)
        if same and all(_sized(score, j) for j in order):
            return Normalise("softmax", order, score, where, span=above.span)
    return None


def _is_renamed(node: Expr | None, names: Mapping[Index, Index], other: Expr | None) -> bool:
    """Whether the other is the node with these indices renamed."""
    if node is None or other is None:
        return node is other
    return form(substitute(node, lambda i: names.get(i, i))) == form(other)


def _sized(score: Expr, index: Index) -> bool:
    """Whether the index has its size from a plain slot of the score."""
    for node in walk(score):
        if isinstance(node, Tensor):
            plain = [slot for slot in node.slots if not isinstance(slot, Affine)]
            if any(index in (slot.indices if isinstance(slot, Split) else (slot,)) for slot in plain):
                return True
    return False
