"""Cat-then-dot: `Σ_a cat[a = m + j](A, B) cat[a = m + j](C, D)` is `Σ_m A C + Σ_j B D`.

A feature vector made of parts is a sum of scores. The parts are told apart where that helps: where one has fewer
indices than the whole (a bias beside a product), or nothing is multiplied. Else one longer contraction is the cheaper.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace

from tensorattn.ir import Add, Concatenate, Expr, Index, Product, highest_number, substitute
from tensorattn.predicates import brings


def split_concatenations(node: Expr, masked: Set[str]) -> Expr:
    """A product that sums the index of concatenations alone, as a sum over their parts.

    The parts must have the same names one by one, which makes them equally long. `masked`: the definitions that bring a
    predicate; one inside a concatenation does not reach the product around, but would reach it from a term.
    """
    if not isinstance(node, Product):
        return node
    for index in node.summed:
        joined = tuple(f for f in node.factors if index in f.free)
        if joined and all(isinstance(f, Concatenate) and f.index == index for f in joined):
            terms = _terms(node, index, joined, masked)  # type: ignore[arg-type]
            if terms:
                return _put(node, index, joined, terms)
    return node


def _terms(node: Product, index: Index, joined: tuple[Concatenate, ...], masked: Set[str]) -> tuple[Expr, ...] | None:
    names = [tuple(part.name for part in factor.parts) for factor in joined]
    if any(other != names[0] for other in names):
        return None
    if any(brings(argument, masked) for factor in joined for argument in factor.arguments):
        return None
    terms = []
    for place, part in enumerate(joined[0].parts):
        new = Index(part.name, highest_number(node) + 1 + place)
        arguments = []
        for factor in joined:
            old = factor.parts[place]
            arguments.append(substitute(factor.arguments[place], lambda i, old=old, new=new: new if i == old else i))
        if not any(new in a.free for a in arguments):
            return None  # a part that no argument has: its size would have to be multiplied in
        terms.append(Product(tuple(arguments), (new,)))
    whole = frozenset().union(*(term.free for term in terms))
    pays = len(joined) == 1 or any(term.free < whole for term in terms)
    return tuple(terms) if pays else None


def _put(node: Product, index: Index, joined: tuple[Expr, ...], terms: tuple[Expr, ...]) -> Expr:
    """The sum in the place of the concatenations; what has no index scales each term."""
    others = tuple(f for f in node.factors if f not in joined)
    summed = tuple(i for i in node.summed if i != index)
    if summed or any(f.free for f in others):
        return replace(node, factors=(*others, Add(terms)), summed=summed)
    return Add(tuple(replace(t, factors=(*others, *t.factors)) for t in terms), span=node.span)  # type: ignore[call-overload]
