"""The derivative of normalised weights, made of normalised reductions again.

With the cotangent w̄ of the weights W = softmax(s):  s̄ = W (w̄ − Σ W w̄).  Nothing is divided by a sum of
exponentials: where a row admits nothing W is 0 and so is s̄, and a predicate of W is one of s̄ too.

Source: the Jacobian diag(W) − W Wᵀ of the softmax; for sparsemax and entmax Peters, Niculae, Martins 2019,
"Sparse sequence-to-sequence models", proposition 2; by the exponent Correia, Niculae, Martins 2019, "Adaptively sparse
transformers", proposition 1, written so that it holds at α = 1 too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import factorial
from typing import TYPE_CHECKING

from tensorattn.differentiating.contexts import Context
from tensorattn.differentiating.expressions import add, call, constant, negate, number, subtract, times, where
from tensorattn.ir import Expr, Index, Normalise, Number, Product, Reduce, Tensor

if TYPE_CHECKING:
    from tensorattn.differentiating.pulling import Pull

NEAR, TERMS = 0.5, 12  # below it the series, so many terms of which are exact to 1e-17
Found = tuple[Context, dict[str, Context]]  # of the score, of the options


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights that are a statement, their cotangent as one tensor, and the values of the options."""

    pull: Pull
    node: Normalise
    tensor: Tensor
    cotangent: Context
    options: Mapping[str, Expr]

    @property
    def where(self) -> Expr | None:
        return None if self.node.where is None else self.pull.value(self.node.where)

    @property
    def scope(self) -> tuple[Index, ...]:
        return self.pull.ordered(self.node.free)

    @property
    def rows(self) -> tuple[Index, ...]:
        return tuple(i for i in self.scope if i not in self.node.indices)

    def signed(self, *factors: Expr) -> Expr:
        """The cotangent with further factors, below its own guards none of which needs to be kept here."""
        whole = Product((*self.cotangent.factors, *factors)) if factors else self.cotangent.factors[0]
        return negate(whole) if self.cotangent.negative else whole

    def mean(self, weights: Tensor, role: str = "Mean") -> Expr:
        """Σ over the normalised indices of weights times the cotangent, as a statement."""
        context = Context((weights, *self.cotangent.factors), self.scope, (), self.cotangent.negative)
        found = self.pull.book.derived(context, self.rows, f"d{self.pull.statement.name}{role}")
        return found.factors[0]

    def value(self, expr: Expr, role: str) -> Tensor:
        return self.pull.again(expr, role)


def _softmax(w: Weights) -> Found:
    mean = w.mean(w.tensor)
    score = Context((w.tensor, subtract(w.signed(), mean)), w.scope)
    if "sink" not in w.options:
        return score, {}
    sink = w.options["sink"]
    others = w.value(Reduce("lse", w.node.indices, w.node.score, w.node.where), "Lse")
    share = call("sigmoid", subtract(sink, others))  # what the sink has of the whole, without a difference from 1
    return score, {"sink": Context((mean, share), w.rows, negative=True)}


def _entmax(w: Weights, exponent: Expr | None) -> Found:
    """On the support: s̄ = u (w̄ − Σ U w̄) with u = W^(2 − α) and U = u / Σ u."""
    support = call("greater", w.tensor, Number(0))
    u: Expr = Number(1) if exponent is None else call("power", w.tensor, exponent)
    shares = w.value(Normalise("l1norm", w.node.indices, u, support), "Shares")
    total = w.value(Reduce("sum", w.node.indices, u, support), "Total")
    return Context((shares, total, subtract(w.signed(), w.mean(shares))), w.scope), {}


def _by_alpha(w: Weights) -> Found:
    alpha = w.options["alpha"]
    known = constant(alpha)
    if known is None:
        score, _ = _entmax(w, subtract(Number(2), alpha))
        return score, {"alpha": _exponent(w, alpha)} if w.pull.is_active(dict(w.node.options)["alpha"]) else {}
    if known == 1:
        return _softmax(w)
    return _entmax(w, None if known == 2 else number(2 - known))


