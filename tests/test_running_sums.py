"""Sums under an order of positions are running sums: the same values and gradients as with an array of truths."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.comparisons import comparison
from tensorattn.ir import Index
from tensorattn.kernel import Accumulate, Attempt, IfFinite, Stream
from tensorattn.reference import evaluate
from tests import kernels
from tests.kernels import BOTH, INF, NAN
from tests.test_factored import SIZES, compared, shaped, tests

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
W8 = "y^mu_n = softmax[nu rho : {where}](k^mu_i q^nu_i + l^mu_i r^rho_i) v^nu_n u^rho_n"
__all__ = ["tests"]  # a fixture


def instructions(body):
    """All of them, in loops and in both sides of branches."""
    for i in body:
        yield i
        for inner in ("body", "fast", "safe", "fallback"):
            yield from instructions(getattr(i, inner, ())) if isinstance(i, (Stream, IfFinite, Attempt)) else ()


def running(compiled, sizes):
    return sum(isinstance(i, Accumulate) for i in instructions(compiled.kernel(sizes).body))


# The instruction --------------------------------------------------------------------------------------------------


def loops(x, size, windows):
    """Σ over what stands in one of the windows seen from each place along the second axis."""
    found = np.zeros((x.shape[0], size, x.shape[2]), x.dtype)
    for i in range(size):
        for t in range(x.shape[1]):
            for low, high in windows:
                if (low is None or low <= t - i) and (high is None or t - i <= high):
                    found[:, i] += x[:, t]
    return found


ONE_END = [((None, 0),), ((None, -1), (1, None)), ((None, 2),), ((None, -9), (9, None)), ((0, None),), ((-3, None),)]
BOTH_ENDS = [((-7, 0),), ((-2, 2),), ((0, 0),), ((3, 9),), ((-70, 70),), ((-9, -3), (1, 1), (20, None)), ((8, 8),)]
EXTREMES = [(), ((None, None),), ((-(10**9), 10**9),), ((10**9, 10**9 + 3),), ((-(10**9), -(10**9)),), ((-6, 10**9),)]


@BOTH
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize("windows", [*ONE_END, *BOTH_ENDS, *EXTREMES])
def test_accumulate(library, dtype, windows):
    instruction = Accumulate(
        kernels.register("r", "h i d", dtype), kernels.register("x", "h t d", dtype), Index("t"), Index("i"), windows
    )
    for length, size in (
        (7, 7),
        (5, 3),
        (3, 7),
        (1, 1),
        (0, 3),
        (3, 0),
        (150, 150) if windows in ONE_END else (23, 29),
    ):
        x = (kernels.random(2, length, 3) * 8).round().astype(dtype)
        found = kernels.one(library, {"x": ("h t d", dtype)}, instruction, x, sizes=(("i", size),))
        kernels.close(found, loops(x, size, windows))


@BOTH
@pytest.mark.parametrize(("at_most", "at_least"), [(0, None), (-1, 1), (None, -3)])
def test_running_products(library, at_most, at_least):
    sides = ((None, at_most), (at_least, None))
    windows = tuple(side for side in sides if side != (None, None))
    instruction = Accumulate(
        kernels.register("r", "h i"), kernels.register("x", "h t"), Index("t"), Index("i"), windows, "prod"
    )
    for length, size in ((7, 7), (5, 3), (3, 7), (0, 3), (3, 0)):
        x = kernels.random(2, length).round()
        found = kernels.one(library, {"x": ("h t", "float64")}, instruction, x, sizes=(("i", size),))
        t, i = np.arange(length), np.arange(size)[:, None]
        there = np.zeros((size, length), bool)
        there |= False if at_most is None else t - i <= at_most
        there |= False if at_least is None else t - i >= at_least
        kernels.close(found, np.where(there, x[:, None], 1).prod(-1))


@BOTH
def test_long_sums_keep_their_digits(library):
    text = "c_i = sum[t : t <= i](x_t) ones_i"
    x = np.full(20_000, 0.1, np.float32)
    wrap = np.asarray if library == "numpy" else torch.tensor
    found = np.asarray(ta.compile(text, sizes={"i": len(x)})(x=wrap(x)))
    expected = np.arange(1, len(x) + 1) * np.float64(x[0])
    assert (np.abs(found - expected) <= 1e-5 * expected).all()


# Which predicates -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "windows"),
    [
        ("rho <= nu", [(None, 0)]), ("rho < nu", [(None, -1)]), ("nu >= rho", [(None, 0)]), ("nu > rho", [(None, -1)]),
        ("rho - nu <= 3", [(None, 3)]), ("nu + 2 > rho - 1", [(None, 2)]), ("-1 - nu < -rho", [(None, 0)]),
        ("rho != nu", [(None, -1), (1, None)]), ("not (nu == rho + 2)", [(None, -3), (-1, None)]),
        ("not (rho < nu)", [(0, None)]), ("nu == rho + 1", [(-1, -1)]),
        ("nu - 8 < rho and rho <= nu", [(-7, 0)]), ("0 <= nu - rho < 8", [(-7, 0)]), ("rho <= nu and nu < rho", []),
        ("abs(nu - rho) <= 4", [(-4, 4)]), ("3 > abs(rho - nu - 1)", [(-1, 3)]), ("abs(nu - rho) < 0", []),
        ("2 < abs(nu - rho)", [(None, -3), (3, None)]), ("abs(nu - rho) >= 0", [(None, None)]),
        ("abs(nu - rho) <= 4 and rho != nu - 2", [(-4, -3), (-1, 4)]), ("rho < nu or nu == rho", [(None, 0)]),
        ("not (rho < nu - 3 or rho > nu + 2)", [(-3, 2)]), ("rho < nu - 3 or rho > nu + 2", [(None, -4), (3, None)]),
        ("2 * nu <= rho", None), ("nu <= 2", None), ("nu <= rho + 0.5", None), ("abs(nu) <= 2", None),
        ("rho <= nu + mu", None), ("nu <= rho + 3000000000", None), ("rho <= nu and nu <= mu", None),
        ("abs(nu - rho) == 2", None), ("rho <= nu and nu <= 5", None), ("rho <= nu or mu <= nu", None),
    ],
)  # fmt: skip
def test_what_compares_two_positions(where, windows):
    program = ta.parse(f"y^mu = sum[nu rho : {where}](A^<mu nu rho>)")
    found = comparison(program.statements[0].body.where)
    if found is not None and found.left.name == "nu":
        found = found.turned
    assert (None if found is None else list(found.windows)) == windows


# Sums -------------------------------------------------------------------------------------------------------------

SUMS = [
    "y^<h i> = sum[t : t <= i](x^<h t>) z_i",
    "y^<h i> = sum[t : t > i + 1](2 x^<h t>) z_i",
    "y^<h i> = sum[t : t != i](x^<h t> z_t) z_i",
    "y^<h i> = sum[t s : t < i](x^<h t> B^<t s>) z_i",
    "y^<h i> = sum[t s : t <= i](B^<t s>) x^<h i>",
    "y^<h i> = sum[t : t <= i](x^<h t> w^<h i>)",
    "y^<h i> = mean[t : i <= t + 1](x^<h t>) z_i",
    "y^<h i> = sum[t : t <= i and t <= h](x^<h t>) z_i",
    "y^<h> = sum[t i : t <= i](x^<h t> w^<h i>)",
    "y^<h i> = sum[t : t <= i](x^<h t>) sum[t : i <= t](w^<h t>) z_i",
    "y^<h i> = sum[t : i - 4 < t and t <= i](x^<h t>) z_i",
    "y^<h i> = mean[t : abs(t - i) <= 3](x^<h t>) z_i",
    "y^<h i> = sum[t s : 1 <= t - i <= 6](x^<h t> B^<t s>) z_i",
    "y^<h i> = sum[t : abs(t - i) <= 2 and t != i](x^<h t> z_t) z_i",
    "y^<h i> = sum[t : t == i - 1](x^<h t>) z_i",
    "y^<h i> = sum[t : t - 3 <= i - 5 <= t - 5](x^<h t> w^<h i>)",
    "y^<h i> = sum[t : i < t and t < i](x^<h t>) z_i",
]


@BOTH
@pytest.mark.parametrize("text", SUMS)
@pytest.mark.parametrize("bad", [None, NAN, INF])
def test_sums_equal_the_reference(library, text, bad):
    program = ta.parse(text)
    for seed, size in enumerate((5, 1, 0, 2, 23)):
        rng = np.random.default_rng(seed)
        shapes = dict(x=(3, size), z=(size,), w=(3, size), B=(size, 2))
        x = {name: rng.normal(size=shapes[name]) for name in program.inputs}
        if bad is not None and size > 3:
            x[program.inputs[0]][..., 3 if program.inputs[0] != "B" else 1] = bad
        wrap = np.asarray if library == "numpy" else torch.tensor
        found = ta.compile(text)({k: wrap(a) for k, a in x.items()})
        np.testing.assert_allclose(np.asarray(found), ta.reference.evaluate(program, x)["y"], atol=1e-12)


@BOTH
@pytest.mark.parametrize("where", ["t <= i", "abs(t - i) < 3", "t - i > 40", "t != i"])
@pytest.mark.parametrize("text", ["y^h = mean[t i l : {}](x^<h t> z_i v_l)", "y^h = mean[t i : {}](x^<h t> w_t z_i)"])
def test_means_over_both_positions_count_the_pairs(library, where, text):
    rng, sizes = np.random.default_rng(0), dict(h=2, t=7, i=11, l=3)
    compiled = ta.compile(text.format(where))
    axes = dict(x="ht", w="t", z="i", v="l")
    x = {name: rng.normal(size=[sizes[a] for a in axes[name]]) for name in compiled.program.inputs}
    found = np.asarray(compiled({name: torch.tensor(a) if library == "torch" else a for name, a in x.items()}))
    np.testing.assert_allclose(found, evaluate(compiled.program, x)["y"], atol=1e-12)


def test_a_sum_takes_no_array_of_all_pairs():
    compiled = ta.compile("y^<h i> = sum[t : t <= i](x^<h t>) z_i")
    sizes = dict(h=3, i=4000, t=4000)
    assert running(compiled, sizes) == 1
    cost = compiled.cost(sizes).at(sizes)
    assert cost.flops <= 4 * 3 * 4000
    assert cost.peak_bytes <= 3 * 3 * 4000 * 8
    assert "running sums" in compiled.explain(sizes)


# Factored reductions ----------------------------------------------------------------------------------------------

SCORES = ["A^<mu nu>", "C^<mu rho>", "p_rho", "a^mu_i b^nu_i", "f^rho_i g^mu_i", "x_mu", "2 A^<mu nu> / sqrt(|n|)"]
ORDERS = ["rho <= nu", "rho < nu", "nu != rho", "rho <= nu + 1", "rho - 2 < nu", "nu > rho", "not (nu == rho - 1)"]
ORDERS += ["nu - 4 < rho and rho <= nu", "abs(nu - rho) <= 3", "2 <= rho - nu < 10", "rho == nu + 1"]
MORE = ["", "", " and nu <= mu", " and r_<mu nu>", " and rho != mu", " and nu <= rho + 2"]
VALUES = ["v^nu_n w^rho_n", "w^rho_n", "v^nu_n", "v^nu_n w^rho_n / (1 + x_mu**2)", "u_n"]


def drawn(seed):
    rnd = random.Random(seed)
    score = " + ".join(["A^<mu nu>", "C^<mu rho>", *rnd.sample(SCORES, rnd.randint(0, 2))])
    value = rnd.choice(VALUES)
    where = rnd.choice(ORDERS) + rnd.choice(MORE) + rnd.choice(["", "", "; sink=t_mu"])
    body = f"softmax[nu rho : {where}]({score}) {value}"
    lone = [i for i in ("nu", "rho") if i not in value]
    text = f"y^mu_n = sum[{' '.join(lone)}]({body})" if lone else f"y^mu_n = {body}"
    size = rnd.choice([0, 1, 2, 5, 7, 23])
    sizes = SIZES | {
        "mu": rnd.choice([3, min(size, 7)]),
        "nu": size,
        "rho": rnd.choice([size, 3]),
        "n": rnd.choice([1, 3]),
    }
    return text, sizes, rnd.choice([0.3, 1.0, 10.0, 300.0]), rnd.randrange(2**32)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["numpy", "torch"]), st.sampled_from([np.float32, np.float64]))
def test_ordered_pairs_equal_the_reference(seed, library, dtype):
    text, sizes, scale, seed = drawn(seed)
    x = shaped(ta.parse(text), sizes, np.random.default_rng(seed), dtype, scale)
    compared(text, x, library, dtype)


@pytest.mark.parametrize("where", ["rho <= nu", "nu != rho", "rho < nu - 1"])
def test_nothing_is_as_large_as_all_tuples_or_all_columns(where):
    compiled = ta.compile(W8.format(where=where))
    sizes = dict(mu=2048, nu=2048, rho=2048, i=64, n=64)
    choice = compiled.choice(sizes, dtypes=dict.fromkeys(compiled.inputs, "float32"))
    assert choice.plan.kind == "factored"
    assert running(compiled, sizes) >= 2
    assert choice.chosen.peak < 6 * 2048 * 2048 * 4, "N²n would take 64 N² 4"
    assert choice.chosen.flops < 8 * 2048 * 2048 * 64 * 2
    assert choice.chosen.cost.at(sizes).exps == 2 * 2048 * 2048


def test_three_indices_in_order():
    text = (
        "y^mu_n = softmax[nu rho sigma : sigma <= rho and rho < nu](A^<mu nu> + C^<mu rho> + z^<mu sigma>) "
        "v^nu_n w^rho_n k_sigma"
    )
    compiled = ta.compile(text, plan="factored")
    ((_, found),) = compiled.plan().factored
    for order in (found.numerator, found.denominator):
        assert sum(step.running is not None for step in order.steps) == 2
    assert "nu*rho" not in str(found.price), "nothing has both"
    for library in ("numpy", "torch"):
        compared(text, shaped(ta.parse(text), SIZES | {"rho": 5, "sigma": 5}, np.random.default_rng(0)), library)


def test_a_mask_between_a_row_and_a_barred_index():
    """Averages of what came before: the weights of all rows are the same but for the order."""
    text = "y^mu_n = softmax[nu : nu <= mu](p_nu) v^nu_n"
    compiled = ta.compile(text, plan="factored")
    sizes = dict(mu=500, nu=500, n=8)
    assert compiled.cost(sizes).at(sizes).exps == 500
    assert running(compiled, sizes) == 2
    for scale in (1, 300):
        for library in ("numpy", "torch"):
            rng = np.random.default_rng(0)
            x = {"p": rng.normal(size=7) * scale, "v": rng.normal(size=(7, 3))}
            wrap = np.asarray if library == "numpy" else torch.tensor
            found = ta.compile(text, plan="factored", sizes={"mu": 9})({k: wrap(a) for k, a in x.items()})
            expected = np.array([
                np.average(x["v"][: m + 1], axis=0, weights=np.exp(x["p"][: m + 1] - x["p"][: m + 1].max()))
                for m in range(9)
            ])  # fmt: skip
            np.testing.assert_allclose(np.asarray(found), expected, atol=1e-12)


# Digits -----------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("height", "holds"), [(12, True), (30, True), (70, False)])
def test_the_excluded_diagonal_may_hold_nearly_all(library, height, holds, tests):
    """With all less the diagonal 1 - (1 - e^-height) would be what is left: of 24 bits none."""
    text = "y^mu_n = softmax[nu rho : nu != rho](A^<mu nu> + C^<mu rho>) v^nu_n w^rho_n"
    x = shaped(ta.parse(text), SIZES | {"rho": 7}, np.random.default_rng(0), np.float32, 0.5)
    for name in "AC":
        x[name][:, 4] += np.float32(height)
    compared(text, x, library, np.float32, exact=height)
    assert tests[1] == holds
    assert tests[-1]


# Gradients and what is not finite -----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["rho <= nu", "nu != rho", "rho < nu - 1 and nu <= mu"])
def test_gradients(where):
    text = W8.format(where=where)
    rng = np.random.default_rng(1)
    x = {k: torch.tensor(rng.normal(size=(4, 2)), requires_grad=True) for k in "kqlrvu"}
    factored, dense = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")
    assert torch.autograd.gradcheck(lambda *a: factored(dict(zip(x, a, strict=True))), tuple(x.values()))
    first = [torch.autograd.grad(f(x).square().sum(), x.values(), create_graph=True) for f in (factored, dense)]
    second = [torch.autograd.grad(sum(g.square().sum() for g in gs), x.values()) for gs in first]
    for pair in (*zip(*first, strict=True), *zip(*second, strict=True)):
        torch.testing.assert_close(*pair)


@BOTH
@pytest.mark.parametrize("where", ["rho <= nu", "nu != rho", "rho < nu and nu <= mu"])
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_means_what_it_means_densely(library, where, bad):
    text = W8.format(where=where)
    factored, dense = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")
    wrap = np.asarray if library == "numpy" else torch.tensor
    for place, name in enumerate("kqlrvu"):
        x = {k: np.random.default_rng(n).normal(size=(5, 2)) for n, k in enumerate("kqlrvu")}
        x[name][4 - place % 2, 1] = bad
        y, z = (np.asarray(f({k: wrap(a) for k, a in x.items()})) for f in (factored, dense))
        np.testing.assert_allclose(y, z, atol=1e-12, err_msg=name)


def test_an_excluded_nan_changes_no_sum_and_no_gradient():
    text = "y^<h i> = sum[t : t <= i](x^<h t>) z_i"
    x = torch.tensor([[1.0, 2.0, NAN, 4.0]], dtype=torch.float64, requires_grad=True)
    y = ta.compile(text)(x=x, z=torch.ones(4, dtype=torch.float64))
    assert y.isnan().tolist() == [[False, False, True, True]]
    (gradient,) = torch.autograd.grad(y[0, :2].sum(), x)
    assert gradient.tolist() == [[2.0, 1.0, 0.0, 0.0]]


@BOTH
def test_truths_are_0_and_1_in_every_reduction(library):
    x = np.array([True, False, True, False, False])
    for kind, wanted in dict(sum=2, mean=0.4, prod=0, max=1, min=0, lse=np.log(2 * np.e + 3)).items():
        compiled = ta.compile(f"y_i = {kind}[t : t - i < 9](x_t) z_i")
        inputs = dict(x=x, z=np.ones(3))
        found = compiled({n: torch.tensor(a) if library == "torch" else a for n, a in inputs.items()})
        np.testing.assert_allclose(found, evaluate(compiled.program, inputs)["y"])
        np.testing.assert_allclose(found, np.full(3, wanted))
