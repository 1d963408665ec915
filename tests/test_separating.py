"""Softmaxes of one product below predicates, each summed by itself: golden text, both sides, and what it saves."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.planning import plan
from tensorattn.program import Program
from tensorattn.reference import evaluate, magnitude
from tensorattn.rewriting import rewrite
from tensorattn.rewriting.fusing import fuse
from tensorattn.rewriting.separating import separate
from tests import goldens

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SETTINGS = settings(
    max_examples=60, derandomize=True, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
FEWER = settings(SETTINGS, max_examples=8)
TAKEN = (
    "y^mu_n = A^<mu bar(nu : nu <= mu)> v^nu_n B^<mu bar(rho : rho <= mu)> w^rho_n",
    "a^mu_n = A^<mu bar(nu : nu <= mu)> v^nu_n; b^mu_n = B^<mu bar(nu : nu <= mu)> v^nu_n; y^mu = a^mu_n b^mu_n / z^mu",
    "y^mu_n = A^<mu bar(nu)> v^nu_n B^<mu bar(rho : rho <= mu)> w^rho_n",  # what has no predicate stays a factor
    "z^nu_n = B^<nu bar(rho : rho <= nu)> v^rho_n; y^mu_n = A^<mu bar(nu : nu <= mu)> z^nu_n",
    "y_m = A_<m bar(i : i <= m)> B_<i bar(j : j <= i)> C_<j bar(k : keep_<j k>)> x_k c",
    "y^mu = sum[nu](A^<mu bar(nu : nu <= mu)>) B^<mu bar(rho : rho <= mu)> w^rho",
    "y_m = A_<m bar(i : i <= m)> B_<m bar(j : j <= m)> v_<i j>",
)
STAYS = (
    "y^mu_n = A^<mu bar(nu)> v^nu_n B^<mu bar(rho)> w^rho_n",  # no predicate
    "y^mu_n = A^<mu bar(nu : nu <= mu)> v^nu_n w^nu_n",  # one softmax
    "y_<m i> = softmax[i : i <= m](A_<m i>) B_<m bar(j : j <= m)> x_j",  # the weights over i are asked for
    "y_m = softmax[i : i <= m](A_<m i>) softmax[i : i < m](B_<m i>) x_i",  # one index, which is summed once
)


def both(text: str) -> tuple[Program, Program]:
    """A program, as the other rules leave it, and with the rule wherever it may be."""
    program = ta.parse(text.replace("; ", "\n"))
    before = rewrite(fuse(program, program.defined[-1:]))
    return before.program, separate(before, lambda node, joint: 0).program


def test_before_and_after(pytestconfig: pytest.Config) -> None:
    parts = [f"{before}\n  {after if after != before else 'stays'}" for before, after in map(both, (*TAKEN, *STAYS))]
    goldens.agree("separate.txt", "\n".join(parts) + "\n", pytestconfig)
    assert all("stays" not in part for part in parts[: len(TAKEN)])
    assert all("stays" in part for part in parts[len(TAKEN) :])


# random formulas ------------------------------------------------------------------------------------------------------


@dataclass
class Formula:
    """A product of two or three softmaxes, side by side or in a chain, some below predicates, and its inputs."""

    text: str
    inputs: dict[str, np.ndarray]

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(f"\n{self.text}\n{ {n: a.shape for n, a in self.inputs.items()} }\n")

    def poisoned(self, rnd: random.Random) -> dict[str, np.ndarray]:
        inputs = {name: np.array(array) for name, array in self.inputs.items()}
        for array in rnd.choices([a for a in inputs.values() if a.size and a.dtype.kind == "f"], k=2):
            array[tuple(rnd.randrange(n) for n in array.shape)] = rnd.choice([np.nan, np.inf, -np.inf])
        return inputs


PREDICATES = ("{b} <= {row}", "{row} < {b}", "{b} != {row}", "keep_<{row} {b}>", "near_<{b}>", "{b} < 1", "{b} < 9")


def drawn(seed: int) -> Formula:
    rnd, rng = random.Random(seed), np.random.default_rng(seed)
    names = ["i", "j", "k"][: rnd.choice([2, 2, 3])]
    sizes = dict(m=rnd.choice([1, 2, 3, 4]), n=2) | {name: rnd.choice([0, 1, 2, 3, 4, 5, 5]) for name in names}
    inputs: dict[str, np.ndarray] = {}

    def tensor(name: str, *axes: str) -> str:
        name = f"{name}{len(inputs)}"
        shape = [sizes[axis] for axis in axes]
        boolean = name.startswith(("keep", "near"))
        inputs[name] = rng.random(shape) < 0.6 if boolean else np.asarray(rng.normal(size=shape))
        return f"{name}_<{' '.join(axes)}>" if axes else name

    factors = []
    for place, b in enumerate(names):
        row = names[place - 1] if place and rnd.random() < 0.5 else "m"
        where = rnd.choice(PREDICATES).format(b=b, row=row) if rnd.random() < 0.8 else ""
        if found := re.fullmatch(r"(\w+)_<(.*)>", where):
            where = tensor(found[1], *found[2].split())
        kind = rnd.choice(["softmax"] * 4 + ["l1norm", "sparsemax"])
        sink = f"; sink={tensor('s')}" if kind == "softmax" and rnd.random() < 0.2 else ""
        factors.append(f"{kind}[{b}{' : ' * bool(where)}{where}{sink}]({tensor('a', row, b)})")
    held = [rnd.sample(names, rnd.choice([1, 1, 2])) for _ in range(2)] + [[b] for b in names]
    factors += [tensor("v", *axes, *rnd.choice([["n"], []])) for axes in held]
    result = rnd.choice(["y_<m n>", "y_m"])
    factors += [tensor("u", "m", "n"), *([tensor("u", "n")] if result == "y_m" else [])]
    factors += [tensor("w", *axes) for axes in rnd.choice([[], [["m"]], [[], ["n"]]])]
    rnd.shuffle(factors)
    divisor = f" / {tensor('z', *rnd.choice([[], ['m'], ['n'], [names[0]]]))}" if rnd.random() < 0.3 else ""
    return Formula(f"{result} = {' '.join(factors)}{divisor}", inputs)


formulas = st.integers(0, 2**32).map(drawn)


def sides(formula: Formula, inputs: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    program = ta.parse(formula.text)
    after = separate(rewrite(program), lambda node, joint: 0).program
    scale = magnitude(program, inputs)["y"]
    return evaluate(program, inputs)["y"], evaluate(after, inputs)["y"], 1e-10 * (scale + 1e-3)


@given(formulas)
@SETTINGS
def test_both_sides_agree(formula: Formula) -> None:
    wanted, found, error = sides(formula, formula.inputs)
    assert (np.abs(found - wanted) <= error).all()


@given(formulas.filter(lambda f: all(a.size for a in f.inputs.values())), st.randoms(use_true_random=True))
@SETTINGS
def test_what_is_not_finite_reaches_what_it_reached(formula: Formula, rnd: random.Random) -> None:
    """An infinity may become NaN, as what is summed first may be 0."""
    wanted, found, _ = sides(formula, formula.poisoned(rnd))
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(found), finite)
    np.testing.assert_allclose(found[finite], wanted[finite], atol=1e-9)


@given(formulas, st.randoms(use_true_random=True))
@FEWER
def test_what_is_compiled_agrees(formula: Formula, rnd: random.Random) -> None:
    full = all(a.size for a in formula.inputs.values())
    inputs = formula.poisoned(rnd) if full and rnd.random() < 0.5 else formula.inputs
    wanted, _, error = sides(formula, inputs)
    finite = np.isfinite(wanted)
    for kind in ("dense", "streamed"):
        try:
            run = ta.compile(formula.text, plan=kind)
            results = [np.asarray(run({n: wrap(a) for n, a in inputs.items()})) for wrap in (np.asarray, torch.tensor)]
        except ta.PlanError:
            continue
        for found in results:
            np.testing.assert_array_equal(np.isfinite(found), finite)
            assert (np.abs(found - wanted)[finite] <= 10 * error[finite] + 1e-12).all()


# what it saves --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", TAKEN[:4])
def test_nothing_is_as_large_as_the_indices_of_two_softmaxes(text: str) -> None:
    found = ta.compile(text.replace("; ", "\n"), plan="dense")
    assert "separate: below predicates" in found.explain()
    sizes = dict(mu=1000, nu=1000, rho=1000, n=16)
    cost = found.cost(**{n: sizes[n] for n in found.program.indices}).at({})
    assert cost.peak_bytes < 60 * 1000**2
    assert cost.flops < 120 * 1000**2


def test_a_chain_from_few_rows_is_summed_from_there() -> None:
    """`p (T B)` would be dearer than `(p T) B`; the predicates are no larger than T together."""
    text = "y_t = p_<bar(i : keep_i)> T_<i bar(j : near_<i j>)> B_<j t>"
    found = plan(ta.parse(text), ("y",), dict(i=300, j=300, t=50))
    assert len(found.orders) == 1


def test_gradients_are_those_of_plain_torch() -> None:
    text = (
        "z_<j n> = B_<j bar(k : k <= j)> v_<k n>\ny_<i n> = A_<i bar(j : j <= i)> z_<j n> A_<i bar(l : l < i)> v_<l n>"
    )
    rng = np.random.default_rng(0)
    x = {n: torch.tensor(rng.normal(size=s), requires_grad=True) for n, s in dict(A=(5, 5), B=(5, 5), v=(5, 2)).items()}

    def weights(s: torch.Tensor, diagonal: int) -> torch.Tensor:
        return s.masked_fill(~torch.ones(5, 5).tril(diagonal).bool(), -1e30).softmax(1).tril(diagonal)

    wanted = (weights(x["A"], 0) @ weights(x["B"], 0) @ x["v"]) * (weights(x["A"], -1) @ x["v"])
    for kind in ("dense", "streamed"):
        found = ta.compile(text, plan=kind)(x)
        torch.testing.assert_close(found, wanted)
        grads = [torch.autograd.grad(y.square().sum(), list(x.values()), retain_graph=True) for y in (found, wanted)]
        for f, w in zip(*grads, strict=True):
            torch.testing.assert_close(f, w)
