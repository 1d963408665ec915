"""Known faults of attention and einsum code, tried here on NumPy and torch; the cases stand in `field_cases`."""

from __future__ import annotations

import gc
import tracemalloc
import weakref

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import reference as oracle
from tests import field_cases as cases
from tests import field_cases_masks as more
from tests import field_cases_refused as refused

VALUES = [
    pytest.param(case, id=case.id)
    for case in (
        *cases.PARSING, *cases.NUMERICS, cases.POSTERIORS, *cases.SHAPES, *more.MASKS, *more.EMPTY, *more.TYPES,
    )
]  # fmt: skip
REFUSALS = [pytest.param(case, id=case.id) for case in refused.REFUSALS]
COMPILED = [pytest.param(cases.LONG_CHAIN, id="chain-of-60"), *VALUES]
MEMORY = [pytest.param(case, id=case.id) for case in more.MEMORY]
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


def to_torch(arrays: cases.Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def wanted(case: cases.Value, arrays: cases.Arrays) -> cases.Arrays:
    """The expected outputs by name."""
    with np.errstate(all="ignore"):
        expected = case.expected(**arrays)
    if isinstance(expected, dict):
        return expected
    return {ta.parse(case.formula).statements[-1].name: expected}


def compare(found: dict[str, np.ndarray], expected: cases.Arrays, tolerance: float) -> None:
    for name, value in expected.items():
        assert found[name].shape == np.shape(value), name
        np.testing.assert_allclose(found[name], value, rtol=tolerance, atol=tolerance, err_msg=name)


def run(case: cases.Value, arrays: dict[str, object], names: list[str]) -> dict[str, object]:
    result = ta.compile(case.formula, sizes=dict(case.sizes) or None, outputs=names)(arrays)
    return result if isinstance(result, dict) else {names[0]: result}


@pytest.mark.parametrize("case", VALUES)
def test_the_oracle(case: cases.Value) -> None:
    arrays = cases.make(case)
    expected = wanted(case, arrays)
    found = oracle.evaluate(ta.parse(case.formula), arrays, case.sizes, list(expected))
    half = any(array.dtype == np.float16 for array in arrays.values())
    compare(found, expected, max(case.tolerance, 4e-3 if half else 1e-6 if case.tolerance else 0))


@pytest.mark.parametrize("case", COMPILED)
def test_numpy(case: cases.Value) -> None:
    arrays = cases.make(case)
    expected = wanted(case, arrays)
    compare(run(case, arrays, list(expected)), expected, case.tolerance)


@pytest.mark.parametrize("case", COMPILED)
def test_torch(case: cases.Value) -> None:
    arrays = cases.make(case)
    expected = wanted(case, arrays)
    found = run(case, to_torch(arrays), list(expected))
    compare({name: tensor.numpy() for name, tensor in found.items()}, expected, case.tolerance)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in more.TYPES])
def test_both_back_ends_return_one_dtype(case: cases.Value) -> None:
    arrays = cases.make(case)
    (name, _), *_ = wanted(case, arrays).items()
    floats = [a.dtype for a in arrays.values() if a.dtype.kind == "f"]
    exact = case.id in ("integers-stay-exact", "a-boolean-counts-as-one")
    dtype = np.result_type(*floats) if floats else np.dtype("int64" if exact else "float64")
    assert run(case, arrays, [name])[name].dtype == dtype
    assert run(case, to_torch(arrays), [name])[name].numpy().dtype == dtype


@pytest.mark.parametrize("case", REFUSALS)
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_refusal_names_the_fault(case: cases.Refusal, backend: str) -> None:
    arrays = cases.make(case)
    with pytest.raises(ta.TensorattnError) as caught:
        ta.compile(case.formula)(to_torch(arrays) if backend == "torch" else arrays)
    assert caught.value.code == case.code
    for word in case.must_name:
        assert word in str(caught.value)


@pytest.mark.parametrize("case", MEMORY)
def test_the_peak_is_bounded(case: more.Bounded) -> None:
    arrays = cases.make(case)
    compiled = ta.compile(case.formula)
    np.testing.assert_allclose(compiled(arrays), case.expected(**arrays), rtol=1e-9, atol=1e-9)
    tracemalloc.start()
    try:
        compiled(arrays)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= case.peak_bytes + 16384  # some kilobytes for Python's own objects


def test_white_space_changes_nothing() -> None:
    spellings = ["y^<i j k> = x^<i> w^<j k>", "y^<i j k>=x^<i>w^<j k>", "  y^< i  j k > =\n x^<i>   w^<j k> "]
    programs = [ta.parse(text) for text in (spellings[0], spellings[2])]
    assert programs[0] == programs[1]
    x, w = np.arange(5.0), np.arange(12.0).reshape(2, 6)
    np.testing.assert_array_equal(ta.compile(programs[1])(x=x, w=w), x[:, None, None] * w)
    commas = ta.parse("y^<i, j, k> = x^<i> * w^<j,k>")
    assert commas == programs[0]


