"""Rows by symbol and sums by place: equal to the reference, in values and gradients, without arrays over all pairs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import planning
from tensorattn.library import chain
from tensorattn.reference import evaluate
from tests.chains import drawn, forward_backward
from tests.kernels import BOTH, INF, NAN

CHAINS = [(hops, masked, index) for hops in (2, 3) for masked in (False, True) for index in (None, "i1", f"i{hops}")]
SCATTERED = (
    "h_p = sum[n i : p == d_<n i>](x_<n i>) + 0 z_p",
    "h_<n p> = sum[i : d_<n i> == p](x_<n i>) + 0 z_p",
    "h_<p r> = sum[n i : p == q_n and r == e_<n i>](x_<n i>) + 0 w_<p r>",
    "h_<p r> = sum[n i : p == d_<n i> and e_<n i> == r and keep_<n i>](x_<n i>) + 0 w_<p r>",
    "h_p = sum[n i : p == f_<n i>](x_<n i>) + 0 z_p",  # places that are no whole numbers are none
    "h_p = sum[n i : p == d_<n i>](1) + 0 z_p",
    "h_p = sum[n i a : p == d_<n i>](x_<n i> u_a) + 0 z_p",
    "g_p = z_p sum[n i : p == d_<n i> and keep_<n i>](log(x_<n i>))",  # nothing there: 0, whatever z is
)


def program_of(hops, masked, index):
    program = chain(hops, masked=masked)
    return program if index is None else ta.posterior(program, index)


def forced(monkeypatch):
    """By symbol wherever it is possible, whatever it costs."""
    monkeypatch.setattr(planning, "SLACK", 1e9)


def rules(compiled):
    return {rule for entry in compiled._table.values() for _, rule, _ in entry.plan.applied}


@BOTH
@pytest.mark.parametrize(("hops", "masked", "index"), CHAINS)
def test_chains_by_symbol_equal_forward_backward(hops, masked, index, library, monkeypatch):
    forced(monkeypatch)
    x = drawn(np.random.default_rng(hops), hops, 3, 11, 4, 3, 3.0, masked)
    wrap = np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(program_of(hops, masked, index))
    found = np.asarray(compiled({k: wrap(v) for k, v in x.items()}))
    assert "symbol rows" in rules(compiled)
    wanted = [forward_backward(x, hops, row) for row in range(3)]
    parts = {None: lambda e: e["logp"], "i1": lambda e: e["gamma"][0]}
    part = parts.get(index, lambda e: e["xi"][-1])
    np.testing.assert_allclose(found, [part(e) for e in wanted], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_gradients_by_symbol(masked, monkeypatch):
    """By autograd through the plan, and of the gradient program, against autograd through positions."""
    x = drawn(np.random.default_rng(0), 2, 3, 11, 4, 3, 2.0, masked)
    names = ["G1", "G2", "B"]
    program = chain(2, masked=masked)

    def gradients():
        y = {k: torch.tensor(v, requires_grad=k in names) for k, v in x.items()}
        compiled = ta.compile(program)
        return compiled, torch.autograd.grad(compiled(y).sum(), [y[n] for n in names])

    _, expected = gradients()
    forced(monkeypatch)
    compiled, found = gradients()
    assert "symbol rows" in rules(compiled)
    pulled = ta.compile(ta.grad(program, names), outputs=[f"d{n}" for n in names])
    by_program = pulled({**x, "dlogp": np.ones(3)})
    assert "scatter" in rules(pulled)
    for name, wanted, own in zip(names, expected, found, strict=True):
        np.testing.assert_allclose(own, wanted, atol=1e-12)
        np.testing.assert_allclose(by_program[f"d{name}"], wanted, atol=1e-12)


@BOTH
@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_symbols_that_do_not_occur_have_no_influence(bad, library, monkeypatch):
    forced(monkeypatch)
    x = drawn(np.random.default_rng(1), 2, 3, 11, 5, 3, 2.0)
    for name in ("val", "key", "q"):
        x[name] = x[name] % 4  # symbol 4 nowhere
    wrap = np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(chain(2))
    expected = np.asarray(compiled({k: wrap(v) for k, v in x.items()}))
    for name in ("G1", "G2", "B"):
        x[name] = x[name].copy()
        x[name][4] = bad
    np.testing.assert_array_equal(np.asarray(compiled({k: wrap(v) for k, v in x.items()})), expected)
    if library == "torch":
        y = {k: torch.tensor(v, requires_grad=k[0] in "GB") for k, v in x.items()}
        compiled(y).sum().backward()
        for name in ("G1", "G2", "B"):
            assert torch.isfinite(y[name].grad).all()
            assert (y[name].grad[4] == 0).all()


def test_positions_out_of_range_are_refused_where_they_count(monkeypatch):
    forced(monkeypatch)
    x = drawn(np.random.default_rng(2), 2, 3, 11, 4, 3, 2.0, masked=True)
    compiled = ta.compile(chain(2, masked=True))
    expected = compiled(x)
    hidden = tuple(np.argwhere(~x["keep"])[0])
    shown = tuple(np.argwhere(x["keep"])[0])
    for place, fine in ((hidden, True), (shown, False)):
        for name in ("key", "val"):
            y = {**x, name: x[name].copy()}
            y[name][place] = 77
            if fine:
                np.testing.assert_array_equal(compiled(y), expected)
                continue
            with pytest.raises(ta.TensorattnError) as caught:
                compiled(y)
            assert caught.value.code == "E-RANGE"
            assert "Rows" not in str(caught.value)


@pytest.mark.parametrize("last", [None, "i1", "gamma"])
def test_no_array_over_all_pairs(last):
    """L S N: 3 hops over 2048 positions and 16 symbols take a few MB, where one array of all pairs takes 100."""
    x = drawn(np.random.default_rng(0), 3, 3, 2048, 16, 5, 2.0)
    program = program_of(3, False, "i3" if last == "gamma" else last)
    if last == "gamma":
        program = program.then("gamma_<n i3> = sum[i2](posterior_<n i2 i3>)")
    compiled = ta.compile(program)
    compiled(x)
    assert "symbol rows" in rules(compiled)
    tracemalloc.start()
    found = compiled(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12e6
    wanted = forward_backward({k: v[:1] if k in ("q", "key", "val", "target") else v for k, v in x.items()}, 3, 0)
    part = {None: wanted["logp"], "i1": wanted["gamma"][0], "gamma": wanted["gamma"][2]}[last]
    np.testing.assert_allclose(found[0], part, rtol=1e-9, atol=1e-12)


STATISTIC = """
C_<v k> = where(0 > 1, G2_<v k>, sum[n i1 i2 : v == val^<n i1> and k == key^<n i2>](w_n posterior_<n i1 i2>))
"""


@pytest.mark.parametrize("what", ["gradient", "statistic"])
@pytest.mark.parametrize("positions", [13, 2048])
def test_gradients_and_counts_over_all_pairs(what, positions):
    """The gradient of the key scores and the expected counts of pairs of symbols, by 16² symbols and not by 2048²."""
    x = drawn(np.random.default_rng(0), 2, 3, positions, 11, 5, 2.0)
    w = np.array([1.0, 0.5, 2.0])
    if what == "gradient":
        compiled = ta.compile(ta.grad(chain(2), ["G2"]), outputs=["dG2"])
        y = {**x, "dlogp": w}
    else:
        compiled = ta.compile(ta.posterior(chain(2), "i2").then(STATISTIC), outputs=["C"])
        y = {**x, "w": w}
    compiled(y)
    tracemalloc.start()
    (found,) = compiled(y).values()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12e6
    wanted = np.zeros((11, 11))
    for n in range(3):
        e = forward_backward(x, 2, n)
        key, val = x["key"][n], x["val"][n]
        steps = np.exp(x["G2"][val][:, key])
        weights = e["gamma"][0][:, None] * steps / steps.sum(1, keepdims=True)
        per_pair = e["xi"][0] - (weights if what == "gradient" else 0)
        np.add.at(wanted, (val[:, None], key[None]), w[n] * per_pair)
    np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-9)


@BOTH
@pytest.mark.parametrize("text", SCATTERED)
def test_sums_by_place(text, library):
    program = ta.parse(text)
    wrap = np.asarray if library == "numpy" else torch.tensor
    for seed in range(4):
        rng = np.random.default_rng(seed)
        n, i, p = (int(rng.choice(s)) for s in ([1, 4], [0, 1, 7], [1, 5]))
        x = dict(
            d=rng.integers(-1, p + 1, (n, i)), e=rng.integers(0, 5, (n, i)), q=rng.integers(0, p, n),
            x=rng.uniform(0.1, 1, (n, i)), keep=rng.random((n, i)) < 0.5, u=rng.normal(size=3),
            f=rng.choice([0.0, 1.0, 0.5, NAN, 1e30], (n, i)), z=rng.normal(size=p), w=rng.normal(size=(p, 5)),
        )  # fmt: skip
        if text.startswith("g"):
            x["z"][:1] = NAN
            x["x"][~x["keep"]] = -1
        x = {name: x[name] for name in program.inputs}
        found = ta.compile(program)({name: wrap(a) for name, a in x.items()})
        np.testing.assert_allclose(np.asarray(found), evaluate(program, x)[program.defined[-1]], atol=1e-12)
    assert "scatter" in ta.compile(program).source("numpy")


@BOTH
@pytest.mark.parametrize("bad", [NAN, INF])
def test_sums_by_place_of_rows_reach_their_own_place_only(bad, library, monkeypatch):
    """What is not finite reaches the places that admit it; positions that no place has need be none of the table."""
    forced(monkeypatch)
    program = ta.parse(
        "h_<p r> = sum[n i j : p == s_<n i> and r == t_<n j>]"
        "(c_<n i> m_<n j> softmax[j](G_<s_<n i> t_<n j>>)) + 0 H_<p r>"
    )
    rng = np.random.default_rng(0)
    x = dict(
        s=rng.integers(0, 3, (2, 11)), t=rng.integers(0, 3, (2, 7)), c=rng.normal(size=(2, 11)),
        m=rng.normal(size=(2, 7)), G=rng.normal(size=(4, 3)), H=np.zeros((4, 3)),
    )  # fmt: skip
    x["s"][0], x["m"][0, 3] = 0, bad
    x["s"][1, 4] = -1
    wrap = np.asarray if library == "numpy" else torch.tensor
    compiled = ta.compile(program)
    found = np.asarray(compiled({name: wrap(x[name]) for name in program.inputs}))
    expected = evaluate(program, x)["h"]
    assert {"symbol rows", "scatter"} <= rules(compiled)
    assert np.isnan(expected).sum() == 1
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_gradients_of_gathers_are_sums_by_place():
    """As a product with one-hot matrices it would take n i p p1 = 41 million multiplications."""
    gradient = ta.grad("T^<n i> = G_<val^<n i>, key^<n i>>; s = T^<n i> x^<n i>", ["G"])
    compiled = ta.compile(gradient, outputs=["dG"])
    rng = np.random.default_rng(0)
    x = dict(G=rng.normal(size=(64, 64)), val=rng.integers(0, 64, (50, 200)), key=rng.integers(0, 64, (50, 200)))
    x |= dict(x=rng.normal(size=(50, 200)), ds=1.0)
    wanted = np.zeros((64, 64))
    np.add.at(wanted, (x["val"], x["key"]), x["x"])
    np.testing.assert_allclose(compiled(x)["dG"], wanted, atol=1e-12)
    assert "no one-hot matrix" in compiled.explain()
    assert compiled.cost(n=50, i=200, p=64, p1=64).at({}).flops < 1e6


@BOTH
@pytest.mark.parametrize("other", ["t", "u"])
def test_two_readings_of_one_table_are_by_symbol_once(library, other, monkeypatch):
    """Rows by the symbols of both would be the diagonal of the table's axis."""
    forced(monkeypatch)
    rng = np.random.default_rng(0)
    x = {"q": rng.normal(size=(3, 2)), "G": rng.normal(size=(2, 2)), "v": rng.normal(size=(7, 4))}
    x |= {name: rng.integers(0, 2, size=7) for name in ("t", other)}
    scores = np.einsum("mi,ni,ri->mnr", x["q"], x["G"][x["t"]], x["G"][x[other]])
    weights = np.exp(scores) / np.exp(scores).sum((1, 2), keepdims=True)
    score = f"sum[i](q_<m i> G_<t_<nu> i> G_<{other}_<rho> i>)"
    wrap = np.asarray if library == "numpy" else torch.tensor
    given = {k: wrap(v) for k, v in x.items()}
    alone = ta.compile(f"R_<m nu rho> = {score}")
    found = np.asarray(alone({k: a for k, a in given.items() if k != "v"}))
    np.testing.assert_allclose(found, scores, rtol=1e-12)
    assert "symbol rows" in rules(alone)
    found = np.asarray(ta.compile(f"R_<m n> = softmax[nu rho]({score}) v_<nu n> v_<rho n>")(given))
    np.testing.assert_allclose(found, np.einsum("mab,an,bn->mn", weights, x["v"], x["v"]), rtol=1e-10)
