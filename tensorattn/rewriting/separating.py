"""Below predicates: every softmax of a product is summed by itself, `softmax[j : p](a) x_j softmax[k : r](b) z_k`.

A product admits what all its predicates admit. Of two softmaxes in one product that is an array over the indices of
both, N³ for N² weights, and no loop takes one of them without the other. Each in a product of its own is summed below
its own predicate; what the sum brings outside is whether anything was admitted. In a chain, `W^<i j> W'^<j k> v_k`, the
sums go from the values on: W (W' v).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensorattn.ir import Expr, Normalise, Product, rebuild, walk
from tensorattn.predicates import admitted, bringing, brings
from tensorattn.rewriting import Rewritten, Rule
from tensorattn.rewriting.scores import support

Price = Callable[[Product, bool], int]
REASON = "below predicates each softmax of a product is summed by itself, not over the tuples that all of them admit"


def separate(rewritten: Rewritten, price: Price) -> Rewritten:
    """A rewritten program with products of several softmaxes below predicates taken apart, where that is no dearer.

    `price`: of a product; the flag says whether with the array of what its predicates admit together, which counts
    where it is larger than every factor.
    """
    masked = bringing(rewritten.program)

    def everywhere(node: Expr) -> Expr:
        node = rebuild(node, everywhere)
        if not isinstance(node, Product):
            return node
        apart, known = _apart(node, masked), set(walk(node))
        parts = [n for n in walk(apart) if isinstance(n, Product) and n not in known]
        if not parts:
            return node
        wide = not any(admitted(node, masked) <= factor.free for factor in node.factors)
        return apart if sum(price(part, wide) for part in parts) <= price(node, wide) else node

    statements = tuple(replace(s, body=everywhere(s.body)) for s in rewritten.program.statements)
    changed = [new.name for new, old in zip(statements, rewritten.program.statements, strict=True) if new != old]
    applied = tuple((name, Rule("separate", separate, REASON)) for name in changed)
    return Rewritten(replace(rewritten.program, statements=statements), (*rewritten.applied, *applied))


def _apart(node: Product, masked: frozenset[str]) -> Product:
    """The product in which a softmax with its values, if it brings a predicate, is one factor, inner ones first."""
    while (found := _one(node, masked)) is not None:
        node = found
    return node


def _one(node: Product, masked: frozenset[str]) -> Product | None:
    """The product with one softmax more taken apart."""
    summed = frozenset(node.summed)
    weights = [f for f in node.factors if isinstance(f, Normalise) and set(f.indices) <= summed]
    for chosen in weights if len(weights) > 1 else []:
        own = [f for f in node.factors if f.free & set(chosen.indices)]
        if any(other in own for other in weights if other != chosen) or not any(brings(f, masked) for f in own):
            continue
        rest = tuple(f for f in node.factors if f not in own)
        inside = tuple(i for i in node.summed if i in support(own) and i not in support(rest))
        outside = tuple(i for i in node.summed if i not in inside)
        place = node.factors.index(own[0])
        return replace(node, factors=(*rest[:place], Product(tuple(own), inside), *rest[place:]), summed=outside)
    return None
