"""Bond merge: `Σ_i a_<mu i> x_<nu i> + Σ_i a_<mu i> z_<nu i>` is `Σ_i a_<mu i> (x_<nu i> + z_<nu i>)`.

One contraction over all pairs in place of two and a sum. A determinant of three vectors becomes one product with a
cross product.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from itertools import permutations

from tensorattn.ir import Add, Constant, Expr, Index, Map, Tensor, substitute
from tensorattn.predicates import brings
from tensorattn.rewriting.terms import Term, product_of, term_of, weighs

MOST_SUMMED = 3  # summed indices of a term that are matched with those of another


def merge_bonds(node: Expr, masked: Set[str]) -> Expr:
    """A sum in which terms that share factors are one product with the sum of what they do not share.

    Where that is never dearer: the rests have the same indices, fewer than the whole product, and adding them up takes
    no contraction. `masked`: the definitions that bring a predicate, which must guard the whole term, or weights, which
    must stay factors (a sum of weights could not be made tile by tile).
    """
    if not isinstance(node, Add):
        return node
    terms = [term_of(term) for term in node.terms]
    merged = False
    while (found := _first_pair(terms, masked)) is not None:
        a, b, both = found
        terms = [both if n == a else t for n, t in enumerate(terms) if n != b]
        merged = True
    if not merged:
        return node
    parts = tuple(term.expression for term in terms)
    return parts[0] if len(parts) == 1 else replace(node, terms=parts)


def _first_pair(terms: list[Term], masked: Set[str]) -> tuple[int, int, Term] | None:
    for b, second in enumerate(terms):
        for a, first in enumerate(terms[:b]):
            for renamed in _alignments(first, second):
                if (both := _merged(first, renamed, masked)) is not None:
                    return a, b, both
    return None


def _alignments(first: Term, second: Term) -> Iterator[Term]:
    """The second term with its summed indices named as those of the first, in every way that may keep their sizes."""
    if len(first.summed) != len(second.summed) or len(first.summed) > MOST_SUMMED:
        return
    for order in permutations(first.summed):
        names = dict(zip(second.summed, order, strict=True))
        if (second.indices & first.indices & set(order)) - set(second.summed):
            continue  # an index that the second term has open is one that the first sums
        factors = tuple(substitute(f, lambda i, names=names: names.get(i, i)) for f in second.factors)
        shared = set(first.factors) & set(factors)
        if all(old.name == new.name or _sizes(shared, new) for old, new in names.items()):
            yield Term(second.sign, factors, first.summed)


def _sizes(shared: Set[Expr], index: Index) -> bool:
    """Whether a factor that both terms have fixes the size of the index."""
    return any(isinstance(f, Tensor) and index in f.slots for f in shared)


def _merged(first: Term, second: Term, masked: Set[str]) -> Term | None:
    common, left, right = [], [], list(second.factors)
    for factor in first.factors:
        if factor in right:
            right.remove(factor)
            common.append(factor)
        else:
            left.append(factor)
    rests = (Term(first.sign, tuple(left)), Term(second.sign, tuple(right)))
    inside = rests[0].indices
    if rests[1].indices != inside or not inside < first.indices or not set(first.summed) <= _indices(common):
        return None
    if any(not _is_addable(rest, first.summed, masked) for rest in rests):
        return None
    sign = first.sign if first.sign == second.sign else 1
    added = tuple(Term(rest.sign * sign, (product_of(rest.factors),)).expression for rest in rests)
    return Term(sign, (*common, Add(added)), first.summed)


def _indices(factors: list[Expr]) -> frozenset[Index]:
    return frozenset().union(*(f.free for f in factors))


def _is_addable(rest: Term, summed: tuple[Index, ...], masked: Set[str]) -> bool:
    """Whether the rest of a term is one array, or a product that no contraction would have made cheaper."""
    for factor in rest.factors:
        if isinstance(factor, Constant) or _is_divisor(factor) or brings(factor, masked) or weighs(factor):
            return False
    return not summed or not rest.indices or any(f.free == rest.indices for f in rest.factors)


def _is_divisor(factor: Expr) -> bool:
    """A divisor of an array is applied to a result where that is possible; inside a sum it would not be."""
    return isinstance(factor, Map) and factor.function == "reciprocal" and bool(factor.free)
