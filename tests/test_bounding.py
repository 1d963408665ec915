"""Loops without a maximum: only where the bound allows it, and then with the values of every other plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.backends.numpy import weights as numpy_weights
from tensorattn.backends.torch import weights as torch_weights
from tensorattn.lowering import bounding, streaming
from tensorattn.reference import evaluate
from tests.test_streaming import FORMULAS, arrays

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SCORES = [
    "q^mu_i k^nu_i",
    "q^mu_i k^nu_i r^rho_i",
    "3 tanh(q^mu_i k^nu_i / 2) - b_nu",
    "(q^mu_i + u_i) (k^nu_i - 2 k^nu_i) + b_nu x_nu",
    "abs(q^mu_i k^nu_i) + sin(b_nu) g_mu",
    "q^mu_i k^nu_i r^rho_j b_nu c_j",
]
REUSED = [  # what a step leaves is read again later
    "S^<mu nu> = q^mu_i k^nu_i; y^mu_n = softmax[nu](S^<mu nu> tanh(S^<mu nu>) + S^<mu nu>) v^nu_n",
    "T^<nu i> = k^nu_i + b_nu; y^mu_n = softmax[nu : nu <= mu](q^mu_i T^<nu i> + W^<mu nu>) (v^nu_n + T^<nu i> w_i)",
]
SHAPES = dict(q="mu i", k="nu i", r="rho i", b="nu", x="nu", u="i", g="mu", c="i", v="nu n", w="rho n")


def data(program, seed, scales=(1.0,)):
    """Seed 0: constants, for which the inequality of Cauchy and Schwarz is an equality."""
    rng = np.random.default_rng(seed)
    sizes = dict(mu=7, nu=5, rho=3, i=4, n=2)  # so that k and r are multiplied first, in the loop
    found = {}
    for number, name in enumerate(program.inputs):
        size = tuple(sizes[a] for a in SHAPES[name].split())
        found[name] = (rng.normal(size=size) if seed else np.ones(size)) * scales[number % len(scales)]
    return found


def attention(score):
    group, more = ("nu rho", "w^rho_n") if "rho" in score else ("nu", "")
    return ta.parse(f"y^mu_n = softmax[{group}]({score}) v^nu_n {more}")


@pytest.fixture
def weighed(monkeypatch):
    """How often a tile was weighed with a maximum."""
    calls = []
    for module in (numpy_weights, torch_weights):
        plain = module.weigh
        monkeypatch.setattr(module, "weigh", lambda *a, plain=plain, **k: calls.append(1) or plain(*a, **k))
    return calls


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("limit", [-1.0, 300.0])
@pytest.mark.parametrize("formula", [*FORMULAS, *REUSED])
def test_both_loops_equal_the_reference(formula, limit, library, monkeypatch):
    monkeypatch.setitem(bounding.LIMIT, "float64", limit)
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 60)
    program = ta.parse(formula)
    wrap = np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(formula, plan="streamed")
    for m, n in ((7, 11), (1, 1), (0, 3), (3, 0)):
        x = arrays(program, m, n)
        expected = evaluate(program, x)[program.defined[-1]]
        given = {k: wrap(a) for k, a in x.items()}
        np.testing.assert_allclose(np.asarray(compiled(given)), expected, atol=1e-12)
        assert all((np.asarray(given[k]) == x[k]).all() for k in x), "inputs stay as they are"


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_small_scores_need_no_maximum_and_others_do(library, weighed):
    formula = FORMULAS[0]
    wrap = np.asarray if library == "numpy" else torch.tensor
    x = arrays(ta.parse(formula))
    compiled = ta.compile(formula, plan="streamed")
    compiled({k: wrap(a) for k, a in x.items()})
    assert not weighed
    for name, value in (("q", 1e3), ("q", np.nan), ("k", np.inf), ("v", np.nan), ("v", 1e305)):
        z = {k: a.copy() for k, a in x.items()}
        z[name][1] *= value
        before = len(weighed)
        y = compiled({k: wrap(a) for k, a in z.items()})
        assert len(weighed) > before, (name, value)
        dense = ta.compile(formula, plan="dense")(z)
        np.testing.assert_allclose(np.asarray(y), dense, rtol=1e-12)


@pytest.mark.parametrize("score", SCORES)
@example(0, (1.0, 1.0, 1.0))
@example(0, (1.0, 1e200, 1e-200))
@example(0, (1.0, 1e-200, 1e200))
@given(seed=st.integers(0, 10**6), scales=st.tuples(*[st.sampled_from([1e-200, 1e-3, 1.0, 1e2, 1e200])] * 3))
@settings(max_examples=8, deadline=None)
def test_no_score_exceeds_its_bound(score, seed, scales):
    """With a limit just below the greatest score, no bound may be within it."""
    program = attention(score)
    x = data(program, seed, scales)
    scores = ta.parse(f"s_<mu nu{' rho' * ('rho' in score)}> = {score}")
    with np.errstate(all="ignore"):
        greatest = np.abs(evaluate(scores, {k: x[k] for k in scores.inputs})["s"]).max()
    with pytest.MonkeyPatch.context() as patch:
        calls = []
        plain = numpy_weights.weigh
        patch.setattr(numpy_weights, "weigh", lambda *a, **k: calls.append(1) or plain(*a, **k))
        patch.setitem(bounding.LIMIT, "float64", min(300.0, greatest * (1 - 1e-9)))
        ta.compile(program, plan="streamed")(x)
    assert calls or greatest == 0


@pytest.mark.parametrize("score", SCORES)
def test_the_bound_of_every_score_is_found(score, weighed):
    program = attention(score)
    x = data(program, 1)
    y = ta.compile(program, plan="streamed")(x)
    assert not weighed
    np.testing.assert_allclose(y, evaluate(program, x)["y"], atol=1e-12)


def test_an_axis_without_positions_hides_no_large_score(weighed):
    program = ta.parse("y^mu_n = softmax[nu](q^mu_i k^nu_i + b_nu) v^nu_n")
    x = dict(q=np.ones((3, 0)), k=np.ones((4, 0)), b=np.full(4, 800.0), v=np.ones((4, 2)))
    np.testing.assert_allclose(ta.compile(program, plan="streamed")(x), 1)
    assert weighed


@pytest.mark.parametrize("large", [1e35, 1e37])
def test_large_values_do_not_overflow(large):
    program = ta.parse("y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n")
    x = {k: a.astype(np.float32) for k, a in data(program, 3).items()}
    x["v"] = x["v"] * np.float32(large)
    y = ta.compile(program, plan="streamed")(x)
    np.testing.assert_allclose(y, evaluate(program, {k: a.astype(float) for k, a in x.items()})["y"], rtol=2e-4)


SEEN = [
    "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i + b_nu) v^nu_n",
    "y^mu_n = softmax[nu](tanh(q^mu_i k^nu_i)) v^nu_n",
]


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("formula", SEEN)
def test_where_operations_are_seen_nothing_is_written_over(formula, weighed, monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 12)
    program = ta.parse(formula)
    x = {k: torch.tensor(a) for k, a in data(program, 4).items()}
    names = list(x)
    streamed, dense = ta.compile(program, plan="streamed"), ta.compile(program, plan="dense")

    def both(call):
        torch.testing.assert_close(call(streamed), call(dense))

    def run(f):
        return lambda *values: f(dict(zip(names, values, strict=True)))

    values = tuple(x.values())
    both(lambda f: torch.func.jvp(run(f), values, values)[1])
    both(lambda f: torch.func.grad(lambda *a: run(f)(*a).square().sum(), tuple(range(len(a := values))))(*a))
    both(lambda f: torch.func.vmap(run(f))(*(torch.stack([v, 2 * v]) for v in values)))
    both(lambda f: torch.func.jacrev(lambda q: run(f)(q, *values[1:]))(values[0]))
    with torch.autograd.forward_ad.dual_level():
        duals = [torch.autograd.forward_ad.make_dual(v, v) for v in values]
        both(lambda f: torch.autograd.forward_ad.unpack_dual(run(f)(*duals)).tangent)
    leaves = [v.clone().requires_grad_() for v in values]
    both(lambda f: torch.autograd.grad(run(f)(*leaves).square().sum(), leaves))
    assert weighed
    weighed.clear()
    with torch.no_grad():
        both(lambda f: run(f)(*leaves))
    with torch.inference_mode():
        both(lambda f: run(f)(*values))
    assert not weighed


class Noticing(torch.Tensor):
    pass


def test_subclasses_modes_and_autocast(weighed):
    from torch.utils.flop_counter import FlopCounterMode

    program = ta.parse(SEEN[1])
    x = {k: torch.tensor(a, dtype=torch.float32) for k, a in data(program, 4).items()}
    compiled = ta.compile(program, plan="streamed")
    plain = compiled(x)
    assert not weighed
    torch.testing.assert_close(
        compiled({k: v.as_subclass(Noticing) for k, v in x.items()}).as_subclass(torch.Tensor), plain
    )
    with FlopCounterMode(display=False) as counter:
        torch.testing.assert_close(compiled(x), plain)
    assert counter.get_total_flops() > 0
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(compiled(x), plain, atol=0, rtol=0)  # it sees nothing of the call
    assert len(weighed) == 2


@pytest.mark.parametrize("value", [1e-30, 1e-27, 1.0])
def test_tiny_values_do_not_underflow(value):
    """A weight is e^score without a maximum: its product with a value must stay a number."""
    x = {"q": np.ones((2000, 1)), "k": np.full((2000, 1), -29.0), "v": np.full((2000, 2), value)}
    y = ta.compile("y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n", plan="streamed")(
        {name: array.astype(np.float32) for name, array in x.items()}
    )
    np.testing.assert_allclose(y, value, rtol=1e-4)
