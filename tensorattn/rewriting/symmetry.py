"""Half the tuples of a symmetric softmax: `q^mu_i k^nu_i k^rho_i` is the same with ν and ρ swapped.

Where the score and the predicate do not change under permutations of m indices of one size that are summed with the
weights, a sum over all tuples is one over the ordered ones ν ≤ ρ ≤ …, each as often as it has distinct permutations:

    Σ_b softmax_b(s) V  =  Σ_{ν ≤ ρ} softmax_{b: ν ≤ ρ}(s + log c) V̄,

V̄ the mean of V over the permutations, c = m! / Π (lengths of the runs of equal indices)! (over m!, where no sink is
weighed beside it, so that most scores stay as they are). The order is a predicate of positions: where loops over tiles
leave out what it excludes, 1/m! of the work remains. It pays only there, with many rows of scores for each value; no
step more runs over the scores than before.

The order excludes nothing that does not stand, permuted, among what it admits. A program without a predicate must
therefore not get one (beside a predicate an admitted ±∞ makes NaN, docs/design.md §8): there the weights are
`softmax + 0`, a sum that brings no predicate, and the values are 0 off the order, which is where the weights are 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, pairwise, permutations
from math import factorial, log, prod

from tensorattn.ir import (
    Add,
    Expr,
    Extent,
    Index,
    Map,
    Normalise,
    NormalisedReduction,
    Number,
    Position,
    Product,
    Statement,
    highest_number,
    normalised_reductions,
    rebuild,
    substitute,
)
from tensorattn.keys import size_classes
from tensorattn.predicates import bringing, brings
from tensorattn.rewriting import Rewritten, Rule
from tensorattn.rewriting.matching import SizeOf, alike
from tensorattn.rewriting.scores import conjunction, conjuncts

MOST = 3  # indices that are ordered
LEAST_ROWS = 16  # of the score for one value: below it the mean of the values costs what it saves
NOMINAL = 48  # size of an index that none is given for


REASON = "the score is the same when barred indices are permuted: a tuple and its permutations are weighed once"


def symmetric_halves(rewritten: Rewritten, sizes: Mapping[str, int] | None = None) -> Rewritten:
    """A rewritten program with every symmetric softmax over ordered tuples, where that pays for these sizes."""
    program = rewritten.program
    size, masked = size_classes(program), bringing(program)

    def halved(statement: Statement) -> Expr:
        numbers = count(highest_number(statement.body) + 1)
        return _Known(size, masked, sizes or {}, numbers).everywhere(statement.body)

    changed = {s.name: body for s in program.statements if (body := halved(s)) != s.body}
    if not changed:
        return rewritten
    statements = tuple(replace(s, body=changed.get(s.name, s.body)) for s in program.statements)
    applied = tuple((name, Rule("ordered tuples", symmetric_halves, REASON)) for name in changed)
    return Rewritten(replace(program, statements=statements), (*rewritten.applied, *applied))


def mirrored(node: Expr) -> Normalise | None:
    """The weights in `softmax + 0`, if their predicate is nothing but the order of a symmetric score.

    It protects nothing: the program had none, and what it excludes stands among what it admits.
    """
    match node:
        case Add(terms=(Normalise(where=where, score=Add(terms=(score, often))) as weights, Number(value=0))):
            indices = _ordered(where)
            counted = indices and often in (_logarithm(indices, all_) for all_ in (1, factorial(len(indices))))
            pairs = pairwise(indices if counted else ())
            swapped = [alike(score, _permuted(score, pair, pair[::-1]), lambda name: name) for pair in pairs]
            return weights if swapped and all(swapped) else None
    return None


@dataclass(frozen=True)
class _Values:
    """What a product sums with the weights: `held` with an ordered index, and the indices that only these sum."""

    held: tuple[Expr, ...]
    rest: tuple[Expr, ...]
    own: tuple[Index, ...]

    @property
    def free(self) -> frozenset[Index]:
        return frozenset().union(*(f.free for f in self.held)) - frozenset(self.own)

    @property
    def product(self) -> Expr:
        return self.held[0] if len(self.held) == 1 and not self.own else Product(self.held, self.own)


@dataclass(frozen=True)
class _Known:
    """What is known of the program around a node, and numbers for new indices."""

    size: SizeOf
    masked: frozenset[str]
    sizes: Mapping[str, int]
    numbers: Iterator[int]

    def everywhere(self, node: Expr) -> Expr:
        node = rebuild(node, self.everywhere)
        if not isinstance(node, Product):
            return node
        found = [r for r in normalised_reductions(node) if r.product is node]
        return self.halved(found[0]) if len(found) == 1 else node

    def halved(self, found: NormalisedReduction) -> Expr:
        """The reduction over ordered tuples, or as it is."""
        weights = found.weights
        whole = weights.kind == "softmax" and found.barred == weights.indices
        if not whole or any(brings(value, self.masked) for value in found.values):
            return found.product
        indices = self.symmetric(found)
        if len(indices) < 2:
            return found.product
        values = _values(found, indices)
        if values.held and not self.pays(found, values):
            return found.product
        where = conjunction((*conjuncts(weights.where), *conjuncts(_order(indices))))
        often = _logarithm(indices, 1 if weights.options else factorial(len(indices)))
        halves = replace(weights, where=where, score=Add((weights.score, often)))
        mean = self.mean(values, indices)
        if weights.where is None:
            return _plain(found, _unmasked(halves), values, mean, indices)
        summed = tuple(i for i in found.product.summed if i not in values.own)
        return replace(found.product, factors=(halves, *mean, *values.rest), summed=summed)

    # where it may be done -------------------------------------------------------------------------------------------

    def symmetric(self, found: NormalisedReduction) -> tuple[Index, ...]:
        """The most barred indices, up to MOST, that may be permuted; all or none of them stand in the values."""
        weights = found.weights
        held = frozenset().union(*(value.free for value in found.values))
        classes: list[list[Index]] = []
        for index in weights.indices:
            if any(index in option.free for _, option in weights.options):
                continue
            for known in classes:
                if (index in held) == (known[0] in held) and self.permute(weights, known[0], index):
                    known.append(index)
                    break
            else:
                classes.append([index])
        return tuple(max(classes, key=len, default=[])[:MOST])

    def permute(self, weights: Normalise, a: Index, b: Index) -> bool:
        """Whether swapping two indices changes neither score nor predicate."""
        parts = [part for part in (weights.score, weights.where) if part is not None]
        return self.size(a.name) == self.size(b.name) and all(
            alike(part, _permuted(part, (a, b), (b, a)), self.size) for part in parts
        )

    def pays(self, found: NormalisedReduction, values: _Values) -> bool:
        """Whether the score has many rows for each value; without a predicate, and no other value a barred index."""
        rows = found.weights.free - set(found.barred) - values.free
        barred = set(found.barred)
        apart = found.weights.where is None and any(factor.free & barred for factor in values.rest)
        return bool(rows) and not apart and prod(self.sizes.get(i.name, NOMINAL) for i in rows) >= LEAST_ROWS

    def mean(self, values: _Values, indices: Sequence[Index]) -> tuple[Expr, ...]:
        """The mean of the values over the permutations of the indices, as factors."""
        if not values.held:
            return ()
        terms: list[Expr] = []
        for order in permutations(indices):
            term = _permuted(values.product, indices, order)
            if not any(alike(known, term, self.size) for known in terms):
                terms.append(self.renumbered(term) if terms else term)
        return (Number(1 / len(terms)), Add(tuple(terms))) if len(terms) > 1 else (terms[0],)

    def renumbered(self, term: Expr) -> Expr:
        """A term of a sum with bound indices of its own."""
        if not isinstance(term, Product):
            return term
        new = [Index(i.name, next(self.numbers)) for i in term.summed]
        return Product(tuple(_permuted(f, term.summed, new) for f in term.factors), tuple(new))


def _values(found: NormalisedReduction, indices: Sequence[Index]) -> _Values:
    """The values apart: those with an ordered index, and those that share another summed index with them alone.

    Below a predicate what scales the values goes with them, for it then stands inside the sum.
    """
    barred = set(found.barred)
    held = [f for f in found.values if f.free & set(indices)]
    rest = [f for f in found.values if f not in held]
    bonds = set(found.product.summed) - barred
    for factor in rest[:]:
        known = frozenset().union(*(f.free for f in held))
        scale = found.weights.where is not None and not factor.free
        if held and (scale or (factor.free & bonds and factor.free <= known)):
            held.append(factor)
            rest.remove(factor)
    apart = frozenset().union(found.weights.free, *(f.free for f in rest))
    own = tuple(i for i in found.product.summed if i in bonds - apart and any(i in f.free for f in held))
    return _Values(tuple(held), tuple(rest), own)


def _plain(
    found: NormalisedReduction, weights: Expr, values: _Values, mean: Sequence[Expr], indices: Sequence[Index]
) -> Expr:
    """The product without a predicate: what does not hold an ordered index stays outside of the sum over them."""
    product = found.product
    zeroed = (*mean[:-1], *(Map("where", (_order(indices), value, Number(0))) for value in mean[-1:]))
    inside = found.barred if values.held else indices
    total = Product((weights, *zeroed), tuple(i for i in product.summed if i in inside))
    summed = tuple(i for i in product.summed if i not in (*total.summed, *values.own))
    outer = replace(product, factors=(total, *values.rest), summed=summed)
    if all(isinstance(factor, Number) for factor in values.rest):
        return outer
    some = Map("less", (Number(0), Product(tuple(Extent(i.name) for i in total.summed))))
    return Map("where", (some, outer, Number(0)))  # a sum of nothing is 0, whatever it is multiplied with


def _unmasked(node: Expr) -> Expr:
    """The same number, of which no predicate is brought to a product."""
    return Add((node, Number(0)))


def _permuted(node: Expr, old: Sequence[Index], new: Sequence[Index]) -> Expr:
    renamed = dict(zip(old, new, strict=True))
    return substitute(node, lambda i: renamed.get(i, i))


def _order(indices: Sequence[Index]) -> Expr:
    """`a <= b and b <= c`."""
    steps = tuple(Map("less_equal", (Position(a), Position(b))) for a, b in pairwise(indices))
    return steps[0] if len(steps) == 1 else Map("and", steps)


def _ordered(where: Expr | None) -> tuple[Index, ...]:
    """The indices that a predicate orders and does nothing else."""
    pairs = []
    for step in conjuncts(where):
        match step:
            case Map(function="less_equal", arguments=(Position(index=a), Position(index=b))):
                pairs.append((a, b))
            case _:
                return ()
    joined = all(one[1] == other[0] for one, other in pairwise(pairs))
    return (pairs[0][0], *(b for _, b in pairs)) if pairs and joined else ()


def _logarithm(indices: Sequence[Index], all_: int, equal: tuple[bool, ...] = ()) -> Expr:
    """log c of an ordered tuple, over `all_`; `equal`: for the first neighbours, whether they are known to be equal."""
    if len(equal) == len(indices) - 1:
        runs = [1]
        for same in equal:
            runs[-1:] = [runs[-1] + 1] if same else [runs[-1], 1]
        return Number(log(factorial(len(indices)) // prod(map(factorial, runs)) / all_))
    a, b = indices[len(equal) : len(equal) + 2]
    branches = (_logarithm(indices, all_, (*equal, same)) for same in (True, False))
    return Map("where", (Map("equal", (Position(a), Position(b))), *branches))
