"""The table of derivatives: every function against torch, once and twice, and at its kinks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.differentiating.functions import CONSTANT, TABLE
from tensorattn.ir import BOOLEAN, FUNCTIONS, OPERATORS
from tests.gradients import agree, by_program, close, differences, normal

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


def test_the_table_has_every_function() -> None:
    assert set(TABLE) | {"where"} | CONSTANT == {*FUNCTIONS, *OPERATORS} - BOOLEAN


CALLS = [f"{name}(x_i)" for name in FUNCTIONS if name not in ("maximum", "minimum", "where", "log", "sqrt", "uniform")]
CALLS += ["log(2 + x_i**2)", "sqrt(x_i**2 + 1)", "maximum(x_i, z_i)", "minimum(x_i, z_i)", "leaky_relu(x_i, z_i)"]
CALLS += ["where(x_i > z_i, x_i**2, sin(z_i))", "x_i**3", "x_i**-2", "x_i**0", "x_i**1", "abs(x_i)**z_i"]
CALLS += ["1 / x_i", "-x_i", "x_i / z_i", "2**x_i", "exp(x_i)**0.5"]


def test_every_function_once_and_twice() -> None:
    x, z = np.array([-2.0, -0.7, -0.05, 0.06, 0.4, 3.0]), np.array([0.3, -0.7, 0.5, 0.06, -1.0, 2.0])
    lines = [f"f{n}_i = {call}" for n, call in enumerate(CALLS)]
    total = " + ".join(f"c_<{n}, i> f{n}_i" for n in range(len(CALLS)))
    arrays = {"x": x, "z": z, "c": np.random.default_rng(2).normal(size=(len(CALLS), 6))}
    once = agree("\n".join([*lines, f"y_i = {total}"]), ["x", "z"], arrays)
    agree(f"{once}\ng_i = dx_i * dz_i", ["x", "z"], {**arrays, "dy": np.linspace(1, 2, 6)})


@pytest.mark.parametrize(
    ("call", "slope"),
    [
        *(("relu(x_i)", 0), ("abs(x_i)", 0), ("sign(x_i)", 0), ("leaky_relu(x_i)", 0.2), ("elu(x_i)", 1)),
        *(("maximum(x_i, 0)", 0.5), ("minimum(x_i, 0)", 0.5), ("x_i**2", 0), ("gelu(x_i)", 0.5)),
    ],
)
def test_kinks_are_those_of_torch(call: str, slope: float) -> None:
    assert by_program(ta.grad(f"y_i = {call}", "x"), 1, {"x": np.zeros(1), "dy": np.ones(1)})[0] == [slope]


def test_gelu_is_differentiated_three_times_at_zero() -> None:
    text, arrays = "y_i = gelu(x_i)", {"x": np.array([0.0, 1e-9, 0.09999, 0.1, -3.0]), "dy": np.ones(5)}
    x = torch.tensor(arrays["x"], requires_grad=True)
    (first,) = torch.autograd.grad(torch.nn.functional.gelu(x).sum(), x, create_graph=True)
    program = ta.grad(text, "x")
    close(by_program(program, 1, arrays), [first.detach().numpy()])
    (second,) = torch.autograd.grad(first.sum(), x)
    program = ta.grad(program, "x", output="dx")
    close(by_program(program, 1, {**arrays, "ddx": np.ones(5)}), [second.numpy()])


@pytest.mark.parametrize("body", ["lse[i s t](x_i + b_j)", "max[i s](x_i + b_j)", "min[s t : s <= j](b_j)"])
@pytest.mark.parametrize("size", [0, 1, 2])
def test_reductions_over_indices_that_nothing_in_them_holds(body: str, size: int) -> None:
    program = ta.parse(f"y_j = {body}")
    arrays = normal(x=(3,), b=(4,))
    given = {n: arrays[n] for n in program.inputs}
    sizes = {n: s for n, s in {"s": size, "t": 3}.items() if f" {n}" in body}
    gradient = ta.grad(program, program.inputs)
    found = by_program(gradient, len(given), {**given, "dy": np.ones(4)}, sizes, plan="dense")
    for name, value in zip(given, found, strict=True):
        wanted = differences(program, name, given, np.ones(4), sizes) if size else np.zeros(value.shape)
        np.testing.assert_allclose(value, wanted, atol=1e-8)


@pytest.mark.parametrize(
    "argument", ["sum[i](x_<i j> u_i)", "lse[i](x_<i j> + u_i)", "max[i](x_<i j> u_i)", "softmax[i](x_<i j>) u_i"]
)
def test_an_argument_that_sums_and_reads_by_position_stands_beside_itself(argument: str) -> None:
    arrays = normal(e=(7,), x=(3, 4), u=(3,)) | {"g": np.array([2, 6, 0, 2])}
    agree(f"y_j = tanh(e_<g_j> + {argument})", ["e", "x", "u"], arrays)
