"""Plans that are made smaller to fit a budget, and what is said of loops."""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_torch
from tensorattn import kinds
from tensorattn.backends.torch.attending import attend
from tensorattn.kinds import Case, Draft, Kind, Refusal

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

ATTEND = "y_<m n> = softmax[k](q_<m i> k_<k i>) v_<k n>"
JOINT = "S^<mu nu rho> = q^mu_i k^nu_i r^rho_i; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n"
TWO = (
    "a_<m n> = softmax[k](q_<m i> k_<k i>) v_<k n>; b_<m n> = softmax[l](q_<m i> r_<l i>) w_<l n>; "
    "y_<m n> = a_<m n> b_<m n>"
)


def only_in(statement: str) -> Kind:
    """Streamed, but of the softmax of one statement."""

    def change(case: Case, draft: Draft, only: frozenset[str] | None, tile: int | None) -> Draft | Refusal:
        if only is not None and statement not in only:
            return Refusal(("for no reason",))
        return kinds.KINDS["streamed"].change(case, draft, frozenset({statement}), tile)

    return Kind(change, "")


def test_mixtures_are_tried_before_a_budget_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = MappingProxyType({"first": only_in("a"), "second": only_in("b")})
    for module in ("choosing", "wording"):
        monkeypatch.setattr(f"tensorattn.{module}.KINDS", found)
    choice = ta.compile(TWO, memory=4 << 20).choice(m=1500, k=1500, l=1500, i=8, n=8)
    assert choice.chosen.name == "first (a), second (b)"
    assert choice.chosen.peak <= 4 << 20
    assert {r.name for r in choice.rejected} == {"dense", "first", "second"}


def test_a_kind_without_tiles_is_made_no_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def change(case: Case, draft: Draft, only: frozenset[str] | None, tile: int | None) -> Draft:
        seen.append(tile)
        return draft

    found = MappingProxyType({"same": Kind(change, "")})
    for module in ("choosing", "wording"):
        monkeypatch.setattr(f"tensorattn.{module}.KINDS", found)
    with pytest.raises(ta.BudgetError):
        ta.compile(ATTEND, memory=1).choice(m=600, k=700, i=8, n=8)
    assert len(seen) == 2, "once with the smallest tiles, which change nothing"


def test_chunks_of_keys_are_as_small_as_a_budget_asks() -> None:
    sizes = dict(mu=64, nu=256, rho=256, i=32, n=32)
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=(64 if name == "q" else 256, 32)) for name in "qkrvw"}
    expected = ta.compile(JOINT, plan="dense")(arrays)
    peaks = []
    for memory in (40 << 20, 14 << 20, 8 << 20):
        compiled = ta.compile(JOINT, plan="flattened", memory=memory)
        peaks.append(compiled.choice(sizes).chosen.peak)
        assert peaks[-1] <= memory
        np.testing.assert_allclose(compiled(arrays), expected, atol=1e-12)
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 3


def test_the_plain_way_runs_in_blocks_unless_a_gradient_is_recorded() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (torch.tensor(rng.normal(size=(1, 2500, 8)), dtype=torch.float32) for _ in range(3))
    q[0, 5, 2] = float("nan")  # no kernel's answer is used
    expected = torch.softmax(q @ k.mT, -1) @ v
    torch.testing.assert_close(attend(q, k, v, 1.0), expected, equal_nan=True, atol=1e-5, rtol=1e-5)
    assert peak_bytes_torch(lambda: (attend(q, k, v, 1.0),)) < 4 * 2500**2


def test_loops_are_told_in_numbers() -> None:
    formula = "y_<m n> = softmax[k : k <= m](q_<m i> k_<k i>) v_<k n>"
    text = ta.compile(formula, plan="streamed").explain(m=5000, k=5000, i=8, n=8)
    loops = [line for line in text.splitlines() if line.startswith("loop over")]
    assert [line.split(":")[0] for line in loops] == ["loop over m", "loop over k"]
    assert all("tile_" not in line and line.endswith("positions") for line in loops)


def test_a_normaliser_in_a_loop_is_not_held() -> None:
    compiled = ta.compile(ATTEND.replace("softmax", "sparsemax"), plan="streamed")
    assert [r.kind for r in compiled.choice(m=1500, k=1500, i=8, n=8).chosen.reductions] == ["streamed"]
