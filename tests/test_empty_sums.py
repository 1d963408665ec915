"""Sums over nothing are 0 in every plan, whatever stands beside them, and have gradients of zeros."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import reference
from tensorattn.rewriting.emptying import without_empty_sums

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

FORMULAS = (
    "y = a_i c_i b_j d_j",
    "y_k = a_i M_<i k> (b_j d_j)",
    "y_k = a_k b_j d_j / c_k",
    "y_k = a_k sum[j](b_j)",  # a product of two numbers, one of which is an empty sum: NaN
    "y_k = sum[j](a_i M_<i k> b_j)",
    "y_k = a_k mean[j](c_i a_i b_j) + mean[j](c_i a_i b_j)",
    "y_k = sum[j](a_i M_<i k>) + sum[j](b_j)",
    "T = b_j d_j; y_k = a_k T",
    "s = a_i c_i; y_k = a_k + s b_j d_j",
    "y_k = a_k (-(a_i c_i b_j d_j))",
    "y_k = softmax[i](M_<k i>) a_i softmax[j](b_j) d_j",
    "T_k = softmax[j : m_<k j>](N_<k j>) d_j; y_k = a_k T_k",
    "y_k = softmax[i](M_<k i> + a_i b_j d_j) c_i",
    "y_k = a_k mean[j](b_j) / c_k",  # what divides the sum stands inside it
    "y_k = a_k + sum[j](b_j) / |j|",
    "y_k = a_k + sum[j](b_j) / sum[j](d_j)",
    "y_k = mean[j](N_<k j>) + mean[j](a_k)",
)
NUMBERS = [
    f for f in FORMULAS if f.startswith(("y_k = a_k", "T", "s", "y_k = softmax[i](M_<k i> +", "y_k = mean"))
]  # NaN, not 0
BELOW = (  # a predicate
    "y_k = softmax[i](M_<k i>) a_i sum[j : m_<k j>](b_j)",
    "y_k = sum[j : m_<k j>](M_<k i> c_i b_j)",
    "y_k = sum[j : m_<k j>](sum[i](M_<k i> c_i) N_<k j>)",
)
AXES = dict(a="i", c="i", b="j", d="j", M="ik", N="kj", m="kj")


def inputs(program: ta.Program, j: int, seed: int) -> dict[str, np.ndarray]:
    """i and k are one size; a NaN or an infinity in some of what lacks j."""
    rng, sizes = np.random.default_rng(seed), dict(i=3, k=3, j=j)
    arrays = {}
    for name in program.inputs:
        shape = tuple(sizes[i] for i in AXES[name])
        arrays[name] = rng.random(shape) < 0.5 if name == "m" else rng.normal(size=shape)
        if "j" not in AXES[name] and seed:
            arrays[name][tuple(rng.integers(n) for n in shape)] = rng.choice([np.nan, np.inf, -np.inf])
    return arrays


@pytest.mark.parametrize("plan", ["auto", "dense", "streamed", "flattened", "factored"])
@pytest.mark.parametrize("text", [*FORMULAS, *BELOW])
def test_every_plan_says_what_the_reference_says(text: str, plan: str) -> None:
    program = ta.parse(text)
    try:
        compiled = ta.compile(program, plan=plan)
    except ta.PlanError:
        assert plan not in ("auto", "dense")
        return
    for seed, j in enumerate([2, 0, 0, 0, 1, 0]):
        arrays = inputs(program, j, seed if j == 0 else 0)
        wanted = reference.evaluate(program, arrays)[program.defined[-1]]
        np.testing.assert_allclose(compiled(arrays), wanted, rtol=1e-9, err_msg=f"{seed=}")
        tensors = {name: torch.tensor(array) for name, array in arrays.items()}
        np.testing.assert_allclose(compiled(tensors).numpy(), wanted, rtol=1e-9, err_msg=f"{seed=}")


@pytest.mark.parametrize("text", [*FORMULAS, *BELOW])
def test_the_program_for_no_tuple_means_the_same_and_is_a_text(text: str) -> None:
    program = ta.parse(text)
    changed = without_empty_sums(program, {"j"})
    assert changed != program or text in BELOW
    assert ta.parse(str(changed)) == changed
    assert changed.inputs == program.inputs
    for seed in range(4):
        arrays = inputs(program, 0, seed)
        both = (reference.evaluate(p, arrays)[p.defined[-1]] for p in (program, changed))
        np.testing.assert_array_equal(*both)


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("text", [*(f for f in FORMULAS if f not in NUMBERS), *BELOW])
def test_what_stands_beside_nothing_has_a_gradient_of_zeros(text: str, plan: str) -> None:
    program = ta.parse(text)
    try:
        compiled = ta.compile(program, plan=plan)
    except ta.PlanError:
        return
    for seed in range(4):
        arrays = inputs(program, 0, seed)
        tensors = {name: torch.tensor(a, requires_grad=a.dtype == float) for name, a in arrays.items()}
        compiled(tensors).sum().backward()
        for name, tensor in tensors.items():
            if tensor.requires_grad:
                assert tensor.grad is not None, (seed, name)
                assert (tensor.grad == 0).all(), (seed, name)


@pytest.mark.parametrize("text", ["y_k = sum[j](a_k) / |j|", "y_k = mean[j](a_k)", "y_k = sum[j](a_k c_i d_i) / |j|"])
@given(j=st.integers(0, 3), k=st.integers(0, 3), poison=st.sampled_from([0.0, 1.0, np.nan, -np.inf]))
@settings(max_examples=30, derandomize=True, deadline=None)
def test_a_mean_of_what_lacks_its_index(text: str, j: int, k: int, poison: float) -> None:
    program = ta.parse(text)
    inputs = dict(a=np.full(k, poison), c=np.ones(2), d=np.array([0.25, 0.75]))
    arrays = {name: inputs[name] for name in program.inputs}
    (wanted,) = reference.evaluate(program, arrays, sizes={"j": j}).values()
    np.testing.assert_array_equal(wanted, np.full(k, poison if j else 0))
    for plan in ("auto", "dense"):
        compiled = ta.compile(program, sizes={"j": j}, plan=plan)
        np.testing.assert_allclose(compiled(arrays), wanted)
        np.testing.assert_allclose(compiled({n: torch.tensor(v) for n, v in arrays.items()}).numpy(), wanted)


def test_sizes_that_come_and_go_find_their_own_plans() -> None:
    compiled = ta.compile("y_k = a_k b_j d_j")
    a = np.array([np.nan, 1.0])
    for j in (3, 0, 5, 0, *range(100, 2000, 100), 0):
        wanted = [np.nan, j] if j else [0, 0]
        np.testing.assert_array_equal(compiled(a=a, b=np.ones(j), d=np.ones(j)), wanted)


@pytest.mark.parametrize("plan", ["flattened", "streamed", {"y": "flattened"}])
@pytest.mark.parametrize("empty", ["nu", "d", "mu"])
def test_a_plan_that_is_asked_for_leaves_empty_sums_alone(plan: object, empty: str) -> None:
    compiled = ta.compile("y^mu_n = softmax[nu](q^mu_d k^nu_d) v^nu_n", plan=plan)
    sizes = dict(mu=3, nu=4, d=2, n=5) | {empty: 0}
    shapes = dict(q=("mu", "d"), k=("nu", "d"), v=("nu", "n"))
    arrays = {name: np.ones([sizes[i] for i in axes]) for name, axes in shapes.items()}
    wanted = np.full((sizes["mu"], 5), 0.0 if empty == "nu" else 1.0)
    np.testing.assert_allclose(compiled(arrays), wanted)
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}
    result = compiled(tensors)
    np.testing.assert_allclose(result.detach().numpy(), wanted)
    result.sum().backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in tensors.values())
