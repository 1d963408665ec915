"""Rules on the score and the barred group: golden text before and after, and both sides by the reference."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import planning, reference
from tensorattn.reference import evaluate
from tensorattn.rewriting import CANONICAL, SCORES, rewrite
from tensorattn.rewriting.fusing import fuse
from tests import goldens

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SETTINGS = settings(
    max_examples=60, derandomize=True, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
FEWER = settings(SETTINGS, max_examples=20)


# golden text ----------------------------------------------------------------------------------------------------------

EXAMPLES = {
    "shift of rows": "y^mu_n = softmax[nu](q^mu_i k^nu_i - 3 mu + |i|) v^nu_n",
    "separable": "S^<mu nu rho> = k^mu_i q^nu_i + l^mu_i r^rho_i\ny^mu_n = S^<mu bar(nu rho)> v^nu_n u^rho_n",
    "separable, scaled": "y^mu_n = softmax[nu rho]((a^mu_i b^nu_i + c^mu_i d^rho_i) / sqrt(|i|)) v^nu_n u^rho_n",
    "separable, masked": "y^mu = softmax[nu rho : nu <= mu and rho < mu and z_mu](a^<mu nu> + b^<mu rho>) v_nu u_rho",
    "three parts": "y^mu = softmax[nu rho tau](a^<mu nu> + b^<mu rho> + c^<mu tau> + d_mu) u_nu v_rho w_tau",
    "two of three parts": "y^mu = softmax[nu rho tau : tau != mu](a_nu + b^<mu rho> + c^<mu tau>) u_<nu rho> w_tau",
    "uniform part": "y^mu_n = softmax[nu rho](a^<mu nu> ones_rho) v^nu_n u^rho_n",
    "chain": "y^mu = sum[rho tau](softmax[nu rho tau; sink=s](a^<mu nu> + b^<nu rho> + c^<rho tau>) v_nu)",
    "chain, masked": "y^mu = sum[rho](softmax[nu rho : nu <= mu and rho <= nu](a^<mu nu> + b^<nu rho>) v_nu)",
    "part without values": "y^mu = sum[rho](softmax[nu rho : rho <= mu](a^<mu nu> + b^<mu rho>) v_nu)",
    "index in no term": "y^mu = sum[rho](softmax[nu rho : rho != nu](a^<mu nu> ones_rho) v_nu)",
    "lse of a chain": "y = lse[i j k](g_i + T_<i j> + U_<j k> - 2)",
    "lse of parts, masked": "y^mu = lse[nu rho : nu <= mu and rho < mu]((a^<mu nu> - b^<mu rho>) / sqrt(|mu|))",
    "log of a chain": "y = log(sum[i j k](exp(g_i) exp(T_<i j>) exp(U_<j k>)))",
}


def test_before_and_after(pytestconfig: pytest.Config) -> None:
    parts = []
    for name, text in EXAMPLES.items():
        before = rewrite(fuse(ta.parse(text), (ta.parse(text).defined[-1],)), CANONICAL).program
        after = rewrite(before, SCORES)
        assert after.applied, name
        words = "\n".join(f"{rule.name}: {rule.reason}" for _, rule in after.applied)
        parts.append(f"== {name}\n{before}\n-- {words}\n{after.program}")
    goldens.agree("score_rules.txt", "\n\n".join(parts) + "\n", pytestconfig)


UNCHANGED = [
    "y^mu = softmax[nu](q^mu_i k^nu_i) v_nu",
    "y^mu = softmax[nu](q^mu_i k^nu_i - x_mu) v_nu",  # data may be infinite
    "y^mu = softmax[nu](q^mu_i k^nu_i - mu + nu) v_nu",  # exact as it stands
    "y^mu = softmax[nu](b_<mu nu> - 1000) v_nu",  # likewise
    "y^mu = softmax[nu; sink=s](q^mu_i k^nu_i + 3) v_nu",
    "y^mu = sparsemax[nu](q^mu_i k^nu_i + 3) v_nu",
    "y^mu = softmax[nu](tanh(q^mu_i k^nu_i + 3)) v_nu",
    "y^mu = softmax[nu rho](a^<mu nu> b^<mu rho>) v_nu u_rho",
    "y^mu = softmax[nu rho](tanh(a^<mu nu> + b^<mu rho>)) v_nu u_rho",
    "y^mu = softmax[nu rho]((a^<mu nu> + b^<mu rho>) t) v_nu u_rho",  # t = ∞
    "y^mu = softmax[nu rho; sink=s](a^<mu nu> + b^<mu rho>) v_nu u_rho",
    "y^mu = softmax[nu rho : rho <= nu](a^<mu nu> + b^<mu rho>) v_nu u_rho",
    "y^mu = softmax[nu rho : rho <= mu or nu <= mu](a^<mu nu> + b^<mu rho>) v_nu u_rho",
    "y^mu = softmax[nu rho : nu <= mu](a^<mu nu> + b^<mu rho>) v_<nu rho>",
    "y^mu_n = softmax[nu rho](a^<mu nu> + b^<mu rho>) v^<nu rho>_n",
    "y^<mu nu> = softmax[nu rho](a^<mu nu> + b^<mu rho>) u_rho",
    "y^<mu nu rho> = softmax[nu rho](a^<mu nu> + b^<mu rho>)",
    "y^mu = entmax[nu rho; 1.5](a^<mu nu> + b^<mu rho>) v_nu u_rho",
    "y^mu = sum[rho](l1norm[nu rho](a^<mu nu> + b^<mu rho>) v_nu)",
    "y^mu = sum[rho](softmax[nu rho](a^<mu nu> + b^<nu rho> + c^<rho mu>) v_nu)",  # rho meets all
    "y^mu = sum[rho](softmax[nu rho](s^<mu nu rho>) v_nu)",
    "y^mu = sum[rho](sparsemax[nu rho](a^<mu nu> + b^<nu rho>) v_nu)",
    "y^mu = sum[nu](softmax[nu](s^<mu nu>) x_mu)",
    "y^mu = lse[nu rho](a^<mu nu> + b^<nu rho> + c^<rho mu>)",
    "y^mu = lse[nu rho]((a^<mu nu> + b^<nu rho>) t)",
    "y^mu = lse[nu](a^<mu nu> + b_mu)",
    "y^mu = max[nu rho](a^<mu nu> + b^<nu rho>)",
]


@pytest.mark.parametrize("text", UNCHANGED)
def test_what_does_not_match_stays(text: str) -> None:
    before = rewrite(ta.parse(text), CANONICAL).program
    after = rewrite(before, SCORES)
    assert not after.applied
    assert after.program == before


def test_a_second_softmax_may_hold_an_index_of_the_first() -> None:
    text = (
        "y^mu = softmax[nu rho : nu <= mu](a^<mu nu> + b^<mu rho>) softmax[tau sigma : tau <= nu](c^<nu tau> + d_sigma)"
    )
    text += " u_tau v_rho w_sigma"
    rng = np.random.default_rng(0)
    inputs = {n: rng.normal(size=s) for n, s in dict(a=(3, 4), b=(3, 2), c=(4, 5), d=2, u=5, v=2, w=2).items()}
    program = ta.parse(text)
    after = rewrite(program).program
    np.testing.assert_allclose(evaluate(after, inputs)["y"], evaluate(program, inputs)["y"])
    np.testing.assert_allclose(ta.compile(text)(inputs), evaluate(program, inputs)["y"])


# random formulas ------------------------------------------------------------------------------------------------------

BARRED = ("nu", "rho", "tau")
CONDITIONS = (
    "{b} <= mu",
    "mu < {b}",
    "{b} != 1",
    "keep_<{b}>",
    "mu > 0",
    "{b} <= {c}",
    "keep_<mu {b}>",
    "near_<{b} {c}>",
)


class Formula:
    """A random softmax over several indices whose terms, conditions and values hold some of them."""

    def __init__(self, rnd: random.Random) -> None:
        self.rnd, self.inputs, self.sizes = rnd, {}, {}
        barred = list(BARRED[: rnd.choice([2, 2, 3])])
        sizes = rnd.sample([2, 3, 5, 1, 4], 5) if rnd.random() < 0.8 else rnd.sample([0, 1, 2, 3, 5], 5)
        self.sizes = dict(zip(("mu", *barred, "n", "i"), (*sizes[: 1 + len(barred)], 2, 2), strict=True))
        self.rng = np.random.default_rng(rnd.randrange(2**32))
        self.scores: list[str] = []
        self.apart = rnd.random() < 0.4  # no term, condition or value holds two barred indices
        self.text = self.written(barred)

    def tensor(self, name: str, indices: list[str], kind: str = "real") -> str:
        name = f"{name}{len(self.inputs)}"
        shape = [self.sizes[i] for i in indices]
        array = self.rng.normal(size=shape) * 2 if kind == "real" else self.rng.random(shape) < 0.6
        self.inputs[name] = np.asarray(array)
        return f"{name}_<{' '.join(indices)}>" if indices else name

    def term(self, barred: list[str]) -> str:
        rnd = self.rnd
        among = ["mu", rnd.choice(barred)] if self.apart else ["mu", *barred]
        held = rnd.sample(among, rnd.choice([0, 1, 1, 2, 2, 2]))
        kind = rnd.random()
        if kind < 0.1:
            return rnd.choice(["3", "mu", "0.5 * mu"])
        if kind < 0.4 and held:
            return f"{self.score([held[0], 'i'])} {self.score([*held[1:], 'i'])}"
        return f"tanh({self.score(held)})" if kind < 0.5 else self.score(held)

    def score(self, indices: list[str]) -> str:
        word = self.tensor("a", indices)
        self.scores.append(list(self.inputs)[-1])
        return word

    def condition(self, barred: list[str]) -> str:
        b, c = self.rnd.sample(barred, 2)
        known = [c for c in CONDITIONS if not (self.apart and "{c}" in c)]
        text = self.rnd.choice(known).format(b=b, c=c)
        if "_<" not in text:
            return text
        name, indices = text.rstrip(">").split("_<")
        return self.tensor(name, indices.split(), "bool")

    def scored(self, barred: list[str]) -> tuple[str, str]:
        """A sum of terms, and a predicate."""
        rnd = self.rnd
        terms = [self.term(barred) for _ in range(rnd.randint(1, 4))]
        lone = [b for b in barred if not any(b in term for term in terms)]
        terms[0] += "".join(f" ones_{b}" for b in lone)
        score = " + ".join(terms)
        score = f"-({score}) / sqrt(|mu|)" if rnd.random() < 0.3 and self.sizes["mu"] else score
        count = rnd.choice([0, 0, 1, 2, 3])
        return score, " : " + " and ".join(self.condition(barred) for _ in range(count)) if count else ""

    def written(self, barred: list[str]) -> str:
        rnd = self.rnd
        score, where = self.scored(barred)
        sink = f"; sink={self.score(rnd.choice([[], ['mu']]))}" if rnd.random() < 0.15 else ""
        values = []
        for _ in range(rnd.randint(1, 2)):
            held = rnd.sample(barred, 1 if self.apart else rnd.choice([1, 1, 2]))
            values.append(self.tensor("v", [*held, *(["n"] if not values or rnd.random() < 0.5 else [])]))
        rest = [b for b in barred if not any(b in v for v in values)]
        weight = self.tensor("w", ["mu"])
        product = f"{weight} softmax[{' '.join(barred)}{where}{sink}]({score}) {' '.join(values)}"
        return f"y_<mu n> = sum[{' '.join(rest)}]({product})" if rest else f"y_<mu n> = {product}"

    @property
    def given(self) -> dict[str, int]:
        """The sizes of the indices that the text has."""
        return {n: s for n, s in self.sizes.items() if n not in ("n", "i") or f"{n}>" in self.text}

    def poisoned(self, names: list[str]) -> dict[str, np.ndarray]:
        inputs = {name: np.array(array) for name, array in self.inputs.items()}
        for name in self.rnd.sample(names, min(2, len(names))):
            array = inputs[name]
            if self.rnd.random() < 0.3:
                array[...] = self.rnd.choice([-np.inf, np.nan])
            elif array.size:
                array[tuple(self.rnd.randrange(n) for n in array.shape)] = self.rnd.choice([np.inf, -np.inf, np.nan])
        return inputs

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(f"\n{self.text}\nsizes {self.sizes}\n")


class LogSumExp(Formula):
    """A random log-sum-exp over several indices."""

    def written(self, barred: list[str]) -> str:
        score, where = self.scored(barred)
        return f"y_mu = lse[{' '.join(barred)}{where}]({score} + {self.tensor('r', ['mu'])})"


@st.composite
def formulas(draw: st.DrawFn) -> Formula:
    return Formula(draw(st.randoms(use_true_random=True)))


def both_sides(formula: Formula, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The value, that of the program after the rules, and the rounding error allowed."""
    program, given = ta.parse(formula.text), formula.given
    changed = rewrite(program).program
    scale = reference.magnitude(program, inputs, given)["y"]
    return evaluate(program, inputs, given)["y"], evaluate(changed, inputs, given)["y"], 1e-10 * (scale + 1e-3)


