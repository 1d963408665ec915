"""Posteriors against explicit forward–backward, torch and mixle; extreme scores; what is refused."""

from __future__ import annotations

import json
import random
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.cli import main
from tensorattn.errors import BindingError
from tensorattn.library import chain
from tests.chains import drawn, forward_backward
from tests.kernels import BOTH
from tests.programs import inputs, some_sizes

MIXLE = json.loads((Path(__file__).parent / "data" / "chained_attention.json").read_text())
CASES = [name for name in MIXLE if name != "source"]
# formulas with positive inputs, the barred index, the axes over which the posterior sums to 1, the output
MIXTURES = (
    ("p_<n t> = g_<n bar(i)> E_<n i t>", "i", "i"),
    ("p_t = g_<bar(i)> E_<i t>", "i", "i"),
    ("p^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n", "nu rho", "nu rho"),
    ("p^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n", "nu", "nu"),
    ("p^mu_n = softmax[nu : keep^<mu nu> > 0.5](q^mu_i k^nu_i) v^nu_n", "nu", "nu"),
    ("p_n = g_<bar(i)> T_<i bar(j)> E_<j n>", "j", "i j"),
    ("W_<i j> = s_<i bar(j)>; a_<i t> = W_<i j> E_<j t>; p_t = g_<bar(i)> a_<i t>", "j", "i j"),
    ("p_i = A_<i bar(j)> c_j; z = p_i softmax[i](b_i)", "j", "i j"),
    ("p_<m e> = sparsemax[j](q_<m j>) v_<j e>", "j", "j"),
    ("p_<m e> = softmax[j; sink=s_m](q_<m j>) v_<j e>", "j", "j"),
    ("p_<n t> = g_<n bar(i)> exp(E_<n i t>)", "i", "i"),
)
LOGARITHMS = (
    ("l_<n t> = log(g_<n bar(i)> exp(E_<n i t>))", "i", "i"),
    ("l_n = log(sum[i : keep_<n i> > 0.5](g_<n bar(i)> exp(E_<n i>)))", "i", "i"),
    ("l_n = log(g_<n bar(i : keep_<n i> > 0.5)> exp(E_<n i>))", "i", "i"),
    ("l_n = log(g_<n bar(i : i <= n)> T_<i bar(j : keep_<i j> > 0.5)> exp(E_<n j>))", "j", "i j"),
    ("l_n = log(g_<n bar(i : i <= n)> T_<i bar(j : keep_<i j> > 0.5)> exp(E_<n j>))", "i", "i"),
    ("p_n = g_<n bar(i)> E_<n i>; l_n = log(p_n)", "i", "i"),
    ("l_n = log(sum[i j](softmax[i j](a_<n i> + b_<i j>) exp(c_<n j>))); L = sum[n](l_n)", "i j", "i j"),
)


@lru_cache(maxsize=64)
def compiled(hops, index=None, plan="auto", **options):
    """A chain, or the posterior of one of its positions; compiled once for all tests."""
    program = chain(hops, **options)
    return ta.compile(program if index is None else ta.posterior(program, index), plan=plan)


def axes_of(program):
    return [index.name for index in program.statements[-1].indices]


def by_torch(text, arrays, weights, output):
    """weight · ∂ log output / ∂ weight for every entry of the output, by autograd on the weights' own tensor."""
    w = torch.tensor(weights, requires_grad=True)
    out = output(w)
    rows = [torch.autograd.grad(o, w, retain_graph=True)[0] for o in out.reshape(-1)]
    return (w * torch.stack(rows) / out.reshape(-1, *[1] * w.ndim)).detach().numpy()


