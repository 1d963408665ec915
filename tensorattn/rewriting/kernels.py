"""Linear attention: `Σ_nu l1norm[nu](Σ_i a_<mu i> b_<nu i>) v_<nu n>` as a ratio of two products.

Weights that are a product of a query side and a key side, divided by their sum, need no array over all pairs: the
ratio is `Σ_i a_i (Σ_nu b_i v) / Σ_i a_i (Σ_nu b_i)`, whose orders the search chooses.
Source: Katharopoulos et al. 2020, "Transformers are RNNs", eq. 5.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorattn.ir import Add, Expr, Index, Map, Normalise, Number, Product, highest_number, substitute
from tensorattn.rewriting.terms import Term, term_of


def reassociate_l1norm(node: Expr) -> Expr:
    """A product with factorised l1norm weights, all of whose indices it sums, with the scores and their sum instead.

    Only without a predicate, and where no factor of the score or of the values holds a barred index beside a row's: one
    such array is as large as the weights. The score may be a sum of such products (`1 + q·k`). A denominator of 0 gives
    0, as the normaliser does.
    """
    if not isinstance(node, Product):
        return node
    for place, weights in enumerate(node.factors):
        others = (*node.factors[:place], *node.factors[place + 1 :])
        if isinstance(weights, Normalise) and _factorises(weights, others, node.summed):
            total = _total(weights, highest_number(node) + 1)
            empty = Map("equal", (total, Number(0)))
            scale = (
                Map("where", (empty, Number(0), Number(1))),
                Map("reciprocal", (Map("where", (empty, Number(1), total)),)),
            )
            parts = [Term(t.sign, (*t.factors, *others), (*node.summed, *t.summed)) for t in _terms(weights.score)]
            if len(parts) == 1 and parts[0].sign > 0:
                return Product((*parts[0].factors, *scale), parts[0].summed, span=node.span)
            return Product((Add(tuple(part.expression for part in parts)), *scale), span=node.span)
    return node


def _terms(score: Expr) -> list[Term]:
    return [term_of(part) for part in (score.terms if isinstance(score, Add) else (score,))]


def _factorises(weights: Normalise, others: Sequence[Expr], summed: tuple[Index, ...]) -> bool:
    """Whether neither the score nor the values hold an array as large as the weights, which have rows and columns."""
    barred = frozenset(weights.indices)
    rows = weights.free - barred
    if weights.kind != "l1norm" or weights.where is not None:
        return False
    if not rows or not barred <= set(summed) or not barred <= weights.score.free:
        return False
    if any(option.free & barred for _, option in weights.options):
        return False
    terms = _terms(weights.score)
    if any(set(term.summed) & (set(summed) | _indices(others)) for term in terms):
        return False
    parts = [part for term in terms for part in term.factors]
    return not any(part.free & barred and part.free & rows for part in (*parts, *others))


def _indices(factors: Sequence[Expr]) -> frozenset[Index]:
    return frozenset().union(*(f.free for f in factors))


def _total(weights: Normalise, first: int) -> Expr:
    """The denominator, over indices of its own."""
    terms = _terms(weights.score)
    bound = dict.fromkeys((*(i for term in terms for i in term.summed), *weights.indices))
    names = {index: Index(index.name, first + n) for n, index in enumerate(bound)}

    def new(index: Index) -> Index:
        return names.get(index, index)

    sums = []
    for term in terms:
        factors = tuple(substitute(f, new) for f in term.factors)
        sums.append(Term(term.sign, factors, tuple(map(new, (*term.summed, *weights.indices)))).expression)
    parts = (*sums, *(option for name, option in weights.options if name == "eps"))
    return parts[0] if len(parts) == 1 else Add(parts)
