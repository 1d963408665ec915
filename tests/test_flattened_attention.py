"""Flattened plans against NumPy and torch: what is built and where, derivatives, the choice, memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_torch
from tensorattn.cost import kernel_cost
from tensorattn.kernel import Attend, Instruction, Normalised, Stream
from tests.kernels import BOTH
from tests.test_flattened import by_both, chunked, instructions

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

TRILINEAR = "S^<mu nu rho> = q^mu_i k^nu_i r^rho_i; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n"
WINDOW = "y^mu_n = softmax[nu rho : rho <= nu and nu <= mu](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n"
CAUSAL = "y^<h mu>_n = softmax[nu : nu <= mu](q^<h mu>_i k^<h nu>_i / sqrt(|i|)) v^<h nu>_n"
BIASED = "y^<h mu r>_n = softmax[nu](q^<h r mu>_i k^<h r nu>_i / sqrt(|i|) + B^<h mu nu>) v^<h r nu>_n"
DERIVED = (
    TRILINEAR,
    WINDOW,
    CAUSAL.replace("h ", ""),
    "y^mu_n = softmax[nu; sink=0.2](q^mu_i k^nu_i) v^nu_n",
    "y^mu_n = softmax[nu : nu != mu](q^mu_i k^nu_i + B^<mu nu>) v^nu_n",
)


def arrays_of(text: str, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Random inputs for index sizes."""
    program, rng = ta.parse(text), np.random.default_rng(seed)
    slots = {t.name: t.slots for t in program.tensors if t.name in program.inputs}
    return {n: np.asarray(rng.normal(size=[sizes[i.name] for i in slots[n]])) for n in program.inputs}  # type: ignore[union-attr]


def kernel_of(text: str, arrays: dict[str, np.ndarray], entries: int = 0) -> list[Instruction]:
    """The instructions of the flattened plan for these arrays."""
    with chunked(entries):
        compiled = ta.compile(text, plan="flattened")
        found = ta.check(compiled.program, {n: a.shape for n, a in arrays.items()}).sizes
        return list(instructions(compiled.kernel({i: int(s) for i, s in found.items()}).body))


def test_the_weights_are_nowhere_and_the_loop_only_where_keys_are_built() -> None:
    for text, sizes in ((TRILINEAR, {}), (WINDOW, {}), (CAUSAL, {"h": 2}), (BIASED, {"h": 2, "r": 2})):
        arrays = arrays_of(text, **{"mu": 5, "nu": 5, "rho": 5, "i": 2, "n": 3} | sizes)
        for entries in (0, 40):
            found = kernel_of(text, arrays, entries)
            (attend,) = (i for i in found if isinstance(i, Attend))
            assert not any(isinstance(i, Normalised) for i in found)
            built = text in (TRILINEAR, WINDOW)
            assert any(isinstance(i, Stream) for i in found) == (built and entries > 0)
            assert attend.causal == (text == CAUSAL)
            assert (attend.where is None) == (text != WINDOW)


def test_a_tensor_of_coefficients_goes_to_the_side_where_the_bond_is_small() -> None:
    text = "S^<mu nu rho> = q^mu_i k^nu_j r^rho_p M_<i j p>; y^mu_n = S^<mu bar(nu rho)> v^<nu rho>_n"
    arrays = arrays_of(text, mu=6, nu=5, rho=4, i=3, j=3, p=3, n=2)
    (attend,) = (i for i in kernel_of(text, arrays) if isinstance(i, Attend))
    assert [i.name for i in attend.bond] == ["i"]
    scores = np.einsum("mi,nj,rp,ijp->mnr", *(arrays[name] for name in "qkrM"))
    weights = np.exp(scores - scores.max((1, 2), keepdims=True))
    weights /= weights.sum((1, 2), keepdims=True)
    for found in by_both(text, arrays, 7):
        np.testing.assert_allclose(found, np.einsum("mnr,nre->me", weights, arrays["v"]), atol=1e-12)


def test_an_index_summed_in_a_definition_that_is_read_twice_stays_apart() -> None:
    text = "P^nu_a = k^nu_i A_<i a>; y^mu_n = softmax[nu rho](q^mu_a P^nu_a P^rho_a) v^nu_n w^rho_n"
    arrays = arrays_of(text, mu=4, nu=5, rho=5, i=3, a=2, n=2)
    keys = arrays["k"] @ arrays["A"]
    weights = np.exp(np.einsum("ma,na,ra->mnr", arrays["q"], keys, keys))
    weights /= weights.sum((1, 2), keepdims=True)
    expected = np.einsum("mnr,ne,re->me", weights, arrays["v"], arrays["w"])
    for entries in (0, 4):
        for found in by_both(text, arrays, entries):
            np.testing.assert_allclose(found, expected, atol=1e-12)