def test_the_caret_stands_under_the_index_of_the_result_only() -> None:
    with pytest.raises(ta.TensorattnError) as caught:
        ta.parse("y^<mu nu> = x^<mu>")
    assert (caught.value.span.start, caught.value.span.end) == (6, 8)


def test_one_compiled_object_serves_every_size() -> None:
    rng = np.random.default_rng(0)
    A, B = rng.normal(size=(2, 5)), rng.normal(size=(5, 3))
    multiply = ta.compile("y^<i k> = A^<i j> B^<j k>")
    for size in (2, 3, 2, 5, 0, 1):
        np.testing.assert_allclose(multiply(A=A[:, :size], B=B[:size]), A[:, :size] @ B[:size], atol=1e-12)


def test_one_compiled_object_serves_every_batch_rank() -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3, 4)), rng.normal(size=4)
    dot = ta.compile("y^<...> = a^<... i> b^i")
    for batch in (a[0, 0], a[0], a, a[0, 0]):
        np.testing.assert_allclose(dot(a=batch, b=b), batch @ b, atol=1e-12)
        np.testing.assert_allclose(dot(a=torch.tensor(batch), b=torch.tensor(b)).numpy(), batch @ b, atol=1e-12)


def test_one_compiled_object_serves_every_dtype_and_backend() -> None:
    rng = np.random.default_rng(0)
    S, v = rng.normal(size=(3, 4)), rng.normal(size=(4, 2))
    attend = ta.compile(cases.MIX)
    expected = cases.softmax(S, 1) @ v
    for dtype in (np.float32, np.float64, np.float16, np.float32):
        result = attend(W=S.astype(dtype), v=v.astype(dtype))
        assert result.dtype == dtype
        np.testing.assert_allclose(result, expected, rtol=1e-2, atol=1e-2)
        assert attend(W=torch.tensor(S.astype(dtype)), v=torch.tensor(v.astype(dtype))).numpy().dtype == dtype


def test_a_call_keeps_no_array_alive() -> None:
    multiply = ta.compile("y^i = A^<i j> x^j")
    A, x = np.ones((3, 4)), np.ones(4)
    alive = [weakref.ref(A), weakref.ref(x)]
    result = multiply(A=A, x=x)
    del A, x
    gc.collect()
    assert [reference() for reference in alive] == [None, None]
    np.testing.assert_array_equal(result, np.full(3, 4.0))


@pytest.mark.parametrize("formula", ["y_i = x_i", "y_<i j> = x_<i j>", "y_<j i> = x_<i j>", "y_i = x_<i i>"])
def test_a_result_shares_no_memory_with_an_input(formula: str) -> None:
    x = np.arange(3.0) if "j" not in formula and "i i" not in formula else np.arange(9.0).reshape(3, 3)
    assert not np.shares_memory(ta.compile(formula)(x=x), x)
    tensor = torch.tensor(x)
    before = tensor.clone()
    ta.compile(formula)(x=tensor).add_(1)
    assert torch.equal(tensor, before)


def test_the_result_may_be_written_over_an_input() -> None:
    P, A = np.arange(3.0) + 1, np.arange(27.0).reshape(3, 3, 3)
    expected = P[None, :, None] * A
    ta.compile("y^<i j k> = P^j A^<i j k>")(P=P, A=A, out=A)
    np.testing.assert_array_equal(A, expected)


def test_the_result_may_be_a_scalar_buffer() -> None:
    buffer = np.empty(())
    ta.compile("s = P^j P^j")(P=np.arange(3.0), out=buffer)
    assert buffer == 5


def test_masked_rows_give_finite_gradients() -> None:
    text = "y^mu_n = softmax[nu : M^<mu nu>](q^mu_d k^nu_d / sqrt(|d|)) v^nu_n"
    rng = np.random.default_rng(0)
    q, k, v = (torch.tensor(rng.normal(size=s), requires_grad=True) for s in ((3, 4), (5, 4), (5, 2)))
    keep = torch.tensor(rng.random((3, 5)) < 0.6)
    keep[1], keep[0, 0], keep[2, 0] = False, True, True
    ta.compile(text)(q=q, k=k, v=v, M=keep).square().sum().backward()
    assert all(torch.isfinite(t.grad).all() for t in (q, k, v))
    assert (q.grad[1] == 0).all()