@pytest.mark.parametrize(("text", "index", "over"), MIXTURES + LOGARITHMS)
def test_it_sums_to_one_where_something_is_possible(text, index, over):
    program = ta.posterior(text, index)
    assert ta.parse(str(program)) == program
    assert program.defined[-1] == "posterior"
    names = axes_of(program)
    for seed in range(6):
        sizes = some_sizes(program, random.Random(seed))
        x = {
            n: np.abs(a) if a.dtype.kind == "f" else a
            for n, a in inputs(program, sizes, np.random.default_rng(seed)).items()
        }
        outputs = [*ta.parse(text).defined[-1:], "posterior"]
        y, found = ta.compile(program, outputs=outputs, sizes=sizes)(x).values()
        total = found.sum(axis=tuple(names.index(n) for n in over.split()))
        possible = np.isfinite(y) if text.startswith("l") else y > 0
        assert ((found >= 0) | (np.isnan(found) & (not text.startswith("l")))).all()
        np.testing.assert_allclose(total[np.broadcast_to(possible, total.shape)], 1, atol=1e-12)


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans(), st.sampled_from([1.0, 30.0]))
@settings(max_examples=15, deadline=None)
def test_chains_equal_forward_backward(seed, hops, masked, scale):
    rng = np.random.default_rng(seed)
    n, N, S, T = (int(rng.choice(s)) for s in ([1, 3], [1, 2, 5], [2, 3, 7], [1, 2, 3]))
    x = drawn(rng, hops, n, N, S, T, scale, masked)
    expected = [forward_backward(x, hops, row) for row in range(n)]
    found = compiled(hops, masked=masked)(x)
    possible = np.array([e["logp"] for e in expected])
    np.testing.assert_allclose(found, possible, rtol=1e-10, atol=1e-10)
    for hop in range(1, hops + 1):
        posterior = compiled(hops, f"i{hop}", masked=masked)(x)
        part = "gamma" if hop == 1 else "xi"
        wanted = np.stack([e[part][0 if hop == 1 else hop - 2] for e in expected])
        np.testing.assert_allclose(posterior, wanted, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_the_posterior_given_every_target(hops, masked):
    """The program of probabilities has the targets as a further axis; at the observed one it is the same."""
    x = drawn(np.random.default_rng(hops), hops, masked=masked)
    given_ = {k: v for k, v in x.items() if k != "target"}
    p = compiled(hops, observed=False, masked=masked)(given_)
    for row in range(3):
        np.testing.assert_allclose(p[row], forward_backward(x, hops, row)["p"], atol=1e-12)
    for hop in range(1, hops + 1):
        posterior = compiled(hops, f"i{hop}", observed=False, masked=masked)(given_)
        assert posterior.shape == (3, *([5] if hop == 1 else [5, 5]), 3)
        for row, target in np.ndindex(3, 3):
            wanted = forward_backward({**x, "target": np.full(3, target)}, hops, row)
            wanted = wanted["gamma"][0] if hop == 1 else wanted["xi"][hop - 2]
            np.testing.assert_allclose(posterior[row, ..., target], wanted, atol=1e-12)


@pytest.mark.parametrize("hops", [2, 3])
def test_the_relations_of_the_statistics(hops):
    """Σ_i ξ^l_ij = γ^l_j, Σ_j ξ^l_ij = γ^(l-1)_i: the sums of one hop are the posterior of the next position."""
    x = drawn(np.random.default_rng(5), hops)
    found = [compiled(hops, f"i{hop}")(x) for hop in range(1, hops + 1)]
    before = found[0]
    for xi in found[1:]:
        np.testing.assert_allclose(xi.sum(2), before, atol=1e-12)
        before = xi.sum(1)


@BOTH
def test_equal_to_the_derivative_that_torch_takes(library):
    rng = np.random.default_rng(1)
    g, T, B = rng.normal(size=(2, 5)), rng.normal(size=(2, 5, 5)), rng.uniform(size=(2, 5, 3))
    text = "p^n_t = g^<n bar(i)> T^<n bar(i) bar(j)> B_<n j t>"
    wrap = np.asarray if library == "numpy" else torch.tensor
    arrays = {"g": wrap(g), "T": wrap(T), "B": wrap(B)}
    a, A = (torch.softmax(torch.tensor(s), -1) for s in (g, T))

    def of_gate(w):
        return torch.einsum("ni,nij,njt->nt", w, A, torch.tensor(B))

    def of_steps(w):
        return torch.einsum("ni,nij,njt->nt", a, w, torch.tensor(B))

    for index, weights, output in (("i", a, of_gate), ("j", A, of_steps)):
        found = np.asarray(ta.compile(ta.posterior(text, index))(arrays))
        wanted = by_torch(text, arrays, weights.numpy(), output).reshape(2, 3, *weights.shape)
        wanted = np.stack([wanted[n, :, n] for n in range(2)])  # of an observation, by its own weights
        np.testing.assert_allclose(found, np.moveaxis(wanted, 1, -1), atol=1e-12)


def test_a_posterior_that_is_no_mixture_is_weight_times_gradient_over_output():
    """tanh(mean) and signed values: the same formula, which is no probability then."""
    rng = np.random.default_rng(2)
    x = dict(q=rng.normal(size=(3, 4)), v=rng.normal(size=(4, 2)), w=rng.normal(size=(2, 5)))
    text = "a_<m e> = q_<m bar(j)> v_<j e>; y_<m d> = tanh(a_<m e> w_<e d>)"
    weights = torch.softmax(torch.tensor(x["q"]), -1).numpy()
    v, w = torch.tensor(x["v"]), torch.tensor(x["w"])
    wanted = by_torch(text, x, weights, lambda a: torch.tanh(a @ v @ w)).reshape(3, 5, 3, 4)
    found = ta.compile(ta.posterior(text, "j"))(x)
    np.testing.assert_allclose(found, np.stack([wanted[m, :, m].T for m in range(3)]), atol=1e-12)


def test_readings_at_two_places_keep_the_axes_apart():
    x = dict(s=np.random.default_rng(3).normal(size=(4, 4)), u=np.arange(1.0, 5))
    text = "A_<i j> = s_<i bar(j)>; y_i = A_<i j> A_<j k> u_k"
    weights = torch.softmax(torch.tensor(x["s"]), -1).numpy()
    wanted = by_torch(text, x, weights, lambda a: a @ a @ torch.tensor(x["u"]))
    np.testing.assert_allclose(ta.compile(ta.posterior(text, "j"))(x), np.moveaxis(wanted, 0, -1), atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_mixle(name):
    case = {k: np.asarray(v) for k, v in MIXLE[name].items()}
    hops = len(case["keys"])
    scores = ta.compile(ta.formulas["key_scores"].program)
    x = dict(
        q=case["query"], key=case["context_keys"], val=case["context_values"], target=case["target"], B=case["emission"]
    )
    x |= {f"G{n}": scores(K=K, sigma2=float(case["sigma2"])) for n, K in enumerate(case["keys"], 1)}
    logp = compiled(hops)(x)
    np.testing.assert_allclose(logp, case["log_density"], rtol=1e-10, atol=1e-10)
    posteriors = [compiled(hops, f"i{hop}")(x) for hop in range(1, hops + 1)]
    assert all(np.isfinite(p).all() for p in posteriors)
    assert all(np.allclose(p.reshape(len(p), -1).sum(1), 1, atol=1e-10) for p in posteriors)
    if "gamma" in case:
        gammas = [posteriors[0], *(xi.sum(1) for xi in posteriors[1:])]
        np.testing.assert_allclose(gammas, case["gamma"], atol=1e-10)
        p = compiled(hops, observed=False)({k: v for k, v in x.items() if k != "target"})
        np.testing.assert_allclose(p, case["predict_proba"], atol=1e-10)
    if "xi" in case:
        np.testing.assert_allclose(posteriors[1:], case["xi"], atol=1e-10)
    if name == "tiny_sigma2":
        assert logp.min() < -990


# extremes ------------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(("hops", "plan"), [(1, "auto"), (2, "auto"), (2, "streamed"), (4, "auto")])
def test_logarithms_do_not_underflow(hops, plan, library):
    """Scores up to 10^5 and targets that only some symbols emit: log p down to -10^4 and less."""
    wrap = np.asarray if library == "numpy" else torch.tensor
    lowest = 0.0
    for seed in range(4):
        x = drawn(np.random.default_rng(seed), hops, 3, 5, 4, 3, 1e4, masked=True)
        x["B"] = np.eye(4)[:, :3] + np.eye(4)[:, 1:]
        expected = [forward_backward(x, hops, row) for row in range(3)]
        y = {k: wrap(v) for k, v in x.items()}
        logp = np.asarray(compiled(hops, None, plan, masked=True)(y))
        np.testing.assert_allclose(logp, [e["logp"] for e in expected], rtol=1e-10)
        found = np.asarray(compiled(hops, "i1", masked=True)(y))
        np.testing.assert_allclose(found, np.nan_to_num([e["gamma"][0] for e in expected]), atol=1e-9)
        lowest = min(lowest, logp[np.isfinite(logp)].min(initial=0))
    assert lowest < -1000


def test_what_is_impossible_or_absent():
    """log 0 = -∞ has the posterior 0, and so has an observation without positions; else 0 / 0 says that it is none."""
    x = drawn(np.random.default_rng(0), 2, masked=True)
    x["B"][:, 0] = 0
    x["target"][:] = [0, 1, 2]
    x["keep"][1] = False
    logp, posterior = ta.compile(ta.posterior(chain(2, masked=True), "i1"), outputs=["logp", "posterior"])(x).values()
    assert logp[0] == logp[1] == -np.inf
    assert np.isfinite(logp[2])
    assert (posterior[:2] == 0).all()
    assert abs(posterior[2].sum() - 1) < 1e-12
    found = ta.compile(ta.posterior("p_t = g_<bar(i)> E_<i t>", "i"))(g=np.zeros(2), E=np.array([[0.0, 1], [0, 3]]))
    assert np.isnan(found[:, 0]).all()
    np.testing.assert_allclose(found[:, 1], [0.25, 0.75])


def test_what_is_masked_has_no_influence():
    rng = np.random.default_rng(4)
    keep = rng.random((3, 5)) < 0.5
    keep[:, 0] = True
    g, E = rng.normal(size=(3, 5)), rng.normal(size=(3, 5))
    for text in ("l_n = log(g_<n bar(i : keep_<n i>)> exp(E_<n i>))", "p_n = g_<n bar(i : keep_<n i>)> exp(E_<n i>)"):
        compiled = ta.compile(ta.posterior(text, "i"))
        found = compiled(g=g, E=E, keep=keep)
        for bad in (np.nan, np.inf, -np.inf):
            np.testing.assert_array_equal(
                compiled(g=np.where(keep, g, bad), E=np.where(keep, E, bad), keep=keep), found
            )
        assert (found[~keep] == 0).all()


def test_ragged_contexts_by_length():
    text = "l_n = log(g_<n bar(i : i < length_n)> exp(E_<n i>))"
    rng = np.random.default_rng(4)
    g, E, length = rng.normal(size=(4, 6)), rng.normal(size=(4, 6)), np.array([6, 1, 3, 0])
    found = ta.compile(ta.posterior(text, "i"))(g=g, E=E, length=length)
    for row, end in enumerate(length):
        wanted = np.exp(g[row, :end] + E[row, :end])
        np.testing.assert_allclose(found[row], [*(wanted / wanted.sum()), *[0] * (6 - end)], atol=1e-12)


def test_it_streams_and_differentiates():
    text = "p_n = softmax[i](q_<n d> k_<i d>) E_i"
    weighed = ta.compile(ta.posterior(text, "i").then("m_n = posterior_<n i> x_i"), plan="streamed")
    rng = np.random.default_rng(6)
    x = {
        n: torch.tensor(rng.uniform(size=s), requires_grad=True)
        for n, s in dict(q=(7, 3), k=(11, 3), E=(11,), x=(11,)).items()
    }
    assert "for start" in weighed.source("torch", dict(n=4096, i=8192, d=3))

    def m(q, k, E, x):
        weights = torch.softmax(q @ k.T, -1) * E
        return (weights / weights.sum(-1, keepdim=True)) @ x

    ours = torch.autograd.grad(weighed(x).sum(), list(x.values()))
    theirs = torch.autograd.grad(m(**x).sum(), list(x.values()))
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(ours, theirs, strict=True))
    gradient = ta.compile(ta.grad(weighed.program, ["k"]), outputs=["dk"])
    plain = {n: t.detach() for n, t in x.items()}
    assert torch.allclose(gradient(**plain, dm=torch.ones(7, dtype=torch.float64))["dk"], theirs[1], atol=1e-10)


# what is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "index", "output", "code", "said"),
    [
        ("p_n = g_<n bar(i)> E_i", "j", None, "E-UNDEF", "no bar over j"),
        ("p_n = g_<n bar(i)> E_i", "q.i", None, "E-UNDEF", "no statement `q`"),
        ("p_n = g_<n bar(i)> E_i", "", None, "E-UNDEF", "names no index"),
        ("p_n = g_<n bar(i)> E_i", 3, None, "E-UNDEF", "names no index"),
        ("p_n = g_<n bar(i)> E_i", "i", "q", "E-UNDEF", "no statement `q`"),
        ("p_n = g_<n i> E_i", "i", None, "E-UNDEF", "bars there are: none"),
        ("P_<n i> = g_<n bar(i)>", "i", None, "E-UNDEF", "these weights themselves"),
        ("a_n = g_<n bar(i)> E_i; p_n = a_n h_<n bar(i)> F_i", "i", None, "E-INDEX", 'index="a.i" or index="p.i"'),
        ("p_n = g_<n bar(i)> E_i + h_<n bar(i)> F_i", "i", None, "E-INDEX", "different names"),
    ],
)
def test_what_is_refused(text, index, output, code, said):
    with pytest.raises(ta.TensorattnError) as caught:
        ta.posterior(text, index, output)
    assert caught.value.code == code
    assert said in str(caught.value)


