"""Derivatives through the operator of what needs a rule of its own: products over an index, exponents of entmax."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.units import key_of, stepped, unit
from tests.operators import gradients, of_floats, operation

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SHAPES = {"q": (5, 3), "k": (7, 3), "v": (7, 2), "b": (5, 4), "c": (7, 0), "z": (7, 3), "a": (5,)}
PRODUCTS = {
    "beside a softmax": "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n (prod[p](b^<mu p>))",
    "over two indices in a score": "y^mu_n = softmax[nu : nu < mu](prod[i j](q^mu_i + k^nu_j)) v^nu_n",
    "with zeros": "y^mu = softmax[nu](q^mu_i k^nu_i) prod[i](z^nu_i)",
    "below a predicate": "y^mu_n = softmax[nu](q^mu_i k^nu_i + prod[i : i < nu](z^nu_i q^mu_i)) v^nu_n",
    "of the others before it": "b^<mu nu> = sigmoid(q^mu_i k^nu_i)\n"
    "y^mu_n = sum[nu](b^<mu nu> prod[rho : rho < nu](1 - b^<mu rho>) v^nu_n) + softmax[nu](b^<mu nu>) v^nu_n",
    "of nothing": "y^mu_n = softmax[nu](q^mu_i k^nu_i prod[p](c^nu_p)) v^nu_n",
}
ZEROS = [[0, 1, 2], [0, 0, 3], [0, 0, 0], [1, 2, 3], [4, 5, 0], [0, 1, 0], [1, 1, 1]]


def drawn(names: tuple[str, ...]) -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(5)
    found = {n: torch.randn(s, generator=make, dtype=torch.float64) for n, s in SHAPES.items()}
    fixed = {"z": torch.tensor(ZEROS).double(), "a": torch.tensor([1.5, 1 + 1e-10, 1.3, 2, 1], dtype=torch.float64)}
    return {n: (found | fixed)[n] for n in names}


def check_orders(text: str, most: int = 2) -> None:
    """Derivatives one of the other against plain torch operations."""
    tensors = drawn(ta.parse(text).inputs)
    run = operation(text, tensors)
    ours, inputs = of_floats(run, tensors)
    plain, _ = of_floats(lambda **named: (ta.compile(text, plan="dense")(named),), tensors)
    torch.testing.assert_close(ours(*inputs), plain(*inputs), rtol=1e-12, atol=1e-12)
    for order in range(1, most + 1):
        for found, expected in zip(*(gradients(f, inputs, 1, order=order) for f in (ours, plain)), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str) -> None:
    check_orders(PRODUCTS[name], 3 if name == "with zeros" else 2)


@pytest.mark.parametrize("exponent", ["a^mu", "|i|"])
def test_exponents(exponent: str) -> None:
    check_orders(f"y^mu_n = entmax[nu : nu <= mu; alpha={exponent}](q^mu_i k^nu_i) v^nu_n")


@pytest.mark.parametrize("name", ["over two indices in a score", "exponents"])
def test_gradcheck(name: str) -> None:
    text = PRODUCTS.get(name, "y^<mu nu> = entmax[nu; alpha=a^mu](q^mu_i k^nu_i)")
    tensors = drawn(ta.parse(text).inputs)
    if "a" in tensors:
        tensors["a"] = torch.tensor([1.5, 1.00001, 1.3, 1.8, 1.2], dtype=torch.float64)
    run = operation(text, tensors)
    ours, inputs = of_floats(run, tensors)
    inputs = tuple(x.requires_grad_() for x in inputs)
    assert torch.autograd.gradcheck(ours, inputs, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ours, inputs, fast_mode=True)


def test_a_first_derivative_of_a_product_takes_no_square() -> None:
    """The others of each entry are two running products: nothing has the index twice."""
    text = "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n (prod[p](b^<mu p>))"
    key = key_of(ta.parse(text), ("y",), {}, dict.fromkeys("qkvb", "float64"), 0, None, "streamed", None)
    key = stepped(key, "adjoint", (True, *(False for _ in unit(key).kept)), ("b",))
    axes = [i.out.axes for i in unit(key).kernel.body if hasattr(i, "out")]
    assert max(sum(index.name == "p" for index in found) for found in axes) == 1


# Exponents near 1 -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.0, 1e-14, 1e-12, 1e-10, 1e-9, 1e-8])
@pytest.mark.parametrize("plan", ["dense", "streamed"])
def test_near_one_is_the_limit(step: float, plan: str) -> None:
    """W = S + t S (mean of u²/2 − u²/2) + O(t²) with S the softmax and u = −log S."""
    s = np.random.default_rng(1).normal(size=(4, 6)) * 2
    share = np.exp(s) / np.exp(s).sum(-1, keepdims=True)
    half = np.log(share) ** 2 / 2
    slope = share * ((share * half).sum(-1, keepdims=True) - half)
    f = ta.compile("y_i = entmax[j; alpha=a](s_<i j>) v_<i j>", plan=plan)
    v = np.random.default_rng(2).normal(size=(4, 6))
    a = 1 + step
    expected, derivative = ((share + (a - 1) * slope) * v).sum(-1), (slope * v).sum()
    np.testing.assert_allclose(f(s=s, v=v, a=np.array(a)), expected, rtol=1e-13, atol=1e-13)
    alpha = torch.tensor(a, dtype=torch.float64, requires_grad=True)
    y = f(s=torch.tensor(s), v=torch.tensor(v), a=alpha)
    np.testing.assert_allclose(y.detach(), expected, rtol=1e-13, atol=1e-13)
    (found,) = torch.autograd.grad(y.sum(), alpha, create_graph=True)
    assert math.isclose(found.item(), derivative, rel_tol=100 * step + 1e-11)
    (second,) = torch.autograd.grad(found, alpha)
    limit = by_differences(lambda t: (bent(s, t) * v).sum(), 1e-3)
    assert math.isclose(second.item(), limit, rel_tol=1e-3)


def bent(s: np.ndarray, t: float) -> np.ndarray:
    """entmax by its definition with 1 + t, for t far enough from 0."""
    low = s.max(-1, keepdims=True)
    high = low + 20
    for _ in range(200):
        middle = (low + high) / 2
        heavy = (np.maximum(1 + t * (s - middle), 0) ** (1 / t)).sum(-1, keepdims=True) >= 1
        low, high = np.where(heavy, middle, low), np.where(heavy, high, middle)
    return np.maximum(1 + t * (s - low), 0) ** (1 / t)


def by_differences(f: Callable[[float], float], step: float) -> float:
    """The second derivative at 0 from one side, to the second order of the step."""
    one, two, three, four = (f(n * step) for n in (1, 2, 3, 4))
    return (3 * one - 8 * two + 7 * three - 2 * four) / step**2
