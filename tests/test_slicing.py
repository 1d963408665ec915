"""Loops over free axes, nested loops, and reductions that a loop carries: the values of the reference for any tile."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

import tensorattn as ta
from benchmarks.workloads.nested import FORMULA as NESTED
from tensorattn.cost import kernel_cost
from tensorattn.kernel import IfBounded, Stream
from tensorattn.lowering import streaming
from tensorattn.reference import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

ATTENTION = "W^<b h mu nu> = q^<b h mu>_i k^<b h nu>_i; y^<b h mu>_n = W^<b h mu bar(nu)> v^<b h nu>_n"
TRILINEAR = "S^<mu nu rho> = q^mu_i k^nu_i r^rho_i"
SCORE = "S^<mu nu> = q^mu_i k^nu_i; "
DEPENDENT = "z^mu = softmax[nu](q^mu_i k^nu_i) c_nu; y^mu_n = softmax[nu](q^mu_i k^nu_i) (v^nu_n + exp(z^mu d_nu))"
SLICED = [
    (NESTED, "y"),
    (ATTENTION, "y"),
    ("W^<b h mu nu> = q^<b h mu>_i k^<b nu>_i; y^<b h mu>_n = W^<b h mu bar(nu : nu <= mu)> v^<b nu>_n", "y"),
    (TRILINEAR + "; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n", "y"),
    (TRILINEAR + " + A^<nu rho>; y^mu_n = S^<mu bar(nu rho : rho <= nu and nu <= mu)> v^nu_n w^rho_n", "y"),
    ("S^<mu nu rho o> = q^mu_i k^nu_i r^rho_i p^o_i; y^mu_n = S^<mu bar(nu rho o)> v^nu_n w^rho_n u^o_n", "y"),
    ("y^mu_n = sparsemax[nu](q^mu_i k^nu_i) v^nu_n", "y"),
    ("y^mu_n = entmax[nu : nu <= mu; 1.5](q^mu_i k^nu_i) v^nu_n", "y"),
    ("y^mu_n = softmax[nu](q^mu_i k^nu_i)**2 v^nu_n", "y"),
    ("y_n = sum[mu](softmax[nu](q^mu_i k^nu_i) v^nu_n)", "y"),
    ("y^mu_n = l1norm[nu](exp(q^mu_i k^nu_i)) v^nu_n", "y"),
    ("y^mu_n = l2norm[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n", "y"),
    ("y^mu_n = top[nu; 2](q^mu_i k^nu_i) softmax[nu](q^mu_i k^nu_i) v^nu_n", "y"),
    (SCORE + "y^mu_n = S^<mu bar(nu)> v^nu_n; z^nu_n = S^<bar(mu) nu> x^mu_n", "y z"),
    (SCORE + "y^mu_n = S^<mu bar(nu : nu <= mu)> v^nu_n; l^mu = lse[nu : nu <= mu](S^<mu nu>)", "y l"),
    (SCORE + "y^mu_n = S^<mu bar(nu)> v^nu_n; z^mu_n = S^<mu bar(nu)> w^nu_n; l^mu = lse[nu](S^<mu nu>)", "y z l"),
    (SCORE + "y^mu_n = S^<mu bar(nu)> v^nu_n; W^<mu nu> = 2 S^<mu nu>", "y W"),
    ("y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n; z^<mu nu> = y^mu_n y^nu_n; x^mu_n = z^<mu bar(nu)> y^nu_n", "x"),
    ("y^mu_n = softmax[nu](q^mu_i k^nu_i + e_<|nu|-1+mu-nu>) v^nu_n", "y"),
    ("y^mu_n = softmax[nu](q^mu_i k^nu_i + E_<|nu|-1+mu-nu, i> q^mu_i) v^nu_n", "y"),
    ("y_n = softmax[mu nu](q^mu_i k^nu_i) v^nu_n x^mu_n", "y"),
    (DEPENDENT, "y"),
    ("y^<mu rho> = softmax[nu : nu <= mu and nu <= rho](q^mu_i k^nu_i + r^rho_i k^nu_i) v^nu_n g_n", "y"),
]  # fmt: skip
ROOTS = [
    ("y = lse[mu nu](q^mu_i k^nu_i)", "y"),
    ("y = lse[mu nu : nu <= mu](q^mu_i k^nu_i)", "y"),
    ("y^mu = lse[nu](q^mu_i k^nu_i)", "y"),
    ("y = max[mu nu](tanh(q^mu_i k^nu_i)) + min[mu nu : nu < mu](q^mu_i k^nu_i)", "y"),
    ("y = max[mu nu](-exp(q^mu_i k^nu_i)) - min[mu nu](exp(q^mu_i k^nu_i))", "y"),
    ("y = sum[mu nu](tanh(q^mu_i k^nu_i))", "y"),
    ("y^mu_n = sum[nu](exp(q^mu_i k^nu_i) v^nu_n)", "y"),
    ("y_n = mean[mu nu](relu(q^mu_i k^nu_i) v^nu_n)", "y"),
    ("y^mu = prod[nu](1 + tanh(q^mu_i k^nu_i) / 9)", "y"),
]
SIZES = dict(b=2, h=3, mu=7, nu=11, rho=5, o=3, i=4, n=3, j=2, kappa=3, m=2, g=2, l=3)
AXES = dict(
    q="mu i", k="nu i", r="rho i", p="o i", v="nu n", w="rho n", u="o n", x="mu n", A="nu rho", g="n", c="nu", d="nu",
)  # fmt: skip


def axes_of(text: str, name: str, sizes: dict[str, int]) -> tuple[int, ...]:
    """The shape of an input: read off the formulas above."""
    special = {
        NESTED: dict(k="mu i", q="nu j", r="rho kappa", M="i j kappa", t="nu m", u="rho n", B="m n", s="nu g",
                     z="rho h", N="l g h", G="rho nu"),
        ATTENTION: dict(q="b h mu i", k="b h nu i", v="b h nu n"),
    }.get(text)  # fmt: skip
    if special is None and "k^<b nu>" in text:
        special = dict(q="b h mu i", k="b nu i", v="b nu n")
    if special is None and "z^<mu nu>" in text:
        special = dict(q="mu i", k="mu i", v="mu n")
    if special is None and "w^nu_n" in text:
        special = {**AXES, "w": "nu n"}
    if name in "eE":
        return (sizes["mu"] + sizes["nu"] - 1, *((sizes["i"],) if name == "E" else ()))
    return tuple(sizes[a] for a in (special or AXES)[name].split())


def arrays(text: str, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=axes_of(text, name, {**SIZES, **sizes})) for name in ta.parse(text).inputs}


def results(text: str, names: str, x: dict, plan: str = "streamed", wrap=np.asarray) -> dict[str, np.ndarray]:
    found = ta.compile(text, plan=plan, outputs=names.split())({k: wrap(a) for k, a in x.items()})
    return {name: np.asarray(found[name]) for name in names.split()}


@pytest.fixture(params=[2, 60])
def tile(request, monkeypatch):
    """Tiles of single positions, of a few, and of everything."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", request.param)
    return request.param


