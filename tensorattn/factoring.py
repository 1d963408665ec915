"""Plan → plan: a softmax over a sum of terms in few indices each, as a ratio of two sums of products.

`Σ_b softmax_b(Σ_t s_t) Π V = Σ_b Π_t exp(s_t) Π V / Σ_b Π_t exp(s_t)`: each exponential has the indices of its term
only, and both sums are contractions whose order is searched like any. A predicate that is a conjunction is a product of
factors 0 and 1. What the terms are shifted by, and when the ratio may be used, is in `lowering/factoring.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from tensorattn.comparisons import comparison
from tensorattn.ir import (
    Add,
    Affine,
    Expr,
    Index,
    Map,
    NormalisedReduction,
    Product,
    Tensor,
    inner_first,
    normalised_reductions,
    walk,
)
from tensorattn.lowering.expressions import SINGULAR
from tensorattn.lowering.looping import RefusalError
from tensorattn.ordering import EXP_WEIGHT, MEMORY_WEIGHT
from tensorattn.plan import Contraction, Exponent, Factored, Order, Plan
from tensorattn.planning import contraction_of, order
from tensorattn.predicates import bringing, brings
from tensorattn.rewriting.scores import conjuncts
from tensorattn.rewriting.sums import merge_sums
from tensorattn.sharing import unshared_price
from tensorattn.sizes import Size

MOST_TERMS = 24
SHIFTED = "shifted exp"  # stands for an exponential over its largest entry; no program has this function
SENSITIVE = "a term of the score over {} must not see what the predicate excludes, and lacks indices of it"


@dataclass(frozen=True, slots=True)
class Found:
    """A plan with what is factored, and for each normalised reduction that cannot be the reason."""

    plan: Plan
    refused: tuple[str, ...]


def factored(plan: Plan, accept: Callable[[Factored], bool] = lambda found: True) -> Found:
    """The plan with every normalised reduction that can be factored and that is accepted."""
    sizes, masked = dict(plan.nominal), bringing(plan.program)
    dense = {o.contraction.node: o for _, o in plan.orders}
    found: dict[Expr, tuple[str, Factored]] = {}
    refused: list[str] = []
    for statement in plan.program.statements:
        for reduction in normalised_reductions(statement.body):
            try:
                one = _Factoring(reduction, sizes, masked, dense).factored()
                found[one.node] = statement.name, one
            except RefusalError as refusal:
                refused.append(refusal.reason)
    taken = tuple((name, one) for name, one in found.values() if accept(one))
    plan = replace(plan, factored=taken, kind="factored" if taken else plan.kind)
    return Found(plan, tuple(dict.fromkeys(refused)))


class _Factoring:
    """One normalised reduction."""

    def __init__(
        self,
        reduction: NormalisedReduction,
        sizes: Mapping[str, int],
        masked: frozenset[str],
        dense: Mapping[Expr, Order],
    ) -> None:
        self.sizes, self.masked, self.dense = sizes, masked, dense
        self.node, self.weights, self.barred = reduction.product, reduction.weights, frozenset(reduction.barred)
        self.names = " ".join(i.name for i in self.weights.indices)
        summed = frozenset(self.node.summed)
        self.values = tuple(v for v in reduction.values if v.free & summed)
        self.rest = tuple(v for v in reduction.values if not v.free & summed)
        self._check()

    def _check(self) -> None:
        weights, free = self.weights, self.weights.free - self.barred
        if weights.kind != "softmax":
            raise RefusalError(f"{weights.kind} over {self.names} is no product of functions of the terms")
        if self.barred != frozenset(weights.indices):
            raise RefusalError(f"an index of the softmax over {self.names} is not summed with the weights")
        if free & set(self.node.summed):
            raise RefusalError(f"an index of the score over {self.names} is summed with the weights")
        if any(brings(value, self.masked) for value in (*self.values, *self.rest)):
            raise RefusalError(f"a factor beside the softmax over {self.names} has a predicate of its own")

    def factored(self) -> Factored:
        groups = grouped(terms(self.weights.score))
        parts = joined(conjuncts(self.weights.where))
        everything = self.weights.free
        if any(everything <= e.free and comparison(e) is None for e in (*groups, *parts)):
            raise RefusalError(f"a part of the score over {self.names}, or of its predicate, has all the indices")
        exponents, loose = self._exponents([g for g in groups if g.free & self.barred], parts)
        if not exponents:
            raise RefusalError(f"the score is the same for all {self.names}")
        rows = tuple(g for g in groups if not g.free & self.barred)
        if parts and any(map(_is_sensitive, rows)):
            raise RefusalError(SENSITIVE.format(self.names))
        nodes = tuple(e.node for e in exponents)
        numerator = order(_contraction((*nodes, *loose, *self.values), self.node.summed), self.sizes)
        denominator = order(_contraction((*nodes, *loose), self.weights.indices), self.sizes, numerator)
        count = order(_contraction(tuple(parts), self.weights.indices), self.sizes) if parts else None
        ratio = self._ratio(numerator.contraction.node, rows)
        finish = self._ordered(Product((ratio, *self.rest), ())) if self.rest else None
        scores = (*(e.score for e in exponents), *rows)
        inner = tuple(self._ordered(n) for s in scores for n in inner_first(s) if n not in self.dense and _ordered(n))
        dense = self.dense[self.node].price + Size.product(i.name for i in everything) * (EXP_WEIGHT + MEMORY_WEIGHT)
        price = numerator.price + unshared_price(denominator, numerator)
        for exponent in exponents:
            price = price + Size.product(i.name for i in exponent.score.free) * (EXP_WEIGHT + MEMORY_WEIGHT)
        return Factored(
            self.node, self.weights, exponents, rows, self.values, numerator, denominator, count, ratio, finish, inner,
            price, dense,
        )  # fmt: skip

    def _ratio(self, numerator: Expr, rows: tuple[Expr, ...]) -> Expr:
        """A node for the ratio: beside a sink it has the indices of that, and of what it is compared with."""
        sink = dict(self.weights.options).get("sink")
        return numerator if sink is None else Map(SHIFTED, (numerator, sink, *rows))

    def _exponents(self, groups: list[Expr], parts: list[Expr]) -> tuple[tuple[Exponent, ...], tuple[Expr, ...]]:
        """Each part of the predicate with the first term that has its indices; the parts that no term has."""
        owned: list[list[Expr]] = [[] for _ in groups]
        loose = []
        for part in parts:
            place = next((n for n, g in enumerate(groups) if part.free <= g.free), None)
            (loose if place is None else owned[place]).append(part)
        found = []
        for group, wheres in zip(groups, owned, strict=True):
            if len(wheres) < len(parts) and _is_sensitive(group):
                raise RefusalError(SENSITIVE.format(self.names))
            where = Map("and", tuple(wheres)) if len(wheres) > 1 else next(iter(wheres), None)
            found.append(Exponent(group, where, Map(SHIFTED, (group,))))
        return tuple(found), tuple(loose)

    def _ordered(self, node: Expr) -> Order:
        contraction = contraction_of(node, self.masked, self.sizes)
        assert contraction is not None
        return order(contraction, self.sizes)


def _contraction(factors: tuple[Expr, ...], summed: Iterable[Index]) -> Contraction:
    """All factors as they are: no number is set apart, so that nothing is scaled before the ratio is made."""
    known = frozenset().union(*(f.free for f in factors))
    summed = tuple(summed)
    missing = tuple(i for i in summed if i not in known)
    return Contraction(Product(factors, summed), factors, (), (), (), summed, missing)


def _is_sensitive(node: Expr) -> bool:
    """Whether what a predicate excludes changes how the node is computed, or whether it is an error."""
    for part in walk(node):
        if isinstance(part, Map) and part.function in SINGULAR and any(isinstance(n, Tensor) for n in walk(part)):
            return True
        if isinstance(part, Tensor) and any(isinstance(slot, Affine) for slot in part.slots):
            return True
    return False


def _ordered(node: Expr) -> bool:
    return isinstance(node, Product)


def joined(parts: Iterable[Expr]) -> list[Expr]:
    """The conditions, those that compare the same two positions as one: a window is a running sum."""
    found: dict[Expr | frozenset[Index], list[Expr]] = {}
    for part in dict.fromkeys(parts):
        found.setdefault(part if comparison(part) is None else part.free, []).append(part)
    return [one[0] if len(one) == 1 else Map("and", tuple(one)) for one in found.values()]


# Terms ------------------------------------------------------------------------------------------------------------


def terms(score: Expr) -> list[Expr]:
    """The score as a sum; a product with a sum whose terms have different indices is multiplied out."""
    match score:
        case Add(terms=parts):
            return [term for part in parts for term in terms(part)]
        case Map(function="negate", arguments=(inner,)):
            found = terms(inner)
            return [Map("negate", (term,)) for term in found] if len(found) > 1 else [score]
        case Product(factors=factors, summed=summed):
            for n, factor in enumerate(factors):
                groups = grouped(terms(factor)) if isinstance(factor, (Add, Map)) else []
                if 1 < len(groups) <= MOST_TERMS:
                    rest = factors[:n], factors[n + 1 :]
                    products = (merge_sums(Product((*rest[0], group, *rest[1]), summed)) for group in groups)
                    return [term for product in products for term in terms(product)]
    return [score]


def grouped(found: list[Expr]) -> list[Expr]:
    """The terms whose indices another has too are added to it: one exponential for both."""
    groups: list[list[Expr]] = []
    for term in sorted(found, key=lambda t: -len(t.free)):
        home = next((g for g in groups if term.free <= g[0].free), None)
        groups.append([term]) if home is None else home.append(term)
    return [g[0] if len(g) == 1 else Add(tuple(g)) for g in groups]
