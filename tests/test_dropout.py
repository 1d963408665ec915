"""`dropout`: the factor it writes, in every plan that admits it, its statistics, and what it refuses."""

import math
from contextlib import suppress

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.reference import evaluate, magnitude

FORMULAS = {
    "softmax": "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n",
    "causal": "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n",
    "heads": "y^<h mu>_n = softmax[nu](q^<h mu>_i k^<h nu>_i / 2) v^<h nu>_n",
    "batch": "y^<... mu>_n = softmax[nu](q^<... mu>_i k^<... nu>_i) v^<... nu>_n",
    "joint": "W^<mu nu rho> = sum[i](k^mu_i q^nu_i r^rho_i)\ny^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n",
    "separable": "y^mu_n = softmax[nu rho](a^<mu nu> + b^<mu rho>) v^<nu rho>_n",
    "symmetric": "y^mu_n = softmax[nu rho](sum[i](k^mu_i k^nu_i k^rho_i)) v^nu_n v^rho_n",
    "difference": "y^mu_n = (a^<mu bar(nu)> - 0.5 * b^<mu bar(nu)>) v^nu_n",
    "kept": "P^<mu nu> = a^<mu bar(nu)>\ny^mu_n = P^<mu nu> v^nu_n",
    "linear": "y^mu_n = l1norm[nu](q^mu_i k^nu_i) v^nu_n",
    "sparse": "y^mu_n = sparsemax[nu](q^mu_i k^nu_i) v^nu_n",
}
SIZES = {"mu": 5, "nu": 5, "rho": 5, "i": 3, "n": 2, "h": 2}


def inputs(name, seed=0, sizes=SIZES):
    """Arrays for a formula: the lengths of the objects are one, for `symmetric` and `causal` take one tensor twice."""
    rng, program, found = np.random.default_rng(seed), ta.parse(FORMULAS[name]), {}
    for tensor in program.tensors:
        if tensor.name not in program.defined:
            shape = [n for s in tensor.slots for n in ([2, 3] if s.name == "..." else [sizes[s.name]])]
            found[tensor.name] = np.abs(rng.normal(size=shape)) + 0.1 if name == "linear" else rng.normal(size=shape)
    return found


def run(library, compiled, arrays, **scalars):
    given = {n: torch.from_numpy(x) for n, x in arrays.items()} if library == "torch" else arrays
    return np.asarray(compiled(**given, **scalars))


def plans(program):
    """The plans that the program has, compiled."""
    found = {}
    for plan in ("dense", "streamed", "factored", "flattened"):
        with suppress(ta.PlanError):
            found[plan] = ta.compile(program, plan=plan)
    return found


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("name", FORMULAS)
def test_every_plan_drops_the_same(name, library):
    dropped, arrays = ta.dropout(FORMULAS[name]), inputs(name)
    scalars = {"seed": 11, "rate": 0.4}
    want = evaluate(dropped, arrays | scalars)["y"]
    scale = magnitude(dropped, arrays | scalars)["y"]
    plain = evaluate(ta.parse(FORMULAS[name]), arrays)["y"]
    assert not np.allclose(want, plain)
    made = plans(dropped)
    assert "dense" in made
    assert "streamed" in made
    assert "flattened" not in made, "the library's kernel does not know these factors"
    for plan, compiled in made.items():
        got = run(library, compiled, arrays, **scalars)
        assert np.all(np.abs(got - want) <= 1e-12 * np.maximum(scale, 1)), plan
        none = run(library, compiled, arrays, seed=11, rate=0)
        assert np.all(np.abs(none - plain) <= 1e-12 * np.maximum(scale, 1)), plan


def test_factor_is_that_of_independent_loops():
    W, v = np.random.default_rng(0).normal(size=(4, 6)), np.random.default_rng(1).normal(size=(6, 2))
    got = ta.compile(ta.dropout("y^mu_n = W^<mu bar(nu)> v^nu_n"))(W=W, v=v, seed=3, rate=0.25)
    draw = ta.compile("u_<a b> = uniform(s, 0, a, b)", sizes={"a": 4, "b": 6})(s=3)
    weights = np.exp(W) / np.exp(W).sum(axis=1, keepdims=True)
    want = np.zeros((4, 2))
    for a in range(4):
        for b in range(6):
            want[a] += weights[a, b] * v[b] / 0.75 if draw[a, b] >= 0.25 else 0
    np.testing.assert_allclose(got, want, rtol=1e-13)


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.sampled_from(sorted(FORMULAS)),
    st.integers(0, 7),
    st.integers(0, 3),
    st.floats(0, 1),
    st.integers(-(2**63), 2**63 - 1),
)
def test_random_sizes_seeds_and_rates(name, length, width, rate, seed):
    sizes = {**SIZES, "mu": length, "nu": length, "rho": length, "n": width}
    dropped, arrays = ta.dropout(FORMULAS[name]), inputs(name, 1, sizes)
    scalars = {"seed": seed, "rate": rate}
    want, scale = (f(dropped, arrays | scalars)["y"] for f in (evaluate, magnitude))
    for plan, compiled in plans(dropped).items():
        got = compiled(**arrays, **scalars)
        assert np.all(np.abs(got - want) <= 1e-11 * np.maximum(scale, 1)), plan