@pytest.mark.parametrize(("text", "names"), SLICED, ids=[t for t, _ in SLICED])
@pytest.mark.parametrize(("wrap", "tile"), [(np.asarray, 2), (np.asarray, 60), (torch.tensor, 15)])
def test_loops_give_the_values_of_the_reference(text, names, wrap, tile, monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", tile)
    for sizes in ({}, dict(mu=3, nu=0)) if tile < 60 else ({}, dict(mu=1, nu=2, rho=1, b=1, h=1)):
        x = arrays(text, **sizes)
        expected = evaluate(ta.parse(text), x, outputs=names.split())
        for name, value in results(text, names, x, wrap=wrap).items():
            np.testing.assert_allclose(value, expected[name], atol=1e-10, err_msg=str(sizes))


@pytest.mark.parametrize(("text", "names"), ROOTS, ids=[t for t, _ in ROOTS])
@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_reductions_of_what_is_large(text, names, wrap, monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 10)
    assert any(
        isinstance(i, (Stream, IfBounded)) for i in ta.compile(text, plan="streamed").kernel(**sizes_of(text)).body
    )
    for sizes in ({}, dict(mu=1, nu=13)):
        x = arrays(text, **sizes)
        expected = evaluate(ta.parse(text), x, outputs=names.split())
        for name, value in results(text, names, x, wrap=wrap).items():
            np.testing.assert_allclose(value, expected[name], atol=1e-10, err_msg=str(sizes))


def sizes_of(text: str) -> dict[str, int]:
    """The sizes of the indices of a formula."""
    shapes = {name: a.shape for name, a in arrays(text).items()}
    return {name: int(size) for name, size in ta.check(ta.parse(text), shapes).sizes.items()}


def loops(body) -> list:
    """The axes of the loops, each with those in it."""
    body = [inner for i in body for inner in (i.safe if isinstance(i, IfBounded) else (i,))]
    return [(i.axis.name, loops(i.body)) for i in body if isinstance(i, Stream)]


def kernel(text: str, **sizes: int):
    compiled = ta.compile(text, plan="streamed")
    return compiled.kernel(sizes, dtypes=dict.fromkeys(compiled.inputs, "float32"))


def test_which_loops_there_are():
    heads = kernel(ATTENTION, b=1, h=8, mu=2048, nu=2048, i=64, n=64)
    assert loops(heads.body) == [("h", [("nu", [])])]
    rows = kernel("y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n", mu=100_000, nu=100_000, i=8, n=8)
    assert loops(rows.body) == [("mu", [("nu", [])])]
    both = kernel(TRILINEAR + "; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n", mu=2048, nu=2048, rho=2047, i=8, n=8)
    assert loops(both.body) == [("nu", [("rho", [])])]
    one = kernel(NESTED, mu=64, nu=64, rho=64, i=8, j=8, kappa=8, m=8, n=8, g=8, h=8, l=8)
    assert loops(one.body) == [("mu", [])], "one sweep for both softmaxes of both scores"


PEAKS = [
    (NESTED, dict(mu=60, nu=64, rho=72, i=8, j=8, kappa=8, m=8, n=8, g=8, h=8, l=8)),
    (ATTENTION, dict(b=2, h=4, mu=256, nu=300, i=16, n=16)),
    (TRILINEAR + "; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n", dict(mu=80, nu=70, rho=90, i=8, n=8)),
    ("y^mu_n = sparsemax[nu](q^mu_i k^nu_i) v^nu_n", dict(mu=500, nu=600, i=8, n=8)),
    ("y = sum[mu nu](tanh(q^mu_i k^nu_i))", dict(mu=900, nu=1000, i=8)),
]


@pytest.mark.parametrize(("text", "sizes"), PEAKS, ids=[t for t, _ in PEAKS])
@pytest.mark.parametrize("entries", [1 << 12, 1 << 17])
def test_the_predicted_peak_of_loops_is_the_measured_one(text, sizes, entries, monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", entries)
    x = {name: a.astype(np.float32) for name, a in arrays(text, **sizes).items()}
    compiled = ta.compile(text, plan="streamed")
    price = kernel_cost(compiled.kernel(sizes, dtypes=dict.fromkeys(x, "float32")))
    compiled(x)
    tracemalloc.start()
    result = compiled(x)
    measured = tracemalloc.get_traced_memory()[1] - result.nbytes
    tracemalloc.stop()
    found = price.at(sizes)
    assert abs(found.peak_bytes - measured) <= max(0.25 * measured, 1e5), (found.peak_bytes, measured)
    assert price.given(sizes).at({}) == found
    if text == NESTED:
        return  # a long expression
    peak = price.peak_bytes
    assert int(peak.subs({s: sizes[s.name] for s in peak.free_symbols})) == found.peak_bytes


def test_the_cost_of_nested_loops_is_that_of_all_rounds():
    sizes = dict(b=1, h=4, mu=1024, nu=1030, i=8, n=8)
    found = kernel_cost(kernel(ATTENTION, **sizes)).at(sizes)
    assert 0 <= found.flops - 4 * 1024 * 1030 * (2 * 8 + 2 * 8 + 2) < 1e7
    assert 0 <= found.exps - 4 * 1024 * 1030 < 1e5


GRADIENTS = [NESTED, ATTENTION, *(SLICED[n][0] for n in (6, 8, 9, 17, 18))]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, in its forward mode
@pytest.mark.parametrize("text", GRADIENTS)
def test_gradients_and_transforms_go_through_loops(text, monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 20)
    x = {k: torch.tensor(a, requires_grad=True) for k, a in arrays(text, mu=3, nu=4, rho=3).items()}
    streamed, dense = ta.compile(text, plan="streamed"), ta.compile(text, plan="dense")
    found, expected = (torch.autograd.grad(f(x).square().sum(), list(x.values())) for f in (streamed, dense))
    torch.testing.assert_close(found, expected)
    plain = {k: a.detach() for k, a in x.items()}
    found, expected = (torch.func.jvp(lambda a, f=f: f(a), (plain,), (plain,)) for f in (streamed, dense))
    torch.testing.assert_close(found, expected)
    several = {k: torch.stack([a, 2 * a]) for k, a in plain.items()}
    torch.testing.assert_close(torch.vmap(streamed)(several), torch.vmap(dense)(several))


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor], ids=["numpy", "torch"])
@pytest.mark.parametrize("number", [2, 4, 6, 7, 8, 14])
def test_what_is_not_finite_means_what_it_means_in_the_dense_plan(number, wrap, tile):
    text, names = SLICED[number]
    for seed, value in enumerate((np.nan, np.inf, -np.inf)):
        x = arrays(text, mu=6, nu=6, rho=6, seed=seed)
        rng = np.random.default_rng(seed)
        for name in x:
            if name != "q":
                x[name][tuple(rng.integers(0, s) for s in x[name].shape)] = value
        dense = results(text, names, x, "dense", wrap)
        for name, found in results(text, names, x, "streamed", wrap).items():
            np.testing.assert_allclose(found, dense[name], atol=1e-10)