def test_one_of_several_bars():
    text = "a_n = g_<n bar(i)> E_i; p_n = a_n h_<n bar(i)> F_i"
    first, second = (ta.posterior(text, f"{name}.i") for name in "ap")
    assert "aWeights" in str(first.statement("posterior")) or "g_" in str(first)
    assert first != second
    assert ta.posterior(text, "i", "a").statement("posterior") is not None
    with pytest.raises(BindingError):
        ta.posterior(text, "i")


def test_the_command_prints_it():
    text = "p_n = g_<n bar(i)> E_i; l_n = log(p_n)"
    found = CliRunner().invoke(main, ["posterior", text, "--index", "i"])
    assert found.exit_code == 0
    assert found.output.rstrip() == str(ta.posterior(text, "i"))
    found = CliRunner().invoke(main, ["posterior", text, "--index", "i", "--output", "p", "--format", "json"])
    data = json.loads(found.output)
    assert data["program"] == str(ta.posterior(text, "i", "p"))
    assert (data["inputs"], data["output"]) == (["g", "E"], "posterior")
    found = CliRunner().invoke(main, ["posterior", text, "--index", "j"])
    assert found.exit_code == 1
    assert "E-UNDEF" in found.output


def test_batch_axes_and_merged_heads():
    rng = np.random.default_rng(7)
    W, v = rng.normal(size=(2, 3, 4)), rng.uniform(size=(2, 4, 5))
    weights = np.exp(W) / np.exp(W).sum(-1, keepdims=True)
    joint = weights[..., None] * v[:, None]
    wanted = joint / joint.sum(2, keepdims=True)
    found = ta.compile(ta.posterior("y_<... t d> = W_<... t bar(s)> v_<... s d>", "s"))(W=W, v=v)
    np.testing.assert_allclose(found, wanted, atol=1e-12)
    heads = ta.posterior("y_<t (h d)> = W_<h t bar(s)> v_<h s d>", "s")
    found = ta.compile(heads, sizes={"h": 2, "d": 5})(W=W, v=v).reshape(3, 2, 4, 2, 5)
    for h in range(2):
        np.testing.assert_allclose(found[:, h, :, h], wanted[h], atol=1e-12)
        np.testing.assert_array_equal(found[:, h, :, 1 - h], 0)  # another head has no influence


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (0,)])
def test_batch_axes_that_only_the_weights_have(shape):
    rng = np.random.default_rng(8)
    g, E = rng.normal(size=(*shape, 5)), rng.uniform(size=(5, 7))
    joint = (np.exp(g) / np.exp(g).sum(-1, keepdims=True))[..., None] * E
    wanted = joint / joint.sum(-2, keepdims=True)
    program = ta.posterior("p_<... t> = g_<... bar(i)> E_<i t>", "i")
    np.testing.assert_allclose(ta.compile(program)(g=g, E=E), wanted, atol=1e-12)
    again = ta.grad(program, "g")
    assert ta.compile(again)(g=g, E=E, dposterior=np.ones_like(wanted)).shape == g.shape


