"""Gradients of reductions over an index that may be empty, and that what is reduced may lack."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import reference
from tests.gradients import by_program, by_torch, close

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

FORMULAS = (
    "y_k = mean[j](a_k)",
    "y_k = mean[j](a_k c_k) + mean[j](N_<k j>)",
    "y_k = mean[j](a_k N_<k j>)",
    "y_k = mean[i j](a_k b_i)",
    "y_k = sum[j](a_k c_k) / |j|",
    "y_k = sum[i j](exp(a_k) b_i) / |j|",
    "y_k = mean[j](a_k)**2",
    "y_k = mean[j](softmax[k](a_k)) mean[j](c_k)",
    "y_k = mean[j](exp(a_k) c_k) sum[j](N_<k j>)",
    "y_k = mean[j](tanh(mean[i](a_k b_i)))",
    "y_k = mean[j](mean[i](M_<i k>))",
    "y_k = max[j](a_k + N_<k j>) / |j|",
    "y_j = mean[k](N_<k j>) + mean[k](b_i b_i)",
    "y_k = sum[j : j < 2](a_k) / |j|",
    "y_k = mean[j](sum[j1](N_<k j1>) a_k) + 0 * sum[j](N_<k j>)",
    "T_k = mean[j](a_k); y = T_k T_k c_k",
    "y = mean[i j](a_k c_k)",
)
AXES = dict(a="k", b="i", c="k", M="ik", N="kj")


@pytest.mark.parametrize("text", FORMULAS)
def test_gradients_are_those_of_torch(text: str) -> None:
    program, rng = ta.parse(text), np.random.default_rng(len(text))
    for i, j, k in ((2, 0, 2), (0, 2, 1), (2, 1, 0), (1, 0, 1), (0, 0, 0), (2, 2, 3)):
        sizes = dict(i=i, j=j, k=k, j1=j)
        arrays = {name: rng.normal(size=[sizes[x] for x in AXES[name]]) for name in program.inputs}
        open_ = {n: s for n, s in sizes.items() if n in program.indices}
        seed = rng.normal(size=np.shape(ta.compile(program, sizes=open_)(arrays)))
        wanted = by_torch(program, program.inputs, arrays, seed, open_)
        made = ta.grad(program, wrt=program.inputs)
        given = {n: arrays.get(n, seed) for n in made.inputs}
        names = made.defined[-len(wanted) :]
        known = {n: s for n, s in open_.items() if n in made.indices}
        close(list(reference.evaluate(made, given, sizes=known, outputs=names).values()), wanted)
        close(by_program(made, len(wanted), given, known), wanted)
        assert all(np.isfinite(w).all() for w in wanted)


@pytest.mark.parametrize("plan", ["dense", "auto", "streamed", "flattened"])
def test_what_divides_an_empty_sum_has_the_gradient_0(plan: str) -> None:
    """Not none: torch is told of the branch of a size that is 0, in which the divisor is not read."""
    text = "y_<i e> = softmax[j](q_<i d> k_<j d>) v_<j e> / c"
    x = {n: torch.ones(s, requires_grad=True) for n, s in dict(q=(3, 2), k=(0, 2), v=(0, 2), c=()).items()}
    for found in torch.autograd.grad(ta.compile(text, plan=plan)(x).sum(), list(x.values())):
        assert not found.any()