def test_a_log_sum_with_infinite_scores():
    text, names = SCORE + "y^mu_n = S^<mu bar(nu)> v^nu_n; l^mu = lse[nu](S^<mu nu>)", "y l"
    x = dict(q=np.array([[np.inf, 0], [-np.inf, 0], [1, 2]]), k=np.array([[1.0, 0], [2, 1]]), v=np.ones((2, 2)))
    for wrap in (np.asarray, torch.tensor):
        dense, found = (results(text, names, x, plan, wrap) for plan in ("dense", "streamed"))
        for name in ("y", "l"):
            np.testing.assert_allclose(found[name], dense[name])


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor], ids=["numpy", "torch"])
def test_scores_in_other_units_leave_nothing_dead_behind(wrap, monkeypatch):
    """The weights of a slice are made of the score by exp2; the score itself, which nobody reads, was in the way."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 10)
    text = "y^m_<n h> = softmax[r](t^m + sum[i](a^m_i b^<i r> c^h_i)) v^<n r>"
    x = {
        n: np.random.default_rng(0).normal(size=s) for n, s in dict(t=6, a=(6, 3), b=(3, 2), c=(3, 3), v=(3, 2)).items()
    }
    found = ta.compile(text, plan="streamed")({n: wrap(a) for n, a in x.items()})
    np.testing.assert_allclose(np.asarray(found), evaluate(ta.parse(text), x)["y"], atol=1e-12)
