"""Adjoints of joint attention, with a mask, a sink and the log-sum-exp, against loops over every single tuple."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import product

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import units
from tensorattn.lowering import streaming
from tests import operators
from tests.gradients import close

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
MU, NU, RHO, WIDTH, VALUES = 3, 5, 4, 2, 2
NAMES = ("k", "q", "r", "B", "v", "w", "s")
Arrays = Mapping[str, np.ndarray]
# the predicate as a text and as a function, and whether there is a sink
CASES: dict[str, tuple[str, Callable[[int, int, int], bool], bool]] = {
    "plain": ("", lambda m, n, r: True, False),
    "ordered": (" : nu < rho and rho <= mu + 1", lambda m, n, r: n < r <= m + 1, False),
    "given": (" : keep^<mu nu> and rho != nu", lambda m, n, r: bool(KEEP[m, n]) and r != n, False),
    "sink": ("; sink=s_mu", lambda m, n, r: True, True),
    "empty row, sink": (" : keep^<mu nu> and rho < mu; sink=s_mu", lambda m, n, r: bool(KEEP[m, n]) and r < m, True),
}
KEEP = np.array([[1, 0, 1, 1, 0], [0, 1, 1, 0, 1], [1, 1, 0, 0, 1]], dtype=bool)


def text(case: str) -> str:
    where = CASES[case][0]
    return (
        "S^<mu nu rho> = k^mu_i q^nu_i r^rho_i + B^<nu rho>\n"
        f"y^mu_n = softmax[nu rho{where}](S^<mu nu rho>) v^nu_n w^rho_n\n"
        f"L^mu = lse[nu rho{where.partition(';')[0]}](S^<mu nu rho>)"
    )


def drawn(case: str) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """The inputs, and the cotangents of y and L."""
    rng = np.random.default_rng(5)
    shapes = {"k": (MU, WIDTH), "q": (NU, WIDTH), "r": (RHO, WIDTH), "B": (NU, RHO), "v": (NU, VALUES)}
    arrays = {n: rng.normal(size=s) for n, s in {**shapes, "w": (RHO, VALUES), "s": (MU,)}.items()}
    dy, dL = rng.normal(size=(MU, VALUES)), rng.normal(size=MU)
    used = ta.parse(text(case)).inputs
    given = {n: a for n, a in {**arrays, "keep": KEEP}.items() if n in used}
    return given, dy, dL


def by_loops(case: str, a: Arrays, dy: np.ndarray, dL: np.ndarray) -> tuple[np.ndarray, np.ndarray, Arrays]:
    """y, L and the gradient of Σ dy·y + Σ dL·L, written from the definitions."""
    _, admits, has_sink = CASES[case]
    y, L = np.zeros((MU, VALUES)), np.full(MU, -math.inf)
    slopes = {n: np.zeros(a[n].shape) for n in NAMES if n in a}
    for m in range(MU):
        pairs = [(n, r) for n, r in product(range(NU), range(RHO)) if admits(m, n, r)]
        powers = {}
        for n, r in pairs:
            score = a["B"][n, r]
            for i in range(WIDTH):
                score += a["k"][m, i] * a["q"][n, i] * a["r"][r, i]
            powers[n, r] = math.exp(score)
        total = sum(powers.values())
        sink = math.exp(a["s"][m]) if has_sink else 0.0
        worth = {(n, r): sum(dy[m, e] * a["v"][n, e] * a["w"][r, e] for e in range(VALUES)) for n, r in pairs}
        mean = sum(powers[p] / (total + sink) * worth[p] for p in pairs)
        if pairs:
            L[m] = math.log(total)
        if has_sink:
            slopes["s"][m] = -sink / (total + sink) * mean
        for n, r in pairs:
            weight = powers[n, r] / (total + sink)
            score = weight * (worth[n, r] - mean) + powers[n, r] / total * dL[m]
            slopes["B"][n, r] += score
            for i in range(WIDTH):
                slopes["k"][m, i] += score * a["q"][n, i] * a["r"][r, i]
                slopes["q"][n, i] += score * a["k"][m, i] * a["r"][r, i]
                slopes["r"][r, i] += score * a["k"][m, i] * a["q"][n, i]
            for e in range(VALUES):
                y[m, e] += weight * a["v"][n, e] * a["w"][r, e]
                slopes["v"][n, e] += dy[m, e] * weight * a["w"][r, e]
                slopes["w"][r, e] += dy[m, e] * weight * a["v"][n, e]
    return y, L, slopes


@pytest.fixture(autouse=True)
def tiles(monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 10)
    units.unit.cache_clear()
    yield
    units.unit.cache_clear()


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("case", CASES)
def test_the_operator(case: str, plan: str) -> None:
    arrays, dy, dL = drawn(case)
    y, L, slopes = by_loops(case, arrays, dy, dL)
    tensors = {n: torch.tensor(a, requires_grad=a.dtype == np.float64) for n, a in arrays.items()}
    operator = operators.operation(text(case), tensors, ("y", "L"), plan=plan)
    results = operator(**tensors)
    close([x.detach().numpy() for x in results[:1]], [y], 1e-12)
    np.testing.assert_allclose(results[1].detach().numpy(), L, rtol=1e-12)
    inputs = [tensors[n] for n in slopes]
    found = torch.autograd.grad(results[:2], inputs, [torch.tensor(dy), torch.tensor(dL)])
    close([x.numpy() for x in found], list(slopes.values()), 1e-12)


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("case", CASES)
def test_the_gradient_program(case: str, plan: str) -> None:
    arrays, dy, dL = drawn(case)
    _, _, slopes = by_loops(case, arrays, dy, dL)
    gradient = ta.grad(text(case), list(slopes), output=["y", "L"])
    compiled = ta.compile(gradient, outputs=[f"d{n}" for n in slopes], plan=plan)
    found = compiled({**arrays, "dy": dy, "dL": dL})
    close([found[f"d{n}"] for n in slopes], list(slopes.values()), 1e-12)
