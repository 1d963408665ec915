"""Decoding: rows that start at an offset, keys that grow, plans that stay; and partial results that merge."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import compiling

ATTEND = "y_<h t e> = softmax[s : s <= t + start](q_<h t d> k_<h s d> / sqrt(|d|)) v_<h s e>"
LAYER = """
    q_<h t d> = x_<t i> Wq_<i h d>
    k_<h a d> = cat[a = p + t](kc_<h p d>, x_<t i> Wk_<i h d>)
    v_<h a d> = cat[a = p + t](vc_<h p d>, x_<t i> Wv_<i h d>)
    a_<h t d> = softmax[s : s <= t + |p|](q_<h t c> k_<h s c> / sqrt(|c|)) v_<h s d>
    y_<t o>   = a_<h t d> Wo_<h d o>
"""
JOINT = """
    S_<t s r> = sum[d](q_<t d> k_<s d> m_<r d>)
    y_<t n>   = S_<t bar(s r : s <= t + start and r <= t + start)> v_<s n> w_<r n>
"""
PART = """
    S_<t s> = q_<t d> k_<s d>
    y_<t e> = S_<t bar(s : keep_<t s>)> v_<s e>
    L_t     = lse[s : keep_<t s>](S_<t s>)
"""


@pytest.fixture
def plans(monkeypatch):
    """Counts how often a compiled formula plans."""
    made, original = [], compiling.specialise

    def counting(*arguments, **options):
        made.append(1)
        return original(*arguments, **options)

    monkeypatch.setattr(compiling, "specialise", counting)
    return made


def arrays(library, *shapes, dtype="float64"):
    rng = np.random.default_rng(0)
    found = [rng.normal(size=shape).astype(dtype) for shape in shapes]
    return [torch.from_numpy(x) for x in found] if library == "torch" else found


@pytest.mark.parametrize("plan", ["auto", "dense", "streamed"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_one_row_a_call_equals_the_full_pass_and_plans_at_most_twice(library, plan, plans):
    q, k, v = arrays(library, *[(2, 120, 4)] * 3)
    attend = ta.compile(ATTEND, plan=plan)
    full = attend(q=q, k=k, v=v, start=0)
    plans.clear()
    for t in range(120):
        row = attend(q=q[:, t : t + 1], k=k[:, : t + 1], v=v[:, : t + 1], start=t)
        np.testing.assert_allclose(np.asarray(row), np.asarray(full[:, t : t + 1]), rtol=1e-12, atol=1e-13)
    assert len(plans) <= 2


def test_chunks_of_rows_equal_the_full_pass():
    q, k, v = arrays("numpy", *[(2, 37, 4)] * 3)
    attend = ta.compile(ATTEND)
    full, start = attend(q=q, k=k, v=v, start=0), 0
    for stop in (5, 6, 19, 37):
        rows = attend(q=q[:, start:stop], k=k[:, :stop], v=v[:, :stop], start=start)
        np.testing.assert_allclose(rows, full[:, start:stop], rtol=1e-12, atol=1e-13)
        start = stop


def test_whole_layer_with_a_cache_plans_at_most_twice(plans):
    x, wq, wk, wv, wo = arrays("torch", (60, 6), (6, 2, 4), (6, 2, 4), (6, 2, 4), (2, 4, 6))
    layer = ta.compile(LAYER, outputs=["y", "k", "v"])
    weights, empty = {"Wq": wq, "Wk": wk, "Wv": wv, "Wo": wo}, torch.zeros(2, 0, 4, dtype=torch.float64)
    full = layer(x=x, kc=empty, vc=empty, **weights)["y"]
    plans.clear()
    k = v = empty
    for t in range(60):
        found = layer(x=x[t : t + 1], kc=k, vc=v, **weights)
        k, v = found["k"], found["v"]
        torch.testing.assert_close(found["y"], full[t : t + 1], rtol=1e-11, atol=1e-12)
    assert len(plans) <= 2


def test_pairs_of_keys_grow_without_plans(plans):
    q, k, m, v, w = arrays("numpy", *[(40, 3)] * 5)
    attend = ta.compile(JOINT)
    full = attend(q=q, k=k, m=m, v=v, w=w, start=0)
    plans.clear()
    for t in range(40):
        own = {"k": k[: t + 1], "m": m[: t + 1], "v": v[: t + 1], "w": w[: t + 1]}
        row = attend(q=q[t : t + 1], start=t, **own)
        np.testing.assert_allclose(row, full[t : t + 1], rtol=1e-10, atol=1e-12)
    assert len(plans) <= 3


def test_a_threshold_of_the_choice_and_nothing_else_makes_a_plan(plans):
    """Dense below 2**16 weights, chosen by price above: the number of keys at which the plan is made is that one."""
    heads = 1024
    q, k = arrays("numpy", (heads, 1, 1), (heads, 80, 1), dtype="float32")
    attend, found = ta.compile(ATTEND), []
    for keys in range(2, 80):
        plans.clear()
        attend(q=q, k=k[:, :keys], v=k[:, :keys], start=keys - 1)
        found += [keys] * len(plans)
    assert found == [2, 64]


def test_growing_keys_under_torch_compile_make_few_graphs():
    from torch._dynamo.testing import CompileCounter

    q, k, v = arrays("torch", *[(2, 30, 4)] * 3)
    attend, counter = ta.compile(ATTEND), CompileCounter()
    full = attend(q=q, k=k, v=v, start=0)
    step = torch.compile(lambda q, k, v, start: attend(q=q, k=k, v=v, start=start), backend=counter, fullgraph=True)
    for t in range(1, 30):
        row = step(q[:, t : t + 1], k[:, : t + 1], v[:, : t + 1], torch.tensor(t))
        torch.testing.assert_close(row, full[:, t : t + 1])
    assert counter.frame_count <= 3


# Parts ------------------------------------------------------------------------------------------------------------


def part(q, k, v, keep):
    found = ta.compile(PART, outputs=["y", "L"])(q=q, k=k, v=v, keep=keep)
    return found["y"], found["L"]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(["numpy", "torch"]),
    st.integers(0, 4),
    st.integers(0, 9),
    st.lists(st.integers(0, 9), max_size=3),
    st.integers(0, 3),
    st.sampled_from([1.0, 300.0]),
)
def test_parts_merge_to_the_whole(library, rows, keys, cuts, width, scale):
    q, k, v = arrays(library, (rows, 2), (keys, 2), (keys, width))
    q = q * scale
    keep = np.random.default_rng(1).random((rows, keys)) < 0.6
    keep = torch.from_numpy(keep) if library == "torch" else keep
    y, L = part(q, k, v, keep)
    ends = [0, *sorted(min(cut, keys) for cut in cuts), keys]
    parts = [part(q, k[a:b], v[a:b], keep[:, a:b]) for a, b in pairwise(ends)]
    merged, total = ta.merge(*parts)
    np.testing.assert_allclose(np.asarray(merged), np.asarray(y), rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(np.asarray(total), np.asarray(L), rtol=1e-12)
    again, _ = ta.merge(ta.merge(*parts[:1]), *parts[1:])
    np.testing.assert_allclose(np.asarray(again), np.asarray(y), rtol=1e-11, atol=1e-12)


def test_merge_of_scores_that_are_far_apart_and_of_nothing():
    y, L = ta.merge((np.ones(2), np.array(-2000.0)), (np.full(2, 3.0), np.array(1000.0)))
    assert y.tolist() == [3, 3]
    assert float(L) == 1000
    y, L = ta.merge((np.zeros((2, 3)), np.full(2, -np.inf)), (np.zeros((2, 3)), np.full(2, -np.inf)))
    assert np.array_equal(y, np.zeros((2, 3)))
    assert np.all(np.isneginf(L))
    single = ta.merge((np.ones((2, 3), np.float32), np.zeros(2, np.float32)))
    assert single[0].dtype == single[1].dtype == np.float32


def test_values_may_have_several_axes_or_none():
    rng = np.random.default_rng(0)
    for rank, shape in ((1, (3,)), (1, (3, 2, 4)), (2, (3, 2, 4)), (0, (2, 4)), (1, (3, 0))):
        parts = [(rng.normal(size=shape), rng.normal(size=shape[:rank])) for _ in range(3)]
        shares = np.exp([L for _, L in parts])
        shares = (shares / shares.sum(axis=0)).reshape(3, *shape[:rank], *[1] * (len(shape) - rank))
        y, L = ta.merge(*parts)
        np.testing.assert_allclose(y, sum(w * x for w, (x, _) in zip(shares, parts, strict=True)), rtol=1e-12)
        np.testing.assert_allclose(L, np.logaddexp.reduce([L for _, L in parts]), rtol=1e-12)


def test_gradients_through_parts_are_those_of_the_whole():
    q, k, v = (x.requires_grad_() for x in arrays("torch", (3, 2), (7, 2), (7, 2)))
    keep = torch.ones(3, 7, dtype=torch.bool)
    keep[0, :4] = False  # an empty part: L is −∞
    keep[1] = False  # an empty row
    y, L = part(q, k, v, keep)
    merged, total = ta.merge(part(q, k[:4], v[:4], keep[:, :4]), part(q, k[4:], v[4:], keep[:, 4:]))

    def loss(y, L):
        return (y.square().sum() + L[[0, 2]].sin().sum(),)

    own = torch.autograd.grad(loss(merged, total), (q, k, v))
    for a, b in zip(own, torch.autograd.grad(loss(y, L), (q, k, v)), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def test_merge_is_traced():
    pair = ((torch.ones(3, 2), torch.zeros(3)), (torch.full((3, 2), 3.0), torch.zeros(3)))
    y, L = torch.compile(ta.merge, backend="eager", fullgraph=True)(*pair)
    torch.testing.assert_close(y, torch.full((3, 2), 2.0))
    torch.testing.assert_close(L, torch.full((3,), math.log(2)))


def test_refusals():
    y, L = np.ones((3, 2)), np.ones(3)
    for parts, error, message in (
        ((), ta.BindingError, "there is nothing to merge"),
        (((y, L), y), ta.BindingError, "part 1 is no pair of arrays"),
        (((y, 1.0),), ta.BindingError, "part 0 is no pair of arrays"),
        (((y, np.ones(2)),), ta.ShapeError, "the log-sum-exp of part 0 does not have the leading axes"),
        (((y, L), (np.ones((3, 4)), L)), ta.ShapeError, "the results of the parts have several shapes"),
        (((y, L), (np.ones((3, 2)), np.array(1.0))), ta.ShapeError, "the log-sum-exps of the parts have several"),
        (((y, L), (torch.ones(3, 2), torch.ones(3))), ta.BackendError, "several libraries"),
    ):
        with pytest.raises(error, match=message) as found:
            ta.merge(*parts)
        assert found.value.hint
