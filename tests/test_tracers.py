"""Where no value may be looked at: linearize, make_fx, tensors without data; and NumPy calls inside all that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import tensorattn as ta

pytestmark = pytest.mark.filterwarnings("ignore:.*get_attr.*")  # of torch's own linearize
FORMULAS = {
    "masked": "y^mu_n = softmax[nu : nu < mu](q^mu_i k^nu_i + b^<mu nu>) v^nu_n",
    "gather": "y^mu_n = softmax[nu](q^mu_i k^nu_i + E_<t_nu>) v^nu_n",
    "sparse": "y^mu_n = sparsemax[nu](q^mu_i k^nu_i) v^nu_n",
    "lse": "y^mu = lse[nu : nu <= mu](q^mu_i k^nu_i)",
}
SHAPES = {"q": (5, 3), "k": (7, 3), "b": (5, 7), "v": (7, 2), "E": (4,)}
Inputs = dict[str, torch.Tensor]


def drawn(compiled: ta.Compiled, factor: int = 1) -> Inputs:
    make = torch.Generator().manual_seed(3)
    grown = {n: tuple(s * factor if s > 4 else s for s in shape) for n, shape in SHAPES.items()}
    found = {n: torch.randn(s, generator=make, dtype=torch.float64) for n, s in grown.items()}
    found["t"] = torch.arange(7 * factor) % 4
    return {n: found[n] for n in compiled.inputs}


def compiled(name: str, plan: str) -> ta.Compiled | None:
    try:
        return ta.compile(FORMULAS[name], plan=plan)
    except ta.PlanError:
        assert plan == "flattened"
        assert name in ("sparse", "lse")
        return None


def gradient(f: ta.Compiled, x: Inputs) -> torch.Tensor:
    return torch.func.grad(lambda q: f({**x, "q": q}).sin().sum())(x["q"])


every = pytest.mark.parametrize(("name", "plan"), [(n, p) for n in FORMULAS for p in ("auto", "streamed", "flattened")])


@every
def test_linearize(name: str, plan: str) -> None:
    if (f := compiled(name, plan)) is None:
        return
    x = drawn(f)
    step = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)
    value, linear = torch.func.linearize(lambda q: f({**x, "q": q}), x["q"])
    dense = ta.compile(FORMULAS[name], plan="dense")
    expected = torch.func.jvp(lambda q: dense({**x, "q": q}), (x["q"],), (step,))
    torch.testing.assert_close((value, linear(step)), expected)


@every
def test_make_fx(name: str, plan: str) -> None:
    if (f := compiled(name, plan)) is None:
        return
    x, dense = drawn(f), ta.compile(FORMULAS[name], plan="dense")
    for mode, other in (("real", 1), ("fake", 1), ("symbolic", 3)):
        y = {n: a if n == "t" else a * 2 for n, a in drawn(f, other).items()}
        torch.testing.assert_close(make_fx(lambda x: f(x), tracing_mode=mode)(x)(y), dense(y))
        traced = make_fx(lambda x: gradient(f, x), tracing_mode=mode)(x)
        torch.testing.assert_close(traced(y), gradient(dense, y), rtol=1e-9, atol=1e-10)


@every
def test_tensors_without_data(name: str, plan: str) -> None:
    if (f := compiled(name, plan)) is None:
        return
    x = drawn(f)
    expected = f(x)

    def check(given: Inputs) -> None:
        found = f(given)
        assert (found.shape, found.dtype, found.device) == (expected.shape, expected.dtype, given["q"].device)
        assert f({**given, "q": given["q"].requires_grad_()}).requires_grad
        (bar,) = torch.autograd.grad(f(given).sum(), given["q"])
        assert (bar.shape, bar.device) == (x["q"].shape, given["q"].device)

    check({n: a.to("meta") for n, a in x.items()})
    with FakeTensorMode() as fake:
        check({n: fake.from_tensor(a) for n, a in x.items()})
    torch.testing.assert_close(f(x), expected)


def test_a_trace_holds_no_loop() -> None:
    f = ta.compile(FORMULAS["masked"], plan="streamed")
    nodes = []
    for factor in (1, 300):
        x = {n: a.float() for n, a in drawn(f, factor).items()}
        nodes.append(len(make_fx(lambda x: f(x), tracing_mode="symbolic")(x).graph.nodes))
    assert nodes[0] == nodes[1]


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_torch_jit_trace() -> None:
    f = ta.compile(FORMULAS["masked"], plan="streamed")
    x = drawn(f)
    traced = torch.jit.trace(lambda q: f({**x, "q": q}), (x["q"],), check_trace=False)
    torch.testing.assert_close(traced(x["q"] * 2), f({**x, "q": x["q"] * 2}))


# NumPy inside transforms of torch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", ["auto", "streamed"])
def test_numpy_calls_inside_transforms(plan: str) -> None:
    """A table that a function makes with NumPy on its way."""
    f = ta.compile(FORMULAS["lse"], plan=plan)
    arrays = {n: a.numpy() for n, a in drawn(f).items()}
    wanted = f(arrays)
    found = []

    def function(x: torch.Tensor) -> torch.Tensor:
        found.append(f(arrays))
        found.append(f({n: a.tolist() for n, a in arrays.items()}))
        return (x * torch.from_numpy(found[0])).sum()

    x = torch.ones(5, dtype=torch.float64)
    torch.func.grad(function)(x)
    torch.vmap(function)(torch.stack([x, x]))
    torch.func.jvp(function, (x,), (x,))
    make_fx(function)(x)
    with torch.autograd.forward_ad.dual_level():
        function(torch.autograd.forward_ad.make_dual(x, x))
    with FakeTensorMode():
        found.append(f(arrays))
    assert len(found) == 11
    for result in found:
        assert isinstance(result, np.ndarray)
        np.testing.assert_array_equal(result, wanted)


def test_both_libraries_in_one_call_are_refused_in_a_transform_too() -> None:
    f = ta.compile(FORMULAS["lse"])
    x = drawn(f)
    k = x["k"].numpy()
    with pytest.raises(ta.BackendError, match="several libraries"):
        torch.func.grad(lambda q: f(q=q, k=k).sum())(x["q"])