def test_a_masked_nan_reaches_no_gradient() -> None:
    attend = ta.compile("y^mu_n = softmax[nu : nu <= mu](q^mu_d k^nu_d) v^nu_n")
    rng = np.random.default_rng(0)
    q, k, v = (torch.tensor(rng.normal(size=s)) for s in ((3, 4), (4, 4), (4, 2)))
    k[3], v[3] = float("nan"), float("inf")
    for tensor in (q, k, v):
        tensor.requires_grad_()
    attend(q=q, k=k, v=v).sum().backward()
    assert torch.isfinite(q.grad).all()
    assert (k.grad[3] == 0).all()
    assert (v.grad[3] == 0).all()


def test_a_broadcast_bias_gets_its_summed_gradient() -> None:
    rng = np.random.default_rng(0)
    S, B, v, c = (torch.tensor(rng.normal(size=s)) for s in ((2, 2, 3, 4), (2, 3, 4), (2, 2, 4, 2), (2, 2, 3, 2)))
    B.requires_grad_()
    y = ta.compile("y^<b h m>_n = softmax[k](S^<b h m k> + B^<h m k>) v^<b h k>_n")(S=S, B=B, v=v)
    (y * c).sum().backward()
    found, B.grad = B.grad, None
    ((torch.softmax(S + B, 3) @ v) * c).sum().backward()
    torch.testing.assert_close(found, B.grad)


def test_a_transposed_upstream_gradient_is_read_rightly() -> None:
    grads = []
    for upstream in (torch.ones(()).double().expand(3, 2), torch.ones(2, 3).double().T, torch.ones(3, 2).double()):
        q, k, v = (
            torch.tensor(np.random.default_rng(1).normal(size=s), requires_grad=True) for s in ((3, 4), (5, 4), (5, 2))
        )
        ta.compile(cases.ATTEND)(q=q, k=k, v=v).backward(upstream)
        grads.append((q.grad, k.grad, v.grad))
    for other in grads[1:]:
        torch.testing.assert_close(other, grads[0])


def test_a_diagonal_gets_its_gradient_on_the_diagonal_only() -> None:
    x, w = torch.rand(2, 2, 3, dtype=torch.float64, requires_grad=True), torch.rand(2, 3, dtype=torch.float64)
    ta.compile("L = w^<i j> x^<i i j>")(x=x, w=w).backward()
    expected = torch.zeros_like(x)
    for i in range(2):
        expected[i, i] = w[i]
    torch.testing.assert_close(x.grad, expected)


LINTS = {
    "a-matrix-on-its-diagonal": ("y^<b x c d> = A^<d d> D^<b x c d>", ("A", "d", "diagonal")),
    "a-barred-tensor-over-a-plain-index": ("y^k_d = softmax[m](S^<k l m>) u^l_d w^m_d", ("m", "l")),
    "a-score-that-contracts-nothing": ("y_i = softmax[j](q_i k_j) v_j", ("contracts nothing",)),
}


@pytest.mark.parametrize("name", LINTS)
def test_a_slip_that_is_valid_warns(name: str) -> None:
    formula, words = LINTS[name]
    with pytest.warns(ta.NotationWarning) as caught:
        ta.check(formula)
    assert any(all(word in str(w.message) for word in words) for w in caught)
    with pytest.raises(ta.NotationError):
        ta.check(formula, strict=True)


@pytest.mark.parametrize(("formula", "code"), [pytest.param(text, code, id=name) for name, text, code in refused.TEXTS])
def test_a_formula_alone_is_refused(formula: str, code: str) -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(formula)
    assert caught.value.code == code
    assert caught.value.spans
    assert "^" in str(caught.value)
    assert caught.value.hint


ROW_FUNCTIONS = ("lse[k](x_<j k>)", "max[k](x_<j k>)", "min[k](x_<j k>)", "prod[k](x_<j k>)", "mean[k](x_<j k>)")
ROW_FUNCTIONS += tuple(f"sum[k]({kind}[k](x_<j k>) w_k)" for kind in ("softmax", "sparsemax", "l1norm", "l2norm"))
ROW_FUNCTIONS += ("sum[k](x_<j k>**2)", "sum[k](1 / x_<j k>)", "sum[k](log(x_<j k>) w_k)", "sum[k](tanh(x_<j k>))")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("value", ROW_FUNCTIONS)
def test_a_masked_row_function_gives_no_gradient(value: str, bad: float) -> None:
    rng = np.random.default_rng(0)
    x, S, w = (torch.tensor(rng.random(size=size) + 0.1) for size in ((4, 3), (3, 4), (3,)))
    x[3, 1] = bad
    given = {"S": S.requires_grad_(), "x": x.requires_grad_()} | ({"w": w} if "w_k" in value else {})
    result = ta.compile(f"y_i = softmax[j : j <= i](S_<i j>) {value}")(given)
    assert torch.isfinite(result).all()
    result.sum().backward()
    assert torch.isfinite(S.grad).all()
    assert torch.isfinite(x.grad).all()
    assert (x.grad[3] == 0).all()
