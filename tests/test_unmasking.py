"""Loops without a maximum: what concerns barred indices alone lies on the values, and norms are those of products."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from benchmarks.measuring import peak_bytes_torch
from tensorattn.backends.limits import LOOK
from tensorattn.backends.numpy.functions import longest, longest_image, longest_pair
from tensorattn.backends.torch import functions as torch_functions
from tensorattn.backends.torch.functions import longest_image as torch_image
from tensorattn.lowering import streaming
from tensorattn.reference import evaluate
from tests.test_bounding import weighed  # noqa: F401 (a fixture)

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SHAPES = dict(q="mu i", k="nu i", r="rho i", v="nu n", w="rho n", b="nu", z="nu rho n")
FORMULAS = [
    "y^mu_n = softmax[nu rho : nu <= rho](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n",
    "y^mu_n = softmax[nu rho : nu < rho](q^mu_i k^nu_i r^rho_i + b_nu) z^<nu rho>_n",
    "y^mu_n = softmax[nu rho : nu < 3](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n",
    "y^mu = softmax[nu : not (nu == 2)](q^mu_i k^nu_i) b_nu",
    "y^mu_n = softmax[nu : nu < 4 and nu <= mu](q^mu_i k^nu_i) v^nu_n",  # its rows matter: it stays
    (
        "W^<mu nu rho> = softmax[nu rho : nu <= rho](q^mu_i k^nu_i r^rho_i); a^mu_n = W^<mu nu rho> v^nu_n w^rho_n; "
        "y^mu_n = a^mu_n / (1 + W^<mu nu rho> b_nu b_rho)"
    ),
    (
        "y^<mu n> = softmax[nu rho : nu == rho](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n + "
        "lse[nu rho : nu == rho](q^mu_i k^nu_i r^rho_i)"
    ),
    "y^mu_n = softmax[nu](q^mu_i k^nu_i + b_nu) v^nu_n",
    "y^mu_n = softmax[nu rho](q^mu_i k^nu_i r^rho_i + b_nu b_rho) v^nu_n w^rho_n",  # a factor for each pair
    "y^mu_n = softmax[nu rho](q^mu_i k^nu_i r^rho_i + b_nu) v^nu_n w^rho_n",
    (
        "s^<mu nu rho> = q^mu_i k^nu_i r^rho_i - b_nu; "
        "y^mu_n = s^<mu bar(nu rho)> (v^nu_n + w^rho_n) + lse[nu rho](s^<mu nu rho>)"
    ),
    "y_n = softmax[nu](k^nu_i k^nu_i + b_nu) v^nu_n",  # no rows: the addend is as large as the score
]


def arrays(program, seed, **sizes):
    rng = np.random.default_rng(seed)
    return {n: rng.normal(size=[sizes[a] for a in SHAPES[n].split()]) / 2 for n in program.inputs}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("formula", FORMULAS)
@settings(max_examples=4, deadline=None)
@given(st.data())
def test_loops_give_the_values_of_the_reference(formula, library, data):
    size = st.sampled_from([0, 1, 2, 3, 5, 7])
    length = data.draw(size)
    program = ta.parse(formula)
    x = arrays(program, data.draw(st.integers(0, 9)), mu=data.draw(size), nu=length, rho=length, i=3, n=2)
    given = {n: np.array(a) if library == "numpy" else torch.tensor(a) for n, a in x.items()}
    expected = evaluate(program, x)[program.defined[-1]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "TILE_ENTRIES", 60)
        found = np.asarray(ta.compile(formula, plan="streamed")(given))
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_an_addend_of_barred_indices_costs_no_pass_over_the_weights():
    """Every value has its factor, and the loop with a maximum adds it to the scores."""
    formula = "y^mu_n = softmax[nu](q^mu_i k^nu_i + b_nu) v^nu_n"
    source = ta.compile(formula, plan="streamed").source("numpy", mu=4096, nu=4096, i=64, n=64)
    fast, safe = re.split(r"\n +else:\n", source[source.index("\ndef formula") :])
    weights = [line for line in fast.splitlines() if line.endswith("# mu nu")]
    assert len(weights) == 2
    assert "= np.matmul(" in weights[0]
    assert "= np.exp2(" in weights[1]
    assert "add_product(" in safe


def test_such_a_mask_costs_no_pass_over_the_weights():
    formula = "y^mu_n = softmax[nu rho](q^mu_i k^nu_i k^rho_i) v^nu_n w^rho_n"  # over ordered pairs
    source = ta.compile(formula, plan="streamed").source("torch", mu=512, nu=512, rho=512, i=4, n=2)
    body = source[source.index("\ndef formula") :]
    fast, safe = body.split("\n    else:\n")
    weights = [line for line in fast.splitlines() if line.endswith("# mu nu rho")]
    assert len(weights) == 2
    assert "= torch.matmul(" in weights[0]
    assert "= torch.exp2(" in weights[1]
    assert "where=" not in safe
    pairs = [line for line in fast.splitlines() if line.endswith("# nu rho")]
    assert any("= torch.where(" in line and "-1.0" in line for line in pairs), "log c in units of ln 2 from the start"
    assert not any("multiply(" in line or ".to(" in line for line in pairs)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_the_mask_excludes_changes_nothing(library, bad, monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 60)
    formula = FORMULAS[2]
    program = ta.parse(formula)
    x = arrays(program, 1, mu=5, nu=7, rho=3, i=3, n=2)
    expected = evaluate(program, x)["y"]
    x["k"][5], x["v"][4] = bad, bad
    given = {n: np.array(a) if library == "numpy" else torch.tensor(a) for n, a in x.items()}
    found = np.asarray(ta.compile(formula, plan="streamed")(given))
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_large_factors_whose_products_are_small_need_no_maximum(library, weighed, monkeypatch):  # noqa: F811
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 4000)
    rng, formula = np.random.default_rng(0), "y^mu_n = softmax[nu rho](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n"
    even = np.array([1.0, 0.0])
    x = dict(q=rng.normal(size=(64, 2)), v=rng.normal(size=(7, 3)), w=rng.normal(size=(5, 3)))
    x |= dict(k=rng.normal(size=(7, 2)) * (1 + 900 * even), r=rng.normal(size=(5, 2)) * (1 + 900 * even[::-1]))
    x["k"], x["r"] = x["k"] * [1, 1e-3], x["r"] * [1e-3, 1]
    wrap = np.asarray if library == "numpy" else torch.tensor
    found = np.asarray(ta.compile(formula, plan="streamed")({n: wrap(a) for n, a in x.items()}))
    np.testing.assert_allclose(found, evaluate(ta.parse(formula), x)["y"], atol=1e-10)
    assert not weighed


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_norm_of_a_pair_is_no_less_than_any(library):
    rng = np.random.default_rng(0)
    function, wrap = (longest_pair, np.asarray) if library == "numpy" else (torch_functions.longest_pair, torch.tensor)
    a, b = rng.normal(size=(2, 30, 5)).astype(np.float32), rng.normal(size=(2, 40, 5)).astype(np.float32)
    exact = np.sqrt(np.einsum("gmc,gnc->gmn", a.astype(float) ** 2, b.astype(float) ** 2).max())
    assert exact <= function(wrap(a), wrap(b), 64) <= 1.01 * exact
    assert function(wrap(a), wrap(b), 8) == np.inf, "few rows"
    assert function(wrap(a[:, :0]), wrap(b), 64) == np.inf
    for bad in (np.nan, np.inf, 1e20):
        for place in (a, b):
            kept = place[1, 3, 2]
            place[1, 3, 2] = bad
            with np.errstate(over="ignore"):
                assert function(wrap(a), wrap(b), 64) == np.inf
            place[1, 3, 2] = kept


def image(library: str, x: np.ndarray, rows: tuple[int, ...] = (1,), columns: tuple[int, ...] = (2,)) -> float:
    """What `longest_image` of either library says."""
    return longest_image(x, rows, columns) if library == "numpy" else torch_image(torch.from_numpy(x), rows, columns)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (3, 7, 5), (1, 1, 4), (4, 1, 1), (300, 32, 32)])
@pytest.mark.parametrize("scale", [1, 1e-30, 1e-41, 1e30])
def test_no_matrix_lengthens_a_vector_more(library, shape, scale):
    rng = np.random.default_rng(0)
    x = (rng.normal(size=shape) * rng.choice([1, 1e-3], size=(shape[0], 1, 1)) * scale).astype(np.float32)
    exact = np.linalg.norm(x.astype(float), 2, axis=(1, 2)).max()
    assert exact <= image(library, x) <= 1.02 * exact * min(shape[1:]) ** 0.125
    x[0, 0, 0] = np.nan
    assert not image(library, x) < np.inf
    x[0, 0, 0] = -np.inf
    assert not image(library, x) < np.inf
    assert 0 <= image(library, np.zeros(shape, np.float32)) < 1e-15
    assert image(library, x[:0]) == image(library, x[:, :0]) == 0


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(1, 1 << 20, 2), (1, 3, 1 << 18), (1, 1 << 15, 2), (1, 512, 512)])
def test_long_sums_lose_no_length(library, dtype, shape):
    """Of one rank, all entries of one sign: there is no slack, and rounding errs to one side."""
    x = np.full(shape, 1 / 3, dtype)
    x[0, 0, 0] = 1
    exact = np.linalg.norm(x[0].astype(float), 2)
    assert exact <= image(library, x) <= 1.2 * exact


@pytest.mark.parametrize("precision", ["high", "medium"])
def test_products_of_few_digits_lose_no_length(precision):
    rng = np.random.default_rng(0)
    x = (rng.random((3, 64, 1)) * rng.random((3, 1, 64))).astype(np.float32)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        assert np.linalg.norm(x.astype(float), 2, axis=(1, 2)).max() <= image("torch", x)
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("order", [(0, 1, 2, 3, 4), (4, 2, 0, 1, 3), (1, 3, 0, 2, 4), (2, 0, 4, 3, 1)])
@pytest.mark.parametrize("shape", [(2, 3, 4, 5, 6), (1, 1, 4, 1, 6), (40, 30, 3, 3, 20)])
def test_matrices_over_several_axes_in_any_order(library, order, shape):
    """The first two axes are places, the next two rows, the last one columns."""
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    rows, columns = (tuple(order.index(axis) for axis in axes) for axes in ((2, 3), (4,)))
    matrices = x.reshape(-1, shape[2] * shape[3], shape[4]).astype(float)
    exact = np.linalg.norm(matrices, 2, axis=(1, 2)).max()
    most = 1.02 * exact * min(matrices.shape[1:]) ** 0.125
    assert exact <= image(library, np.ascontiguousarray(x.transpose(order)), rows, columns) <= most
    one = np.linalg.norm(matrices[0], 2)
    assert one <= image(library, x[0, 0], (0, 1), (2,)) <= 1.02 * one * min(matrices.shape[1:]) ** 0.125


@pytest.mark.parametrize("shape", [(4, 16, 200, 16), (1, 2048, 1, 512), (1, 64, 500, 64)])
def test_a_look_at_matrices_takes_little_memory(shape):
    """None like the operator itself, whose summed index stands before others."""
    x = torch.zeros(shape)
    x[0, 0, 0, 0] = 1
    assert peak_bytes_torch(lambda: [torch.tensor(torch_image(x, (1,), (3,)))]) <= max(
        1.1 * x.nbytes / shape[2], 6 * 4 * (1 << 16)
    )
    assert 1 <= torch_image(x, (1,), (3,)) <= 1.02


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_scores_through_an_operator_need_no_maximum_where_it_lengthens_little(library, weighed, monkeypatch):  # noqa: F811
    """8 orthogonal rows: the norm of all entries is √8 times the factor by which any vector is lengthened."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 4000)
    rng, formula = np.random.default_rng(0), "y^mu_n = softmax[nu rho](k^mu_i q^nu_j r^rho_l M_<i j l>) v^<nu rho>_n"
    x = dict(q=rng.normal(size=(60, 8)), r=rng.normal(size=(60, 8)), v=rng.normal(size=(60, 60, 3)))
    x["k"] = np.eye(8)[np.arange(20) % 8]
    x["q"] *= 15 / np.linalg.norm(x["q"], axis=1, keepdims=True)
    x["r"] *= 15 / np.linalg.norm(x["r"], axis=1, keepdims=True)
    x["M"] = np.linalg.qr(rng.normal(size=(8, 8, 8)))[0]
    wrap = np.asarray if library == "numpy" else torch.tensor
    found = np.asarray(ta.compile(formula, plan="streamed")({n: wrap(a) for n, a in x.items()}))
    np.testing.assert_allclose(found, evaluate(ta.parse(formula), x)["y"], atol=1e-10)
    assert not weighed
    x["M"] *= 4
    ta.compile(formula, plan="streamed")({n: wrap(a) for n, a in x.items()})
    assert weighed


