"""Windows of positions: sums without arrays of all pairs, whose digits nothing outside of a window can take."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.windows import additions, common, complement, turned
from tests.kernels import BOTH, INF, NAN
from tests.test_factored import SIZES, compared, shaped, tests
from tests.test_running_sums import W8, running

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
WRAP = {"numpy": np.asarray, "torch": torch.tensor}
MOVING = "y^<h i> = sum[t : i - {width} < t and t <= i](x^<h t>) z_i"
__all__ = ["tests"]  # a fixture

# Sets of numbers ----------------------------------------------------------------------------------------------------

numbers = st.lists(st.integers(-9, 9), unique=True, max_size=6).map(sorted)


def windows_of(ends, opened):
    """Windows between every two of the ends, with gaps between them."""
    found = [None] * opened + [3 * end for end in ends]
    found += [None] * (len(found) % 2)
    pairs = zip(found[::2], found[1::2], strict=True)
    return tuple((low, high) for low, high in pairs)


windows = st.builds(windows_of, numbers, st.booleans())


def members(found):
    return {
        n for n in range(-40, 41) for low, high in found if (low is None or low <= n) and (high is None or n <= high)
    }


@given(windows, windows)
def test_windows_are_sets_of_numbers(one, other):
    everything = members(((None, None),))
    assert members(complement(one)) == everything - members(one)
    assert complement(complement(one)) == one
    assert members(common(one, other)) == members(one) & members(other)
    assert members(turned(one)) == {-n for n in members(one)}


def test_additions():
    assert [additions((w,)) for w in ((None, 0), (3, None), (0, 0), (0, 1), (-63, 0), (-62, 0))] == [1, 1, 1, 1, 6, 10]
    assert additions(((None, -1), (1, None))) == 3
    assert additions(()) == 0


# Sums ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.integers(-30, 30), st.integers(-2, 40), st.sampled_from([0, 1, 2, 13, 29]), st.sampled_from([0, 1, 3, 17, 31]),
    st.sampled_from(["numpy", "torch"]), st.integers(0, 99),
)  # fmt: skip
def test_any_window_over_any_two_axes_equals_the_loops(low, more, length, size, library, seed):
    rng = np.random.default_rng(seed)
    x, z, high = rng.normal(size=(2, length)), rng.normal(size=size), low + more
    text = f"y^<h i> = sum[t : {low} <= t - i <= {high}](x^<h t>) z_i"
    compiled = ta.compile(text)
    found = np.asarray(compiled({"x": WRAP[library](x), "z": WRAP[library](z)}))
    expected = np.zeros((2, size))
    for i in range(size):
        for t in range(length):
            expected[:, i] += x[:, t] * z[i] if low <= t - i <= high else 0
    np.testing.assert_allclose(found, expected, atol=1e-12)


@BOTH
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_outside_takes_digits_or_reaches_a_sum(library, dtype):
    """A difference of running sums would leave none of the digits, or NaN."""
    width, size = 5, 64
    x = np.random.default_rng(0).normal(size=(3, size)).astype(dtype)
    exact = np.array([x[:, max(i - width + 1, 0) : i + 1].sum(1, dtype=np.longdouble) for i in range(size)]).T
    reach = np.array([np.abs(x[:, max(i - width + 1, 0) : i + 1]).sum(1) for i in range(size)]).T
    x[:, 30] = np.finfo(dtype).max / 2, INF, NAN
    compiled = ta.compile(MOVING.format(width=width))
    assert running(compiled, dict(h=3, i=size, t=size)) == 1
    found = np.asarray(compiled(x=WRAP[library](x), z=WRAP[library](np.ones(size, dtype))))
    outside = np.r_[0:30, 35:size]
    error = np.abs(found - exact)[:, outside]
    assert (error <= 4 * np.finfo(dtype).eps * reach[:, outside]).all()
    assert (found[0, 30:35] > np.finfo(dtype).max / 4).all()
    assert not np.isfinite(found[1:, 30:35]).any()


@BOTH
@pytest.mark.parametrize("kind", ["sum", "mean"])
def test_no_array_of_all_pairs(library, kind):
    size, width = 4096, 100
    compiled = ta.compile(MOVING.format(width=width).replace("sum", kind))
    sizes = dict(h=2, i=size, t=size)
    assert running(compiled, sizes) == (2 if kind == "mean" else 1)
    assert compiled.cost(sizes).at(sizes).peak_bytes < 40 * size * 8
    x = {"x": np.random.default_rng(0).normal(size=(2, size)), "z": np.ones(size)}
    inputs = {name: WRAP[library](value) for name, value in x.items()}
    compiled(inputs)
    tracemalloc.start()
    found = np.asarray(compiled(inputs))
    peak = tracemalloc.get_traced_memory()[1]  # of NumPy; torch has no such count
    tracemalloc.stop()
    assert peak < 1.1 * compiled.cost(sizes).at(sizes).peak_bytes + found.nbytes + (1 << 18)
    sums = np.cumsum(x["x"], axis=1)
    sums[:, width:] -= sums[:, :-width].copy()
    counts = np.minimum(np.arange(size) + 1, width) if kind == "mean" else 1
    np.testing.assert_allclose(found, sums / counts, atol=1e-10)


def test_the_price_decides_between_an_array_and_running_sums():
    compiled = ta.compile(MOVING.format(width=4))
    small, large = dict(h=1000, i=5, t=5), dict(h=5, i=1000, t=1000)
    assert running(compiled, small) == 0
    assert running(compiled, large) == 1
    assert "(running sums)" in compiled.explain(large)
    assert "(running sums)" not in compiled.explain(small)
    assert "(-3, 0)" in compiled.source("numpy", large)
    for size in (5, 300, 5):  # one compiled formula, and a plan for each
        x = np.random.default_rng(size).normal(size=(3, size))
        expected = sum(np.pad(x, ((0, 0), (back, 0)))[:, :size] for back in range(4))
        np.testing.assert_allclose(compiled(x=x, z=np.ones(size)), expected, atol=1e-12)


# Factored -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["nu - 64 < rho and rho <= nu", "abs(nu - rho) < 100", "0 <= rho - nu < 64"])
def test_nothing_is_as_large_as_all_tuples_or_all_columns(where):
    compiled = ta.compile(W8.format(where=where), plan="factored")
    sizes = dict(mu=2048, nu=2048, rho=2048, i=64, n=64)
    assert running(compiled, sizes) >= 2
    choice = compiled.choice(sizes, dtypes=dict.fromkeys(compiled.inputs, "float32"))
    assert choice.chosen.peak < 8 * 2048 * 2048 * 4, "N²n would take 64 N² 4"
    assert choice.chosen.flops < 16 * 2048 * 2048 * 64 * 2
    assert choice.chosen.cost.at(sizes).exps == 2 * 2048 * 2048


@BOTH
def test_two_windows_and_a_condition_on_rows(library):
    text = (
        "y^mu_n = softmax[nu rho : nu - 5 < rho and rho <= nu and nu <= mu + 20 and rho != nu - 2]"
        "(A^<mu nu> + C^<mu rho>) v^nu_n w^rho_n"
    )
    x = shaped(ta.parse(text), SIZES | {"nu": 37, "rho": 41}, np.random.default_rng(0))
    assert running(ta.compile(text, plan="factored"), dict(mu=5, nu=37, rho=41, n=3)) >= 2
    compared(text, x, library)


@pytest.mark.parametrize("where", ["nu - 4 < rho and rho <= nu", "1 <= abs(nu - rho) <= 3"])
def test_gradients(where):
    text = W8.format(where=where)
    rng = np.random.default_rng(1)
    shapes = dict.fromkeys("kl", (2, 2)) | dict.fromkeys("qrvu", (41, 2))
    x = {k: torch.tensor(rng.normal(size=s), requires_grad=True) for k, s in shapes.items()}
    factored, dense = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")
    assert running(factored, dict(mu=2, nu=41, rho=41, i=2, n=2)) >= 2
    assert torch.autograd.gradcheck(lambda *a: factored(dict(zip(x, a, strict=True))), tuple(x.values()))
    first = [torch.autograd.grad(f(x).square().sum(), x.values(), create_graph=True) for f in (factored, dense)]
    second = [torch.autograd.grad(sum(g.square().sum() for g in gs), x.values()) for gs in first]
    for pair in (*zip(*first, strict=True), *zip(*second, strict=True)):
        torch.testing.assert_close(*pair)
    values = {k: v.detach() for k, v in x.items()}
    tangents = {k: torch.tensor(rng.normal(size=v.shape)) for k, v in values.items()}
    pushed = [torch.func.jvp(f, (values,), (tangents,)) for f in (factored, dense)]
    for pair in zip(*pushed, strict=True):
        torch.testing.assert_close(*pair)


@BOTH
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_what_is_not_finite_means_what_it_means_densely(library, bad):
    text = W8.format(where="nu - 4 < rho and rho <= nu")
    factored, dense = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")
    for place, name in enumerate("kqlrvu"):
        x = {k: np.random.default_rng(n).normal(size=(23, 2)) for n, k in enumerate("kqlrvu")}
        x[name][4 - place % 2, 1] = bad
        y, z = (np.asarray(f({k: WRAP[library](a) for k, a in x.items()})) for f in (factored, dense))
        np.testing.assert_allclose(y, z, atol=1e-12, err_msg=name)


# Gradients of sums, and torch.compile --------------------------------------------------------------------------------


def test_an_excluded_nan_changes_no_sum_and_no_gradient():
    x = torch.ones((1, 31), dtype=torch.float64)
    x[0, 20] = NAN
    x.requires_grad_()
    compiled = ta.compile(MOVING.format(width=3))
    assert running(compiled, dict(h=1, i=31, t=31)) == 1
    y = compiled(x=x, z=torch.ones(31, dtype=torch.float64))
    assert y.isnan().nonzero()[:, 1].tolist() == [20, 21, 22]
    (gradient,) = torch.autograd.grad(y[0, :20].sum(), x)
    assert gradient.tolist() == [[3.0] * 18 + [2.0, 1.0] + [0.0] * 11]


def test_one_graph_serves_windows_over_axes_of_any_length():
    compiled = ta.compile("y^<h i> = sum[t : abs(t - i) <= 6](x^<h t>) z_i")
    graph = torch.compile(lambda x, z: compiled(x=x, z=z), fullgraph=True, dynamic=True, backend="aot_eager")
    for size in (40, 23, 57):
        x, z = torch.randn(2, size, dtype=torch.float64), torch.randn(size, dtype=torch.float64)
        torch.testing.assert_close(graph(x, z), compiled(x=x, z=z))


def test_stretches_of_results_are_mapped() -> None:
    """Of a loop that runs over a part of an axis: what it leaves out is 0, and no mapped array."""
    text = "y_<j i k> = T_<k - i + 3> sum[m : abs(m - i) <= 1](x_<i j m k>)"
    make = torch.Generator().manual_seed(0)
    T = torch.randn(8, generator=make, dtype=torch.float64)
    x = torch.randn((4, 3, 4, 5), generator=make, dtype=torch.float64)
    near = (torch.arange(4)[:, None] - torch.arange(4)).abs() <= 1
    shifted = T[torch.arange(5)[None] - torch.arange(4)[:, None] + 3]

    def plain(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("im,ik,ijmk->jik", near.double(), shifted, x)

    streamed = ta.compile(text, plan="streamed")
    assert "for start" in streamed.source("torch")
    for mode in (lambda f: f, lambda f: torch.func.grad(lambda x: f(x).sin().sum())):
        found, wanted = (
            torch.vmap(mode(f), in_dims=-1)(torch.stack([x, 2 * x], -1)) for f in (lambda x: streamed(T=T, x=x), plain)
        )
        torch.testing.assert_close(found, wanted)