@given(formulas())
@SETTINGS
def test_both_sides_agree(formula: Formula) -> None:
    wanted, found, error = both_sides(formula, formula.inputs)
    assert (np.abs(found - wanted) <= error).all()


@given(formulas().filter(lambda f: all(f.sizes.values())))
@SETTINGS
def test_infinite_and_nan_scores_mean_the_same(formula: Formula) -> None:
    wanted, found, _ = both_sides(formula, formula.poisoned(formula.scores))
    np.testing.assert_allclose(found, wanted, atol=1e-9)


@given(formulas().filter(lambda f: all(f.sizes.values())))
@SETTINGS
def test_infinite_and_nan_values_reach_what_they_reached(formula: Formula) -> None:
    """An infinity may become NaN, as what is summed first may be 0."""
    inputs = formula.poisoned([n for n, a in formula.inputs.items() if a.dtype.kind == "f"])
    wanted, found, _ = both_sides(formula, inputs)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_allclose(found[finite], wanted[finite], atol=1e-9)


@given(formulas())
@FEWER
def test_gradients_are_those_of_the_formula_as_written(formula: Formula) -> None:
    def gradients() -> list[torch.Tensor]:
        inputs = {n: torch.tensor(a) for n, a in formula.inputs.items()}
        inner = [a.requires_grad_() for a in inputs.values() if a.dtype == torch.float64]
        result = compiled(formula, "dense")(inputs)
        weights = torch.arange(1.0, result.numel() + 1, dtype=torch.float64).reshape(result.shape)
        found = torch.autograd.grad((result * weights).sum(), inner, allow_unused=True)
        return [torch.zeros_like(a) if g is None else g for a, g in zip(inner, found, strict=True)]

    found = gradients()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "rewrite", lambda program: rewrite(program, CANONICAL))
        wanted = gradients()
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f, w, rtol=1e-8, atol=1e-10)


