"""The cost model: exact counts on small formulas, and the predicted peak against the measured one."""

from __future__ import annotations

import tracemalloc
from collections.abc import Mapping

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.cost import Cost, Counted, cost, kernel_cost
from tensorattn.lowering import streaming
from tensorattn.planning import plan
from tests import corpus

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


def price(text: str, **dtypes: str) -> Cost:
    program = ta.parse(text)
    return cost(plan(program, (program.statements[-1].name,), None), dtypes)


def test_a_matrix_product() -> None:
    found = price("y_<i k> = A_<i j> B_<j k>").at(dict(i=2, j=3, k=5))
    assert found == Counted(flops=60, exps=0, bytes_moved=8 * (6 + 15 + 10), peak_bytes=0)


def test_symbols_and_numbers_agree() -> None:
    found = price("y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>")
    sizes = dict(i=7, j=11, d=3, e=5)
    assert str(found.exps) == "i*j"
    numbers = found.at(sizes)
    assert numbers.exps == 77
    assert numbers.flops >= 2 * 7 * 11 * (3 + 5)
    peak = found.peak_bytes
    assert int(peak.subs({s: sizes[s.name] for s in peak.free_symbols})) == numbers.peak_bytes  # type: ignore[attr-defined]
    assert "flops" in str(found)


def test_sizes_that_are_given_are_put_in() -> None:
    compiled = ta.compile("y_<i e> = softmax[j](Q_<i d> K_<j d>) V_<j e>")
    sizes = dict(i=7, j=11, d=3, e=5)
    assert str(compiled.cost(i=7).exps) == "7*j"
    known = compiled.cost(sizes)
    assert str(known.exps) == "77"
    counted = compiled.cost().at(sizes)
    assert known.at({}) == counted
    assert known.amounts == {name: getattr(counted, name) for name in ("flops", "exps", "bytes_moved", "peak_bytes")}
    assert str(known.peak_bytes) == str(counted.peak_bytes)


THREE_WAY = "S^<mu nu rho> = q^mu_i k^nu_i r^rho_i; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n"


