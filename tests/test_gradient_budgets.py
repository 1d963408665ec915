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
HEADS = {
    "one batch": ("y_<h i e> = softmax[j](q_<h i d> k_<h j d>) v_<h j e>", dict(h=8)),
    "two batches": ("y_<b h i e> = softmax[j](q_<b h i d> k_<b h j d>) v_<b h j e>", dict(b=3, h=4)),
    "one of size 1": ("y_<b h i e> = softmax[j](q_<b h i d> k_<b h j d>) v_<b h j e>", dict(b=1, h=8)),
    "between rows and width": ("y_<b i h e> = softmax[j](q_<b i h d> k_<b j h d>) v_<b j h e>", dict(b=2, h=4)),
    "of the result between": ("y_<i h e> = softmax[j](q_<h i d> k_<h j d>) v_<h j e>", dict(h=8)),
    "masked": ("y_<h i e> = softmax[j: j <= i](q_<h i d> k_<h j d>) v_<h j e>", dict(h=8)),
    "padded": ("y_<b h i e> = softmax[j: m_<b j>](q_<b h i d> k_<b h j d>) v_<b h j e>", dict(b=2, h=4)),
    "grouped": ("y_<g h i e> = softmax[j](q_<g h i d> k_<g j d>) v_<g j e>", dict(g=2, h=4)),
    "shared keys": ("y_<h i e> = softmax[j](q_<h i d> k_<j d>) v_<j e>", dict(h=8)),
    "bias": ("y_<b h i e> = softmax[j](q_<b h i d> k_<b h j d> + B_<h i j>) v_<b h j e>", dict(b=3, h=2)),
    "bias of keys": ("y_<b h i e> = softmax[j](q_<b h i d> k_<b h j d> + B_<b j>) v_<b h j e>", dict(b=3, h=2)),
    "bias of positions": (
        "y_<b h i e> = softmax[j: j <= i](q_<b h i d> k_<b h j d> + s_h (j - i)) v_<b h j e>", dict(b=2, h=3),
    ),
    "grouped bias": ("y_<g h i e> = softmax[j](q_<g h i d> k_<g j d> + B_<g h i j>) v_<g j e>", dict(g=2, h=3)),
    "narrow": ("y_<b h i e> = softmax[j](q_<b h i d> k_<b h j d>) v_<b h j e>", dict(b=2, h=4, e=32)),
}  # fmt: skip
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
    narrow = ta.compile(ATTEND, memory=150_000)
    for sizes in (wide(40, 50), wide(20, 30)):
        assert len(both(narrow, tensors(narrow, sizes))) == 4
    with pytest.raises(ta.BudgetError):
        narrow(tensors(narrow, wide(400, 500)))


@pytest.mark.parametrize("name", HEADS)
def test_a_budget_is_kept_with_heads(name: str) -> None:
    """Whatever the order of batch axes in memory, and that of the cotangent, which a sum gives as one number."""
    text, own = HEADS[name]
    dense = ta.compile(text, plan="dense")
    given = tensors(dense, dict(i=600, j=600, d=64, e=64, m=0) | own)
    if "m" in given:
        given["m"] = given["m"].detach() > -1
    wanted = [x for x in given.values() if x.requires_grad]
    with pytest.raises(ta.BudgetError, match="both passes") as refused:
        ta.compile(text, plan="flattened", memory=1)(given)
    least = refused.value.least
    within, result = ta.compile(text, plan="flattened", memory=least), dense(given)
    for bar in (torch.ones_like(result), torch.ones(()).expand(result.shape)):
        found = within(given)
        found = (found, *torch.autograd.grad(found, wanted, bar))
        peak = peak_bytes_torch(lambda bar=bar: (y := within(given), *torch.autograd.grad(y, wanted, bar)))
        assert peak <= least <= 2 * peak + (3 << 20)
    expected = (result, *torch.autograd.grad(result, wanted, torch.ones_like(result)))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=2e-3)
