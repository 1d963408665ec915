"""Sums over nothing where no size is known while the program is made: exported programs, and the rule behind them."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import reference
from tensorattn.dtypes import infer
from tensorattn.rewriting.emptying import with_doubtful_sums
from tests.strategies import Example, examples
from tests.test_empty_sums import AXES, BELOW, FORMULAS, NUMBERS, inputs

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

ALIKE = ("y_k = a_k sum[j](b_j)", "T = b_j d_j; y_k = a_k T", "T_k = softmax[j : m_<k j>](N_<k j>) d_j; y_k = a_k T_k")
SETTINGS = settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def exported(program: ta.Program, plan: str) -> torch.nn.Module:
    """The program with a dynamic j, exported at |j| = 4."""
    compiled = ta.compile(program, plan=plan)

    class Module(torch.nn.Module):
        def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
            return compiled(dict(zip(program.inputs, tensors, strict=True)))

    example = tuple(map(torch.tensor, inputs(program, 4, 0).values()))
    size = torch.export.Dim("j", min=0, max=64)
    dynamic = tuple({axis: size for axis, i in enumerate(AXES[name]) if i == "j"} for name in program.inputs)
    return torch.export.export(Module(), example, dynamic_shapes={"tensors": dynamic}).module()


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("text", [*FORMULAS, *BELOW])
def test_an_exported_program_says_what_the_reference_says(text: str, plan: str) -> None:
    program = ta.parse(text)
    try:
        module = exported(program, plan)
    except ta.PlanError:
        assert plan == "streamed"
        return
    for seed, j in enumerate([5, 0, 0, 0]):
        arrays = inputs(program, j, seed)
        wanted = reference.evaluate(program, arrays)[program.defined[-1]]
        tensors = [torch.tensor(a, requires_grad=a.dtype == float) for a in arrays.values()]
        found = module(*tensors)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-9, err_msg=f"{seed=}")
        if j or text in NUMBERS:
            continue
        found.sum().backward()
        for name, tensor in zip(arrays, tensors, strict=True):
            assert "softmax" in text or tensor.grad is None or (tensor.grad == 0).all(), (seed, name)


@pytest.mark.parametrize("text", [*FORMULAS, *BELOW])
def test_what_may_be_empty_means_the_same_and_is_a_text(text: str) -> None:
    program = ta.parse(text)
    typing = infer(program, {n: "bool" if n == "m" else "float64" for n in program.inputs})
    changed = with_doubtful_sums(program, {"i", "k"}, typing)
    assert (changed == program) == (text in [*BELOW, *ALIKE])
    assert ta.parse(str(changed)) == changed
    assert with_doubtful_sums(program, {"i", "j"}, typing) == program
    for seed, j in enumerate([2, 0, 0, 0, 1]):
        arrays = inputs(program, j, seed)
        both = (reference.evaluate(p, arrays)[p.defined[-1]] for p in (program, changed))
        np.testing.assert_allclose(*both, rtol=1e-12)


@given(examples().filter(lambda e: "delta" not in e.text), st.integers(0, 2**32))
@SETTINGS
def test_random_programs_mean_the_same(example: Example, seed: int) -> None:
    program, example = ta.parse(example.text), example.poisoned(random.Random(seed))
    dtypes = {name: str(np.asarray(array).dtype) for name, array in example.inputs.items()}
    changed = with_doubtful_sums(program, set(), infer(program, dtypes))
    assert ta.parse(str(changed)) == changed
    found, wanted = (
        ta.compile(p, sizes=example.sizes or None, outputs=example.names, plan="dense")(example.inputs)
        for p in (changed, program)
    )
    for name in example.names:
        np.testing.assert_allclose(found[name], wanted[name], rtol=2e-3, atol=2e-3, err_msg=name)
        assert found[name].dtype == wanted[name].dtype


def test_integers_stay_as_they_are() -> None:
    program = ta.parse("y_k = a_k b_j d_j")
    assert with_doubtful_sums(program, set(), infer(program, dict.fromkeys("abd", "int64"))) == program


def test_a_softmax_that_is_written_as_a_ratio_stays_one() -> None:
    program = ta.parse("y_e = (exp(s_j) v_<j e> w_i u_i) / sum[j](exp(s_j))")
    changed = with_doubtful_sums(program, set(), infer(program, dict.fromkeys("svwu", "float64")))
    assert changed != program
    compiled = ta.compile(changed, plan="dense")
    given = dict(s=np.array([1e4, 1e4]), v=np.ones((2, 3)), w=np.ones(2), u=np.ones(2))
    np.testing.assert_allclose(compiled(given), np.full(3, 2.0))