def test_the_cost_of_a_streamed_kernel() -> None:
    n, d = 192, 16
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(n, d)).astype(np.float32) * 0.3 for name in "qkrvw"}
    sizes = dict(mu=n, nu=n, rho=n, i=d, n=d)
    compiled = ta.compile(THREE_WAY, plan="streamed")
    price = kernel_cost(compiled.kernel(sizes, dtypes=dict.fromkeys(arrays, "float32")))
    found = price.at(sizes)
    compiled(arrays)
    tracemalloc.start()
    result = compiled(arrays)
    measured = tracemalloc.get_traced_memory()[1] - result.nbytes
    tracemalloc.stop()
    assert abs(found.peak_bytes - measured) <= max(0.25 * measured, 1e6), (found.peak_bytes, measured)
    tiles = -(-n // (streaming.TILE_ENTRIES // n**2))
    assert tiles == 7
    assert found.exps == n**3, "every weight once"
    assert found.flops >= 2 * n**3 * (d + d)
    peak = price.peak_bytes
    assert int(peak.subs({s: sizes[s.name] for s in peak.free_symbols})) == found.peak_bytes
    assert price.given(sizes).at({}) == found
    assert "tile_nu" in price.given({"mu": n}).amounts["peak_bytes"]
    assert "where tile_nu = min(" in str(price)


def test_a_budget_is_held_against_the_streamed_kernel() -> None:
    n, d = 96, 4
    arrays = {name: np.ones((n, d)) for name in "qkrvw"}
    weights = n**3 * 8
    assert ta.compile(THREE_WAY, plan="streamed", memory=int(2.6 * 2**23))(arrays).shape == (n, d)
    with pytest.raises(ta.BudgetError):
        ta.compile(THREE_WAY, plan="dense", memory=weights)(arrays)


def test_what_is_computed_once_is_counted_once() -> None:
    assert price("y_i = exp(x_i) + exp(x_i) * exp(x_i)").at(dict(i=10)).exps == 10


def test_smaller_dtypes_take_less_memory() -> None:
    text = "y_<i e> = softmax[j](Q_<i d> K_<j d>) V_<j e>"
    sizes = dict(i=50, j=50, d=3, e=5)
    half = price(text, Q="float32", K="float32", V="float32").at(sizes)
    assert 1.9 < price(text).at(sizes).peak_bytes / half.peak_bytes < 2.1


def test_a_table_that_is_gathered_from_adds_no_size_of_its_own() -> None:
    found = price("y_<i j> = R_<i-j+|j|-1> + x_<i j>")
    assert found.at(dict(i=3, j=4)).flops > 0


N = 400
PEAKS = (
    ("W^<mu nu> = q^mu_i k^nu_i / sqrt(|i|)\ny^mu_n = W^<mu bar(nu)> v^nu_n", dict(q=(N, 16), k=(N, 16), v=(N, 8))),
    ("s^<mu nu> = q^mu_i k^nu_i\ny^mu_n = s^<mu bar(nu : nu <= mu)> v^nu_n", dict(q=(N, 16), k=(N, 16), v=(N, 8))),
    ("s^<mu nu> = q^mu_i k^nu_i\nP^<mu nu> = s^<mu bar(nu)>", dict(q=(N, 16), k=(N, 16))),
    ("y^mu_n = sigmoid(q^mu_i k^nu_i) v^nu_n", dict(q=(N, 16), k=(N, 16), v=(N, 8))),
    ("W^<mu nu rho> = q^mu_i k^nu_i p^rho_i\ny^mu_n = W^<mu bar(nu rho)> v^nu_n w^rho_n",
     dict(q=(60, 8), k=(70, 8), p=(70, 8), v=(70, 4), w=(70, 4))),
    ("y_<h i e> = softmax[j](q_<h i d> k_<h j d> / sqrt(|d|)) v_<h j e>",
     dict(q=(4, 200, 8), k=(4, 200, 8), v=(4, 200, 8))),
    ("y_<i h e> = softmax[j](q_<i h d> k_<j h d>) v_<j h e>", dict(q=(200, 4, 8), k=(200, 4, 8), v=(200, 4, 8))),
    ("y_i = lse[j](q_<i d> k_<j d>)", dict(q=(N, 8), k=(N, 8))),
    ("y_<i l> = A_<i j> B_<j k> C_<k l>", dict(A=(N, N), B=(N, N), C=(N, N))),
    ("a_<i j> = tanh(x_<i j>)\nb_<i j> = a_<i j> + 1\nc_<i j> = exp(b_<i j>)\ny_<i j> = c_<i j> a_<i j>",
     dict(x=(N, N))),
    ("a_<i j> = 2 x_<i j>\nb_<i j> = a_<i j> + 1\nc_<i j> = b_<i j> * 3\ny_i = c_<i j> u_j", dict(x=(N, N), u=(N,))),
    ("y_<i j> = l1norm[j](exp(x_<i j>) + 1)", dict(x=(N, N))),
    ("y_<i j> = l2norm[j : j <= i](x_<i j>)", dict(x=(N, N))),
    ("y_i = max[j : j <= i](x_<i j>)", dict(x=(N, N))),
    ("y_i = lse[j : j <= i](x_<i j>) + prod[j : j < i](x_<i j>)", dict(x=(N, N))),
    ("y_<i j> = gelu(x_<i j>) + elu(x_<i j>)", dict(x=(N, N))),
    ("y_<i j> = sparsemax[j](x_<i j>)", dict(x=(N, N))),
    ("y_<i j> = entmax[j; 1.5](x_<i j>) + entmax[j; 1.3](x_<i j>)", dict(x=(N, N))),
    ("y_i = top[j; 3](x_<i j>) x_<i j>", dict(x=(N, N))),
)  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [pytest.param(c, id=c[0].replace("\n", "; ")) for c in PEAKS])
def test_the_predicted_peak_is_the_measured_one(case: tuple[str, dict[str, tuple[int, ...]]], dtype: str) -> None:
    text, shapes = case
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    compiled = ta.compile(text, plan="dense")
    compare(compiled, arrays, {i: int(s) for i, s in ta.check(compiled.program, shapes).sizes.items()})


