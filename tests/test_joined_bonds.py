"""Flattened plans of scores that are several products: their bonds joined to one, equal to the reference."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import kinds
from tensorattn.kernel import Attend, IfFinite, Join, Stream
from tensorattn.lowering.flattening import flattened
from tensorattn.reference import evaluate, magnitude
from tests.kernels import BOTH, INF, NAN
from tests.test_flattened import chunked

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SHAPES = dict(
    a="h mu i", b="h nu i", c="h nu i", e="h rho i", f="h rho i", g="h mu i", v="h nu n", w="h rho n", q="mu i",
    k="nu i", r="mu p", s="nu p", z="rho p", d="nu", D="nu rho", B="mu nu", x="", V="nu rho n", m="mu nu",
)  # fmt: skip
JOINT = (
    "y^<h mu>_n = softmax[nu rho](a^<h mu>_i b^<h nu>_i + c^<h nu>_i e^<h rho>_i + f^<h rho>_i g^<h mu>_i) "
    "v^<h nu>_n w^<h rho>_n"
)
LOW_RANK = "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i / sqrt(|i|) + r^mu_p s^nu_p / 3 + d_nu) v^<h nu>_n"
TERMS = [
    "q^mu_i k^nu_i / sqrt(|i|)", "r^mu_p s^nu_p * x", "r^mu_p z^rho_p", "a^<h mu>_i f^<h rho>_i", "D^<nu rho>", "d_nu",
    "- g^<h mu>_i c^<h nu>_i D^<nu rho>", "2 * q^mu_i k^nu_i D^<nu rho>", "B^<mu nu>", "q^mu_i b^<h nu>_i",
]  # fmt: skip


@pytest.fixture(autouse=True)
def joined(monkeypatch):
    """Bonds joined wherever they can be, whatever that costs."""
    monkeypatch.setattr(kinds, "flattened", lambda *args, **more: flattened(*args, **{**more, "join": True}))


def arrays(program, sizes, rng, dtype=np.float64):
    found = {}
    for name in program.inputs:
        shape = tuple(sizes[a] for a in SHAPES[name].split())
        found[name] = rng.random(shape) < 0.7 if name == "m" else np.asarray(rng.normal(size=shape), dtype)
    return found


def instructions(body):
    for i in body:
        yield i
        yield from instructions(i.fast if isinstance(i, IfFinite) else i.body if isinstance(i, Stream) else ())


def drawn(seed):
    rnd = random.Random(seed)
    score = " + ".join(rnd.sample(TERMS, rnd.randint(2, 4))).replace("+ -", "- ")
    where = rnd.choice(["", "", " : m^<mu nu>", " : rho <= nu"])
    score = score if not score.startswith("- ") else f"d_nu {score}"
    text = f"y^<h mu>_n = softmax[nu rho{where}]({score} + D^<nu rho>) v^<h nu>_n w^<h rho>_n"
    sizes = dict(zip(("mu", "nu", "rho", "h"), rnd.sample([2, 3, 5, 7], 4), strict=True))
    sizes |= {"i": rnd.choice([1, 4]), "p": 2, "n": 3}
    if rnd.random() < 0.15:
        sizes[rnd.choice(list(sizes))] = rnd.choice([0, 1])
    return text, sizes, rnd.randrange(2**32)


@settings(max_examples=14, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 2**32), st.sampled_from([0, 1, 40]), st.sampled_from([np.float64, np.float32]))
def test_any_sum_of_products_equals_the_reference(seed, entries, dtype):
    text, sizes, seed = drawn(seed)
    program = ta.parse(text)
    x = arrays(program, sizes, np.random.default_rng(seed), dtype)
    try:
        compiled = ta.compile(text, plan="flattened")
        expected, size = evaluate(program, x)["y"], magnitude(program, x)["y"]
    except (ta.PlanError, ta.ShapeError):
        return
    allowed = (1e-10 if dtype == np.float64 else 1e-5) * (size + 1e-3)
    with chunked(entries):
        for wrap in (np.asarray, torch.tensor):
            found = np.asarray(ta.compile(text, plan="flattened")({k: wrap(a) for k, a in x.items()}))
            assert (np.abs(found - expected) <= allowed).all(), text
    assert compiled.plan().kind == "flattened"


@pytest.mark.parametrize(("text", "bond"), [(JOINT, 9), (LOW_RANK, 7)])
def test_one_call_with_a_longer_bond(text, bond):
    compiled = ta.compile(text.replace("<h nu>", "nu") if text == LOW_RANK else text, plan="flattened")
    kernel = compiled.kernel()
    found = list(instructions(kernel.body))
    assert sum(isinstance(i, Join) for i in found) == 2
    (attend,) = (i for i in found if isinstance(i, Attend))
    sizes = {"i": 4, "p": 2}
    assert dict(kernel.sizes)[attend.bond[0].name].value(sizes) == bond
    assert attend.bias is None, "biases of keys are a column"
    assert "bond_" not in str(compiled.cost().flops), "costs are in terms of the sizes of the formula"
    assert "bond_" not in "".join(map(str, compiled.cost().peaks))


@BOTH
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_means_what_it_means_densely(library, bad):
    text = LOW_RANK.replace("<h nu>", "nu")
    wrap = np.asarray if library == "numpy" else torch.tensor
    shapes = {**SHAPES, "v": "nu n"}
    for where in (True, False):
        program = ta.parse(text if where else text.replace(" : nu <= mu", ""))
        for n, name in enumerate("qkrsdv"):
            rng = np.random.default_rng(n)
            sizes = dict(mu=5, nu=5, i=3, p=2, n=2)
            x = {k: rng.normal(size=[sizes[a] for a in shapes[k].split()]) for k in program.inputs}
            x[name][(3, *[1] * (x[name].ndim - 1))] = bad
            y, z = (
                np.asarray(ta.compile(program, plan=p)({k: wrap(a) for k, a in x.items()}))
                for p in ("flattened", "dense")
            )
            np.testing.assert_allclose(y, z, atol=1e-12, err_msg=f"{name} {where}")


@pytest.mark.parametrize("text", [JOINT, LOW_RANK.replace("<h nu>", "nu")])
def test_gradients(text):
    rng = np.random.default_rng(0)
    program = ta.parse(text)
    shapes = SHAPES if text == JOINT else {**SHAPES, "v": "nu n"}
    sizes = dict(h=2, mu=3, nu=4, rho=3, i=3, p=2, n=2)
    x = {
        k: torch.tensor(rng.normal(size=[sizes[a] for a in shapes[k].split()]), requires_grad=True)
        for k in program.inputs
    }
    flat = ta.compile(text, plan="flattened")
    assert torch.autograd.gradcheck(lambda *a: flat(dict(zip(x, a, strict=True))), tuple(x.values()))


def test_a_key_that_lacks_the_axis_of_the_chunks_is_spread_in_each():
    text = "y^mu_n = softmax[nu rho](r^mu_p z^rho_p + D^<nu rho>) v^nu_n w^rho_n"
    shapes = {**SHAPES, "v": "nu n", "w": "rho n"}
    for nu, rho in ((9, 4), (4, 9)):
        sizes = dict(mu=3, nu=nu, rho=rho, p=2, n=2)
        x = {
            k: np.random.default_rng(0).normal(size=[sizes[a] for a in shapes[k].split()])
            for k in ta.parse(text).inputs
        }
        expected = evaluate(ta.parse(text), x)["y"]
        for entries in (0, 1, 10):
            with chunked(entries):
                np.testing.assert_allclose(ta.compile(text, plan="flattened")(x), expected, atol=1e-12)


def test_the_cheaper_of_both_is_taken(monkeypatch):
    monkeypatch.setattr(kinds, "flattened", flattened)
    text = LOW_RANK.replace("<h nu>", "nu").replace(" : nu <= mu", "")
    sizes = dict(mu=2048, nu=2048, i=64, p=8, n=64)
    kernel = ta.compile(text, plan="flattened").kernel(sizes, backend="torch")
    assert any(isinstance(i, Join) for i in instructions(kernel.body)), "a bias of N² entries costs more than 8 columns"
