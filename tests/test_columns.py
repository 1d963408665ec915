"""Biases as columns of queries and keys: positions (ALiBi) and biases of keys, exact and differentiable."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import kinds
from tensorattn.kernel import Attend, Join, Stream
from tensorattn.lowering.flattening import biased, flattened
from tensorattn.lowering.multilinear import plain_side
from tensorattn.reference import evaluate, magnitude
from tests.kernels import BOTH

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SHAPES = dict(
    q="h mu i", k="h nu i", v="h nu n", slope="h", x="", b="h nu", c="nu", p="mu", r="nu", s="h", t="", w="mu",
    l="rho i", u="rho n",
)  # fmt: skip
INTEGERS = {"p", "r", "t"}
BIASES = [
    "slope_h (nu - mu)", "slope_h * (2 nu - mu + 3)", "0.3 * (nu - mu)", "slope_h s_h (nu - 3 mu)",
    "slope_h (r_nu - p_mu)", "x * (nu - mu) / sqrt(|i|)", "slope_h nu", "b^<h nu>", "c_nu x", "slope_h (nu - mu + t)",
    "slope_h * abs(nu - mu)", "w_mu (nu - mu)", "0 ones_<mu nu>", "slope_h * (mu + 3 ones_nu)",
]  # fmt: skip
ALIBI = "y^<h mu>_n = softmax[nu : nu <= mu](q^<h mu>_i k^<h nu>_i / sqrt(|i|) + slope_h (nu - mu)) v^<h nu>_n"


@pytest.fixture
def joined(monkeypatch):
    """Bonds joined wherever they can be, whatever that costs."""
    monkeypatch.setattr(kinds, "flattened", lambda *args, **more: flattened(*args, **{**more, "join": True}))


def arrays(program, sizes, seed, dtype=np.float64):
    rng, found = np.random.default_rng(seed), {}
    for name in program.inputs:
        shape = tuple(sizes[a] for a in SHAPES[name].split())
        found[name] = rng.integers(-9, 9, size=shape) if name in INTEGERS else np.asarray(rng.normal(size=shape), dtype)
    return found


def attend_of(compiled):
    top = list(plain_side(compiled.kernel().body))
    (found,) = (i for i in (*top, *(j for s in top if isinstance(s, Stream) for j in s.body)) if isinstance(i, Attend))
    return found


@settings(max_examples=15, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(BIASES), min_size=1, max_size=3, unique=True),
    st.sampled_from(["", " : nu <= mu", " : nu <= mu and mu <= nu + 2"]),
    st.permutations([2, 3, 5, 7]),
    st.sampled_from([None, None, None, ("mu", 0), ("nu", 0), ("nu", 1), ("i", 0), ("h", 1)]),
    st.sampled_from([np.float64, np.float32]),
)
def test_any_bias_equals_the_reference(joined, biases, where, lengths, special, dtype):
    sizes = dict(zip(("h", "mu", "nu", "i"), lengths, strict=True)) | {"n": 3}
    sizes |= dict([special]) if special else {}
    text = f"y^<h mu>_n = softmax[nu{where}](q^<h mu>_i k^<h nu>_i / sqrt(|i|) + {' + '.join(biases)}) v^<h nu>_n"
    program = ta.parse(text)
    x = arrays(program, sizes, sum(lengths), dtype)
    expected, size = evaluate(program, x)["y"], magnitude(program, x)["y"]
    allowed = (1e-10 if dtype == np.float64 else 1e-5) * (size + 1e-3)
    compiled = ta.compile(text, plan="flattened")
    for wrap in (np.asarray, torch.tensor):
        found = np.asarray(compiled({k: wrap(a) for k, a in x.items()}))
        unequal = ~(np.abs(found - expected) <= allowed) & ~(np.isnan(found) & np.isnan(expected))  # 0/0 for an empty i
        assert not unequal.any(), (text, sizes)


@pytest.mark.parametrize("bias", BIASES)
def test_which_biases_are_columns(joined, bias):
    text = f"y^<h mu>_n = softmax[nu](q^<h mu>_i k^<h nu>_i + {bias}) v^<h nu>_n"
    attend = attend_of(ta.compile(text, plan="flattened"))
    other = (word in bias for word in ("abs", "w_mu", "ones", "p_mu", "+ t"))  # the last two are no integers here
    assert (attend.bias is None) != any(other)


@BOTH
@pytest.mark.parametrize("asked", ["flattened", "auto"])
def test_a_squared_distance_has_a_column_that_is_a_product(joined, library, asked):
    text = "y^mu_n = softmax[nu](-0.5 * sum[i]((w^mu_i - l^nu_i)**2)) u^nu_n"
    rng, wrap = np.random.default_rng(0), np.asarray if library == "numpy" else torch.tensor
    x = dict(w=rng.normal(size=(31, 32)), l=rng.normal(size=(37, 32)), u=rng.normal(size=(37, 2)))
    compiled = ta.compile(text, plan=asked)
    found = np.asarray(compiled({name: wrap(array) for name, array in x.items()}))
    np.testing.assert_allclose(found, evaluate(compiled.program, x)["y"], atol=1e-10)
    assert compiled.cost(mu=31, nu=37, i=32, n=2, backend=library).backward.at({}).flops > 0


def test_a_joint_group(joined):
    score = "q^<h mu>_i k^<h nu>_i l^rho_i + slope_h (nu + rho - mu) + c_nu"
    text = f"y^<h mu>_n = softmax[nu rho]({score}) v^<h nu>_n u^rho_n"
    program = ta.parse(text)
    x = arrays(program, dict(h=2, mu=5, nu=3, rho=7, i=4, n=3), 0)
    compiled = ta.compile(text, plan="flattened")
    assert attend_of(compiled).bias is None
    np.testing.assert_allclose(compiled(x), evaluate(program, x)["y"], atol=1e-12)


@BOTH
@pytest.mark.parametrize(("rows", "positions"), [(3, 1024), (3, 5000), (400, 1500)])
def test_positions_are_exact_in_float32(joined, library, rows, positions):
    """A slope that is no power of two, times positions whose products do not fit in float32."""
    rng = np.random.default_rng(0)
    x = {n: rng.normal(size=s).astype(np.float32) for n, s in dict(q=(1, rows, 4), k=(1, positions, 4)).items()}
    x |= {"v": rng.normal(size=(1, positions, 2)).astype(np.float32), "slope": np.array([0.7390851], np.float32)}
    bias = f"slope_h (nu - {positions - rows} - mu)"
    where = f"nu <= mu + {positions - rows}"
    text = f"y^<h mu>_n = softmax[nu : {where}](q^<h mu>_i k^<h nu>_i + {bias}) v^<h nu>_n"
    wide = {k: a.astype(np.float64) for k, a in x.items()}
    score = np.einsum("hmi,hni->hmn", wide["q"], wide["k"])
    distance = np.arange(positions) - (positions - rows) - np.arange(rows)[:, None]
    score = np.where(distance > 0, -np.inf, score + wide["slope"][:, None, None] * distance)
    weights = np.exp(score - score.max(-1, keepdims=True))
    expected = np.einsum("hmn,hne->hme", weights / weights.sum(-1, keepdims=True), wide["v"])
    wrap = np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(text, plan="flattened")
    assert attend_of(compiled).bias is None
    found = np.asarray(compiled({k: wrap(a) for k, a in x.items()}))
    np.testing.assert_allclose(found, expected, atol=5e-6)


@BOTH
@pytest.mark.parametrize(
    ("bias", "unit"), [("r_nu - p_mu", 1), ("10**6 nu - 10**6 mu", 10**6), ("(nu + 10**8) - (mu + 10**8)", 1)]
)
def test_positions_too_large_for_their_differences(joined, library, bias, unit):
    """Times of events, say: as float32 they are no longer told apart."""
    rng, n = np.random.default_rng(0), 300
    x = {name: rng.normal(size=(2, n, 3)).astype(np.float32) for name in "qkv"}
    x["slope"] = np.array([0.7390851, 0.3], np.float32) / np.float32(unit)
    if "r" in bias:
        x |= dict.fromkeys("rp", np.arange(n) + 1_700_000_000)
    text = ALIBI.replace("(nu - mu)", f"({bias})")
    wide = {k: a.astype(np.float64) for k, a in x.items()}
    distance = unit * (np.arange(n) - np.arange(n)[:, None])
    score = np.einsum("hmi,hni->hmn", wide["q"], wide["k"]) / 3**0.5 + wide["slope"][:, None, None] * distance
    weights = np.exp(np.where(distance > 0, -np.inf, score))
    expected = np.einsum("hmn,hne->hme", weights / weights.sum(-1, keepdims=True), wide["v"])
    wrap = np.asarray if library == "numpy" else torch.tensor
    found = np.asarray(ta.compile(text, plan="flattened")({k: wrap(a) for k, a in x.items()}))
    np.testing.assert_allclose(found, expected, atol=5e-6)


@BOTH
def test_a_plan_kept_for_four_times_the_length_is_exact(joined, library):
    """The positions that a plan was made for are a quarter of those whose products are exact."""
    rng, wrap = np.random.default_rng(0), np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(ALIBI.replace("(nu - mu)", "(31 nu - 31 mu)"), plan="flattened")
    for n in (1000, 4000):
        x = {name: rng.normal(size=(1, n, 3)).astype(np.float32) for name in "qkv"}
        x["slope"] = np.array([0.7390851 / 31], np.float32)
        found = np.asarray(compiled({k: wrap(a) for k, a in x.items()}))
    wide, rows = {k: a.astype(np.float64) for k, a in x.items()}, np.arange(50, n, 97)
    distance = 31 * (np.arange(n) - rows[:, None])
    score = wide["q"][0, rows] @ wide["k"][0].T / 3**0.5 + wide["slope"] * distance
    weights = np.exp(np.where(distance > 0, -np.inf, score))
    np.testing.assert_allclose(found[0, rows], weights / weights.sum(-1, keepdims=True) @ wide["v"][0], atol=5e-6)


@BOTH
def test_a_factor_too_large_for_its_pieces(joined, library):
    wrap = np.asarray if library == "numpy" else torch.tensor
    program = ta.parse(ALIBI)
    x = arrays(program, dict(h=2, mu=3, nu=3, i=2, n=2), 0, np.float32)
    x["slope"] = np.array([1e36, -1e36], np.float32)
    found = np.asarray(ta.compile(ALIBI, plan="flattened")({k: wrap(a) for k, a in x.items()}))
    np.testing.assert_allclose(found[0], x["v"][0], rtol=1e-6)  # the nearest
    np.testing.assert_allclose(found[1], np.repeat(x["v"][1, :1], 3, axis=0), rtol=1e-6)  # the farthest


@pytest.mark.parametrize("bias", ["slope_h (nu - mu)", "b^<h nu> x", "slope_h s_h (nu - 3 mu) + c_nu"])
@pytest.mark.parametrize("where", ["", " : nu <= mu"])
def test_gradients(joined, bias, where):
    text = f"y^<h mu>_n = softmax[nu{where}](q^<h mu>_i k^<h nu>_i / sqrt(|i|) + {bias}) v^<h nu>_n"
    program = ta.parse(text)
    x = {k: torch.tensor(a, requires_grad=True) for k, a in arrays(program, dict(h=2, mu=3, nu=3, i=2, n=2), 0).items()}
    flat = ta.compile(text, plan="flattened")
    assert torch.autograd.gradcheck(lambda *a: flat(dict(zip(x, a, strict=True))), tuple(x.values()))
    assert torch.autograd.gradgradcheck(
        lambda *a: flat(dict(zip(x, a, strict=True))), tuple(x.values()), fast_mode=True
    )


@pytest.mark.parametrize("empty", ["mu", "nu"])
def test_gradients_without_rows_or_keys_are_zero(joined, empty):
    program = ta.parse(ALIBI)
    sizes = dict(h=2, mu=3, nu=3, i=2, n=2) | {empty: 0}
    x = {k: torch.tensor(a, requires_grad=True) for k, a in arrays(program, sizes, 0).items()}
    out = ta.compile(ALIBI.replace("nu <= mu", "nu < mu + 9"), plan="flattened")(x)
    for found in torch.autograd.grad(out.sum(), list(x.values())):
        assert (found == 0).all()


@pytest.mark.parametrize("text", [ALIBI, ALIBI.replace("slope_h (nu - mu)", "b^<h nu>")])
def test_a_recorded_bias_goes_through_the_kernel(text):
    """Its gradient is that of a column, so that no array of rows and keys is kept."""
    program = ta.parse(text)
    x = arrays(program, dict(h=1, mu=1024, nu=1024, i=8, n=8), 0, np.float32)
    tensors = {k: torch.tensor(a, requires_grad=True) for k, a in x.items()}
    kept: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.numel()) or t, lambda t: t):
        y = ta.compile(text, plan="flattened")(tensors)
    assert max(kept) < 1024 * 64
    dense = ta.compile(text, plan="dense")(tensors)
    torch.testing.assert_close(y, dense, atol=1e-5, rtol=1e-4)
    ours, theirs = (torch.autograd.grad(out.square().sum(), list(tensors.values())) for out in (y, dense))
    for own, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(own, other, atol=1e-4 * float(other.abs().max()), rtol=0)


def test_alibi_is_handed_to_the_kernel_for_causal_attention():
    sizes = dict(h=8, mu=2048, nu=2048, i=64, n=64)
    plan = ta.compile(ALIBI)
    kernel = plan.kernel(sizes, backend="torch")
    found = list(plain_side(kernel.body))
    assert not biased(kernel)
    assert any(isinstance(i, Attend) and i.causal for i in found)
    assert any(isinstance(i, Join) for i in found)
    cost = ta.compile(ALIBI, plan="flattened").cost(**sizes).at({})
    assert cost.exps == 8 * 2048 * 2049 // 2, "as many as are admitted"
