"""Compiled formulas inside torch.compile: one graph, dynamic lengths, objects never called before, forty of them."""

from __future__ import annotations

import pytest
import torch

import tensorattn as ta

FORMULAS = [
    "y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n",
    "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n",
    "W^<mu nu> = q^mu_i k^nu_i; y^mu_n = W^<mu bar(nu : not (nu == 2))> v^nu_n + sum[nu](W^<mu nu> v^nu_n)",
    "y^mu_n = entmax[nu; 1.5](q^mu_i k^nu_i) v^nu_n",
    "y^<... mu>_n = softmax[nu](q^<... mu>_i k^nu_i) v^nu_n",
]


def inputs(m, n):
    make = torch.Generator().manual_seed(m * 100 + n)
    return {
        k: torch.randn(*s, generator=make, dtype=torch.float64)
        for k, s in (("q", (m, 4)), ("k", (n, 4)), ("v", (n, 3)))
    }


@pytest.mark.parametrize("formula", FORMULAS)
def test_one_graph_for_many_lengths(formula):
    torch._dynamo.reset()
    attend, graphs = ta.compile(formula), []

    def count(module, example):
        graphs.append(module)
        return module.forward

    traced = torch.compile(attend, fullgraph=True, dynamic=True, backend=count)
    eager = ta.compile(formula)
    for m, n in [
        (11, 7),
        *((5 + s % 7, 6 + s) for s in range(20)),
    ]:  # sizes that are equal at first are taken to stay so
        x = inputs(m, n)
        torch.testing.assert_close(traced(**x), eager(**x))
    assert len(graphs) == 1


def test_gradients_agree_inside_and_outside():
    torch._dynamo.reset()
    attend = ta.compile(FORMULAS[1])
    x = {n: t.requires_grad_() for n, t in inputs(4, 6).items()}
    traced = torch.compile(attend, fullgraph=True, dynamic=True, backend="aot_eager")
    inside = torch.autograd.grad(traced(**x).square().sum(), list(x.values()))
    outside = torch.autograd.grad(attend(**x).square().sum(), list(x.values()))
    for a, b in zip(inside, outside, strict=True):
        torch.testing.assert_close(a, b)


def test_forty_formulas_in_one_process():
    torch._dynamo.reset()
    x = inputs(3, 5)
    for number in range(40):
        attend = ta.compile(f"y^mu_n = softmax[nu]({number} q^mu_i k^nu_i) v^nu_n")
        traced = torch.compile(attend, fullgraph=True, dynamic=True, backend="eager")
        torch.testing.assert_close(traced(**x), attend(**x))


def test_a_function_around_it_traces_too():
    torch._dynamo.reset()
    attend = ta.compile(FORMULAS[0])
    traced = torch.compile(lambda x: attend(x).tanh(), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(traced(inputs(3, 5)), attend(inputs(3, 5)).tanh())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_inductor_once():
    torch._dynamo.reset()
    attend = ta.compile(FORMULAS[0])
    traced = torch.compile(attend, fullgraph=True, dynamic=True)
    for m, n in ((3, 5), (6, 4)):
        torch.testing.assert_close(traced(**inputs(m, n)), attend(**inputs(m, n)))
