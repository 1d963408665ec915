"""Definitions in place: what plans see, and that it means the same."""

from __future__ import annotations

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.planning import plan
from tensorattn.reference import evaluate
from tensorattn.rewriting.fusing import fuse

RNG = np.random.default_rng(0)


def fused(text: str, *outputs: str) -> ta.Program:
    program = ta.parse(text)
    return fuse(program, outputs or (program.defined[-1],))


def test_a_score_a_softmax_and_the_values_become_one_statement() -> None:
    assert fused("S^<mu nu> = q^mu_i k^nu_i\nW^<mu nu> = S^<mu bar(nu)>\ny^mu = W^<mu nu> v^nu") == ta.parse(
        "y^mu = softmax[nu](q^mu_i k^nu_i) v^nu"
    )


@pytest.mark.parametrize(
    "text",
    [
        "s_i = exp(x_i)\ny_i = s_i + s_i * z_i",
        "s_<i j> = x_i z_j\ny_i = s_<i i>",
        "s_<(i j)> = x_i z_j\ny_k = exp(s_k)",
        "s_i = x_i\ny_i = s_<i - i>",
        "d_i = e_i\ny_i = x_<d_i>",
    ],
)
def test_what_is_read_twice_or_in_part_stays(text: str) -> None:
    assert fused(text) == ta.parse(text)


def test_an_output_stays() -> None:
    text = "s_i = exp(x_i)\ny_i = 2 s_i"
    assert fused(text, "s", "y") == ta.parse(text)


def test_indices_summed_in_two_definitions_stay_apart() -> None:
    text = "a^mu = q^mu_i k_i\nb^mu = p^mu_i l_i\ny = a^mu b^mu"
    inputs = {"q": RNG.normal(size=(3, 2)), "p": RNG.normal(size=(3, 2)), "k": RNG.normal(size=2)}
    inputs["l"] = RNG.normal(size=2)
    wanted = ((inputs["q"] @ inputs["k"]) * (inputs["p"] @ inputs["l"])).sum()
    np.testing.assert_allclose(evaluate(fused(text), inputs)["y"], wanted)
    np.testing.assert_allclose(ta.compile(text)(inputs), wanted)
    assert len(plan(ta.parse(text), ("y",), None).orders) == 1, "one product, one order"


@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_an_admitted_infinity_of_one_array_stays_one(kind: str) -> None:
    text = f"s_<i j> = x_<i j> z_j\ny_i = {kind}[j : j <= i](s_<i j>)"
    x = np.ones((2, 3))
    x[1, 1] = np.inf
    inputs = {"x": x, "z": np.ones(3)}
    np.testing.assert_array_equal(ta.compile(text)(inputs), evaluate(ta.parse(text), inputs)["y"])
    assert ta.compile(text)(inputs)[1] == np.inf