def test_rate_one_drops_everything():
    arrays = inputs("softmax")
    for _, compiled in plans(ta.dropout(FORMULAS["softmax"])).items():
        assert np.all(compiled(**arrays, seed=1, rate=1) == 0)


@pytest.mark.parametrize("plan", ["dense", "streamed"])
def test_mean_is_preserved_and_the_share_is_the_rate(plan):
    kept = ta.compile(ta.dropout("P^<mu nu> = W^<mu bar(nu)>"))(W=np.zeros((200, 100)), seed=5, rate=0.3)
    share = np.mean(kept == 0)
    assert abs(share - 0.3) < 5 * math.sqrt(0.3 * 0.7 / kept.size)
    np.testing.assert_allclose(kept[kept != 0], 0.01 / 0.7, rtol=1e-12)
    compiled = ta.compile(ta.dropout("y^mu = W^<mu bar(nu)> v^nu"), plan=plan)
    many = [compiled(W=np.zeros((20, 50)), v=np.ones(50), seed=n, rate=0.3) for n in range(40)]
    assert abs(np.mean(many) - 1) < 5 * math.sqrt(0.3 / 0.7 / (40 * 20 * 50))


def test_weights_heads_and_batches_have_numbers_of_their_own():
    text = "a^<... mu nu> = S^<... mu bar(nu)>\nb^<... mu nu> = S^<... mu bar(nu)>"
    found = ta.compile(ta.dropout(text), outputs=["a", "b"])(S=np.zeros((2, 3, 40, 40)), seed=1, rate=0.5)
    masks = [found["a"][0, 0], found["a"][0, 1], found["a"][1, 0], found["b"][0, 0]]
    for n, one in enumerate(masks):
        for other in masks[:n]:
            assert abs(np.mean((one != 0) == (other != 0)) - 0.5) < 5 * 0.5 / 40
    single = ta.compile(ta.dropout(text), outputs=["a", "b"])(S=np.zeros((40, 40)), seed=1, rate=0.5)
    assert single["a"].shape == (40, 40)


def test_chosen_statements_and_names():
    text = "P^<mu nu> = a^<mu bar(nu)>\nR^<mu nu> = b^<mu bar(nu)>"
    both = ta.dropout(text)
    assert both.inputs == ("a", "seed", "rate", "b")
    one = ta.dropout(text, of="R", seed="s", rate="p")
    assert str(one).splitlines()[0] == "P^<mu nu> = a^<mu bar(nu)>"
    assert str(one).splitlines()[1].endswith("where(uniform(s, 0, mu, nu) >= p, 1 / (1 - p), 0)")
    assert ta.dropout(text, of=["P", "R"]) == both
    assert (
        "where" not in str(ta.dropout("y_i = softmax[j : top[j; 2](softmax[j](x_<i j>))](x_<i j>) v_j")).split("[")[2]
    )


@pytest.mark.parametrize("name", FORMULAS)
def test_prints_and_reads_back(name):
    dropped = ta.dropout(FORMULAS[name])
    assert ta.parse(str(dropped)) == dropped
    assert str(ta.parse(str(dropped))) == str(dropped)


def test_refusals():
    with pytest.raises(ta.BindingError, match="no weights are made in `P`") as found:
        ta.dropout("P_<i j> = 2 x_<i j>\nR_<i j> = P_<i bar(j)>", of="P")
    assert found.value.code == "E-UNDEF"
    with pytest.raises(ta.BindingError, match="the program has no statement `z`"):
        ta.dropout("R_<i j> = P_<i bar(j)>", of="z")
    with pytest.raises(ta.BindingError, match="no weights are made in this program"):
        ta.dropout("y_i = l2norm[i](x_i)")
    with pytest.raises(ta.BindingError, match="`seed` is in the program already"):
        ta.dropout("R_<i j> = P_<i bar(j)> seed")
    with pytest.raises(ta.BindingError, match="`i` is in the program already"):
        ta.dropout("R_<i j> = P_<i bar(j)>", rate="i")
    for wrong in ("exp", "two words", "", "é"):
        with pytest.raises(ta.BindingError, match="cannot be the name of an input"):
            ta.dropout("R_<i j> = P_<i bar(j)>", rate=wrong)
    with pytest.raises(ta.BindingError, match="seed and rate are both called"):
        ta.dropout("R_<i j> = P_<i bar(j)>", seed="s", rate="s")


@pytest.mark.parametrize("plan", ["dense", "streamed"])
def test_gradients_use_the_same_numbers(plan):
    rng = np.random.default_rng(2)
    q, k, v = (torch.tensor(rng.normal(size=(n, 3)), requires_grad=True) for n in (4, 6, 6))
    compiled = ta.compile(ta.dropout(FORMULAS["softmax"]), plan=plan)
    assert torch.autograd.gradcheck(lambda q, k, v: compiled(q=q, k=k, v=v, seed=2, rate=0.4), (q, k, v))
