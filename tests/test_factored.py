"""Factored plans: the same values and gradients as the reference, and the fallback where a product underflows."""

from __future__ import annotations

import random
import re
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.cost import kernel_cost
from tensorattn.kernel import Attempt, Stream
from tensorattn.reference import evaluate, magnitude

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
TOLERANCE = {np.float32: 1e-5, np.float64: 1e-10}
TRIANGLE = "y^mu_n = softmax[nu rho](a^mu_i b^nu_i + c^nu_i e^rho_i + f^rho_i g^mu_i{where}) v^nu_n{more}"
SHAPES = dict(
    a="mu i", b="nu i", c="nu i", e="rho i", f="rho i", g="mu i", v="nu n", w="rho n", h="mu n", u="n", V="nu rho n",
    A="mu nu", B="nu rho", C="mu rho", D="rho sigma", z="mu sigma", m="nu rho", r="mu nu", p="rho", x="mu", k="sigma",
    s="", t="mu",
)  # fmt: skip
SIZES = {"mu": 5, "nu": 7, "rho": 3, "sigma": 2, "i": 4, "n": 3}
TERMS = [
    "a^mu_i b^nu_i",
    "c^nu_i e^rho_i",
    "f^rho_i g^mu_i",
    "A^<mu nu>",
    "B^<nu rho> / 2",
    "2 C^<mu rho>",
    "p_rho",
    "x_mu",
]
TERMS += ["s", "(A^<mu nu> + C^<mu rho>) / sqrt(|i|)", "a^mu_i (b^nu_i + f^rho_i + e^rho_i)", "abs(nu - rho) / 3"]
TERMS += ["tanh(A^<mu nu>)", "D^<rho sigma>", "z^<mu sigma>", "0.1 * (nu - mu)**2", "log(1 + x_mu**2)"]
PARTS = ["m_<nu rho>", "r_<mu nu>", "rho <= nu", "nu <= mu", "not (nu == 1)", "mu != 2", "rho <= mu and r_<mu nu>"]
VALUES = ["v^nu_n", "w^rho_n", "V^<nu rho>_n", "v^nu_n w^rho_n", "v^nu_n w^rho_n / (1 + x_mu**2)", "h^mu_n A^<mu nu>"]
VALUES += [
    "tanh(A^<mu nu>) v^nu_n",
    "V^<nu rho>_n s",
    "v^nu_n / (2 + p_rho**2)",
    "u_n",
    "v^nu_p w^rho_p u_n",
    "k_sigma v^nu_n",
]


def shaped(program, sizes, rng, dtype=np.float64, scale=1.0):
    found = {}
    for name in program.inputs:
        shape = tuple(sizes[a] for a in SHAPES[name].split())
        found[name] = rng.random(shape) < 0.6 if name in "mr" else np.asarray(rng.normal(size=shape) * scale, dtype)
    return found


def compared(text, x, library="numpy", dtype=np.float64, exact=10):
    """The result, checked against the reference."""
    program = ta.parse(text)
    wrap = np.asarray if library == "numpy" else torch.tensor
    y = np.asarray(ta.compile(text, plan="factored")({k: wrap(a) for k, a in x.items()}))
    name = program.defined[-1]
    expected, size = evaluate(program, x)[name], magnitude(program, x)[name]
    assert y.dtype == dtype
    allowed = TOLERANCE[dtype] * max(exact / 10, 1) * size + np.finfo(dtype).tiny
    assert (np.abs(y - expected) <= allowed).all(), (text, np.abs(y - expected).max())
    return y


def drawn(seed):
    """A formula with a score of small terms, index sizes, how large the inputs are, and a seed for them."""
    rnd = random.Random(seed)
    score = " + ".join(rnd.sample(TERMS, rnd.randint(2, 5)))
    parts = rnd.sample(PARTS, rnd.choice([0, 0, 1, 2]))
    value = rnd.choice(VALUES)
    where = f" : {' and '.join(parts)}" if parts else ""
    barred = [i for i in ("nu", "rho", "sigma") if re.search(rf"\b{i}\b", (score + where).replace("_", " "))]
    sink = rnd.choice(["", "", "", "; sink=s", "; sink=t_mu"])
    body = f"softmax[{' '.join(barred)}{where}{sink}]({score}) {value}"
    left = "y^mu_n" if re.search(r"\bmu\b", body.replace("_", " ")) else "y_n"
    lone = [i for i in barred if not re.search(rf"\b{i}\b", value.replace("_", " "))]
    sizes = dict(zip(SIZES, [*rnd.sample([2, 3, 5, 7], 4), rnd.choice([1, 2]), rnd.choice([1, 3])], strict=True))
    if rnd.random() < 0.2:
        sizes[rnd.choice(list(sizes))] = rnd.choice([0, 1])
    text = f"{left} = sum[{' '.join(lone)}]({body})" if lone else f"{left} = {body}"
    return text, sizes, rnd.choice([0.3, 1.0, 10.0, 300.0]), rnd.randrange(2**32)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.integers(0, 2**32), st.sampled_from(["numpy", "torch"]), st.sampled_from([np.float32, np.float64]))