def test_an_empty_row_is_zero_whatever_the_values_are_multiplied_with() -> None:
    text = "y^mu_n = softmax[nu : nu < mu](q^mu_i k^nu_i) v^nu_p P_<p n>"
    arrays = arrays_of(text, mu=4, nu=4, i=2, p=2, n=5)
    arrays["P"][1, 0] = np.nan
    for found in by_both(text, arrays, 0):
        assert (found[0] == 0).all()
        assert np.isnan(found[1:, 0]).all()
        assert np.isfinite(found[:, 1:]).all()


@pytest.mark.parametrize("sizes", [(3, 7), (7, 3), (0, 4), (4, 0), (1, 1), (130, 70)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_causal_attention_is_that_of_torch(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    rows, keys = sizes
    rng = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, n, 5, generator=rng, dtype=torch.float64).to(dtype) for n in (rows, keys, keys))
    found = ta.compile(CAUSAL, plan="flattened")(q=q, k=k, v=v)
    assert found.dtype == dtype
    q, k, v = (x.double() for x in (q, k, v))
    below = torch.ones(rows, keys, dtype=torch.bool).tril()
    weights = torch.softmax((q @ k.mT / 5**0.5).masked_fill(~below, -np.inf), -1)
    error = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    torch.testing.assert_close(found.double(), weights @ v, atol=error, rtol=error)


def test_an_added_minus_infinity_excludes() -> None:
    text = "y^mu_n = softmax[nu](q^mu_i k^nu_i + B^<mu nu>) v^nu_n"
    arrays = arrays_of(text, mu=6, nu=70, i=3, n=2)
    arrays["B"][:, 10:] = -np.inf
    arrays["B"][2] = -np.inf
    scores = arrays["q"] @ arrays["k"].T + arrays["B"]
    weights = np.exp(scores)
    expected = weights @ arrays["v"] / np.where(weights.sum(1) == 0, 1, weights.sum(1))[:, None]
    for found in by_both(text, arrays, 0):
        np.testing.assert_allclose(found, expected, atol=1e-12)
        assert (found[2] == 0).all()


@pytest.mark.parametrize("entries", [0, 1])
def test_a_sink_joins_the_denominator(entries: int) -> None:
    text = "y^mu_n = softmax[nu rho : nu < mu; sink=s](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n"
    arrays = arrays_of(text, mu=5, nu=5, rho=3, i=2, n=2)
    scores = np.einsum("mi,ni,ri->mnr", *(arrays[x] for x in "qkr"))
    scores[~np.tri(5, 5, -1, dtype=bool)] = -np.inf
    for sink in (0.3, -np.inf, 800.0):
        arrays["s"] = np.asarray(sink)
        shift = np.maximum(scores.max((1, 2)), sink)
        shift = np.where(np.isfinite(shift), shift, 0)[:, None, None]
        weights = np.exp(scores - shift)
        total = weights.sum((1, 2), keepdims=True) + np.exp(sink - shift)
        weights = weights / np.where(total == 0, 1, total)
        expected = np.einsum("mnr,ne,re->me", weights, arrays["v"], arrays["w"])
        for found in by_both(text, arrays, entries):
            np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("scale", [1e4, 1e-4, 1e19, 1e30])
@pytest.mark.parametrize("text", [TRILINEAR, WINDOW])
def test_scores_of_any_size(text: str, scale: float) -> None:
    """An overflow that a predicate excludes reaches nothing; where it is admitted, a NaN says so."""
    arrays = {name: array.astype(np.float32) for name, array in arrays_of(text, mu=4, nu=4, rho=4, i=3, n=2).items()}
    arrays["k"][3] *= np.float32(scale)
    arrays["r"][3] *= np.float32(scale)
    expected = np.asarray(ta.compile(text, plan="dense")(arrays))
    for entries in (0, 30):
        for found in by_both(text, arrays, entries):
            np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
            np.testing.assert_allclose(found, expected, atol=1e-4)


# Derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", DERIVED)
def test_first_and_second_derivatives_are_right(text: str) -> None:
    compiled = ta.compile(text, plan="flattened")
    arrays = arrays_of(text, mu=3, nu=3, rho=2, i=2, n=2)
    x = [torch.tensor(arrays[name], requires_grad=True) for name in compiled.inputs]

    def run(*x: torch.Tensor) -> torch.Tensor:
        return compiled(dict(zip(compiled.inputs, x, strict=True)))

    assert torch.autograd.gradcheck(run, x)
    assert torch.autograd.gradgradcheck(run, x)


def test_a_gradient_of_any_strides_comes_through() -> None:
    arrays = arrays_of(CAUSAL, h=2, mu=5, nu=5, i=3, n=4)
    upstream = torch.randn(4, 5, 2, dtype=torch.float64).permute(2, 1, 0)
    found = []
    for plan in ("dense", "flattened"):
        x = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
        y = ta.compile(CAUSAL, plan=plan)(x)
        found.append(torch.autograd.grad(y, list(x.values()), upstream))
        found[-1] += torch.autograd.grad(ta.compile(CAUSAL, plan=plan)(x).sum(), list(x.values()))
    torch.testing.assert_close(*found)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("text", DERIVED)
@pytest.mark.parametrize("entries", [0, 1])
def test_the_transforms_of_torch_go_through(text: str, entries: int) -> None:
    flat, dense = ta.compile(text, plan="flattened"), ta.compile(text, plan="dense")
    x, y = (tuple(map(torch.tensor, arrays_of(text, seed, mu=4, nu=4, rho=3, i=2, n=3).values())) for seed in (0, 1))
    stacked = tuple(torch.stack(pair) for pair in zip(x, y, strict=True))

    def run(compiled: ta.Compiled) -> Callable[..., torch.Tensor]:
        return lambda *given: compiled(dict(zip(compiled.program.inputs, given, strict=True)))

    for transformed in (
        lambda f: torch.func.vmap(f)(*stacked),
        lambda f: torch.func.jvp(f, x, y)[1],
        lambda f: torch.func.grad(lambda *z: f(*z).square().sum())(*x),
        lambda f: forward_derivative(f, x, y),
    ):
        with chunked(entries):
            torch.testing.assert_close(transformed(run(flat)), transformed(run(dense)), atol=1e-10, rtol=1e-10)


def forward_derivative(
    function: Callable[..., torch.Tensor], x: tuple[torch.Tensor, ...], y: tuple[torch.Tensor, ...]
) -> torch.Tensor:
    forward = torch.autograd.forward_ad
    with forward.dual_level():
        return forward.unpack_dual(function(*(forward.make_dual(a, b) for a, b in zip(x, y, strict=True)))).tangent


def test_what_a_row_excludes_gets_no_gradient() -> None:
    x = arrays_of(CAUSAL, h=1, mu=3, nu=4, i=2, n=3)
    x["v"][0, 3], x["k"][0, 3] = np.nan, np.inf
    q, k, v = (torch.tensor(x[name], requires_grad=True) for name in "qkv")
    y = ta.compile(CAUSAL, plan="flattened")(q=q, k=k, v=v)
    assert torch.isfinite(y).all()
    y.sum().backward()
    assert all(torch.isfinite(z.grad).all() for z in (q, k, v))
    assert (k.grad[0, 3] == 0).all()


def test_under_torch_compile_the_values_stay() -> None:
    arrays = {n: torch.tensor(a) for n, a in arrays_of(TRILINEAR, mu=4, nu=3, rho=3, i=2, n=2).items()}
    flat = ta.compile(TRILINEAR, plan="flattened")
    traced = torch.compile(lambda **x: flat(x), backend="eager")
    torch.testing.assert_close(traced(**arrays), ta.compile(TRILINEAR, plan="dense")(arrays))


# The choice -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("formula", "reason"),
    [
        ("P^<mu nu> = softmax[nu](q^mu_i k^nu_i)", "asked for"),
        ("y^mu = sparsemax[nu](q^mu_i k^nu_i) x_nu", "is no softmax"),
        ("y^mu = softmax[nu](q^mu_i k^nu_i)**2 x_nu", "other than in one sum"),
        ("y_n = sum[mu](softmax[nu](q^mu_i k^nu_i) v^nu_n)", "summed with the weights"),
        ("y^mu_n = softmax[nu](q^mu_i k^nu_i) v^<mu nu>_n", "depend on every free index"),
        ("y^mu_n = W^<mu bar(nu)> v^nu_n", "no product of rows and keys"),
        ("y^mu_n = softmax[nu](tanh(q^mu_i k^nu_i)) v^nu_n", "no product of rows and keys"),
        ("y_n = softmax[nu](k^nu_i q_i) v^nu_n", "no product of rows and keys"),
        ("y^mu = W^<mu nu> x_nu", "has no softmax"),
    ],
)
def test_what_cannot_be_flattened_says_why(formula: str, reason: str) -> None:
    with pytest.raises(ta.PlanError, match="can be flattened") as error:
        ta.compile(formula, plan="flattened")
    assert reason in str(error.value)