@pytest.mark.parametrize("dims", [(), (0,), (1,), (2,), (1, 2), (0, 2)])
def test_norms_of_both_libraries_agree(dims):
    x = np.random.default_rng(0).normal(size=(300, 40, 30))
    exact = np.sqrt((x**2).sum(dims).max()) if dims else np.abs(x).max()
    assert longest(x, dims) == pytest.approx(exact)
    assert torch_functions.longest(torch.tensor(x), dims) == pytest.approx(exact)
    x[200, 20, 10] = np.nan
    assert np.isnan(torch_functions.longest(torch.tensor(x), dims))
    assert np.isnan(longest(x, dims))


def test_values_of_float32_far_below_others_keep_their_digits(monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 60)
    rng, formula = np.random.default_rng(0), "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n"
    x = {n: rng.normal(size=s).astype(np.float32) for n, s in (("q", (7, 3)), ("k", (11, 3)), ("v", (11, 2)))}
    x["q"] *= 38 / np.linalg.norm(x["q"], axis=1).max() / np.linalg.norm(x["k"], axis=1).max()
    x["v"][:, 1] *= 1e-19
    found = ta.compile(formula, plan="streamed")(x)
    expected = evaluate(ta.parse(formula), {n: a.astype(float) for n, a in x.items()})["y"]
    assert (np.abs(found - expected) <= 1e-4 * np.abs(x["v"]).max(0)).all()


