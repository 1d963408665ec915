"""The cost of the backward pass against what torch does: the peak of its allocator, and the products it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tensorattn as ta
from benchmarks.measuring import alive_bytes_torch
from tensorattn import backward, cost
from tensorattn.sizes import Size
from tests import corpus

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

TWO = "y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n"
CAUSAL = "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n"
HEADS = "y_<h i e> = softmax[j](q_<h i d> k_<h j d>) v_<h j e>"
TRILINEAR = """W^<mu nu rho> = k^mu_i q^nu_i r^rho_i / sqrt(|i|)
y^mu_n = W^<mu bar(nu rho)> a^nu_n b^rho_n"""
BIASED = """W^<h mu nu> = q^<h mu>_i k^<h nu>_i + B^<h mu nu>
y^<h mu>_n = W^<h mu bar(nu)> v^<h nu>_n"""
TRIANGLE = "y^mu_n = softmax[nu rho](q^mu_i k^nu_i + r^nu_i s^rho_i + t^rho_i u^mu_i + B^<mu nu>) v^nu_n w^rho_n"
COEFFICIENTS = """S^<mu nu rho> = q^mu_i k^nu_j r^rho_p A_<i j p>
y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n"""
FOUR = """W^<mu nu rho sigma> = k^mu_i q^nu_i r^rho_i t^sigma_i
y^mu_n = W^<mu bar(nu rho sigma)> a^nu_n b^rho_n c^sigma_n"""
NESTED = """c^<mu nu>_n = softmax[rho](q^mu_i k^rho_i + t^nu_i k^rho_i) v^rho_n
y^mu_n = softmax[nu](c^<mu nu>_n u_n) w^nu_n"""
SYMMETRIC = """W^<mu nu rho> = k^mu_i q^nu_i q^rho_i / sqrt(|i|)
y^mu_n = W^<mu bar(nu rho)> a^nu_n b^rho_n"""
TERMS = "y^mu_n = sum[rho](softmax[nu rho](A^<mu nu> + B^<nu rho> + C^<mu rho>) v^nu_n)"
PAIR = dict(mu=900, nu=800, i=16, n=16)
CUBE = dict(mu=120, nu=110, rho=100, i=8, j=8, p=8, n=8)
LOOPS, FUSED, RATIO, DENSE = "streamed", "flattened", "factored", "dense"
CASES = {
    "two": (TWO, PAIR, [DENSE]),
    "wide values": (TWO, PAIR | dict(n=64), [FUSED]),
    "wide keys": (TWO, PAIR | dict(i=64), [FUSED]),
    "causal": (CAUSAL, PAIR | dict(nu=900), [LOOPS, FUSED, DENSE]),
    "heads": (HEADS, dict(h=4, i=700, j=600, d=16, e=16), [LOOPS, FUSED]),
    "trilinear": (TRILINEAR, CUBE, [LOOPS, FUSED, DENSE]),
    "biased": (BIASED, dict(h=4, mu=600, nu=500, i=8, n=8), [LOOPS, FUSED, DENSE]),
    "triangle": (TRIANGLE, CUBE, [LOOPS, FUSED, RATIO, DENSE]),
    "coefficients": (COEFFICIENTS, CUBE, [LOOPS, FUSED, DENSE]),
    "four": (FOUR, dict(mu=40, nu=38, rho=36, sigma=34, i=4, n=4), [LOOPS, FUSED, DENSE]),
    "nested": (NESTED, CUBE, [LOOPS, FUSED, DENSE]),
    "symmetric": (SYMMETRIC, CUBE | dict(rho=110), [LOOPS]),
    "terms": (TERMS, dict(mu=150, nu=140, rho=130, n=8), [LOOPS, RATIO, DENSE]),
    "capped": ("y^mu_n = softmax[nu rho](3 tanh(k^mu_i q^nu_i r^rho_i)) a^nu_n b^rho_n", CUBE, [LOOPS, DENSE]),
    "packed": ("y^mu_n = softmax[nu : b_mu - b_nu <= 1](q^mu_i k^nu_i) v^nu_n", PAIR | dict(nu=900),
               [LOOPS, FUSED]),
    "sink": ("y^mu_n = softmax[nu; sink=s](q^mu_i k^nu_i) v^nu_n", PAIR, [LOOPS, DENSE]),
    "lse": ("y_i = lse[j](q_<i d> k_<j d>)", dict(i=1500, j=1400, d=8), [LOOPS, DENSE]),
    "weights": ("P^<mu nu> = softmax[nu](q^mu_i k^nu_i)", PAIR, [DENSE]),
    "l1norm": ("y^mu_n = l1norm[nu](exp(q^mu_i k^nu_i + 1) + 1) v^nu_n", PAIR, [DENSE]),
    "l2norm": ("y^mu_n = l2norm[nu](q^mu_i k^nu_i) v^nu_n", PAIR, [LOOPS, DENSE]),
    "sparsemax": ("y^mu_n = sparsemax[nu](q^mu_i k^nu_i) v^nu_n", PAIR, [DENSE]),
    "entmax": ("y^mu_n = entmax[nu; 1.5](q^mu_i k^nu_i) v^nu_n", PAIR, [DENSE]),
    "functions": ("y_i = sum[j](gelu(x_<i j>) + silu(x_<i j> + 1) + log(1 + x_<i j>**2))", dict(i=1000, j=1000), [DENSE]),
    "no weights": ("y^mu_n = relu(q^mu_i k^nu_i) v^nu_n", PAIR, [LOOPS, DENSE]),
    "products": ("y_<i l> = A_<i j> B_<j k> C_<k l>", dict(i=700, j=700, k=700, l=700), [DENSE]),
    "read twice": ("y_<i j> = tanh(x_<i k> x_<j k>)", dict(i=900, j=900, k=500), [DENSE]),
}  # fmt: skip


def tensors(compiled: ta.Compiled, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = {name: [sizes[axis] for axis in axes] for name, axes in compiled.signature.inputs.items()}
    return {n: (torch.randn(s, generator=make) / 2).requires_grad_() for n, s in shapes.items()}


def measured(call: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> int:
    """The peak of the backward pass, with what is kept since the forward pass, in bytes beyond inputs, the result, its
    cotangent and the gradients."""
    bar = torch.ones_like(call())
    result, forward = alive_bytes_torch(call)
    found, back = alive_bytes_torch(lambda: torch.autograd.grad(result, inputs, bar, allow_unused=True))
    gradients = {g.untyped_storage().data_ptr(): g.untyped_storage().nbytes() for g in found if g is not None}
    kept = forward[-1] - result.untyped_storage().nbytes()
    return kept + max(back) - sum(gradients.values())


def predicted(compiled: ta.Compiled, sizes: Mapping[str, int]) -> cost.Cost:
    dtypes = dict.fromkeys(compiled.inputs, "float32")
    found = compiled.cost(dict(sizes), backend="torch", dtypes=dtypes).backward
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "plan"), [(name, plan) for name, (_, _, plans) in CASES.items() for plan in plans], ids=str
)
def test_the_predicted_peak_of_the_backward_pass_is_the_measured_one(name: str, plan: str) -> None:
    text, sizes, _ = CASES[name]
    compiled = ta.compile(text, plan=plan)
    sizes = {n: s for n, s in sizes.items() if n in compiled.program.indices}
    inputs = tensors(compiled, sizes)
    compiled(**inputs).sum().backward()
    found = measured(lambda: compiled(**inputs), list(inputs.values()))
    peak = predicted(compiled, sizes).at({}).peak_bytes
    assert abs(peak - found) <= max(0.25 * found, 1e6), (peak, found)