def test_factored_equals_the_reference(seed, library, dtype):
    text, sizes, scale, seed = drawn(seed)
    try:
        program = ta.compile(text, plan="factored").program
        x = shaped(program, sizes, np.random.default_rng(seed), dtype, scale)
        evaluate(program, x)
    except (ta.NotationError, ta.PlanError, ta.ShapeError):  # no formula, nothing to factor, a size that is open
        return
    exact = 10 * scale**2 if dtype == np.float32 else 10  # a score, up to scale², is rounded to a part of its size
    compared(text, x, library, dtype, exact)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_an_exponential_among_the_values_is_no_shifted_one(library, tests):
    text = "y^mu_n = softmax[nu rho](A^<mu nu> + B^<nu rho>) exp(A^<mu nu>) w^rho_n"
    compared(text, shaped(ta.parse(text), SIZES, np.random.default_rng(0)), library)
    assert tests == [True]


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_rows_that_admit_nothing_are_zero_and_no_reason_to_fall_back(library, tests):
    text = "y^mu_n = softmax[nu rho : r_<mu nu> and m_<nu rho>; sink=t_mu](A^<mu nu> + B^<nu rho>) v^nu_n w^rho_n"
    x = shaped(ta.parse(text), SIZES, np.random.default_rng(0))
    x["r"][1] = False
    y = compared(text, x, library)
    assert (y[1] == 0).all()
    assert tests == [False, True], "the denominator is small, for want of tuples only"


# When it may not be used ----------------------------------------------------------------------------------------------


@pytest.fixture
def tests(monkeypatch):
    """The outcome of every test that a factored kernel makes, for kernels built from here on."""
    outcomes: list[bool] = []
    for name in ("numpy", "torch"):
        functions = __import__(f"tensorattn.backends.{name}.functions", fromlist=["holds"])

        def counted(test, holds=functions.holds):
            outcomes.append(holds(test))
            return outcomes[-1]

        monkeypatch.setattr(functions, "holds", counted)
    return outcomes


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("where", ["", " : m_<nu rho>", " : rho <= mu and r_<mu nu>"])
def test_opposed_scores_fall_back(library, where, tests):
    """Each term wants another tuple: the product of all underflows, at last in float64 too, the softmax does not."""
    text = f"y^mu_n = sum[rho](softmax[nu rho{where}](A^<mu nu> + B^<nu rho> + C^<mu rho>) v^nu_n)"
    program = ta.parse(text)
    for dtype, size, outcomes in (
        (np.float32, 1, [True]), (np.float32, 80, [False, True]), (np.float64, 80, [True]),
        (np.float32, 1e3, [False, False]), (np.float64, 1e3, [False]),
    ):  # fmt: skip
        x = shaped(program, SIZES, np.random.default_rng(0), dtype)
        nu, rho = np.arange(SIZES["nu"]), np.arange(SIZES["rho"])
        for name, target in (("A", nu == 0), ("C", rho == 2), ("B", (nu[:, None] == 6) & (rho == 0))):
            x[name] = np.asarray(x[name] + size * target, dtype)
        x |= {n: np.ones_like(x[n]) for n in "mr" if n in x}
        tests.clear()
        compared(text, x, library, dtype, exact=size)  # a score of this size is rounded
        assert tests == outcomes if not where else tests[-1] == outcomes[-1], (dtype, size, tests)


def innermost(body):
    """What is computed where every attempt failed."""
    while attempts := [i for i in body if isinstance(i, Attempt)]:
        body = attempts[-1].fallback
    return body


