"""R4, R5, R6: a barred index that only the weights hold is summed inside the score, as a log-sum-exp.

`softmax[j k](a_<i j> + b_<j k>) v_j`, summed over j and k, is `softmax[j](a_<i j> + lse[k](b_<j k>)) v_j`: weights over
i and j, exponentials over i, j and j, k. An index in no term at all leaves `lse[k](0)`, the logarithm of its size.
So is a log-sum-exp over several indices: `lse[j k](a_<i j> + b_<j k>)` is `lse[j](a_<i j> + lse[k](b_<j k>))`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tensorattn.ir import Expr, Index, Map, Normalise, Number, Product, Reduce
from tensorattn.rewriting.scores import conjunction, conjuncts, support, terms, total


def marginalise(node: Expr) -> Expr:
    """A product without the indices that a softmax in it can sum itself, at less than the size of its weights.

    A row is 0, NaN or neither exactly where it was: what a term excludes by -∞ the log-sum-exp excludes, it spreads
    +∞ and NaN, and where the predicate admits nothing along the index the new predicate says so. An index that some
    term or condition joins with all the others stays: the weights are then summed over it first, which costs as much.
    """
    if not isinstance(node, Product):
        return node
    for place, weights in enumerate(node.factors):
        if isinstance(weights, Normalise) and weights.kind == "softmax":
            others = support((*node.factors[:place], *node.factors[place + 1 :]))
            while (found := _cheapest(weights, [i for i in node.summed if i not in others])) is not None:
                weights = _without(weights, found)
                node = _replaced(node, place, weights, found)
    return node


def nest_lse(node: Expr) -> Expr:
    """A log-sum-exp with the indices that few of its terms hold summed inside, from the cheapest on.

    It is finite, or -∞, where it was: an excluded tuple stays so by its -∞ or by the new predicate. (Of +∞ + -∞, NaN,
    beside other terms +∞ is left.)
    """
    if not (isinstance(node, Reduce) and node.kind == "lse"):
        return node
    weights = Normalise("softmax", node.indices, node.body, node.where)
    while (found := _cheapest(weights, weights.indices)) is not None:
        weights = _without(weights, found)
    if weights.indices == node.indices:
        return node
    return replace(node, indices=weights.indices, body=weights.score, where=weights.where)


def _cheapest(weights: Normalise, lone: Sequence[Index]) -> Index | None:
    """Of the lone indices the one whose terms hold the fewest indices, if these are not all."""
    if len(weights.indices) < 2:
        return None
    found = [(len(_held(weights, i)), weights.indices.index(i), i) for i in lone if i in weights.indices]
    count, _, index = min(found, default=(len(weights.free), 0, None))
    return index if count < len(weights.free) else None


def _held(weights: Normalise, index: Index) -> frozenset[Index]:
    """The indices that stand with this one in terms and conditions."""
    parts = (*terms(weights), *conjuncts(weights.where))
    return support(part for part in parts if index in part.free) | {index}


def _without(weights: Normalise, index: Index) -> Normalise:
    """The weights summed over an index."""
    parts, conditions = terms(weights), conjuncts(weights.where)
    inner = conjunction(c for c in conditions if index in c.free)
    summed = Reduce("lse", (index,), total([t for t in parts if index in t.free]), inner)
    some = () if inner is None else (Map("greater", (Reduce("sum", (index,), Number(1), inner), Number(0))),)
    return replace(
        weights,
        indices=tuple(i for i in weights.indices if i != index),
        score=total([*(t for t in parts if index not in t.free), summed]),
        where=conjunction((*(c for c in conditions if index not in c.free), *some)),
    )


def _replaced(node: Product, place: int, weights: Normalise, index: Index) -> Product:
    factors = (*node.factors[:place], weights, *node.factors[place + 1 :])
    return replace(node, factors=factors, summed=tuple(i for i in node.summed if i != index))
