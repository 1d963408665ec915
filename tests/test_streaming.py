"""Streamed plans: the same values as dense ones and as NumPy, whatever the tile, in a fraction of the memory."""

from __future__ import annotations

import tracemalloc
import warnings

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.lowering import streaming

FORMULAS = [
    "y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n",
    "S^<mu nu> = q^mu_i k^nu_i; y^mu_n = S^<mu bar(nu)> v^nu_n",
    "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n",
    "y^mu_n = softmax[nu : mu - 2 <= nu <= mu and not (nu == 1); sink=s](q^mu_i k^nu_i - 2**(nu - mu)) v^nu_n",
    "y^mu_n = softmax1[nu](tanh(q^mu_i k^nu_i)) v^nu_n",
    "y^mu_n = softmax[nu rho](q^mu_i k^nu_i v^rho_e u_e) k^nu_p v^rho_n w_p",
    "y^mu_n = softmax[nu rho : rho <= nu](q^mu_i k^nu_i + q^mu_i k^rho_i) k^nu_p v^rho_n w_p",
    "y^mu_n = W^<mu bar(nu)> v^nu_n",
    "y^mu_n = softmax[nu](q^mu_i k^nu_i + b_nu) (v^nu_n + x_nu) / (1 + w_i w_i)",
    "z^mu = softmax[nu](q^mu_i k^nu_i) x_nu; y^mu_n = softmax[nu](z^mu x_nu) v^nu_n + z^mu u_n",
    "y^mu_n = softmax[nu](q^mu_i k^nu_i) (-v^nu_n) + u_n",
    "y^<h mu>_n = softmax[nu; sink=2 * t_<h mu>](q^mu_i k^nu_i) v^nu_n",  # a sink of more entries than a tile
]


