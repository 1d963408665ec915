"""What gradients keep and take: inputs, outputs and log Σ exp between the passes, and tiles in either of them."""

from __future__ import annotations

from math import prod

import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_torch

JOINT = """W^<mu nu rho> = k^mu_i q^nu_i r^rho_i / sqrt(|i|)
y^mu_n = W^<mu bar(nu rho)> a^nu_n b^rho_n"""
CAUSAL = """W^<h mu nu> = q^<h mu>_i k^<h nu>_i / sqrt(|i|) - s_h (mu - nu)
y^<h mu>_n = W^<h mu bar(nu : nu <= mu)> v^<h nu>_n"""
BIASED = """W^<h r mu nu> = q^<h r mu>_i k^<h r nu>_i + B^<h mu nu>
y^<h r mu>_n = W^<h r mu bar(nu)> v^<h r nu>_n"""
CAPPED = "y^mu_n = softmax[nu rho](3 tanh(k^mu_i q^nu_i r^rho_i / 3)) a^nu_n b^rho_n"
SYMMETRIC = """W^<mu nu rho> = k^mu_i q^nu_i q^rho_i / sqrt(|i|)
y^mu_n = W^<mu bar(nu rho)> a^nu_n b^rho_n"""
NESTED = """c^<mu nu>_n = softmax[rho](q^mu_i k^rho_i + t^nu_i k^rho_i) v^rho_n
y^mu_n = softmax[nu](c^<mu nu>_n u_n) w^nu_n"""
WEIGHTLESS = "y^mu_n = relu(q^mu_i k^nu_i) v^nu_n"
# the index sizes, the axes of the weights, and those of what is kept: log Σ exp, results that are read again
JOINT_SIZES = dict(mu=200, nu=190, rho=180, i=8, n=8)
CASES = {
    JOINT: (JOINT_SIZES, "mu nu rho", ["mu"]),
    CAUSAL: (dict(h=16, mu=700, nu=700, i=8, n=8), "h mu nu", ["h mu"]),
    BIASED: (dict(h=2, r=80, mu=200, nu=200, i=8, n=8), "h r mu nu", ["h r mu"]),
    CAPPED: (JOINT_SIZES, "mu nu rho", ["mu"]),
    SYMMETRIC: (dict(mu=200, nu=190, rho=190, i=8, n=8), "mu nu nu", ["mu", "mu n", "mu"]),
    NESTED: (dict(mu=150, nu=200, rho=180, i=6, n=6), "mu nu rho", ["mu nu", "mu nu n", "mu", "mu n"]),
    WEIGHTLESS: (dict(mu=2500, nu=2400, i=6, n=6), "mu nu", []),
}
TILES = 12 << 20  # bytes: arrays of 1 MB a tile, and what a predicate makes of positions
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


def tensors(compiled: ta.Compiled, sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = {name: [sizes[axis] for axis in axes] for name, axes in compiled.signature.inputs.items()}
    return {n: torch.randn(s, generator=make).requires_grad_() for n, s in shapes.items()}


def kept_bytes(compiled: ta.Compiled, inputs: dict[str, torch.Tensor]) -> int:
    """The bytes that autograd keeps for the backward pass, those of the inputs aside."""
    kept = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compiled(**inputs)
    assert result.requires_grad
    own = {x.untyped_storage().data_ptr() for x in inputs.values()}
    return sum(size for place, size in kept.items() if place not in own)


@pytest.mark.parametrize(
    "formula", CASES, ids=["joint", "causal", "biased", "capped", "symmetric", "nested", "weightless"]
)
def test_nothing_of_the_size_of_the_weights_is_kept_or_built(formula: str) -> None:
    sizes, axes, kept = CASES[formula]
    compiled = ta.compile(formula, plan="streamed")
    inputs = tensors(compiled, sizes)
    result = compiled(**inputs)
    needed = 4 * (result.numel() + sum(prod(sizes[name] for name in word.split()) for word in kept))
    assert kept_bytes(compiled, inputs) <= needed

    def both() -> tuple[torch.Tensor, ...]:
        result = compiled(**inputs)
        return (result, *torch.autograd.grad(result, list(inputs.values()), torch.ones_like(result)))

    both()
    assert 4 * prod(sizes[name] for name in axes.split()) > 1.5 * TILES
    assert peak_bytes_torch(both) <= needed + TILES


@pytest.mark.parametrize("where", ["", " : rho <= nu"])
def test_a_ratio_keeps_nothing_larger_than_a_tile(where: str) -> None:
    """Its arrays over two indices and the features of the values are made again, where autograd would keep them."""
    text = f"y^mu_n = softmax[nu rho{where}](q^mu_i k^nu_i + l^mu_i r^rho_i + b^<nu rho>) v^nu_n w^rho_n"
    text = text if not where else text.replace(" + b^<nu rho>", "")
    compiled = ta.compile(text, plan="factored")
    sizes = dict(mu=127, nu=127, rho=127, i=8, n=79)
    inputs = tensors(compiled, sizes)
    assert kept_bytes(compiled, inputs) <= 4 * sizes["mu"] * sizes["n"]
    result = compiled(**inputs)
    found = torch.autograd.grad(result.sin().sum(), list(inputs.values()))
    exact = {n: x.detach().double().requires_grad_() for n, x in inputs.items()}
    score = (exact["q"] @ exact["k"].T)[:, :, None] + (exact["l"] @ exact["r"].T)[:, None]
    score = score.masked_fill(~torch.ones(127, 127).tril().bool(), -torch.inf) if where else score + exact["b"]
    weights = score.flatten(1).softmax(-1).unflatten(-1, score.shape[1:])
    values = torch.einsum("mab,an,bn->mn", weights, exact["v"], exact["w"])
    for one, other in zip(found, torch.autograd.grad(values.sin().sum(), list(exact.values())), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def test_a_budget_holds_for_the_backward_pass() -> None:
    compiled = ta.compile(JOINT, plan="streamed", memory=1 << 20)
    inputs = tensors(compiled, CASES[JOINT][0])
    result = compiled(**inputs)
    found = []

    def backward() -> tuple[torch.Tensor, ...]:
        found[:] = torch.autograd.grad(result, list(inputs.values()), torch.ones_like(result), retain_graph=True)
        return tuple(found)

    backward()
    assert peak_bytes_torch(backward) <= 1 << 20
    with pytest.raises(ta.BudgetError, match="E-BUDGET"):
        ta.compile(JOINT, plan="streamed", memory=1 << 10)(**inputs)


def test_gradients_without_a_softmax_stream_and_are_those_of_dense() -> None:
    sizes = dict(mu=300, nu=290, i=5, n=7)
    found = []
    for plan in ("streamed", "dense"):
        compiled = ta.compile(WEIGHTLESS, plan=plan)
        inputs = tensors(compiled, sizes)
        found.append(torch.autograd.grad(compiled(**inputs).square().sum(), list(inputs.values())))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
