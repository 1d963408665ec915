"""Additive masks as large as numbers are: streamed and flattened plans say what dense ones do, in every derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
N, M, D, E = 4, 11, 3, 2
FORMULAS = {
    "one": "y_<i e> = softmax[j](q_<i d> k_<j d> + b_<i j>) v_<j e>",
    "shared": "S_<i j> = q_<i d> k_<j d> - b_<i j>\n"
    "y_<i e> = softmax[j](S_<i j>) v_<j e> - softmax[j](S_<i j>) w_<j e>",
    "keys": "y_<i e> = softmax[j](q_<i d> k_<j d> + c_j) v_<j e> + softmax[j](q_<i d> k_<j d> + c_j) w_<j e>",
    "joint": "y_<i e> = softmax[j l](q_<i d> k_<j d> k_<l d> + b_<i j>) v_<j e> w_<l e>",
    "sink": "y_<i e> = softmax[j; sink=s_i](q_<i d> k_<j d> + b_<i j>) v_<j e>",
}
AXES = dict(q=(N, D), k=(M, D), v=(M, E), w=(M, E))


def drawn(program: ta.Program, large: float, where: str, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    arrays = {name: rng.normal(size=shape) for name, shape in AXES.items()}
    b, c = np.zeros((N, M)), np.zeros(M)
    if where == "all":
        b[:], c[:] = large, large
    else:
        b[1], b[2, ::2], c[::3] = large, large, large
    arrays |= dict(b=b, c=c, s=rng.normal(size=N))
    return {name: arrays[name].astype(dtype) for name in program.inputs}


def derivatives(program: ta.Program, plan: str, arrays: dict[str, np.ndarray], compiled: bool = False):
    """The value, its gradients, and those of a sum of them."""
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays.values()]
    made = ta.compile(program, plan=plan)

    def function(*x: torch.Tensor) -> torch.Tensor:
        return made(dict(zip(arrays, x, strict=True)))

    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    y = function(*tensors)
    first = torch.autograd.grad(y.sin().sum(), tensors, create_graph=not compiled)
    if compiled:
        return y, *first
    total = sum((g * torch.cos(torch.arange(g.numel(), dtype=g.dtype)).reshape(g.shape)).sum() for g in first)
    return y, *first, *torch.autograd.grad(total, tensors)


@pytest.mark.parametrize("where", ["all", "some"])
@pytest.mark.parametrize("size", ["inf", "1e9", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FORMULAS)
def test_streamed_plans_agree_with_dense_ones(name: str, dtype: str, size: str, where: str) -> None:
    program = ta.parse(FORMULAS[name])
    large = -{"inf": np.inf, "1e9": 1e9, "max": np.finfo(dtype).max}[size] * (-1 if name == "shared" else 1)
    arrays = drawn(program, large, where, dtype)
    exact = 1e9 if size == "1e9" else 1.0  # scores of 1e9 have few digits, and each plan rounds its own
    room = 1e-4 if dtype == "float32" else 1e-15 * exact + 1e-10
    if exact > 1 and dtype == "float32":
        arrays |= {"q": np.zeros_like(arrays["q"])}  # all of them alike
    wanted = derivatives(program, "dense", arrays)
    for found, value in zip(derivatives(program, "streamed", arrays), wanted, strict=True):
        assert value.isfinite().all()
        torch.testing.assert_close(found, value, rtol=room, atol=room * (1 + float(value.detach().abs().max())))


def test_keys_of_minus_infinity_in_a_flattened_plan() -> None:
    program = ta.parse("y_<i e> = softmax[j](q_<i d> k_<j d> + c_j) v_<j e>\nz_<i e> = y_<i e> + y_<i e> y_<i e>")
    arrays = drawn(program, -np.inf, "some", "float64")
    wanted = derivatives(program, "dense", arrays)
    for found, value in zip(derivatives(program, "flattened", arrays), wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["one", "keys"])
def test_first_derivatives_in_a_compiled_region(name: str) -> None:
    program = ta.parse(FORMULAS[name])
    arrays = drawn(program, np.finfo("float32").min, "all", "float32")
    wanted = derivatives(program, "dense", arrays)
    for found, value in zip(derivatives(program, "streamed", arrays, compiled=True), wanted, strict=False):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sink_as_large_as_the_scores_takes_its_share(plan: str, dtype: str) -> None:
    compiled = ta.compile("y_i = softmax[j; sink=s_i](x_<i j> + b_j) v_j", plan=plan)
    least = np.finfo(dtype).min
    given = dict(s=np.full(2, least), x=np.zeros((2, 3)), b=np.full(3, least), v=np.ones(3))
    arrays = {name: array.astype(dtype) for name, array in given.items()}
    for made in (arrays, {name: torch.tensor(array) for name, array in arrays.items()}):
        np.testing.assert_allclose(np.asarray(compiled(made)), [0.75, 0.75], rtol=1e-6)
