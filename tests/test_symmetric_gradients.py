"""Gradients of symmetric softmaxes over ordered tuples, against torch's own of all tuples in the dense plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import nan

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import units
from tensorattn.backends import torch as torch_backend
from tensorattn.cost import kernel_cost
from tensorattn.kernel import Apply, Stream
from tensorattn.lowering import streaming
from tensorattn.rewriting import symmetry
from tests import operators
from tests.test_symmetry import POISONED, SIZES, arrays, formulas

pytestmark = [
    pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # of torch's own jvp
]
SETTINGS = settings(
    max_examples=6, derandomize=True, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
PAIRS = "y^mu_n = softmax[nu rho](q^mu_i k^nu_i k^rho_i) v^nu_n w^rho_n"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Halved at any size, in tiles that divide none."""
    monkeypatch.setattr(symmetry, "LEAST_ROWS", 0)
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 40)
    units.unit.cache_clear()
    yield
    units.unit.cache_clear()


def check(text: str, x: dict[str, np.ndarray], orders: tuple[int, ...] = (1, 2)) -> None:
    """Gradients of these orders and tangents."""
    tensors = {n: torch.from_numpy(a) for n, a in x.items()}
    operator = operators.operation(text, tensors, halved=True)
    dense = ta.compile(text, plan="dense")
    ours, floats = operators.of_floats(operator, tensors)
    plain, _ = operators.of_floats(lambda **named: (dense(named),), tensors)
    for order in orders:
        for a, b in zip(*(operators.gradients(f, floats, 0, order=order) for f in (ours, plain)), strict=True):
            scale = max(1.0, b.abs().nan_to_num().max().item()) if b.numel() else 1.0
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)
    steps = tuple(torch.ones_like(f) for f in floats)
    one, other = (torch.func.jvp(f, floats, steps)[1][0] for f in (ours, plain))
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9 * max(1.0, other.abs().nan_to_num().max().item()))


@given(formulas(), st.integers(0, 99))
@SETTINGS
@pytest.mark.usefixtures("small")
def test_random_formulas(formula: tuple[str, dict[str, int]], seed: int) -> None:
    text, sizes = formula
    sizes = {**sizes, "N": max(sizes["N"], 1)}
    check(text, arrays(ta.parse(text), sizes, seed), orders=(1,))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", [POISONED[0], POISONED[3], POISONED[4]])
def test_second_order(text: str) -> None:
    check(text, arrays(ta.parse(text), SIZES))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("poison", [nan, np.inf])
def test_an_excluded_key_that_is_not_finite(poison: float) -> None:
    """Key 4 is beyond every row; what it holds reaches no gradient."""
    x = arrays(ta.parse(POISONED[4]), SIZES)
    tame = {n: torch.from_numpy(a).requires_grad_() for n, a in x.items()}
    bad = {n: torch.from_numpy(a.copy()) for n, a in x.items()}
    for name in "kv":
        bad[name][4] = poison
    operator = operators.operation(POISONED[4], tame, halved=True)
    found = []
    for tensors in (tame, {n: a.requires_grad_() for n, a in bad.items()}):
        (y,) = operator(**tensors)
        found.append(torch.autograd.grad(y, list(tensors.values()), torch.ones_like(y)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def keys_of_calls(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """The keys of the operators that calls run from now on."""
    found: list[dict] = []
    made = torch_backend.operation

    def operation(key: str, scalars: tuple[bool, ...]):
        found.append(json.loads(key))
        return made(key, scalars)

    monkeypatch.setattr(torch_backend, "operation", operation)
    return found


@pytest.mark.parametrize(("text", "halved"), [(PAIRS, True), (PAIRS.replace("k^rho", "r^rho"), False)])
def test_a_recorded_call_runs_over_ordered_tuples_where_it_may(
    monkeypatch: pytest.MonkeyPatch, text: str, halved: bool
) -> None:
    keys = keys_of_calls(monkeypatch)
    make = torch.Generator().manual_seed(0)
    compiled = ta.compile(text, plan="streamed")
    x = {n: (torch.randn(96, 8, generator=make) / 2).requires_grad_() for n in compiled.inputs}
    compiled(x).sum().backward()
    assert keys[-1]["halved"] == halved
    dense = ta.compile(text, plan="dense")
    found = {n: a.grad.clone() for n, a in x.items()}
    for n, a in zip(x, torch.autograd.grad(dense(x).sum(), list(x.values())), strict=True):
        torch.testing.assert_close(found[n], a, rtol=1e-4, atol=1e-4)


def test_the_backward_pass_makes_half_the_weights() -> None:
    """The exponentials of one loop, whose second axis begins where the first one's tile does."""
    sizes = dict.fromkeys(("mu", "nu", "rho"), 256) | dict(i=8, n=8)
    program = ta.parse(PAIRS)
    dtypes = dict.fromkeys(program.inputs, "float32")
    exps = []
    for halved in (False, True):
        key = units.key_of(program, ("y",), {}, dtypes, 0, sizes, "streamed", None, halved=halved)
        count = len(units.unit(key).outputs)
        back = units.unit(units.stepped(key, "adjoint", (True, *[False] * (count - 1)), program.inputs))
        kernel = back.planned("torch", {n: sizes.get(n, 256) for n, _ in back.kernel.sizes})
        (loop,) = [i for i in kernel.body if isinstance(i, Stream)]
        assert sum(isinstance(i, Apply) and i.function == "exp2" for i in loop.body) == 1
        exps.append(kernel_cost(kernel, "torch").at(sizes).exps)
    assert exps[1] < 0.6 * exps[0]