def test_the_fallback_streams():
    compiled = ta.compile(TRIANGLE.format(where="", more=" w^rho_n"), plan="factored")
    for dtype, count in (("float32", 2), ("float64", 1)):
        kernel = compiled.kernel(dtypes=dict.fromkeys(compiled.inputs, dtype))
        assert any(isinstance(i, Stream) for i in innermost(kernel.body))
        assert str(kernel).count("Attempt(") == count


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_small_values_count(library, tests):
    """exp(−60) · 10⁻³⁰ underflows in float32, and is all there is."""
    text = "y^mu_n = softmax[nu rho](A^<mu nu> + B^<nu rho> + C^<mu rho>) v^nu_n w^rho_n"
    x = shaped(ta.parse(text), SIZES, np.random.default_rng(0), np.float32, 0.1)
    x["v"][:, 1] *= np.float32(1e-30)
    compared(text, x, library, np.float32)
    assert tests == [False, True]
    x["v"][:, 1] = 0
    tests.clear()
    compared(text, x, library, np.float32)
    assert tests == [True], "a column of zeros is no reason to fall back"


NOT_FINITE = [
    "",
    " : r_<mu nu>",
    " : m_<nu rho>",
    " : r_<mu nu> and rho <= nu",
    " : mu != 2",
    " : r_<mu nu> and m_<nu rho>",
]


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("where", NOT_FINITE)
def test_what_is_not_finite_means_what_it_means_densely(library, where):
    text = f"y^mu_n = softmax[nu rho{where}](A^<mu nu> + B^<nu rho> + x_mu) v^nu_n w^rho_n s"
    wrap = np.asarray if library == "numpy" else torch.tensor
    program = ta.parse(text)
    factored, dense = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = shaped(program, SIZES, rng)
        for name in "ABxvws":
            if rng.random() < 0.4:
                bad = rng.choice([np.nan, np.inf, -np.inf])
                x[name][tuple(rng.integers(0, size) for size in x[name].shape)] = bad
        x |= {n: np.where(np.arange(len(x[n]))[:, None] == 1, False, x[n]) for n in "mr" if n in x}  # a row of nothing
        y, z = (np.asarray(f({k: wrap(a) for k, a in x.items()})) for f in (factored, dense))
        np.testing.assert_allclose(y, z, atol=1e-12, err_msg=str(seed))


def test_padding_of_minus_infinity_stays_fast(tests):
    text = "y^mu_n = softmax[nu rho](A^<mu nu> + B^<nu rho>) v^nu_n w^rho_n"
    x = shaped(ta.parse(text), SIZES, np.random.default_rng(0))
    x["A"][:, 5:] = x["B"][0] = -np.inf
    compared(text, x)
    assert tests == [True]


# Gradients and transforms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["", " : r_<mu nu> and m_<nu rho>; sink=t_mu", " : rho <= nu"])
def test_gradients(where):
    text = TRIANGLE.format(where="", more=" w^rho_n").replace("](", f"{where}](", 1)
    program = ta.parse(text)
    x = shaped(program, dict(SIZES, mu=3, nu=4), np.random.default_rng(1))
    given = {k: torch.tensor(a, requires_grad=a.dtype != bool) for k, a in x.items()}
    names = [k for k, a in given.items() if a.requires_grad]
    factored, dense = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")

    def call(*arrays):
        return factored(given | dict(zip(names, arrays, strict=True)))

    arrays = [given[n] for n in names]
    assert torch.autograd.gradcheck(call, arrays)
    first = [torch.autograd.grad(f(given).square().sum(), arrays, create_graph=True) for f in (factored, dense)]
    second = [torch.autograd.grad(sum(g.square().sum() for g in gs), arrays) for gs in first]
    for pair in (*zip(*first, strict=True), *zip(*second, strict=True)):
        torch.testing.assert_close(*pair)


def test_excluded_nan_has_no_gradient():
    text = "y^mu_n = softmax[nu rho : r_<mu nu>](a^mu_i b^nu_i + B^<nu rho>) w^rho_n"
    text = text.replace("softmax", "sum[nu](softmax").replace("w^rho_n", "w^rho_n)")
    x = shaped(ta.parse(text), SIZES, np.random.default_rng(1))
    x["r"][:, 2], x["b"][2, 1] = False, np.nan
    found = []
    for plan in ("factored", "dense"):
        given = {k: torch.tensor(a, requires_grad=a.dtype != bool) for k, a in x.items()}
        arrays = [a for a in given.values() if a.requires_grad]
        found.append(torch.autograd.grad(ta.compile(text, plan=plan)(given).square().sum(), arrays))
    for a, b in zip(*found, strict=True):
        assert torch.isfinite(b).all()
        torch.testing.assert_close(a, b)


