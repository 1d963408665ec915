"""Chained attention against numbers of other programs: mixle 0.8.2, and an independent oracle of the exact step.

`data/chained_attention.npz` holds, under `case/`, inputs (contexts, weights, key tables, emission, σ²) and what mixle
found (densities, weights of the hops, posteriors, statistics, steps of EM); names with `oracle` are not mixle's.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.latent.tables import centred, keys_of, scores_of

latent = ta.latent
DATA = np.load(Path(__file__).parent / "data" / "chained_attention.npz")
CASES = ("perm_L1", "perm_L2", "perm_L3", "general_L2_S5_T3_wts", "general_L4_S6_T4", "single_position_N1")
UNDERFLOWN = "tiny_sigma2_underflow"
FIELDS = ("context_keys", "context_values", "query", "target")


class Case:
    """One case's arrays as attributes, and its model and rows."""

    def __init__(self, name):
        self.name = name
        self.model = latent.ChainedAttentionDistribution(self.keys, self.emission, float(self.sigma2))
        self.rows = [self[field] for field in FIELDS]

    def __getitem__(self, key):
        return DATA[f"{self.name}/{key}"]

    def __getattr__(self, key):
        return self[key]

    def has(self, key):
        return f"{self.name}/{key}" in DATA

    def estimator(self):
        return latent.ChainedAttentionEstimator(
            *self.keys.shape[:2], self.emission.shape[1], sigma2=float(self.sigma2), mstep="moment"
        )


@pytest.fixture(params=CASES)
def case(request):
    return Case(request.param)


def near(found, expected, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=0, atol=atol)


def encoded(rows):
    keys, values, query, target = rows
    items = list(zip(keys, values, query.tolist(), target.tolist(), strict=True))
    return latent.ChainedAttentionDataEncoder().seq_encode(items)


@pytest.mark.parametrize("name", [*CASES, UNDERFLOWN])
def test_densities_attention_and_posteriors(name):
    case = Case(name)
    expected = case["oracle_log_density"]
    near(case.model.seq_log_density(case.rows), expected)
    if name != UNDERFLOWN:
        near(case.model.seq_log_density(case.rows), case.log_density)
    attention, found = case.model.seq_attention(case.rows), case.model.seq_posterior(case.rows)
    near(attention.first, case.gate0)
    near(case.model.predict_proba(*case.rows[:3]), case.predict_proba)
    near(found.log_density, expected)
    if case.has("transitions"):
        near(attention.later, case.transitions)
    if name != UNDERFLOWN:  # where mixle's p is 0 its posterior is none
        near(found.positions, case.gamma)
    if case.has("xi") and name != UNDERFLOWN:
        near(found.pairs, case.xi)


def test_where_mixle_underflows_the_posterior_is_that_of_the_chain():
    case = Case(UNDERFLOWN)
    assert np.isneginf(case.log_density).sum() > np.isneginf(case.oracle_log_density).sum()
    seen = np.isfinite(case.oracle_log_density)
    found = case.model.seq_posterior(case.rows)
    near(found.positions[:, seen].sum(axis=2), 1.0)
    near(found.pairs[0, seen].sum(axis=1), found.positions[1, seen])
    sure = case.log_density > -500
    near(found.positions[:, sure], case.gamma[:, sure])
    near(found.pairs[0, sure], case.xi[0, sure])
    assert np.isnan(found.positions[:, ~seen]).all()


def test_one_weighted_expectation_step_and_the_moment_step(case):
    estimator = case.estimator()
    accumulator = estimator.accumulator_factory().make()
    accumulator.seq_update(encoded(case.rows), case.weights, case.model)
    found = accumulator.value()
    for name in ("key_num", "key_mass", "emission_count", "ll", "n"):
        if case.has(f"stat_{name}"):
            near(getattr(found, name), case[f"stat_{name}"])
            near(getattr(accumulator, name), case[f"stat_{name}"])
    made = estimator.estimate(None, found)
    near(made.keys, case.mstep_keys)
    near(made.key_tables, case.mstep_keys)
    near(made.emission, case.mstep_emission)
    near(made.seq_log_density(case.rows), case.mstep_log_density)


def test_random_responsibilities_are_those_of_the_same_seed(case):
    accumulator = case.estimator().accumulator_factory().make()
    accumulator.seq_initialize(case.rows, None, np.random.RandomState(int(case.init_seed)))
    near(accumulator.key_num, case.init_stat_key_num)
    near(accumulator.emission_count, case.init_stat_emission_count)
    made = case.estimator().estimate(None, accumulator.value())
    near(made.keys, case.init_keys)
    near(made.emission, case.init_emission)


