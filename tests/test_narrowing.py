"""Loops that run only where their predicates can admit anything: the values of the reference, and less work."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import units
from tensorattn.kernel import IfBounded, Stream
from tensorattn.lowering import blocking, streaming
from tensorattn.reference import evaluate

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

PAIR = "y^mu_n = softmax[nu : {}](q^mu_i k^nu_i) v^nu_n"
JOINT = "y^mu_n = softmax[nu rho : {}](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n"
HEADS = "y^<b mu>_n = softmax[nu : {}](q^<b mu>_i k^<b nu>_i - abs(mu - nu)) v^<b nu>_n"
SINK = "y^mu_n = softmax[nu : {}; sink=0.5](q^mu_i k^nu_i) v^nu_n; l^mu = lse[nu : {}](q^mu_i k^nu_i)"
PAIRS = (
    "nu <= mu", "nu < mu", "mu <= nu", "mu - 3 < nu and nu <= mu", "abs(mu - nu) <= 2", "nu == mu + 1", "not (nu > mu)",
    "2 * nu <= mu", "nu <= 0.6 * mu", "nu < mu / 3", "3 * nu >= 2 * mu - 5 and nu <= mu", "nu >= |nu| - 2",
    "nu <= mu + s and nu > mu - 4", "nu <= mu or nu == 0", "g_nu", "nu <= mu and g_nu", "nu <= mu - 50", "nu >= 1",
)  # fmt: skip
TRIPLES = (
    "nu <= mu and rho <= mu", "nu <= rho", "rho <= nu and nu <= mu", "mu - 2 < nu and nu <= mu and mu - 5 < rho",
    "abs(nu - rho) <= 1 and nu <= mu", "nu + rho <= mu", "mu - 4 <= rho and rho <= nu and nu <= mu",
    "abs(mu - rho) <= 3 and abs(nu - rho) <= 3 and nu <= mu", "mu <= rho and nu <= mu and rho <= nu",
    "rho == nu", "mu - 2 < nu and nu <= mu and rho < nu + 2",
)  # fmt: skip
CASES = [
    *[PAIR.format(p) for p in PAIRS],
    *[HEADS.format(p) for p in PAIRS[:6]],
    *[SINK.format(p, p) for p in PAIRS[:6]],
    *[JOINT.format(p) for p in TRIPLES],
]


def inputs(program: ta.Program, sizes: dict[str, int], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for tensor in program.tensors:
        shape = tuple(sizes[slot.name] for slot in tensor.slots)
        if tensor.name in program.inputs:
            found[tensor.name] = rng.normal(size=shape)
    if "s" in found:
        found["s"] = np.array(seed % 7 - 3)
    if "g" in found:
        found["g"] = rng.random(found["g"].shape) < 0.6
    return found


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(CASES), st.integers(0, 10**6), st.sampled_from([1, 3, 16, 64]), st.data())
def test_loops_leave_out_nothing_that_is_admitted(text, seed, entries, data):
    """At any tile, whatever the predicate: causal, windows, scalars, rounded numbers, and what is not affine."""
    program = ta.parse(text)
    sizes = {n: data.draw(st.sampled_from([0, 1, 2, 7, 13]), label=n) for n in ("mu", "nu", "rho")}
    sizes |= {"i": 3, "n": 2, "b": 2}
    x = inputs(program, sizes, seed)
    outputs = program.defined
    wanted = evaluate(program, x, outputs=outputs)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "TILE_ENTRIES", entries)
        patch.setattr(blocking, "BLOCKS", (2, 4))
        patch.setattr(blocking, "ROUND", 0)
        compiled = ta.compile(program, outputs=outputs, plan="streamed")
        for wrap in (np.asarray, torch.tensor):
            found = compiled({n: wrap(a) for n, a in x.items()})
            for name in outputs:
                np.testing.assert_allclose(np.asarray(found[name]), wanted[name], atol=1e-10, rtol=1e-10)


def loops(body):
    for instruction in body:
        if isinstance(instruction, Stream):
            yield instruction
            yield from loops(instruction.body)
        elif isinstance(instruction, IfBounded):
            yield from loops(instruction.safe)


@pytest.mark.parametrize(
    ("predicate", "live"),
    [("nu <= mu", True), ("abs(mu - nu) < 50", True), ("nu <= 0.6 * mu", False), ("g_nu", False), ("nu >= mu", True)],
)
def test_only_exact_affine_predicates_cut_a_loop(predicate, live):
    kernel = ta.compile(PAIR.format(predicate), plan="streamed").kernel(mu=4096, nu=4096, i=64, n=64)
    assert any(s.live or s.narrowed for s in loops(kernel.body)) is live


def test_a_bound_holds_at_the_end_of_every_block():
    """0.6 times a position is rounded upwards: an exact bound would lose a key."""
    rng = np.random.default_rng(1)
    x = {"q": rng.normal(size=(1600, 2)), "k": rng.normal(size=(1000, 2)), "v": rng.normal(size=(1000, 1))}
    for factor in ("0.6", "0.3", "0.7"):
        text = PAIR.format(f"nu <= {factor} * mu")
        np.testing.assert_allclose(ta.compile(text, plan="streamed")(x), ta.compile(text, plan="dense")(x), atol=1e-12)


def test_windows_take_the_work_and_the_memory_of_windows():
    """Counted, and measured: neither grows with the length of the sequence squared."""
    text = JOINT.format("mu - 8 < nu and nu <= mu and mu - 16 < rho and rho <= mu")
    compiled = ta.compile(text, plan="streamed")
    sizes = {"mu": 512, "nu": 512, "rho": 512, "i": 8, "n": 8}
    cost, full = compiled.cost(sizes).at(sizes), ta.compile(text, plan="dense").cost(sizes).at(sizes)
    assert cost.flops < full.flops / 100
    assert cost.exps < full.exps / 100
    x = inputs(compiled.program, sizes, 0)
    compiled(x)
    tracemalloc.start()
    y = compiled(x)
    peak = tracemalloc.get_traced_memory()[1] - y.nbytes
    tracemalloc.stop()
    assert peak < 1.25 * cost.peak_bytes + (1 << 20)
    assert peak < 8e6, "the weights would be a gigabyte"


def test_causal_loops_count_half():
    text = PAIR.format("nu <= mu")
    sizes = {"mu": 4096, "nu": 4096, "i": 64, "n": 64}
    streamed, dense = (ta.compile(text, plan=p).cost(sizes).at(sizes) for p in ("streamed", "dense"))
    assert 0.45 < streamed.exps / dense.exps < 0.65


def test_packed_documents_hold_no_mask():
    """Sequences of unequal length in one row, told apart by the number of their document."""
    compiled = ta.compile("y^mu_n = softmax[nu : d_mu == d_nu and nu <= mu](q^mu_i k^nu_i) v^nu_n", plan="streamed")
    length = 3000
    rng = np.random.default_rng(0)
    x = {n: rng.normal(size=(length, 4)).astype(np.float32) for n in "qkv"}
    x["d"] = np.sort(rng.integers(0, 6, length))
    compiled(x)
    tracemalloc.start()
    y = compiled(x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < length * length  # one byte an entry is the mask alone
    for document in range(6):
        part = x["d"] == document
        score = np.where(np.tri(part.sum(), dtype=bool), x["q"][part].astype(float) @ x["k"][part].T, -np.inf)
        weights = np.exp(score - score.max(1, keepdims=True))
        wanted = weights / weights.sum(1, keepdims=True) @ x["v"][part]
        np.testing.assert_allclose(y[part], wanted, atol=1e-4)


SHARED = """W^<mu nu rho> = q^mu_i k^nu_i r^rho_i
a^<mu nu>_n = softmax[rho : rho <= nu](W^<mu nu rho>) v^rho_n
b^<mu rho>_n = softmax[nu](W^<mu nu rho>) v^nu_n"""


def test_a_predicate_of_one_softmax_cuts_no_sum_of_another(monkeypatch):
    """Σ over nu of weights that no predicate bounds has values all along rho."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 60)
    units.unit.cache_clear()
    made, x, found = torch.Generator().manual_seed(0), {}, []
    for plan in ("streamed", "dense"):
        compiled = ta.compile(SHARED, plan=plan, outputs=["a", "b"])
        for name, axes in compiled.signature.inputs.items():
            shape = [dict(mu=13, nu=11, rho=11, i=3, n=5)[axis] for axis in axes]
            x.setdefault(name, torch.randn(shape, generator=made, dtype=torch.float64))
        function = lambda v, of=compiled: tuple(of({**x, "v": v}).values())  # noqa: E731
        found.append(torch.func.jvp(function, (x["v"],), (torch.ones_like(x["v"]),))[1])
    units.unit.cache_clear()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("empty", ["b", "n", "i"])
def test_gradients_over_an_axis_of_length_0_beside_a_predicate(empty):
    text = "y^<b mu>_n = softmax[nu : nu <= mu](q^<b mu>_i k^<b nu>_i) v^<b nu>_n"
    sizes = dict(b=2, mu=17, nu=17, i=3, n=2) | {empty: 0}
    compiled = ta.compile(text, plan="streamed")
    shapes = {name: [sizes[axis] for axis in axes] for name, axes in compiled.signature.inputs.items()}
    x = {name: torch.ones(shape, requires_grad=True) for name, shape in shapes.items()}
    compiled(x).sum().backward()
    assert {name: [*tensor.grad.shape] for name, tensor in x.items()} == shapes
    assert x["v"].grad.sum().item() == pytest.approx(2 * 17 * 2 if empty == "i" else 0)  # every row of weights is 1
    assert not any(x[name].grad.any() for name in "qk")
