"""Softmax written out: `exp(s_<i j>) / sum[p](exp(s_<i p>))` and `l1norm[j](exp(s_<i j>))` become `softmax[j](s)`."""

from __future__ import annotations

from itertools import permutations

from tensorattn.ir import Affine, Expr, Index, Map, Normalise, Product, Reduce, Split, Tensor, substitute, walk
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
        mapping = dict(zip(bound, order, strict=True))
        if _canonical(renamed, mapping) == _canonical(score, {}) and all(_sized(score, j) for j in order):
            return Normalise("softmax", order, score, span=above.span)
    return None


def _canonical(node: Expr, mapping: dict[Index, Index]) -> Expr:
    """The node with its open indices renamed by `mapping` and its bound ones numbered in order of occurrence."""
    numbers: dict[Index, Index] = {}

    def new(index: Index) -> Index:
        if index in node.free:
            return mapping.get(index, index)
        return numbers.setdefault(index, Index(index.name, -1 - len(numbers)))

    return substitute(node, new)


def _sized(score: Expr, index: Index) -> bool:
    """Whether the index has its size from a plain slot of the score."""
    for node in walk(score):
        if isinstance(node, Tensor):
            plain = [slot for slot in node.slots if not isinstance(slot, Affine)]
            if any(index in (slot.indices if isinstance(slot, Split) else (slot,)) for slot in plain):
                return True
    return False
