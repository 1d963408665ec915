"""Equal expressions of a program are computed once, in whatever statements and under whatever names."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.alike import form
from tensorattn.kernel import Contract, IfBounded, Kernel, Normalised, Stream
from tensorattn.reference import evaluate, magnitude
from tests import programs

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

SHARED = {  # formula: how many products over pairs and softmaxes are left
    "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n\nz^mu_n = softmax[nu](q^mu_i k^nu_i) w^nu_n": (3, 1),
    "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n\nz^mu_n = softmax[rho](q^mu_j k^rho_j) w^rho_n": (3, 1),
    "y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n\nz^mu_n = softmax[nu](q^mu_j k^nu_j / sqrt(|j|)) w^nu_n":
        (3, 1),
    "a^<mu rho> = softmax[nu](q^mu_i k^nu_i r^rho_i) v^nu\nb^<mu nu> = softmax[rho](q^mu_i k^nu_i r^rho_i) w^rho":
        (3, 2),
    "y_i = softmax[j](x_i x_j) v_j + softmax[l](x_i x_l) w_l": (2, 1),
    "y_i = softmax[j : j <= i](s_<i j>) v_j\nz_i = softmax[j : j <= i](s_<i j>) w_j": (None, 1),
    "y_i = softmax[j : j <= i](log(s_<i j>)) v_j\nz_k = softmax[l : l <= k](log(s_<k l>)) w_l": (None, 1),
    "a_<i j> = exp(x_i) * z_j\nb_<k j> = exp(x_k) * z_j": (None, 0),
}  # fmt: skip
APART = {
    "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n\nz^mu_n = softmax[nu](k^mu_i q^nu_i) w^nu_n": (4, 2),
    "y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n\nz^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|n|)) w^nu_n":
        (4, 2),
    "y_i = softmax[j : j <= i](s_<i j>) v_j\nz_i = softmax[j : j < i](s_<i j>) w_j": (None, 2),
}  # fmt: skip


def compiled(text: str, plan: str) -> tuple[ta.Program, ta.Compiled]:
    program = ta.parse(text)
    return program, ta.compile(program, outputs=program.defined, plan=plan)


def counted(kernel: Kernel) -> tuple[int, int]:
    """Contractions and softmaxes, in branches only where those are fast."""
    body = list(kernel.body)
    for instruction in body:
        body.extend(getattr(instruction, "fast", ()))
    return sum(isinstance(i, Contract) for i in body), sum(isinstance(i, Normalised) for i in body)


@pytest.mark.parametrize("text", [*SHARED, *APART])
def test_how_much_is_computed(text: str) -> None:
    _, found = compiled(text, "dense")
    contractions, softmaxes = {**SHARED, **APART}[text]
    counts = counted(found.kernel())
    assert counts[1] == softmaxes
    if contractions is not None:
        assert counts[0] == contractions


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("text", [*SHARED, *APART])
def test_the_values_are_those_of_the_reference(text: str, plan: str) -> None:
    if plan == "streamed" and "softmax" not in text:
        return
    program, found = compiled(text, plan)
    for seed in range(4):
        sizes = programs.some_sizes(program, random.Random(seed))
        arrays = programs.inputs(program, sizes, np.random.default_rng(seed))
        wanted = evaluate(program, arrays, sizes, program.defined)
        scale = magnitude(program, arrays, sizes, program.defined)
        with np.errstate(all="ignore"):
            results = found(arrays)
        for name in program.defined:
            programs.close(results[name], wanted[name], scale[name])


def loops(kernel: Kernel) -> int:
    return sum(isinstance(i, (Stream, IfBounded)) for i in kernel.body)


def test_one_loop_makes_what_is_equal() -> None:
    """Equal weights by whatever names, and two softmaxes of one score that have a free axis in common."""
    for text in list(SHARED)[:4]:
        _, found = compiled(text, "streamed")
        kernel = found.kernel()
        assert loops(kernel) == 1
        assert not any(isinstance(i, Normalised) for i in kernel.body)


def test_scores_are_made_in_each_of_two_loops_that_run_across_each_other() -> None:
    text = "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n\nz^nu_n = softmax[mu](q^mu_i k^nu_i) w^mu_n"
    chosen = compiled(text, "streamed")[1].choice(mu=4001, nu=4003, i=4, n=4).chosen
    assert loops(chosen.kernel) == 2
    assert chosen.peak < 8 * 4001 * 4003 / 4


def test_weights_whose_values_need_their_own_result_are_made_twice() -> None:
    text = "y^mu_n = softmax[nu](s^<mu nu>) v^nu_n\nz^mu_n = softmax[nu](s^<mu nu>) exp(y^nu_n)"
    _, found = compiled(text, "streamed")
    assert loops(found.kernel()) == 2
    assert counted(compiled(text, "dense")[1].kernel())[1] == 1
    rng = np.random.default_rng(0)
    s, v = rng.normal(size=(7, 7)), rng.normal(size=(7, 2))
    weights = np.exp(s) / np.exp(s).sum(1, keepdims=True)
    assert np.abs(found(s=s, v=v)["z"] - weights @ np.exp(weights @ v)).max() < 1e-12


def test_results_share_no_memory() -> None:
    for library in ("numpy", "torch"):
        x = np.ones(3)
        found = ta.compile("a_i = exp(x_i)\nb_i = exp(x_i)", outputs=("a", "b"))
        if library == "torch":
            import torch

            x = torch.tensor(x)
        results = found(x=x)
        results["a"][:] = 0
        assert (results["b"] > 1).all(), library


@pytest.mark.parametrize(
    ("a", "b", "equal"),
    [
        ("y = q_<i> k_<i>", "y = q_<j> k_<j>", True),
        ("y_i = A_<i j> x_j / |j|", "y_k = A_<k l> x_l / |l|", True),
        ("y_i = A_<i j> x_j / |j|", "y_i = A_<i j> x_j / |i|", False),
        ("y_<i j> = A_<i j>", "y_<i j> = A_<j i>", True),  # the same array; its indices are in another order
        ("y_<i j> = A_<i j> x_i", "y_<i j> = A_<i j> x_j", False),
        ("y = sum[j](x_0)".replace("_0", "_<0>"), "y = sum[k](x_<0>)", False),  # nothing says that |j| = |k|
        ("y_t = sum[h d](x_<t (h d)>) / |h|", "y_t = sum[g e](x_<t (g e)>) / |g|", False),
    ],
)
def test_forms(a: str, b: str, equal: bool) -> None:
    first, second = (form(ta.parse(text).statements[0].body) for text in (a, b))
    assert (first.expression == second.expression) == equal
