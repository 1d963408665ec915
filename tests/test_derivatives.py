"""Derivatives of the operator against torch's own of the dense plan, which shares no rule with them: every order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

import tensorattn as ta
from tensorattn import units
from tensorattn.lowering import streaming
from tests import corpus, operators
from tests.strategies import Example, examples

SETTINGS = settings(
    max_examples=15, derandomize=True, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
pytestmark = [
    pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),  # of torch's own jvp
]


@pytest.fixture(autouse=True)
def tiles(monkeypatch):
    """Tiles so small that there are many, and none of the length of an axis."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 48)
    units.unit.cache_clear()
    yield
    units.unit.cache_clear()


def agree(found: Sequence[torch.Tensor], wanted: Sequence[torch.Tensor]) -> None:
    for ours, plain in zip(found, wanted, strict=True):
        scale = max(1.0, plain.abs().max().item()) if plain.numel() else 1.0
        torch.testing.assert_close(ours, plain, rtol=1e-9, atol=1e-9 * scale, equal_nan=True)


def check(
    text: str, tensors: Mapping[str, torch.Tensor], outputs: Sequence[str] = (), sizes: Mapping[str, int] | None = None,
    plan: str = "streamed", seed: int = 0,
) -> None:  # fmt: skip
    """Values, gradients of first and second order and tangents, against those of the dense plan by torch."""
    operator = operators.operation(text, tensors, outputs, sizes, plan)
    dense = ta.compile(text, outputs=list(outputs) or [ta.parse(text).defined[-1]], sizes=sizes, plan="dense")
    used = {name: x for name, x in tensors.items() if name in dense.inputs}
    ours, floats = operators.of_floats(operator, used)
    plain, _ = operators.of_floats(lambda **named: tuple(dense(named).values()), used)
    wanted = plain(*floats)
    agree(ours(*floats), wanted)
    for order in (1, 2):
        agree(*(operators.gradients(f, floats, seed, order=order) for f in (ours, plain)))
    if floats and all(y.is_floating_point() for y in wanted):
        make = torch.Generator().manual_seed(seed)
        steps = tuple(torch.randn(x.shape, generator=make, dtype=x.dtype) for x in floats)
        agree(*(torch.func.jvp(f, floats, steps)[1] for f in (ours, plain)))


@pytest.mark.parametrize("entry", [pytest.param(e, id=e["id"]) for e in corpus.load("accept")])
def test_every_formula_of_the_corpus(entry: corpus.Entry) -> None:
    arrays = corpus.make_inputs(entry, np.random.default_rng(0))
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    check(corpus.formula(entry), tensors, [entry["output"]], entry.get("sizes"))


@given(examples())
@SETTINGS
def test_random_programs(example: Example) -> None:
    tensors = {
        n: torch.tensor(a, dtype=torch.float64 if a.dtype.kind == "f" else None) for n, a in example.inputs.items()
    }
    check(example.text, tensors, example.names, example.sizes)


MASKED = {
    "bias": "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i + b^<mu nu>) v^nu_n",
    "window": "y^mu_n = softmax[nu : mu - 2 <= nu and nu <= mu + 1](q^mu_i k^nu_i + b^<mu nu>) v^nu_n",
    "chain": "y^mu_n = softmax[nu rho tau : nu < rho and rho < tau and tau <= mu](q^mu_i k^nu_i p^rho_i l^tau_i)"
    " v^nu_n w^rho_n u^tau_n",
    "documents": "y^mu_n = softmax[nu : d_mu == e_nu and nu <= mu](q^mu_i k^nu_i) v^nu_n",
    "nested": "c^<mu nu>_n = softmax[rho : rho <= nu](q^mu_i k^nu_i p^rho_i) w^rho_n\n"
    "y^mu_n = softmax[nu : nu <= mu](c^<mu nu>_n z_n) c^<mu nu>_n",
    "largest": "y^mu = max[nu : nu <= mu](q^mu_i k^nu_i + b^<mu nu>)",
    "plain": "y^mu_n = sum[nu : nu <= mu](relu(q^mu_i k^nu_i + b^<mu nu>) v^nu_n)",
}
LENGTHS = {
    "q": (6, 3),
    "k": (7, 3),
    "v": (7, 2),
    "b": (6, 7),
    "p": (4, 3),
    "l": (5, 3),
    "w": (4, 2),
    "u": (5, 2),
    "z": (2,),
}


def masked_inputs(name: str) -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    tensors = {n: torch.randn(s, generator=make, dtype=torch.float64) for n, s in LENGTHS.items()}
    tensors |= {"d": torch.tensor([0, 0, 1, 1, 2, 2]), "e": torch.tensor([0, 0, 1, 1, 1, 2, 2])}
    return {n: x for n, x in tensors.items() if n in ta.parse(MASKED[name]).inputs}


@pytest.mark.parametrize("name", MASKED)
def test_masks_whose_dead_tiles_are_skipped(name: str) -> None:
    check(MASKED[name], masked_inputs(name))
