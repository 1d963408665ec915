"""How loops of backward passes and of relations are cut: little is read again, little is held, planning stays short."""

from __future__ import annotations

import pytest

import tensorattn as ta
from benchmarks.workloads import find
from tensorattn.cost import Counted
from tensorattn.lowering import blocking
from tensorattn.specialising import decide
from tensorattn.watching import RECORDED

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

WINDOW = (
    "y^<h mu>_n = softmax[nu rho : mu - 16 < nu and nu <= mu and mu - 64 < rho and rho <= mu]"
    "(k^<h mu>_i q^nu_i r^rho_i) v^nu_n u^rho_n"
)
PAIRS = "y^<h mu>_n = softmax[nu rho](k^<h mu>_i q^<h nu>_j r^<h rho>_p M_<i j p>) v^<h nu rho>_n"
TRIANGLE = "y^<b h mu>_n = softmax[nu](q^<b h mu>_i k^<b h nu>_i / sqrt(|i|) + B^<h mu nu>) v^<b h nu>_n"
CAUSAL = "y^<h mu>_n = softmax[nu : nu <= mu](tanh(q^<h mu>_i k^<h nu>_i)) v^<h nu>_n"
THREE = dict(h=1, mu=256, nu=256, rho=256, i=32, j=32, p=32, n=32)
ROWS = dict(b=192, h=4, mu=192, nu=192, i=32, n=32)


def passes(text: str, sizes: dict[str, int], plan: str = "streamed") -> tuple[Counted, Counted]:
    """The cost of both passes of a plan in float32 torch."""
    compiled = ta.compile(text, plan=plan)
    cost = compiled.cost(sizes, backend="torch", dtypes=dict.fromkeys(compiled.inputs, "float32"))
    assert cost.backward is not None
    return cost.at({}), cost.backward.at({})


def recorded_kind(text: str, sizes: dict[str, int]) -> str:
    compiled = ta.compile(text)
    case, request = compiled._case(sizes, dict.fromkeys(compiled.inputs, "float32"), "torch", recorded=True)
    return decide(request, case, 0, RECORDED)[0].chosen.name


def test_a_ratio_is_cut_along_rows_of_which_each_gradient_is_a_stretch() -> None:
    workload = find("W7-pairs")
    sizes = workload.sizes["full"]
    forward, back = passes(workload.text(sizes), sizes, "factored")
    assert back.bytes_moved < 5.5 * forward.bytes_moved


def test_slices_below_a_window_are_as_long_as_what_it_admits() -> None:
    sizes = dict(h=4, mu=512, nu=512, rho=512, i=32, n=32)
    forward, back = passes(WINDOW, sizes)
    assert back.bytes_moved < 5 * forward.bytes_moved


def test_no_slice_adds_to_a_result_larger_than_a_tile() -> None:
    """The gradient of values on pairs is stacked by pairs, and not added up over rows."""
    forward, back = passes(PAIRS, THREE)
    values = 4 * THREE["nu"] * THREE["rho"] * THREE["n"]
    assert back.bytes_moved < 4 * forward.bytes_moved
    assert back.peak_bytes < 2 * values


def test_one_loop_where_little_is_left_whole() -> None:
    """Not over heads and within each over rows: no gradient is put together twice."""
    _, back = passes(TRIANGLE, ROWS)
    gradient = 4 * ROWS["b"] * ROWS["h"] * ROWS["nu"] * ROWS["n"]
    assert back.peak_bytes < gradient / 2


def test_relations_hold_few_slices() -> None:
    workload = find("W9")
    sizes = {n: s for n, s in workload.sizes["full"].items() if n in ta.parse(workload.text({})).indices}
    forward, _ = passes(workload.text({}), sizes)
    assert forward.peak_bytes < 4 * 128**3


def test_the_kind_of_a_recorded_call() -> None:
    assert recorded_kind(PAIRS, THREE) == "streamed", "a kernel makes the gradients of all keys as one array"
    assert recorded_kind(TRIANGLE, ROWS) == "streamed", "a bias with a gradient would take the kernel away"


def test_planning_looks_at_no_more_blocks_than_it_has_to(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, reach = [], blocking._reach
    monkeypatch.setattr(blocking, "_reach", lambda *args: seen.append(1) or reach(*args))
    passes(CAUSAL, dict(h=2, mu=1 << 18, nu=1 << 18, i=8, n=8))
    assert 0 < len(seen) < 50 * blocking.SAMPLED