def test_transforms_and_tracers():
    text = TRIANGLE.format(where="", more=" w^rho_n")
    x = {k: torch.tensor(a) for k, a in shaped(ta.parse(text), SIZES, np.random.default_rng(1)).items()}
    factored, dense = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")
    several = torch.stack([x["a"], 2 * x["a"]])
    found = torch.func.vmap(lambda a: factored(x | {"a": a}))(several)
    torch.testing.assert_close(found, torch.stack([dense(x | {"a": a}) for a in several]))
    grads = [torch.func.grad(lambda a, f=f: f(x | {"a": a}).sum())(x["a"]) for f in (factored, dense)]
    torch.testing.assert_close(*grads)


# The plan ---------------------------------------------------------------------------------------------------------


def test_memory_stays_far_below_the_weights():
    n, d = 320, 16
    compiled = ta.compile(TRIANGLE.format(where="", more="").replace("= ", "= sum[rho](") + ")", plan="factored")
    sizes = dict(mu=n, nu=n, rho=n, i=d, n=d)
    x = shaped(compiled.program, sizes, np.random.default_rng(0), np.float32, 0.5)
    compiled(x)
    tracemalloc.start()
    compiled(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n**3 * 4 / 64
    cost = kernel_cost(compiled.kernel(sizes, dtypes=dict.fromkeys(compiled.inputs, "float32"))).at(sizes)
    assert cost.peak_bytes == pytest.approx(peak, rel=0.05)
    assert cost.exps == 3 * n * n


def test_auto_factors_where_it_pays():
    text = TRIANGLE.format(where="", more=" w^rho_n")
    compiled = ta.compile(text)
    kinds: list[str] = []
    for n in (5, 64, 5):
        sizes = dict(mu=n, nu=n, rho=n, i=4, n=2)
        x = shaped(compiled.program, sizes, np.random.default_rng(0), np.float64, 0.5)
        s = np.einsum("mi,ni->mn", x["a"], x["b"])[:, :, None] + x["c"] @ x["e"].T + (x["g"] @ x["f"].T)[:, None]
        w = np.exp(s - s.max((1, 2), keepdims=True))
        expected = np.einsum("mnr,ne,re->me", w / w.sum((1, 2), keepdims=True), x["v"], x["w"])
        np.testing.assert_allclose(compiled(x), expected, atol=1e-12)
        kinds = [entry.plan.kind for entry in compiled._table.values()]
    assert kinds == ["dense", "factored"]


def test_the_denominator_shares_what_the_numerator_made():
    text = TRIANGLE.format(where="", more="").replace("= ", "= sum[rho](") + ")"
    compiled = ta.compile(text, plan="factored")
    assert "numerator" in compiled.explain()
    assert "where these underflow" in compiled.explain()
    lines = compiled.source("numpy").split("if holds")[0].split("def formula")[1]
    assert lines.count(" @ ") == 5, "three scores, the product of two exponentials once, the values"


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("y^mu_n = softmax[nu rho](T^<mu nu rho>) v^nu_n w^rho_n", "has all the indices"),
        ("y^mu_n = softmax[nu rho](tanh(A^<mu nu> + B^<nu rho>)) v^nu_n w^rho_n", "has all the indices"),
        ("y^mu_n = softmax[nu rho : T^<mu nu rho>](A^<mu nu> + B^<nu rho>) v^nu_n w^rho_n", "has all the indices"),
        ("y^mu_n = sparsemax[nu rho](A^<mu nu> + B^<nu rho>) v^nu_n w^rho_n", "no product of functions"),
        ("y^<mu nu>_n = softmax[nu rho](A^<mu nu> + B^<nu rho>) w^rho_n", "not summed with the weights"),
        ("y_n = sum[mu](softmax[nu rho](A^<mu nu> + B^<nu rho>) v^nu_n w^rho_n)", "an index of the score"),
        ("y^mu_n = softmax[nu rho : m_<nu rho>](log(A^<mu nu>) + B^<nu rho>) v^nu_n w^rho_n", "must not see"),
        ("y^mu = A^<mu nu> p_nu", "no softmax"),
    ],
)
def test_what_cannot_be_factored_says_why(formula, reason):
    with pytest.raises(ta.PlanError, match="can be factored") as error:
        ta.compile(formula, plan="factored")
    assert reason in str(error.value)