@pytest.mark.usefixtures("base_e")
def test_auto_takes_it_for_large_tensors_recorded_or_not() -> None:
    compiled = ta.compile(CAUSAL)

    def kind(n: int, *, recorded: bool = False, wrap: Callable[..., object] = torch.tensor) -> str:
        arrays = {name: wrap(a) for name, a in arrays_of(CAUSAL, h=2, mu=n, nu=n, i=4, n=3).items()}
        if recorded:
            arrays["q"].requires_grad_()  # type: ignore[attr-defined]
        before = set(compiled._table)
        found = compiled(arrays)
        expected = ta.compile(CAUSAL, plan="dense")(arrays)
        np.testing.assert_allclose(*(y.detach() if recorded else y for y in (found, expected)), atol=1e-12)
        new = [entry for key, entry in compiled._table.items() if key not in before]
        return new[0].plan.kind if new else "known"

    assert kind(20) == "dense"
    assert kind(300) == "flattened"
    assert kind(20) == "known"
    assert kind(20, recorded=True) == "dense"
    assert kind(300, recorded=True) == "flattened"
    assert kind(20, wrap=np.asarray) == "dense"
    assert kind(600, wrap=np.asarray) == "flattened"
    assert "plan: flattened" in ta.compile(CAUSAL, plan="flattened").explain()


