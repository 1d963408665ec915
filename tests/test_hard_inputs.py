"""Inputs that tempt to a silent wrong number or a bare exception: extreme values, odd dtypes, odd names, odd calls."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta

BOTH = pytest.mark.parametrize("wrap", [np.asarray, torch.tensor], ids=["numpy", "torch"])


@BOTH
@pytest.mark.parametrize("scale", [1e20, 1e-25, 1.0])
def test_norms_neither_overflow_nor_underflow(wrap, scale):
    x = wrap(np.array([3 * scale, -4 * scale], np.float32))
    np.testing.assert_allclose(np.asarray(ta.compile("l2norm[i](x_i)")(x=x)), [0.6, -0.8], rtol=1e-6)
    big = wrap(np.array([1e308, 1e308]))
    np.testing.assert_allclose(np.asarray(ta.compile("l1norm[i](x_i)")(x=big)), [0.5, 0.5])
    assert (np.asarray(ta.compile("l2norm[i](x_i)")(x=wrap(np.zeros(2)))) == 0).all()


def test_norms_have_right_gradients():
    for kind in ("l1norm", "l2norm"):
        x = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
        function = ta.compile(f"y_<i j> = {kind}[j : j != 2](x_<i j>)")
        assert torch.autograd.gradcheck(lambda x, f=function: f(x=x), (x,))


@BOTH
def test_a_count_is_an_integer(wrap):
    top = ta.compile("y_i = where(top[i; k](x_i), x_i, 0)")
    x = wrap(np.arange(4.0))
    assert np.asarray(top(x=x, k=2)).tolist() == [0, 0, 2, 3]
    for count in (2.5, float("nan")):
        with pytest.raises(ta.DTypeError, match="count of `top`"):
            top(x=x, k=count)


@BOTH
def test_the_exponent_of_entmax_is_checked_also_as_an_input(wrap):
    weights = ta.compile("y_i = entmax[i; a](x_i)")
    x = wrap(np.array([1.0, 2.0, 3.0]))
    for good in (1.0, 1.5, 2.0):
        np.testing.assert_allclose(np.asarray(weights(x=x, a=good)).sum(), 1)
    for bad in (0.5, -1.0, float("nan")):
        with pytest.raises(ta.ShapeError, match="exponent of entmax"):
            weights(x=x, a=bad)


@BOTH
def test_python_truths_and_integers_are_scalars(wrap):
    x = wrap(np.ones((2, 3)))
    assert np.asarray(ta.compile("y_i = sum[j : k](A_<i j>)")(A=x, k=True)).tolist() == [3, 3]
    assert np.asarray(ta.compile("y_i = sum[j : not k](A_<i j>)")(A=x, k=True)).tolist() == [0, 0]
    assert np.asarray(ta.compile("x_i * a")(x=x[0], a=True)).tolist() == [1, 1, 1]
    scaled = ta.compile("x_i * s")
    for number in (2**63, -(2**70)):
        with pytest.raises(ta.DTypeError, match="64 bits"):
            scaled(x=x[0], s=number)
    assert np.asarray(scaled(x=x[0], s=2**62)).tolist() == [2.0**62] * 3


def test_what_int64_does_not_hold_is_refused():
    for x in (np.array([2**63 + 5], np.uint64), torch.tensor([5], dtype=torch.uint64)):
        with pytest.raises(ta.DTypeError, match="uint64"):
            ta.compile("x_i * 0.5")(x=x)


def test_arrays_that_only_look_plain_are_refused_also_after_plain_ones():
    total = ta.compile("s = sum[i](x_i)")
    total(x=np.ones(3))
    with pytest.raises(ta.BackendError, match="MaskedArray"):
        total(x=np.ma.masked_array([1.0, 2.0, 1e9], [0, 0, 1]))
    attend = ta.compile("y_i = A_<i bar(j)> v_j")
    attend(A=torch.ones(3, 3), v=torch.ones(3))
    with pytest.raises(ta.BackendError):
        attend(A=torch.ones(3, 3).to_sparse(), v=torch.ones(3))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("y_i = x_<i+y>", "E-RECUR"),
        ("y_i = x_<i+z>; z = 1", "E-REDEF"),
        ("y_i = sum[j : " + " and ".join(["j <= i"] * 3000) + "](x_j)", "E-LIMIT"),
        ("y = sum[j : " + " <= ".join(["j"] * 3000) + "](x_j)", "E-LIMIT"),
        (
            "y_<" + " ".join(f"i{n}" for n in range(70)) + "> = " + " ".join(f"a{n}_<i{n}>" for n in range(70)),
            "E-LIMIT",
        ),
    ],
    ids=["own name in a slot", "later name in a slot", "conditions", "chain", "axes"],
)
def test_texts_that_used_to_slip_through(text, code):
    with pytest.raises(ta.NotationError) as error:
        ta.compile(text, sizes={"i": 3} if text.startswith("y_i = x") else None)
    assert error.value.code == code


def test_odd_calls_get_our_errors():
    compiled = ta.compile("y_i = x_i")
    x = np.ones(2)
    for call, kind in [
        (lambda: compiled({1: 2}), ta.BindingError),
        (lambda: compiled(x), ta.BindingError),
        (lambda: compiled({"x": x}, x=x), ta.BindingError),
        (lambda: compiled(x=x, out={"y": x}), ta.TensorattnError),
        (lambda: compiled.source(3), ta.BackendError),
        (lambda: compiled.plan(i="a"), ta.ShapeError),
        (lambda: compiled.plan(i=-3), ta.ShapeError),
        (lambda: compiled.source(dtypes={"q": "float32"}), ta.BindingError),
        (lambda: ta.compile("y_i = A_<i j> x_j").cost().at({}), ta.ShapeError),
        (lambda: ta.compile("y_i = x_i", sizes={1: 2}), ta.ShapeError),
        (lambda: ta.compile("y_i = x_i", sizes="i"), ta.ShapeError),
        (lambda: ta.compile("y_i = x_i", outputs=[]), ta.BindingError),
        (lambda: ta.compile("y_i = x_i", outputs=3), ta.BindingError),
        (lambda: ta.compile("y_i = x_i", memory="3GB"), ta.BudgetError),
        (lambda: ta.compile("y_i = x_i", plan=3), ta.PlanError),
        (lambda: ta.compile("y_i = x_i", plan="streamed"), ta.PlanError),
        (lambda: ta.check("y_i = x_i", (2, 3)), ta.ShapeError),
        (lambda: ta.parse("y_i = x_i").statement("zz"), ta.BindingError),
        (lambda: ta.parse("y_i = x_i").then(3), ta.NotationError),
        (lambda: ta.compile("y_i = out_i")(out=x), ta.BindingError),
    ]:
        with pytest.raises(kind):
            call()
    assert (ta.compile("y_i = out_i")({"out": x}) == x).all()
    assert ta.compile("y_i = x_i", sizes={"i": np.int64(2)})(x=x).shape == (2,)


def test_groups_are_sets():
    assert ta.parse("y = sum[j k](A_<j k>)") == ta.parse("y = sum[k j](A_<j k>)")
    assert ta.parse("y_i = A_<i bar(j k)> v_<j k>") == ta.parse("y_i = softmax[k j](A_<i j k>) v_<j k>")
    assert hash(ta.parse("y = sum[j k](A_<j k>)")) == hash(ta.parse("y = sum[k j](A_<j k>)"))


def test_one_factor_that_is_the_whole_program_keeps_its_barred_index():
    weights = ta.compile("exp(A_<i bar(j)>)")
    assert weights.signature.outputs == {"out": ("i", "j")}


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")  # torch's own, in its forward mode
def test_streams_under_transforms_and_tracers():
    formula = "y_<i e> = softmax[j : j <= i](q_<i d> q_<j d>) v_<j e>"
    streamed, dense = ta.compile(formula, plan="streamed"), ta.compile(formula, plan="dense")
    q, v = torch.randn(20, 4, dtype=torch.float64), torch.randn(2, 20, 3, dtype=torch.float64)
    for f in (
        lambda c: torch.func.vmap(lambda v: c(q=q, v=v))(v),
        lambda c: torch.func.jvp(lambda q: c(q=q, v=v[0]), (q,), (q,))[1],
        lambda c: torch.func.grad(lambda q: c(q=q, v=v[0]).square().sum())(q),
    ):
        torch.testing.assert_close(f(streamed), f(dense))
    traced = torch.compile(streamed, fullgraph=True, dynamic=True, backend="eager")
    for n in range(10, 22):
        q, w = torch.randn(n, 4, dtype=torch.float64), torch.randn(n, 3, dtype=torch.float64)
        torch.testing.assert_close(traced(q=q, v=w), dense(q=q, v=w))