def arrays(program, m=7, n=11, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    sizes = {"mu": m, "nu": n, "rho": n, "i": 4, "n": 3, "h": 3}
    shapes = dict(q="mu i", k="nu i", v="nu n", s="", u="n", w="i", b="nu", x="nu", W="mu nu", t="h mu")
    shape = {name: tuple(sizes[a] for a in shapes[name].split()) for name in program.inputs}
    return {name: np.asarray(rng.normal(size=s), dtype) for name, s in shape.items()}


@pytest.fixture(params=[1, 3, 4, 10_000])
def tile(request, monkeypatch):
    """Tiles that divide no size, of one position, and of everything."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", request.param * 20)
    return request.param


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_streamed_equals_the_reference(formula, library, tile):
    from tensorattn.reference import evaluate

    program = ta.parse(formula)
    wrap = np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(formula, plan="streamed")
    for m, n in ((7, 11), (1, 1), (5, 2), (0, 3)):
        x = arrays(program, m, n)
        expected = evaluate(program, x)[program.defined[-1]]
        np.testing.assert_allclose(np.asarray(compiled({k: wrap(a) for k, a in x.items()})), expected, atol=1e-12)


OWN = [  # formulas in which a sum of the weights, or the log Σ exp of their scores, stands beside the weights
    "W^<mu nu> = softmax[nu](q^mu_i k^nu_i); a^mu = W^<mu nu> x_nu; y^mu_n = a^mu W^<mu nu> v^nu_n",
    "W^<mu nu> = softmax[nu](q^mu_i k^nu_i); y^mu_n = (W^<mu nu> x_nu) (W^<mu rho> b_rho) (W^<mu tau> v^tau_n)",
    "S^<mu nu> = q^mu_i k^nu_i; l^mu = lse[nu](S^<mu nu>); y^mu_n = softmax[nu](S^<mu nu>) v^nu_n l^mu",
    "W^<mu nu> = softmax[nu : nu <= mu](q^mu_i k^nu_i); y^mu_n = (W^<mu nu> x_nu) (W^<mu rho> v^rho_n) / (2 + x_mu)",
]


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("formula", OWN)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_loop_does_not_read_its_own_result(formula, library, tile):
    """Few keys, so that what scales the rows is cheaper beside the weights than beside their sum."""
    from tensorattn.reference import evaluate

    program = ta.parse(formula)
    wrap = np.asarray if library == "numpy" else torch.tensor
    rng = np.random.default_rng(tile)
    shapes = dict(q=(7, 2), k=(7, 2), v=(7, 19), x=(7,), b=(7,))
    x = {name: rng.normal(size=shapes[name]) for name in program.inputs}
    found = ta.compile(formula, plan="streamed")({k: wrap(a) for k, a in x.items()})
    np.testing.assert_allclose(np.asarray(found), evaluate(program, x)["y"], atol=1e-12)
    if library == "torch" and tile == 3:
        tensors = {k: torch.tensor(a, requires_grad=True) for k, a in x.items()}
        of = [ta.compile(formula, plan=plan)(tensors).square().sum() for plan in ("streamed", "dense")]
        for a, b in zip(*(torch.autograd.grad(y, list(tensors.values())) for y in of), strict=True):
            torch.testing.assert_close(a, b)


@pytest.mark.parametrize("values", ["w^rho_b v^nu_a", "w^rho_b v^nu_a u_<a b>", "v^nu_a w^rho_b O_<a b o>"])
def test_the_axis_is_cut_of_which_nothing_is_summed_anew_in_every_round(values):
    """Σ over one index first, then over the other: the second sum is one over tiles, not one in every tile."""
    formula = f"y^mu_{'o' if 'O' in values else '<a b>'} = softmax[nu rho](sum[i](q^mu_i k^nu_i r^rho_i)) {values}"
    sizes = dict(mu=512, nu=512, rho=512, i=16, a=16, b=16, o=16)
    sizes = {n: sizes[n] for n in ta.parse(formula).indices}
    streamed, dense = (ta.compile(formula, plan=plan).cost(**sizes).at({}).flops for plan in ("streamed", "dense"))
    assert streamed < 1.02 * dense


def test_no_key_gives_zero():
    compiled = ta.compile(FORMULAS[0], plan="streamed")
    assert (compiled(q=np.ones((3, 4)), k=np.ones((0, 4)), v=np.ones((0, 2))) == np.zeros((3, 2))).all()


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_what_a_row_excludes_does_not_reach_it(library, tile):
    formula = "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n"
    wrap = np.asarray if library == "numpy" else torch.tensor
    x = arrays(ta.parse(formula), 6, 6)
    clean = np.asarray(ta.compile(formula)({k: wrap(a) for k, a in x.items()}))
    x["v"][4, 0], x["k"][5, 1] = np.nan, np.inf
    y = np.asarray(ta.compile(formula, plan="streamed")({k: wrap(a) for k, a in x.items()}))
    np.testing.assert_allclose(y[:4], clean[:4], atol=1e-12)
    assert np.isnan(y[4, 0])
    assert np.isnan(y[5]).all()
    np.testing.assert_allclose(y[4, 1:], clean[4, 1:], atol=1e-12)


def test_large_and_small_scores(tile):
    formula = "y^mu_n = W^<mu bar(nu)> v^nu_n"
    x = arrays(ta.parse(formula), 4, 9)
    for shift in (0, 1000.0, -90_000.0):
        z = dict(x, W=x["W"] * 20 + shift)
        np.testing.assert_allclose(
            ta.compile(formula, plan="streamed")(z), ta.compile(formula, plan="dense")(z), atol=1e-12
        )
    z = dict(x, W=np.full_like(x["W"], -np.inf))
    assert (ta.compile(formula, plan="streamed")(z) == 0).all()
    z["W"][1, 2], z["W"][2, 3] = np.nan, np.inf
    y = ta.compile(formula, plan="streamed")(z)
    assert np.isnan(y[1:3]).all()
    assert (y[[0, 3]] == 0).all()


def test_gradients_are_right_through_a_stream(tile):
    program = ta.parse(FORMULAS[5])
    x = {k: torch.tensor(a, requires_grad=True) for k, a in arrays(program, 3, 5).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        streamed, dense = ta.compile(FORMULAS[5], plan="streamed"), ta.compile(FORMULAS[5], plan="dense")
    for a, b in zip(
        torch.autograd.grad(streamed(x).square().sum(), list(x.values())),
        torch.autograd.grad(dense(x).square().sum(), list(x.values())),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("P^<mu nu> = W^<mu bar(nu)>", "asked for"),
        ("y = sparsemax[nu](x_nu) x_nu", "whole row"),
        ("y = softmax[nu](x_nu)**2 b_nu", "other than in sums of products"),
        ("y^mu = W^<mu nu> x_nu", "no softmax"),
    ],
)
def test_what_cannot_be_streamed_says_why(formula, reason):
    with pytest.raises(ta.PlanError, match="can be streamed") as error:
        ta.compile(formula, plan="streamed")(arrays(ta.parse(formula)))
    assert reason in str(error.value)


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("plan", ["auto", "flattened", "streamed"])
def test_three_way_attention_never_holds_the_weights(plan):
    formula = "S^<mu nu rho> = q^mu_i k^nu_i r^rho_i; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n"
    n, d = 192, 16
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(n, d)).astype(np.float32) * 0.3 for name in "qkrvw"}
    compiled = ta.compile(formula, plan=plan)
    y = compiled(x)
    tracemalloc.start()
    compiled(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    weights = n**3 * 4
    assert peak < weights / 2, f"{peak} bytes beside {weights} of one weight tensor"
    s = np.einsum("mi,ni,ri->mnr", *(x[a].astype(float) for a in "qkr"))
    w = np.exp(s - s.max((1, 2), keepdims=True))
    expected = np.einsum("mnr,ne,re->me", w / w.sum((1, 2), keepdims=True), x["v"], x["w"])
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_auto_is_dense_where_it_is_small_and_holds_no_weights_beyond():
    compiled = ta.compile("y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n")
    rng = np.random.default_rng(0)
    for n in (10, 2000, 10, 2000):
        x = {"q": rng.normal(size=(2000, 4)), "k": rng.normal(size=(n, 4)), "v": rng.normal(size=(n, 2))}
        s = np.exp(x["q"] @ x["k"].T)
        np.testing.assert_allclose(compiled(x), s / s.sum(1, keepdims=True) @ x["v"], atol=1e-12)
    kinds = [entry.plan.kind for entry in compiled._table.values()]
    assert len(kinds) == 2
    assert kinds[0] == "dense" != kinds[1]
    tracemalloc.start()
    compiled(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2000 * 2000 * 8 / 2


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
def test_the_printed_loop_runs_by_itself():
    compiled = ta.compile(FORMULAS[5], plan="streamed")
    text = compiled.source("numpy")
    assert "for start" in text
    space: dict[str, object] = {}
    exec(text, space)
    x = arrays(compiled.program)
    (y,) = space["formula"](*(x[name] for name in compiled.inputs))  # type: ignore[operator]
    np.testing.assert_allclose(y, ta.compile(FORMULAS[5])(x), atol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_a_row_without_keys_is_zero_whatever_its_sink(scale):
    formula = "y^mu_n = softmax[nu : nu <= mu - 2; sink=s_mu](q^mu_i k^nu_i) v^nu_n"
    rng = np.random.default_rng(0)
    x = {name: rng.normal(size=(6, 3)) * scale for name in "qkv"}
    x["s"] = np.array([np.nan, np.inf, -np.inf, 0.5, np.inf, np.nan])
    y = ta.compile(formula, plan="streamed")(x)
    assert (y[:2] == 0).all()
    np.testing.assert_allclose(y, ta.compile(formula, plan="dense")(x))
