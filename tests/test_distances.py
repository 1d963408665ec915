"""Squared distances in scores: both forms, which is taken when, and what is no finite number."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.kernel import Contract, IfFinite
from tensorattn.reference import evaluate
from tests import programs

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

SQUARE = "y^mu_n = softmax[nu](-sum[i]((x^mu_i - z^nu_i)**2) / (2 * s**2)) v^nu_n"
FORMS = (
    SQUARE,
    "y^mu_n = softmax[nu](-((x^mu_i - z^nu_i) (x^mu_i - z^nu_i)) / (2 * s**2)) v^nu_n",
    "y^mu_n = softmax[nu : nu <= mu](-0.5 * sum[i]((x^mu_i + z^nu_i)**2)) v^nu_n",
    "y^mu = lse[nu](0.1 * sum[i]((z^nu_i - x^mu_i)**2) + b^nu)",
    "y^mu = softmax[nu rho](-0.2 * sum[i]((x^mu_i - z^nu_i)**2) + u^<nu rho>) p^nu w^rho",
    "d^<mu nu> = sum[i]((x^mu_i - z^nu_i)**2)\ny^mu_n = softmax[nu](-d^<mu nu>) v^nu_n",
)
LEFT = (
    "y^<mu nu> = sum[i]((x^mu_i - z^nu_i)**2)",  # a distance that is asked for would lose its last digits
    "y^<mu nu> = sqrt(sum[i]((x^mu_i - z^nu_i)**2))",
    "y^mu_n = softmax[nu](-sum[i]((x^mu_i - z^nu_i)**4)) v^nu_n",
    "y^mu_n = softmax[nu](-sum[i](abs(x^mu_i - z^nu_i))) v^nu_n",
    "y^mu_n = softmax[nu](-sum[i]((x^<mu nu>_i - z^nu_i)**2)) v^nu_n",  # as large as the difference
    "y^mu_n = softmax[nu](-sum[i](w_i (x^mu_i - z^nu_i)**2)) v^nu_n",
    "y^mu_n = softmax[nu](-sqrt(sum[i]((x^mu_i - z^nu_i)**2))) v^nu_n",
    "y^mu_n = softmax[nu](-(x^mu - z^nu)**2) v^nu_n",  # no sum
)


def branches(text: str, **sizes: int) -> list[IfFinite]:
    """The choices between the two forms in a dense kernel."""
    body = ta.compile(text, plan="dense").kernel(sizes).body
    found = [i for i in body if isinstance(i, IfFinite) and any(isinstance(f, Contract) for f in i.fast)]
    return [i for i in found if i.values[0].axes == ()]


@pytest.mark.parametrize("text", FORMS)
def test_a_squared_distance_is_one_product(text: str) -> None:
    assert len(branches(text)) == 1
    sizes = {"mu": 100, "nu": 100, "i": 16}
    names = {n.name for s in ta.parse(text).statements for n in s.body.free} | {"mu", "nu", "rho", "i", "n"}
    counted = ta.compile(text, plan="dense").cost().at({**dict.fromkeys(names, 4), **sizes})
    assert counted.peak_bytes < 8 * 100 * 100 * 16, "no array over pairs and features"


@pytest.mark.parametrize("text", LEFT)
def test_near_misses_are_left_alone(text: str) -> None:
    assert not branches(text)


def test_a_few_features_are_subtracted() -> None:
    assert not branches(SQUARE, mu=50, nu=50, n=4, i=3)
    assert branches(SQUARE, mu=50, nu=50, n=4, i=4)


def drawn(program: ta.Program, seed: int) -> tuple[dict[str, int], dict[str, np.ndarray]]:
    sizes = programs.some_sizes(program, random.Random(seed))
    arrays = programs.inputs(program, sizes, np.random.default_rng(seed))
    if "s" in arrays:
        arrays["s"] = np.array(1.3)
    return sizes, arrays


@pytest.mark.parametrize("scale", [1.0, 1e3, 1e160])
@pytest.mark.parametrize("text", FORMS)
def test_the_value_is_that_of_the_reference(text: str, scale: float) -> None:
    """Small norms take the product, large ones the differences; squares that overflow are −∞ in both."""
    program = ta.parse(text)
    for seed in range(2):
        sizes, arrays = drawn(program, seed)
        for name in ("x", "z"):
            arrays[name] = arrays[name] * scale
        with np.errstate(all="ignore"):
            programs.compiled_agrees(program, arrays, sizes)


@pytest.mark.parametrize("offset", [0.0, 10.0, 1e6, 1e12])
def test_points_far_from_the_origin_keep_their_distances(offset: float) -> None:
    rng = np.random.default_rng(0)
    x, z, v = rng.normal(size=(30, 8)), rng.normal(size=(40, 8)), rng.normal(size=(40, 3))
    x, z = x + offset, z + offset
    score = -((x[:, None] - z[None]) ** 2).sum(-1) / 2
    weights = np.exp(score - score.max(1, keepdims=True))
    wanted = weights @ v / weights.sum(1, keepdims=True)
    for plan in ("dense", "streamed"):
        compiled = ta.compile(SQUARE, plan=plan)
        assert np.abs(compiled(x=x, z=z, v=v, s=1.0) - wanted).max() < 1e-10
        if offset < 1e3:
            small = compiled({n: a.astype(np.float32) for n, a in dict(x=x - offset, z=z - offset, v=v).items()}, s=1.0)
            assert np.abs(small - wanted).max() < 1e-5


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_what_is_no_finite_number_means_what_it_meant(bad: float, plan: str) -> None:
    for text in (SQUARE, FORMS[2]):
        program = ta.parse(text)
        sizes, arrays = {"mu": 5, "nu": 7, "i": 4, "n": 2}, {}
        arrays = programs.inputs(program, sizes, np.random.default_rng(0))
        for name in ("x", "z"):
            poisoned = {**arrays, name: arrays[name].copy()}
            poisoned[name][3, 1] = bad
            wanted = evaluate(program, poisoned, sizes)["y"]
            with np.errstate(all="ignore"):
                found = ta.compile(program, plan=plan)(poisoned)
            assert np.array_equal(np.isnan(found), np.isnan(wanted))
            assert (np.abs(found - wanted)[~np.isnan(wanted)] < 1e-12).all()


def test_the_gradient_is_that_of_the_differences() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(6, 4)), "z": rng.normal(size=(5, 4)), "v": rng.normal(size=(5, 2))}
    leaves = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}
    found = torch.autograd.grad(ta.compile(SQUARE)(leaves, s=1.5).sin().sum(), list(leaves.values()))
    weights = torch.softmax(-((leaves["x"][:, None] - leaves["z"][None]) ** 2).sum(-1) / 4.5, -1)
    wanted = torch.autograd.grad((weights @ leaves["v"]).sin().sum(), list(leaves.values()))
    for a, b in zip(found, wanted, strict=True):
        assert (a - b).abs().max() < 1e-12