@pytest.mark.parametrize("entries", [0, 40])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_the_printed_source_runs_by_itself(library: str, entries: int) -> None:
    sizes = dict(mu=5, nu=5, rho=5, i=2, n=3)
    arrays = arrays_of(WINDOW, **sizes)
    with chunked(entries):
        compiled = ta.compile(WINDOW, plan="flattened")
        text = compiled.source(library, sizes)
    assert "tensorattn." not in text
    space: dict[str, object] = {"__name__": "alone"}
    exec(text, space)
    wrap = np.asarray if library == "numpy" else torch.tensor
    (y,) = space["formula"](*(wrap(arrays[name]) for name in compiled.inputs))  # type: ignore[operator]
    np.testing.assert_allclose(y, ta.compile(WINDOW, plan="dense")(arrays), atol=1e-12)


# Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sizes"),
    [(CAUSAL, dict(h=2, mu=700, nu=900, i=16, n=8)), (TRILINEAR, dict(mu=100, nu=300, rho=300, i=16, n=16))],
)
def test_the_predicted_peak_is_the_measured_one(text: str, sizes: dict[str, int]) -> None:
    arrays = {name: array.astype(np.float32) for name, array in arrays_of(text, **sizes).items()}
    compiled = ta.compile(text, plan="flattened")
    compiled(arrays)
    tracemalloc.start()
    result = compiled(arrays)
    measured = tracemalloc.get_traced_memory()[1] - result.nbytes
    tracemalloc.stop()
    predicted = kernel_cost(compiled.kernel(sizes, dtypes=dict.fromkeys(arrays, "float32"))).at(sizes).peak_bytes
    assert abs(predicted - measured) <= 0.25 * measured, (predicted, measured)


def test_torch_holds_a_few_megabytes_where_the_weights_are_many() -> None:
    n, d = 192, 32
    given = arrays_of(TRILINEAR, mu=n, nu=n, rho=n, i=d, n=d)
    arrays = {name: torch.tensor(array, dtype=torch.float32) for name, array in given.items()}
    compiled = ta.compile(TRILINEAR, plan="flattened")
    compiled(arrays)
    peak = peak_bytes_torch(lambda: (compiled(arrays),))
    assert 1e6 < peak < 12e6, f"{peak} bytes beside {4 * n**3} of one weight tensor"


@pytest.mark.parametrize("where", ["", " : nu <= mu"])
def test_a_result_holds_no_more_memory_than_it_shows_and_is_made_once(where: str) -> None:
    text = f"y^<h mu>_n = softmax[nu{where}](q^<h mu>_i k^<h nu>_i) v^<h nu>_n"
    compiled = ta.compile(text, plan="flattened")
    for width in (64, 32):
        arrays = arrays_of(text, h=4, mu=512, nu=512, i=64, n=width)
        tensors = {n: torch.from_numpy(a).float() for n, a in arrays.items()}
        result = compiled(tensors)
        assert result.untyped_storage().nbytes() == result.nbytes
        wide = result.nbytes * 64 // width
        assert peak_bytes_torch(lambda tensors=tensors: (compiled(tensors),)) < 2 * (width < 64) * wide + wide // 2


@BOTH
@pytest.mark.parametrize("keys", [1, 3, 7, 20])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_query_that_is_not_finite(library, keys, bad):
    """torch's kernel takes a row of NaN for one of −∞ where the keys do not fill a vector register."""
    text = "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n"
    rng, wrap = np.random.default_rng(0), np.asarray if library == "numpy" else torch.tensor
    x = {"q": rng.normal(size=(5, 3)), "k": rng.normal(size=(keys, 3)), "v": rng.normal(size=(keys, 2))}
    x["q"][2, 0] = bad
    flat, dense = (
        np.asarray(ta.compile(text, plan=p)({n: wrap(a) for n, a in x.items()})) for p in ("flattened", "dense")
    )
    np.testing.assert_allclose(flat, dense, atol=1e-12)
    assert np.isnan(flat[2]).all() or keys == 1
