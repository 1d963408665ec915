"""An admitted ±∞ or NaN in a sum or mean under its own predicate: what it makes of the result, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import reference

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

ONE_ARRAY = (  # ±∞ stays ±∞, as in a sum without a predicate
    "y = sum[j : k_j](x_j)",
    "y = mean[j : k_j](x_j)",
    "y = sum[j : k_j](-2 x_j / sqrt(|j|))",
    "y_i = sum[j : m_<i j>](x_j)",
    "y_i = mean[j : k_j](a_<i j>)",
    "y = sum[j : k_j](exp(x_j))",
    "y_<i e> = sum[j : m_<i j>](v_<j e>)",
    "y_<i e> = 1 - sum[j : m_<i j>](-3 v_<j e>)",
    "y_e = mean[j i : m_<i j>](v_<j e>)",
    "y = sum[j e : k_j](v_<j e>)",
    "y_j = sum[i : i <= j](b_i) + z_j",
    "l_j = exp(x_j) log(z_j); y = sum[j : k_j](l_j)",  # a definition is one array
)
SEVERAL = (  # an admitted one is NaN
    "y = sum[j : k_j](x_j z_j)",
    "y = sum[j : k_j](-(x_j z_j))",
    "y = mean[j : k_j](x_j / c)",
    "y = sum[j : k_j](c x_j)",
    "y_<i e> = sum[j : m_<i j>](x_j v_<j e>)",
    "y_<i e> = mean[j : m_<i j>](sum[p](a_<p j>) v_<j e>)",
)
SHAPES = dict(k="j", m="ij", x="j", z="j", a="pj", b="i", v="je", c="")
SIZES = dict(i=5, j=6, e=3, p=5)


def inputs(program: ta.Program, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in program.inputs:
        shape = tuple(SIZES[index] for index in SHAPES[name])
        arrays[name] = np.asarray(rng.random(shape) < 0.5 if name in "km" else rng.random(shape) + 0.1)
        if name in "xabv":
            for _ in range(seed % 4):
                arrays[name][tuple(rng.integers(n) for n in shape)] = rng.choice([np.inf, -np.inf, np.nan])
    return arrays


@pytest.mark.parametrize("text", [*ONE_ARRAY, *SEVERAL])
def test_both_back_ends_say_what_the_reference_says(text: str) -> None:
    program = ta.parse(text)
    compiled = ta.compile(program)
    infinite = 0
    for seed in range(32):
        arrays = inputs(program, seed)
        wanted = reference.evaluate(program, arrays)[program.defined[-1]]
        infinite += np.isinf(wanted).any()
        np.testing.assert_allclose(compiled(arrays), wanted)
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        np.testing.assert_allclose(compiled(tensors).numpy(), wanted)
    assert bool(infinite) == (text in ONE_ARRAY)


@pytest.mark.parametrize("text", ["y = sum[j : k_j](x_j)", "y_e = sum[j : k_j](v_<j e>)", "y = sum[j : k_j](x_j z_j)"])
def test_what_is_excluded_has_no_gradient(text: str) -> None:
    admitted = torch.tensor([True, False, True, False, True, True])
    program = ta.parse(text)
    arrays = {name: torch.ones([SIZES[i] for i in SHAPES[name]], dtype=torch.float64) for name in program.inputs}
    arrays["k"] = admitted
    name = next(n for n in ("x", "v") if n in arrays)
    arrays[name][1] = torch.inf
    arrays[name].requires_grad_()
    ta.compile(program)(arrays).sum().backward()
    gradient = arrays[name].grad
    assert gradient is not None
    wanted = admitted.double() if gradient.ndim == 1 else admitted.double()[:, None].expand(gradient.shape)
    torch.testing.assert_close(gradient, wanted)


def test_the_safe_side_by_kinds_takes_no_larger_array() -> None:
    """A masked sum of vectors stays a matrix product."""
    found = ta.compile("y_<i e> = sum[j : m_<i j>](v_<j e>)").cost(i=100, j=100, e=100).peak_bytes
    assert int(found) < 100**3


@pytest.mark.parametrize("weights", ["softmax[j : m_<i j>](x_<i j>)", "l2norm[j : m_<i j>](x_<i j> + 1)"])
@pytest.mark.parametrize("sum_", ["{} v_j", "sum[j]({} v_j)", "sum[j](sum[k]({} v_j u_k))", "-sum[j](-{} v_j)"])
def test_a_sum_that_is_written_out_is_the_product_that_it_holds(sum_: str, weights: str) -> None:
    arrays = dict(x=np.zeros((2, 3)), m=np.array([[True] * 3, [False] * 3]), v=np.ones(3), u=np.ones(1))
    arrays |= dict(s=np.array([np.inf, np.inf]))
    for text in (f"y_i = {sum_} s_i", f"T_i = {sum_}\ny_i = T_i s_i"):
        program = ta.parse(text.format(weights))
        given = {name: arrays[name] for name in program.inputs}
        wanted = ta.reference.evaluate(program, given)["y"]
        np.testing.assert_array_equal(wanted, [np.nan, 0.0])
        for plan in ("auto", "dense"):
            compiled = ta.compile(program, plan=plan)
            np.testing.assert_array_equal(compiled(given), wanted)
            np.testing.assert_array_equal(compiled({n: torch.tensor(a) for n, a in given.items()}).numpy(), wanted)
