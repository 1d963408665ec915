"""The logarithm of sums of weights times exponentials, as a log-sum-exp: it neither underflows nor overflows.

    log Σ_j softmax_j(s_j) exp(m_j) = lse_j(s_j + m_j) − lse_j(s_j)

Every factor must be positive by its form: an exponential, weights of a softmax, a sum or product of these. A row of
weights that admits nothing is 0, its logarithm −∞; there the normaliser lse(s) = −∞ is set aside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count

from tensorattn.ir import Add, Expr, Index, Map, Normalise, Number, Product, Reduce, highest_number, substitute
from tensorattn.rewriting.scores import conjunction, total


@dataclass(frozen=True, slots=True)
class Part:
    """A term of a logarithm; `shift`: it is finite, and may leave a log-sum-exp whose indices it lacks."""

    term: Expr
    shift: bool = False


Weigh = Callable[[Normalise], tuple[Part, ...]]
Fresh = Callable[[Index], Index]


def recognise_log(node: Expr, fresh: Fresh | None = None) -> Expr:
    """`log` of what is positive by its form, written without an exponential. `fresh`: another index of the name."""
    match node:
        case Map(function="log", arguments=(Map() | Product() | Reduce() | Normalise() as inner,)):
            named = fresh or _counting(inner)
            return logarithm(inner, lambda weights: log_weights(weights, named)) or node
    return node


def logarithm(node: Expr, weigh: Weigh) -> Expr | None:
    """The logarithm of an expression that is positive by its form, else None. `weigh`: that of weights."""
    parts = _parts(node, weigh)
    return None if parts is None else total([part.term for part in parts])


def differentiable(node: Expr) -> Expr:
    """A logarithm for its derivative alone: a row of weights that admits nothing has none, so nothing is set aside."""
    if isinstance(node, Add):
        return Add(tuple(map(differentiable, node.terms)))
    match node:
        case Map(function="negate", arguments=(Map(function="where", arguments=(_, Reduce(kind="lse") as whole, _)),)):
            return Map("negate", (whole,))
    return node


def _counting(node: Expr) -> Fresh:
    numbers = count(highest_number(node) + 1)
    return lambda index: Index(index.name, next(numbers))


def log_weights(weights: Normalise, fresh: Fresh) -> tuple[Part, ...]:
    """The logarithm of the weights of a softmax where its predicate holds: score − lse."""
    some = Map("greater", (_lse(weights, fresh), Map("log", (Number(0),))))
    guarded = Map("where", (some, _lse(weights, fresh), Number(0)))
    return Part(weights.score), Part(Map("negate", (guarded,)), shift=True)


def _lse(weights: Normalise, fresh: Fresh) -> Expr:
    """The log-sum-exp of a score, over indices of its own."""
    new = {index: fresh(index) for index in weights.indices}

    def renamed(node: Expr) -> Expr:
        return substitute(node, lambda index: new.get(index, index))

    where = None if weights.where is None else renamed(weights.where)
    return Reduce("lse", tuple(new.values()), renamed(weights.score), where)


def is_plain(weights: Normalise) -> bool:
    """Whether its logarithm has this form."""
    return weights.kind == "softmax" and not weights.options


def _parts(node: Expr, weigh: Weigh) -> list[Part] | None:
    match node:
        case Map(function="exp", arguments=(inner,)):
            return [Part(inner)]
        case Number(value=value) if value > 0:
            return [Part(Map("log", (node,)), shift=True)]
        case Normalise(where=None) if is_plain(node):
            return list(weigh(node))
        case Product(factors=factors, summed=summed):
            return _product(factors, summed, weigh)
        case Reduce(kind="sum", indices=indices, body=body, where=where):
            parts = _parts(body, weigh)
            return None if parts is None else _summed(parts, indices, where)
        case Map(function="reciprocal", arguments=(inner,)):
            parts = _parts(inner, weigh)
            return None if parts is None else [Part(Map("negate", (total([p.term for p in parts]),)))]
    return None


def _product(factors: Iterable[Expr], summed: tuple[Index, ...], weigh: Weigh) -> list[Part] | None:
    """Of a product; what its weights exclude is excluded from the sum."""
    parts: list[Part] = []
    wheres: list[Expr] = []
    for factor in factors:
        if isinstance(factor, Normalise) and is_plain(factor) and factor.where is not None and summed:
            wheres.append(factor.where)
            found: list[Part] | None = list(weigh(factor))
        else:
            found = _parts(factor, weigh)
        if found is None:
            return None
        parts += found
    return _summed(parts, summed, conjunction(wheres)) if summed else parts


def _summed(parts: list[Part], indices: tuple[Index, ...], where: Expr | None) -> list[Part]:
    inside = [p.term for p in parts if not p.shift or p.term.free & set(indices)]
    outside = [p for p in parts if p.shift and not p.term.free & set(indices)]
    body = inside[0] if len(inside) == 1 else Add(tuple(inside)) if inside else Number(0)
    return [Part(Reduce("lse", indices, body, where)), *outside]
