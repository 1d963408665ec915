"""R3a, independent parts: `softmax[j k](a_<i j> + b_<i k>) = softmax[j](a_<i j>) softmax[k](b_<i k>)`.

With the values of each part summed by itself, N³ becomes N². The predicate splits with the score: a condition belongs
to the part whose indices it holds. What a value joins stays joint: to contract it part by part makes an array as large
as the weights, and a joint softmax can be streamed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from tensorattn.ir import Expr, Index, Normalise, Product
from tensorattn.rewriting.scores import conjunction, conjuncts, support, terms, total


def split(node: Expr) -> Expr:
    """A product with every softmax in it, whose indices it sums, as a product of independent ones.

    Exact: a row without an admitted score is 0 in one part and so in the product, a row with +∞ or NaN is NaN in one
    part. (Single weights are not the same: beside a NaN, -∞ has weight 0 but may have NaN as a product; hence all
    indices must be summed.) A sink belongs to all parts at once.
    """
    if not isinstance(node, Product):
        return node
    for weights in node.factors:
        match weights:
            case Normalise(kind="softmax", options=()) if weights in node.factors:  # not a factor of a part by now
                node = _split(node, weights)
    return node


def _split(node: Product, weights: Normalise) -> Product:
    """Below a predicate each part is a product of its own, so that none sees the conditions of the others."""
    place = node.factors.index(weights)
    others = (*node.factors[:place], *node.factors[place + 1 :])
    groups = _groups(weights.indices, (*terms(weights), *conjuncts(weights.where), *others))
    if len(groups) < 2 or not set(weights.indices) <= set(node.summed):
        return node
    parts = _parts(weights, groups)
    if weights.where is None:
        return replace(node, factors=(*node.factors[:place], *parts, *node.factors[place + 1 :]))
    inner = [
        Product((part, *(f for f in others if f.free & group)), part.indices)
        for part, group in zip(parts, groups, strict=True)
    ]
    rest = (f for f in others if not f.free & set(weights.indices))
    return replace(node, factors=(*inner, *rest), summed=tuple(i for i in node.summed if i not in weights.indices))


def _groups(indices: Iterable[Index], parts: Iterable[Expr]) -> list[frozenset[Index]]:
    """The indices, in one group where a part holds several."""
    groups = [frozenset({index}) for index in indices]
    for part in parts:
        touched = [g for g in groups if g & part.free]
        if len(touched) > 1:
            groups = [g for g in groups if g not in touched]
            groups.append(frozenset().union(*touched))
    return groups


def _parts(weights: Normalise, groups: Sequence[frozenset[Index]]) -> list[Normalise]:
    """One softmax a group; what holds no index of any goes to the one with the fewest indices."""
    scores, conditions = terms(weights), conjuncts(weights.where)
    barred = frozenset(weights.indices)
    sizes = [len(support(t for t in (*scores, *conditions) if t.free & group)) for group in groups]
    least = sizes.index(min(sizes))

    def of(number: int, parts: Iterable[Expr]) -> list[Expr]:
        return [p for p in parts if p.free & groups[number] or (number == least and not p.free & barred)]

    return [
        replace(
            weights,
            indices=tuple(i for i in weights.indices if i in group),
            score=total(of(number, scores)),
            where=conjunction(of(number, conditions)),
        )
        for number, group in enumerate(groups)
    ]
