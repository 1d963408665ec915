"""An input that a result is no differentiable function of has a gradient of zeros, which is not missing."""

from __future__ import annotations

import pytest
import torch

import tensorattn as ta

FORMULAS = {
    "y_m = softmax[t : a_<m t> > 0](b_<m t>) v_t": dict(a=(3, 5), b=(3, 5), v=(5,)),
    "y_m = where(a_m > 0, b_m, c_m)": dict(a=(3,), b=(3,), c=(3,)),
    "y_m = sum[t : a_t > 0](b_<m t>)": dict(a=(5,), b=(3, 5)),
    "y_m = max[t](b_<m t>)": dict(b=(3, 0)),
    "y_m = c_m max[t](b_<m t>)": dict(b=(3, 0), c=(3,)),
    "y_m = sum[t](softmax[t](a_<m t>)) b_m": dict(a=(3, 5), b=(3,)),
    "y_m = b_m + 0 a_m": dict(a=(3,), b=(3,)),
}
AWAY = {"y_m = softmax[t : a_<m t> > 0](b_<m t>) v_t": "a", "y_m = where(a_m > 0, b_m, c_m)": "a",
        "y_m = sum[t : a_t > 0](b_<m t>)": "a"}  # fmt: skip


def given(text: str) -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = FORMULAS[text]
    return {n: torch.randn(s, generator=make, dtype=torch.float64, requires_grad=True) for n, s in shapes.items()}


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("plan", ["dense", "auto"])
@pytest.mark.parametrize("text", FORMULAS)
def test_every_input_has_a_gradient(text, plan):
    x = given(text)
    found = torch.autograd.grad(ta.compile(text, plan=plan)(x).sum(), list(x.values()))
    for value, gradient in zip(x.values(), found, strict=True):
        assert gradient.shape == value.shape


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1.0])
@pytest.mark.parametrize("text", AWAY)
def test_it_is_exactly_zero_whatever_the_input_holds(text, value):
    x = given(text)
    with torch.no_grad():
        x[AWAY[text]].fill_(value)
    result = ta.compile(text, plan="dense")(x)
    (gradient,) = torch.autograd.grad(result.nansum(), [x[AWAY[text]]])
    assert torch.equal(gradient, torch.zeros_like(gradient))
    plain = ta.compile(text, plan="dense")({n: v.detach() for n, v in x.items()})
    torch.testing.assert_close(result.detach(), plain, rtol=0, atol=0, equal_nan=True)


def test_each_of_several_results_has_one():
    x = {n: torch.randn(3, dtype=torch.float64, requires_grad=True) for n in "ab"}
    found = ta.compile("y_m = exp(a_m); z_m = exp(b_m)", outputs=["y", "z"])(x)
    for name, other in (("y", "b"), ("z", "a")):
        (gradient,) = torch.autograd.grad(found[name].sum(), [x[other]])
        assert torch.equal(gradient, torch.zeros(3, dtype=torch.float64))


@pytest.mark.parametrize("text", AWAY)
def test_inside_a_compiled_region_too(text):
    torch._dynamo.reset()
    x = given(text)
    formula = ta.compile(text, plan="dense")
    compiled = torch.compile(lambda x: formula(x), fullgraph=True, backend="aot_eager")
    (gradient,) = torch.autograd.grad(compiled(x).sum(), [x[AWAY[text]]])
    assert torch.equal(gradient, torch.zeros_like(gradient))
