"""Rows of weights that hold NaN or +∞, where other predicates exclude all that is present in them: 0 in every plan."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import reference
from tensorattn.lowering import streaming

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

FORMULAS = (
    "y^mu_n = softmax[nu](s^<mu nu>) v^nu_n softmax[nu : k^<mu nu>](t^<mu nu>)",
    "y^mu_n = softmax[nu : nu <= mu](s^<mu nu>) v^nu_n softmax[nu : k^<mu nu>](t^<mu nu>)",
    "y^mu_n = softmax[nu; sink=b_mu](q^mu_i x^nu_i) v^nu_n softmax[nu : k^<mu nu>](t^<mu nu>)",
    "y^mu_n = softmax[nu](q^mu_i x^nu_i) v^nu_n sum[rho : k^<nu rho>](b_rho)",
    "y^mu_n = softmax[nu](s^<mu nu>) v^nu_n softmax[rho : k^<mu rho>](t^<mu rho>) b_rho",
    "y^mu_n = softmax[nu : j_nu](q^mu_i x^nu_i) v^nu_n softmax[rho : k^<mu rho>](t^<mu rho>) b_rho",
    "y^mu_n = sum[nu : k^<mu nu>](softmax[rho](s^<mu rho>) v^rho_n b_nu)",
    "y^mu_n = sum[nu : k^<mu nu>](where(j_nu, softmax[nu](s^<mu nu>) v^nu_n, b_nu))",
    "W^<mu nu> = softmax[nu](s^<mu nu>); y^mu_n = sum[nu : k^<mu nu>](W^<mu nu> v^nu_n)",
    "y^mu_n = softmax[nu rho](s^<mu nu> + t^<mu rho>) v^nu_n mean[tau : k^<mu tau> and j_nu](b_tau) v^rho_n",
    "y^mu_n = (softmax[nu : k^<mu nu>](s^<mu nu>) - softmax[nu : j_nu](t^<mu nu>)) v^nu_n sum[rho : k^<nu rho>](b_rho)",
    "W^<mu nu> = softmax[nu](s^<mu nu>); y^mu_n = W^<mu nu> b_nu W^<mu rho> v^rho_n mean[tau : k^<mu tau>](b_tau)",
    "W^mu_nu = softmax[nu](s^mu_nu); y^mu_n = softmax[rho](W^mu_nu W^rho_nu) v^rho_n sum[tau : k^<mu tau>](b_tau)",
)
ROWS, TILES = 5, (1, 12, 1 << 20)
SHAPES = dict(
    s=(ROWS, ROWS), t=(ROWS, ROWS), k=(ROWS, ROWS), v=(ROWS, 2), q=(ROWS, 2), x=(ROWS, 2), b=(ROWS,), j=(ROWS,)
)  # fmt: skip


def inputs(program: ta.Program, seed: int) -> dict[str, np.ndarray]:
    """Scores some of which are no finite number, and predicates that leave some rows empty."""
    rng = np.random.default_rng(seed)
    arrays = {}
    for name in program.inputs:
        shape = SHAPES[name]
        arrays[name] = rng.random(shape) < 0.5 if name in "kj" else rng.normal(size=shape)
        if name in "stqxb":
            for bad in rng.choice([np.nan, np.inf, -np.inf], size=2):
                arrays[name][tuple(rng.integers(n) for n in shape)] = bad
        if name in "st":
            arrays[name][seed % ROWS] = rng.choice([-np.inf, np.nan, 1.0], size=ROWS)
    if "k" in arrays:
        arrays["k"][rng.integers(ROWS, size=3)] = False
    return arrays


@pytest.mark.parametrize("plan", ["auto", "dense", "flattened", "streamed", "factored"])
@pytest.mark.parametrize("text", FORMULAS)
def test_every_plan_says_what_the_reference_says(text: str, plan: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = ta.parse(text)
    for tile in TILES if plan == "streamed" else TILES[-1:]:
        monkeypatch.setattr(streaming, "TILE_ENTRIES", tile)
        try:
            compiled = ta.compile(program, plan=plan)
        except ta.PlanError:
            assert plan not in ("auto", "dense", "streamed")
            return
        for seed in range(8):
            given = inputs(program, seed)
            wanted = reference.evaluate(program, given)["y"]
            np.testing.assert_allclose(compiled(given), wanted, rtol=1e-9, err_msg=f"{seed=} {tile=}")
            tensors = {name: torch.tensor(array) for name, array in given.items()}
            np.testing.assert_allclose(compiled(tensors).numpy(), wanted, rtol=1e-9, err_msg=f"{seed=} {tile=}")


@pytest.mark.parametrize("tile", TILES[::2])
@pytest.mark.parametrize("text", FORMULAS)
def test_what_is_excluded_has_no_gradient(text: str, tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of the scores whose result is finite; and all inputs where every row is."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", tile)
    program = ta.parse(text)
    plans = [ta.compile(program, plan=plan) for plan in ("dense", "streamed")]
    spoilt = 0
    for seed in range(6):
        given = inputs(program, seed)
        found = []
        for compiled in plans:
            tensors = {name: torch.tensor(array, requires_grad=array.dtype == float) for name, array in given.items()}
            y = compiled(tensors)
            y[y.isfinite()].sum().backward()
            found.append({name: x.grad.numpy() for name, x in tensors.items() if x.requires_grad})
        rows = y.isfinite().all(dim=1).numpy()
        spoilt += sum(~np.isfinite(given[name][rows]).all(axis=1).sum() for name in given.keys() & {"s", "t"})
        for name, dense in found[0].items():
            own = rows if name in "st" else slice(None) if rows.all() else []
            assert np.isfinite(dense[own]).all(), f"{seed=} {name=}"
            np.testing.assert_allclose(found[1][name][own], dense[own], atol=1e-10, err_msg=f"{seed=} {name=}")
    assert spoilt or "x" in given


@pytest.mark.parametrize(
    "text",
    [
        "y^mu_n = softmax[nu : nu <= mu](q^mu_i x^nu_i) v^nu_n",
        "S^<mu nu> = q^mu_i x^nu_i; W^<mu nu> = S^<mu bar(nu : k^<mu nu>)>; y^a_n = W^<a c> v^c_n",
        "y^mu_n = softmax[nu](q^mu_i x^nu_i) softmax[nu](s^<mu nu>) v^nu_n / b_nu",
    ],
)
def test_there_is_one_loop_where_no_other_predicate_stands(text: str) -> None:
    sizes = dict(mu=64, nu=64, i=2, n=2, a=64, c=64)
    program = ta.parse(text)
    sizes = {name: sizes[name] for name in program.indices}
    source = ta.compile(program, plan="streamed").source("numpy", **sizes)
    assert "spoil_" not in source
