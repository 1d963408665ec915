"""Plans within a budget of memory: kept as measured, at every call, or refused with the smallest peak there is."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_torch
from tensorattn import choosing
from tensorattn.lowering import streaming
from tests.test_choosing import ATTEND, CAUSAL, JOINT, TWO, inputs, wide

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

BUDGETED = [
    (ATTEND, wide(400, 500)),
    (CAUSAL, wide(400, 500)),
    (TWO, wide(300, 400)),
    (JOINT, dict(mu=60, nu=70, rho=70, i=8, n=4)),
]


def measured(compiled, x):
    tracemalloc.start()
    result = compiled(x)
    peak = tracemalloc.get_traced_memory()[1] - result.nbytes
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", BUDGETED, ids=["attend", "causal", "two", "joint"])
def test_a_budget_is_kept(case, dtype):
    """Down to the smallest one that is not refused, with the numbers of the reference."""
    formula, sizes = case
    tolerance = 1e-4 if dtype == np.float32 else 1e-10
    compiled = ta.compile(formula)
    x = inputs(compiled, sizes, dtype)
    expected = ta.compile(formula, plan="dense")(x)
    used = {n: sizes[n] for n in {i.name for t in compiled.program.tensors for i in t.slots}}
    least = smallest(formula, x)
    for budget in (least, 2 * least, 8 * least, 10**9):
        within = ta.compile(formula, memory=budget)
        np.testing.assert_allclose(within(x), expected, atol=tolerance)
        assert measured(within, x) <= budget
        assert within.choice(used, dtypes=dict.fromkeys(x, dtype.__name__)).chosen.peak <= budget
    with pytest.raises(ta.BudgetError):
        ta.compile(formula, memory=least - 1)(x)


def smallest(formula, x):
    """The budget that the refusal of one byte names."""
    with pytest.raises(ta.BudgetError, match=r"smallest possible peak here: [\d,]+ bytes .*\(\w+") as error:
        ta.compile(formula, memory=1)(x)
    return int(error.value.hint.removeprefix("memory="))


@pytest.mark.parametrize("case", BUDGETED, ids=["attend", "causal", "two", "joint"])
def test_a_budget_is_kept_by_torch(case):
    formula, sizes = case
    x = {n: torch.tensor(a) for n, a in inputs(ta.compile(formula), sizes, np.float32).items()}
    least = smallest(formula, x)
    for budget in (least, 4 * least):
        within = ta.compile(formula, memory=budget)
        within(x)
        assert peak_bytes_torch(lambda within=within: (within(x),)) <= budget


def test_a_budget_holds_at_every_call():
    """Larger sizes take smaller tiles, or are refused; nothing that was planned before is used beyond its sizes."""
    compiled = ta.compile(ATTEND, memory=3_000_000)
    dense = ta.compile(ATTEND, plan="dense")
    for m, k, *columns in ((20, 30), (300, 300), (600, 900), (1000, 900), (300_000, 3, 1, 2), (40, 50)):
        x = inputs(compiled, wide(m, k, *columns))
        np.testing.assert_allclose(compiled(x), dense(x), atol=1e-12)
        assert measured(compiled, x) <= 3_000_000
    narrow = ta.compile(ATTEND, memory=80_000)
    narrow(inputs(narrow, wide(40, 50)))
    with pytest.raises(ta.BudgetError):
        narrow(inputs(narrow, wide(600, 900)))
    assert narrow(inputs(narrow, wide(40, 50))).shape == (40, 8)


def test_more_sizes_than_plans_are_kept_within_the_budget(monkeypatch):
    monkeypatch.setattr("tensorattn.compiling.MOST_PLANS", 1)
    compiled = ta.compile(ATTEND, memory=2_000_000)
    for m, k in ((20, 30), (700, 900), (900, 1200), (700, 900), (20, 30)):
        x = inputs(compiled, wide(m, k))
        compiled(x)
        assert measured(compiled, x) <= 2_000_000
    assert len(compiled._table) == 2


def test_a_forced_plan_keeps_the_budget_too():
    x = inputs(ta.compile(ATTEND), wide())
    for plan in ("streamed", {"y": "streamed"}):
        compiled = ta.compile(ATTEND, plan=plan, memory=1_500_000)
        compiled(x)
        assert measured(compiled, x) <= 1_500_000
    with pytest.raises(ta.BudgetError, match="dense"):
        ta.compile(ATTEND, plan="dense", memory=1_500_000)(x)


def test_tiles_are_no_smaller_than_the_budget_asks():
    sizes = dict(m=600, k=70_000, i=8, n=8)
    budgets = (300_000, 10**6, 2 * 10**6, 4 * 10**6, 10**9)
    asked, free = (
        [ta.compile(ATTEND, memory=m, plan=p).choice(sizes).chosen for m in budgets] for p in ("streamed", "auto")
    )
    tiles = [c.tile for c in asked]
    assert tiles[-1] is None
    assert choosing.LEAST_TILE <= tiles[0] < tiles[1] < tiles[2] < tiles[3] <= streaming.TILE_ENTRIES
    for chosen in (asked, free):
        assert all(c.peak <= budget for c, budget in zip(chosen, budgets, strict=True))
    assert [c.seconds for c in free] == sorted((c.seconds for c in free), reverse=True)
    assert all(a.seconds <= b.seconds for a, b in zip(free, asked, strict=True))


def test_the_budget_of_a_batch():
    formula = "y_<... m n> = softmax[k](q_<... m i> k_<... k i>) v_<... k n>"
    compiled = ta.compile(formula, memory=4_000_000)
    rng = np.random.default_rng(0)
    for batch in ((), (2,), (2, 5)):
        x = {n: rng.normal(size=(*batch, s, 8)) for n, s in (("q", 300), ("k", 350), ("v", 350))}
        dense = ta.compile(formula, plan="dense")(x)
        np.testing.assert_allclose(compiled(x), dense, atol=1e-12)
        assert measured(compiled, x) <= 4_000_000