def _exponent(w: Weights, alpha: Expr) -> Context:
    """The formula of `by_exponent`, its parts as statements."""
    t = subtract(alpha, Number(1))
    u = w.value(surprise(w.tensor), "Surprise")
    bent = w.value(bend(u, w.value(times(t, u), "Fall")), "Bend")
    means = [w.value(Product((w.tensor, x), w.node.indices), role) for x, role in ((u, "Entropy"), (bent, "Bends"))]
    factors = (w.tensor, *w.cotangent.factors, *by_exponent(t, u, bent, *means))
    return Context(factors, w.scope, (), w.cotangent.negative)


def by_exponent(t: Expr, u: Expr, bend: Expr, mean_u: Expr, mean_bend: Expr) -> tuple[Expr, Expr]:
    """∂W/∂α over W, as two factors: (D̄ (1 + t u) − D (1 + t ū)) / (1 + t (ū + t D̄)); nothing cancels at α = 1.

    t = α − 1, u: `surprise`, D: `bend`; D̄ and ū are means under W.
    """
    above = subtract(times(mean_bend, add(Number(1), times(t, u))), times(bend, add(Number(1), times(t, mean_u))))
    below = add(Number(1), times(t, add(mean_u, times(t, mean_bend))))
    return above, call("reciprocal", below)


def surprise(weights: Expr) -> Expr:
    """−log W on the support, else 0."""
    return negate(call("log", where(call("greater", weights, Number(0)), weights, Number(1))))


def bend(u: Expr, fall: Expr) -> Expr:
    """D = u² φ(t u); `fall`: t u."""
    return times(call("power", u, Number(2)), _second(fall))


def _second(z: Expr) -> Expr:
    """(e^z − 1 − z) / z² for z ≥ 0, by its series where z is small."""
    near = call("less", z, Number(NEAR))
    series: Expr = Number(1 / factorial(TERMS + 1))
    for n in reversed(range(TERMS - 1)):
        series = add(Number(1 / factorial(n + 2)), times(z, series))
    far = where(near, Number(1), z)
    above = subtract(subtract(call("exp", far), Number(1)), far)
    return where(near, series, times(above, call("reciprocal", call("power", far, Number(2)))))


def _l1norm(w: Weights) -> Found:
    """(w̄ − Σ W w̄) / (Σ s + ε), and 0 where that is 0."""
    total: Expr = Reduce("sum", w.node.indices, w.node.score, w.node.where)
    if "eps" in w.options:
        total = add(total, dict(w.node.options)["eps"])
    below = w.value(total, "Total")
    mean = w.mean(w.tensor)
    some = call("not_equal", below, Number(0))
    factors = (subtract(w.signed(), mean), call("reciprocal", below))
    score = Context(factors, w.scope).under(w.where, some)
    eps = Context((mean, call("reciprocal", below)), w.rows, (some,), negative=True)
    return score, {"eps": eps}


def _l2norm(w: Weights) -> Found:
    """(w̄ − W Σ W w̄) / √(Σ s²), and 0 where that is 0."""
    squares = Reduce("sum", w.node.indices, call("power", w.node.score, Number(2)), w.node.where)
    length = w.value(call("sqrt", squares), "Length")
    rest = subtract(w.signed(), Product((w.tensor, w.mean(w.tensor))))
    score = Context((rest, call("reciprocal", length)), w.scope)
    return score.under(w.where, call("not_equal", length, Number(0))), {}


RULES: Mapping[str, Callable[[Weights], Found]] = {
    "softmax": _softmax,
    "sparsemax": lambda w: _entmax(w, None),
    "entmax": _by_alpha,
    "l1norm": _l1norm,
    "l2norm": _l2norm,
}