def compiled(formula: Formula, plan: str) -> ta.Compiled | None:
    try:
        return ta.compile(formula.text, plan=plan, sizes={n: s for n, s in formula.sizes.items() if n in BARRED})
    except ta.PlanError:
        return None


@given(st.randoms(use_true_random=True).map(LogSumExp), st.booleans())
@SETTINGS
def test_a_nested_log_sum_exp_has_the_value_of_the_joint_one(formula: Formula, poison: bool) -> None:
    """It is -∞ for the same rows, and finite for the same."""
    inputs = formula.poisoned(formula.scores) if poison and all(formula.sizes.values()) else formula.inputs
    wanted, found, error = both_sides(formula, inputs)
    run = compiled(formula, "auto")
    assert run is not None
    for value in (found, np.asarray(run(inputs))):
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(value), finite)
        np.testing.assert_array_equal(value == -np.inf, wanted == -np.inf)
        assert (np.abs(value[finite] - wanted[finite]) <= 10 * error[finite] + 1e-12).all()


@given(formulas(), st.booleans())
@FEWER
def test_what_is_compiled_agrees(formula: Formula, poison: bool) -> None:
    poison = poison and all(formula.sizes.values())
    inputs = formula.poisoned(formula.scores) if poison else formula.inputs
    wanted, _, error = both_sides(formula, inputs)
    for plan in ("dense", "streamed"):
        function = compiled(formula, plan)
        if function is not None:
            kinds = (
                [np.asarray] if plan == "streamed" and not all(formula.sizes.values()) else [np.asarray, torch.tensor]
            )
            for kind in kinds:
                found = np.asarray(function({n: kind(a) for n, a in inputs.items()}))
                finite = np.isfinite(wanted)
                np.testing.assert_array_equal(np.isfinite(found), finite)
                assert (np.abs(found - wanted)[finite] <= 10 * error[finite] + 1e-12).all()