def test_ten_moment_steps(case):
    start = latent.ChainedAttentionDistribution(case.init_keys, case.init_emission, float(case.sigma2))
    model, trajectory = start, []
    for step in range(11):
        accumulator = case.estimator().accumulator_factory().make()
        accumulator.seq_update(case.rows, None, model)
        trajectory.append(accumulator.ll)
        if step < 10:
            model = case.estimator().estimate(None, accumulator.value())
    near(trajectory, case.em_ll)
    near(model.keys, case.em_keys)
    near(model.emission, case.em_emission)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_whole_fit_of_mixle_from_its_start(seed):
    """It ends where a step would lower the likelihood, as the moment step does."""
    case = Case("fit_L2_n2000")
    start = latent.ChainedAttentionDistribution(case[f"init{seed}_keys"], case[f"init{seed}_emission"], 0.1)
    estimator = latent.ChainedAttentionEstimator(2, 8, 8, mstep="moment")
    found = latent.fit(encoded(case.rows), estimator, 50, start=start)
    expected = case[f"fit{seed}_ll"]
    near(found.log_likelihood[:-1], expected)
    assert found.converged
    assert found.log_likelihood[-1] < expected[-1] == pytest.approx(case[f"fit{seed}_final"])
    near(found.model.keys, case[f"fit{seed}_keys"])
    near(found.model.emission, case[f"fit{seed}_emission"])


def test_random_state_draws_what_mixle_draws():
    case = Case("sampler_seed123")
    drawn = case.model.sampler(np.random.RandomState(123)).sample(32)
    for found, expected in zip(zip(*drawn, strict=True), case.rows, strict=True):
        np.testing.assert_array_equal(np.array(found), expected)


@pytest.mark.parametrize("name", CASES)
def test_gradients_of_torch_parameters(name):
    case = Case(name)
    keys, emission = (torch.tensor(case[n], requires_grad=True) for n in ("keys", "emission"))
    model = latent.ChainedAttentionDistribution(keys, emission, float(case.sigma2))
    found = model.seq_log_density(case.rows)
    near(found.detach().numpy(), case.oracle_log_density)
    (found * torch.tensor(case.weights)).sum().backward()
    near(keys.grad.numpy(), case.oracle_grad_keys)
    near(emission.grad.numpy(), case.oracle_grad_emission)


def exact_case(hops):
    """The arrays of the oracle's case, and its rows."""
    given = {k.split(f"L{hops}_")[1]: DATA[k] for k in DATA.files if k.startswith(f"oracle_exact_em/L{hops}_")}
    return given, latent.Rows(*(given[n].astype(np.int64) for n in FIELDS), np.ones((2000, 10), dtype=bool))


@pytest.mark.parametrize(("hops", "optimum"), [(2, -2586), (3, -2681)])
def test_the_optimum_of_the_study_is_reached(hops, optimum):
    given, rows = exact_case(hops)
    estimator = latent.ChainedAttentionEstimator(hops, 8, 8)
    found = latent.fit(rows, estimator, 250, 1e-2, rng=2, accelerate=True)
    np.testing.assert_array_equal(found.model.keys.argmax(axis=2), given["perm"])
    assert found.log_likelihood[-1] == pytest.approx(optimum, abs=4)


@pytest.mark.parametrize("hops", [2, 3])
def test_a_hundred_exact_steps(hops):
    given, rows = exact_case(hops)
    start = latent.ChainedAttentionDistribution.from_affinities(np.log(given["init_affinity"]), given["init_emission"])
    estimator = latent.ChainedAttentionEstimator(hops, 8, 8)
    accumulator = estimator.accumulator_factory().make()
    accumulator.seq_update(rows, None, start)
    first = accumulator.value()
    near(first.key_num.swapaxes(1, 2), given["C0"])
    near(first.emission_count, given["E0"])
    top = start.log_affinity.max(axis=2, keepdims=True)  # D is given for rows with a largest affinity of 1
    D = (first.reach * np.exp(-first.reference)).swapaxes(1, 2) * np.exp(top)
    np.testing.assert_allclose(D, given["D0"], rtol=1e-12)
    found = latent.fit(rows, estimator, 101, delta=None, start=start)
    near(found.log_likelihood[:-1], given["ll"])
    near(found.model.emission, given["final_emission"])
    scores = scores_of(given["final_keys_sigma2_0p1"], 0.1) + 0.5 / 0.1
    rows_of = np.log(np.exp(scores).mean(axis=2, keepdims=True))
    near(found.model.log_affinity, scores - rows_of)
    keys = keys_of(found.model.log_affinity + rows_of, 0.1)
    # the key whose quadratic has a double root carries the square root of a rounding error
    near(keys, given["final_keys_sigma2_0p1"], atol=1e-8)
    near(centred(scores_of(keys, 0.1)), centred(scores))