def compare(compiled: ta.Compiled, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
    """The measured peak of a call within 25 % or 1 MB of the predicted one."""
    compiled(arrays)
    tracemalloc.start()
    result = compiled(arrays)
    measured = tracemalloc.get_traced_memory()[1] - result.nbytes
    tracemalloc.stop()
    dtypes = {n: "int64" if a.dtype.kind == "i" else str(a.dtype) for n, a in arrays.items()}
    predicted = cost(compiled.plan(sizes), dtypes).at(sizes).peak_bytes
    assert abs(predicted - measured) <= max(0.25 * measured, 1e6), (predicted, measured)


LARGE = 3e6  # bytes of the predicted peak


def grown(entry: corpus.Entry, compiled: ta.Compiled) -> tuple[corpus.Entry, dict[str, int], int]:
    """A corpus entry with longer axes, as far as its sizes allow, its index sizes and its predicted peak."""
    best, price, fixed = (entry, {}, 0), compiled.cost(), entry.get("sizes") or {}
    for factor in (1, 2, 3, 4, 8, 16, 24, 32, 48, 64, 96):
        extents = {name: size * (1 if name in fixed else factor) for name, size in entry["extents"].items()}
        longer = {**entry, "extents": extents}
        shapes = {name: corpus.shape(axes, longer) for name, axes in entry["inputs"].items()}
        try:
            found = ta.check(compiled.program, shapes, sizes=fixed).sizes
        except ta.ShapeError:  # an axis that is a product of others does not grow as they do
            break
        sizes = {name: int(size) for name, size in found.items()}
        best = longer, sizes, price.at(sizes).peak_bytes
        if best[2] > LARGE or entry.get("consts"):
            break
    return best


def test_the_predicted_peaks_of_the_corpus_are_the_measured_ones() -> None:
    large = 0
    for entry in corpus.load("accept"):
        compiled = ta.compile(corpus.formula(entry), sizes=entry.get("sizes"), plan="dense")
        longer, sizes, peak = grown(entry, compiled)
        compare(compiled, corpus.make_inputs(longer, np.random.default_rng(0)), sizes)
        large += peak > LARGE
    assert large > 45, "most entries are really large"


STREAMED = (
    ("y_<h i e> = softmax[j](q_<h i d> k_<h j d>) v_<h j e>", dict(q=(4, 500, 8), k=(4, 900, 8), v=(4, 900, 24))),
    ("y_<i e> = softmax[j : j <= i](q_<i d> k_<j d> + b_<i j>) v_<j e>",
     dict(q=(1500, 8), k=(1500, 8), b=(1500, 1500), v=(1500, 4))),
    ("y_<i e> = softmax[j](3 tanh(q_<i d> k_<j d>)) v_<j e>", dict(q=(1500, 8), k=(1500, 8), v=(1500, 40))),
    (THREE_WAY, dict(q=(100, 8), k=(90, 8), r=(170, 8), v=(90, 32), w=(170, 32))),
)  # fmt: skip


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("case", [pytest.param(c, id=c[0].replace("\n", "; ")) for c in STREAMED])
def test_the_predicted_peak_of_a_stream_is_the_measured_one(
    case: tuple[str, dict[str, tuple[int, ...]]], large: bool
) -> None:
    """In both loops: large scores need the one with a maximum."""
    text, shapes = case
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape) * (1e3 if large else 1) for name, shape in shapes.items()}
    compiled = ta.compile(text, plan="streamed")
    compiled(arrays)
    tracemalloc.start()
    result = compiled(arrays)
    measured = tracemalloc.get_traced_memory()[1] - result.nbytes
    tracemalloc.stop()
    sizes = {i: int(s) for i, s in ta.check(compiled.program, shapes).sizes.items()}
    predicted = compiled.cost(sizes).at({}).peak_bytes
    assert abs(predicted - measured) <= max(0.1 * measured, 1e6), (predicted, measured)
