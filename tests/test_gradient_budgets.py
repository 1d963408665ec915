"""Budgets of calls that record gradients: decided before any work is done, and kept in both passes."""

from __future__ import annotations

import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_torch
from tests.test_choosing import ATTEND, CAUSAL, JOINT, wide
from tests.test_gradient_memory import tensors

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

RATIO = "y^mu_n = softmax[nu rho](q^mu_i k^nu_i + l^mu_i r^rho_i + b^<nu rho>) v^nu_n w^rho_n"
TWICE = "y^mu_n = softmax[nu](q^mu_i q^nu_i) q^nu_n"  # an input that is read in several places
CASES = {
    ATTEND: wide(400, 500),
    CAUSAL: wide(400, 500),
    JOINT: dict(mu=60, nu=70, rho=70, i=8, n=4),
    RATIO: dict(mu=127, nu=127, rho=127, i=8, n=79),
    TWICE: dict(mu=500, nu=500, i=8, n=8),
}
PLANS = [(text, "auto") for text in CASES if text != RATIO] + [
    (ATTEND, "streamed"),
    (ATTEND, "dense"),
    (RATIO, "factored"),
]
IDS = [f"{name} {plan}" for (text, plan) in PLANS for name, own in zip(
    ["attend", "causal", "joint", "ratio", "twice"], CASES, strict=True) if own == text]  # fmt: skip


def both(compiled: ta.Compiled, given: dict[str, torch.Tensor]) -> tuple[torch.Tensor, ...]:
    result = compiled(given)
    return (result, *torch.autograd.grad(result, list(given.values()), torch.ones_like(result)))


@pytest.mark.parametrize(("text", "plan"), PLANS, ids=IDS)
def test_a_budget_is_decided_before_and_kept_in_both_passes(text: str, plan: str) -> None:
    """Down to the smallest one that is not refused; the refusal of one byte less names it again."""
    given = tensors(ta.compile(text), CASES[text])
    expected = both(ta.compile(text, plan="dense"), given)
    with pytest.raises(ta.BudgetError, match="both passes") as refused:
        ta.compile(text, plan=plan, memory=1)(given)
    least = refused.value.least
    assert refused.value.hint == f"memory={least}"
    for budget in (least, 10**9):
        within = ta.compile(text, plan=plan, memory=budget)
        for one, other in zip(both(within, given), expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert peak_bytes_torch(lambda within=within: both(within, given)) <= budget
    with pytest.raises(ta.BudgetError):
        ta.compile(text, plan=plan, memory=least - 1)(given)
    with torch.no_grad():
        assert ta.compile(text, plan=plan, memory=2 * least)(given).shape == expected[0].shape


def test_a_ratio_is_admitted_by_its_slices() -> None:
    """Autograd would keep arrays over two indices and the features: what runs has slices of them."""
    given = tensors(ta.compile(RATIO), CASES[RATIO])
    budget = 2 << 20
    within = ta.compile(RATIO, plan="factored", memory=budget)
    assert peak_bytes_torch(lambda: both(within, given)) <= budget


def test_a_budget_of_both_passes_holds_at_every_call() -> None:
    compiled = ta.compile(ATTEND, memory=1 << 20)
    for sizes in (wide(40, 50), wide(400, 500), wide(200, 300), wide(700, 900)):
        given = tensors(compiled, sizes)
        for one, other in zip(both(compiled, given), both(ta.compile(ATTEND, plan="dense"), given), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        assert peak_bytes_torch(lambda given=given: both(compiled, given)) <= 1 << 20
    narrow = ta.compile(ATTEND, memory=200_000)
    for sizes in (wide(40, 50), wide(20, 30)):
        assert len(both(narrow, tensors(narrow, sizes))) == 4
    with pytest.raises(ta.BudgetError):
        narrow(tensors(narrow, wide(400, 500)))