@pytest.mark.parametrize(("shape", "dims"), [((1, 300, 300, 4), (1, 2)), ((2, 3, 90000), (1, 2)), ((40000, 9), (0,))])
@pytest.mark.parametrize("room", [LOOK, 2000])
def test_a_norm_takes_little_memory_whatever_is_summed(shape, dims, room):
    x = torch.randn(shape)
    exact = x.double().pow(2).sum(dims).max().sqrt().item()
    assert torch_functions.longest(x, dims, room) == pytest.approx(exact, rel=1e-5)
    peak = peak_bytes_torch(lambda: (torch.tensor(torch_functions.longest(x, dims, room)),))
    assert peak < 1.1 * 4 * room + 2000


def test_a_look_keeps_to_the_budget_of_its_plan():
    """The values are summed over all but their last axis: their squares are made a stretch at a time."""
    formula = "y^<h mu>_n = softmax[nu rho](k^<h mu>_i q^<h nu>_j r^<h rho>_p M_<i j p>) v^<h nu rho>_n"
    sizes = dict(h=1, mu=100, nu=128, rho=64, i=4, j=4, p=4, n=4)
    make = torch.Generator().manual_seed(0)
    shapes = dict(k="h mu i", q="h nu j", r="h rho p", M="i j p", v="h nu rho n")
    x = {n: torch.rand([sizes[a] for a in axes.split()], generator=make) for n, axes in shapes.items()}
    budget = least_budget(formula, x)
    compiled = ta.compile(formula, memory=budget)
    assert ", room=" in compiled.source("torch", dtypes=dict.fromkeys(x, "float32"), **sizes)
    assert peak_bytes_torch(lambda: (compiled(x),)) <= budget


def least_budget(formula, x) -> int:
    with pytest.raises(ta.BudgetError) as error:
        ta.compile(formula, memory=1)(x)
    return int(str(error.value).rpartition("memory=")[2])
