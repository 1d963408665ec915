"""Segment sums: both sides at random sizes and values, what stays, when it pays, and which positions are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import planning
from tensorattn.arguments import gathered_sizes
from tensorattn.ir import AT, Map, Tensor, rebuild
from tensorattn.planning import plan, prune
from tensorattn.reference import evaluate, magnitude
from tensorattn.rewriting import rewrite
from tensorattn.rewriting.fusing import fuse
from tensorattn.rewriting.segments import segmented
from tests import goldens
from tests.kernels import BOTH, INF, NAN

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

REWRITTEN = (
    "y_t = softmax[j](c_<key_<j>>) V_<j t>",
    "y^m_t = softmax[j](q^m_d G_<d, key_<j>> / sqrt(|d|)) V_<j t>",
    "y^m_t = softmax[j; sink=s_m](q^m_d G_<d, key_<j>>) V_<j t> r_m",
    "y^m_t = softmax[j : keep_<m j>](q^m_d G_<d, key_<j>>) V_<j t> r_m",
    "y^m_t = softmax[j : j <= m and keep_<m j>](q^m_d G_<d, key_<j>>) B_<val_<j>, t>",
    "y^m_t = softmax[j k](q^m_d G_<d, key_<j>> + A_<m k>) V_<j t> k_<k t>",
    "y^m = sum[j](softmax[j](q^m_d G_<d, key_<j>>) r_m)",
    "y^m_t = softmax[j](tanh(q^m_d G_<d, key_<j>>)) V_<j t> W_<j t> - V_<m t>",
    "g^i = G_<0, key_<i>>; T^<i j> = H_<val_<i>, key_<j>>; p_t = g^<bar(i)> T^<bar(i) bar(j)> B_<val_<j>, t>",
    "S_<d s> = tanh(G_<d s>); y^m_t = softmax[j](q^m_d S_<d, key_<j>>) V_<j t>",
    "y^<h m>_t = softmax[j](q^m_d G_<d, keys_<h j>>) V_<j t>",
)
LEFT = (
    "y^m_t = softmax[j](q^m_d G_<d, key_<j>> + A_<m j>) V_<j t>",  # seen otherwise too
    "y^m_t = softmax[j](q^m_d G_<d, key_<j>> - j) V_<j t>",
    "y^m_t = softmax[j](q^m_d G_<d, key_<j>> + q^m_d G_<d, val_<j>>) V_<j t>",  # two maps
    "y^m_t = softmax[j](q^m_d H_<key_<j>, key_<j>> q^m_d) V_<j t>",
    "y^m_t = softmax[j : r_m > 0 and keep_<m j>](q^m_d G_<d, key_<j>>) V_<j t>",  # what is excluded by row is not read
    "y^m_t = sparsemax[j](q^m_d G_<d, key_<j>>) V_<j t>",
    "y^<m j> = softmax[j](q^m_d G_<d, key_<j>>) V_<j m>",  # the weights are asked for
    "y^m_t = softmax[j](q^m_d G_<d, key_<j>>) softmax[j : keep_<m j>](A_<m j>) V_<j t>",
)
SHAPES = dict(
    G="d s", H="s s", V="j t", W="j t", q="m d", key="j", val="j", keys="h j", keep="m j", r="m", s="m", c="s",
    A="m j", B="s t", k="k t",
)  # fmt: skip


def drawn(program, rng, dtype=np.float64, j=None):
    sizes = dict(zip("dsthmk", rng.choice([2, 3, 5, 7], 6), strict=True)) | {
        "j": rng.integers(0, 12) if j is None else j
    }
    if "V_<m t>" in str(program) or "A_<m k>" in str(program):
        sizes["m" if "V_<m t>" in str(program) else "k"] = sizes["j"]
    if "g^i" in str(program):
        sizes["d"] = sizes["s"]
    found = {}
    for name in program.inputs:
        shape = tuple(sizes[a] for a in SHAPES.get(name, "").split())
        found[name] = np.asarray(rng.normal(size=shape), dtype)
        if name in ("key", "val", "keys"):
            found[name] = rng.integers(0, sizes["s"], shape)
        if name == "keep":
            found[name] = rng.random(shape) < 0.5
    return found


def both(text):
    """A program as other rules leave it, and by segments, as if all sizes were known."""
    program = ta.parse(text)
    before = rewrite(fuse(prune(program, program.defined[-1:]), program.defined[-1:]))
    known = {f"{t.name}.{n}": 2 for t in before.program.tensors for n in range(len(t.slots))}
    known |= dict.fromkeys("ijkmtds", 9)
    return before.program, segmented(before, known).program


def readable(program):
    """With `at` as the comparison that it is for positions in range."""

    def change(node):
        node = rebuild(node, change)
        return Map("equal", node.arguments) if isinstance(node, Map) and node.function == AT else node

    return replace(program, statements=tuple(replace(s, body=change(s.body)) for s in program.statements))


def test_golden(request):
    lines = []
    for text in (*REWRITTEN, *LEFT):
        before, after = both(text)
        lines += [text, *("  " + line for line in (str(after).splitlines() if after != before else ["stays"]))]
    goldens.agree("segments.txt", "\n".join(lines) + "\n", request.config)


@pytest.mark.parametrize("text", LEFT)
def test_what_it_cannot_prove_it_leaves(text):
    before, after = both(text)
    assert before == after


@pytest.mark.parametrize("text", REWRITTEN)
def test_both_sides_are_equal(text):
    before, after = both(text)
    assert before != after
    for seed in range(4):
        x = drawn(ta.parse(text), np.random.default_rng(seed))
        name = before.defined[-1]
        tables = gathered_sizes(before, x)
        y, z = (evaluate(p, x, sizes=tables if p is not before else {})[name] for p in (before, readable(after)))
        np.testing.assert_allclose(z, y, atol=1e-12, err_msg=str(seed))


def forced(monkeypatch):
    """Segments wherever they are possible, whatever they cost."""
    monkeypatch.setattr(planning, "SLACK", 1e9)


@BOTH
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("text", REWRITTEN)
def test_compiled_equals_the_reference(text, library, dtype, monkeypatch):
    forced(monkeypatch)
    program = ta.parse(text)
    wrap = np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(text)
    for seed in range(5):
        x = drawn(program, np.random.default_rng(seed), dtype, j=[None, 0, 1, 11, 30][seed])
        if seed == 1 and "r" in x:
            x["r"][...] = np.nan  # a sum of nothing is 0, whatever it is multiplied with
        found = np.asarray(compiled({k: wrap(a) for k, a in x.items()}))
        name = program.defined[-1]
        expected, size = evaluate(program, x)[name], magnitude(program, x)[name]
        allowed = (1e-10 if dtype == np.float64 else 1e-5) * np.nan_to_num(size) + 1e-30
        assert (np.abs(found - expected) <= allowed).all(), seed
    assert any(rule == "segment sums" for e in compiled._table.values() for _, rule, _ in e.plan.applied)


@BOTH
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("text", [REWRITTEN[n] for n in (1, 2, 3, 4, 7)])
def test_what_is_not_finite_means_what_it_means_densely(text, library, bad, monkeypatch):
    program = ta.parse(text)
    wrap = np.asarray if library == "numpy" else torch.tensor
    for name in ("G", "V", "B", "r"):
        if name not in program.inputs:
            continue
        for seed in range(3):
            x = drawn(program, np.random.default_rng(seed), j=9)
            x[name][tuple(np.random.default_rng(seed).integers(0, n) for n in x[name].shape)] = bad
            given = {k: wrap(a) for k, a in x.items()}
            with monkeypatch.context() as patched:
                plain = np.asarray(ta.compile(text, plan="dense")(given))
                forced(patched)
                compiled = ta.compile(text, plan="dense")
                found = np.asarray(compiled(given))
            assert any(rule == "segment sums" for e in compiled._table.values() for _, rule, _ in e.plan.applied)
            np.testing.assert_allclose(found, plain, atol=1e-12, err_msg=f"{name} {seed}")


@BOTH
@pytest.mark.parametrize("text", [REWRITTEN[1], REWRITTEN[4]])
def test_positions_out_of_range_are_refused_alike(text, library, monkeypatch):
    program = ta.parse(text)
    wrap = np.asarray if library == "numpy" else torch.tensor
    x = drawn(program, np.random.default_rng(0), j=9)
    if "keep" in x:
        x["keep"][:, 4] = False
    messages = []
    for place, bad in ((4, -1), (0, 50)):
        y = x | {"key": np.where(np.arange(9) == place, bad, x["key"])}
        if "keep" in x:
            y["keep"] = x["keep"] | ((np.arange(9) == 0) & (np.arange(len(x["keep"]))[:, None] >= 0))
        given = {k: wrap(a) for k, a in y.items()}
        for force in (False, True):
            with monkeypatch.context() as patched:
                if force:
                    forced(patched)
                try:
                    messages.append(np.asarray(ta.compile(text)(given)).round(9).tolist())
                except ta.ShapeError as error:
                    messages.append(str(error))
    assert messages[0] == messages[1]
    assert messages[2] == messages[3]
    assert "position 50 is out of range" in messages[3]
    assert isinstance(messages[0], str) != ("keep" in x), "what a predicate excludes is not read"


CHAIN = (
    "g^<n i> = G1_<q^n, key^<n i>>; T^<n i j> = G2_<val^<n i>, key^<n j>>; "
    "p^n_t = g^<n bar(i)> T^<n bar(i) bar(j)> B_<val^<n j>, t>"
)


def chained(symbols, positions, count, rng):
    return dict(
        G1=rng.normal(size=(symbols, symbols)), G2=rng.normal(size=(symbols, symbols)), B=rng.random((symbols, 3)),
        q=rng.integers(0, symbols, count), key=rng.integers(0, symbols, (count, positions)),
        val=rng.integers(0, symbols, (count, positions)),
    )  # fmt: skip


def test_it_is_taken_where_there_are_few_symbols_and_only_there():
    compiled = ta.compile(CHAIN)
    for symbols, positions, wanted in ((3, 40, True), (40, 5, False), (8, 100, True), (100, 20, False)):
        x = chained(symbols, positions, 4, np.random.default_rng(0))
        found = compiled(x)
        w = np.exp(x["G1"][x["q"][:, None], x["key"]])
        t = np.exp(x["G2"][x["val"][:, :, None], x["key"][:, None]])
        t /= t.sum(2, keepdims=True)
        expected = np.einsum("ni,nij,njt->nt", w / w.sum(1, keepdims=True), t, x["B"][x["val"]])
        np.testing.assert_allclose(found, expected, atol=1e-12)
        chosen = compiled.plan(dict(n=4, i=positions, j=positions, t=3) | {"G1.1": symbols, "G2.1": symbols})
        assert bool([rule for _, rule, _ in chosen.applied if rule == "segment sums"]) == wanted
    sizes = dict(n=500, i=256, j=256, t=8) | {"G1.1": 16, "G2.1": 16}
    text = compiled.explain(sizes)
    assert "segment sums: the score sees the index through an integer map only" in text
    assert compiled.cost(sizes).at(sizes).exps < 2 * 500 * 256 * 16 + 2 * 500 * 256, "not 500 · 256²"


def test_gradients(monkeypatch):
    forced(monkeypatch)
    text = REWRITTEN[3]
    x = drawn(ta.parse(text), np.random.default_rng(3), j=6)
    given = {k: torch.tensor(a, requires_grad=a.dtype == np.float64) for k, a in x.items()}
    names = [k for k, a in given.items() if a.requires_grad]
    compiled = ta.compile(text)
    arrays = tuple(given[n] for n in names)
    assert torch.autograd.gradcheck(lambda *a: compiled(given | dict(zip(names, a, strict=True))), arrays)
    assert any(rule == "segment sums" for e in compiled._table.values() for _, rule, _ in e.plan.applied)


def test_plans_without_sizes_are_as_before():
    program = ta.parse(CHAIN)
    assert not any(rule == "segment sums" for _, rule, _ in plan(program, ("p",), None).applied)
    assert not any(isinstance(n, Tensor) and "." in n.name for n in plan(program, ("p",), None).program.tensors)