@pytest.mark.parametrize(
    ("output", "derivative", "value"),
    [
        ("log(p_n) + log(c_n)", lambda p, c: 1 / p, None),
        ("2 log(p_n) - c_n", lambda p, c: 2 / p, None),
        ("where(c_n > 0, log(p_n), c_n)", lambda p, c: 1 / p, None),
        ("log(p_n) / c_n", lambda p, c: 1 / (p * c), None),
        ("p_n + log(c_n)", lambda p, c: 1 + 0 * p, lambda p, c: p + np.log(c)),
        ("p_n log(c_n)", lambda p, c: np.log(c), lambda p, c: p * np.log(c)),
        ("log(c_n) - p_n", lambda p, c: -1 + 0 * p, lambda p, c: np.log(c) - p),
        ("log(p_n) p_n", lambda p, c: np.log(p) + 1, lambda p, c: p * np.log(p)),
        ("log(p_n) log(p_n)", lambda p, c: 2 * np.log(p) / p, lambda p, c: np.log(p) ** 2),
    ],
)
def test_an_output_is_a_logarithm_where_the_weights_meet_nothing_else(output, derivative, value):
    rng = np.random.default_rng(9)
    g, e, c = rng.normal(size=(2, 5)), rng.uniform(size=(2, 5)), np.array([3.0, 5.0])
    weights = np.exp(g) / np.exp(g).sum(1, keepdims=True)
    p = (weights * e).sum(1)
    wanted = weights * e * derivative(p, c)[:, None] / (1 if value is None else value(p, c)[:, None])
    program = ta.posterior(f"p_n = g_<n bar(i)> e_<n i>\nz_n = {output}", "i")
    given = {name: array for name, array in (("g", g), ("e", e), ("c", c)) if name in program.inputs}
    np.testing.assert_allclose(ta.compile(program)(given), wanted, rtol=1e-10)
