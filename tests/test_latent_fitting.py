"""Fits of chained attention: the likelihood never falls, the truth is found, and all ways to the statistics agree."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tests.latent_processes import shards
from tests.latent_study import recall, study

latent = ta.latent


def falls(objective):
    """How far the objective ever falls, relative to its size."""
    return max(0.0, -np.diff(objective).min(initial=0.0)) / max(1.0, np.abs(objective).max())


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1), hops=st.integers(1, 4), symbols=st.integers(1, 6), targets=st.integers(1, 4),
    length=st.integers(1, 7), count=st.integers(1, 30), pseudo=st.sampled_from([None, 0.0, 0.3, 20.0]),
    smoothing=st.sampled_from([0.0, 1e-4, 1.0]), sigma2=st.sampled_from([1e-3, 0.1, 10.0]), accelerate=st.booleans(),
)  # fmt: skip
def test_the_exact_objective_never_falls(
    seed, hops, symbols, targets, length, count, pseudo, smoothing, sigma2, accelerate
):
    rng = np.random.default_rng(seed)
    keep = rng.random((count, length)) < 0.7
    keep[:, 0] = True
    rows = latent.Rows(
        rng.integers(0, symbols, keep.shape), rng.integers(0, symbols, keep.shape), rng.integers(0, symbols, count),
        rng.integers(0, targets, count), keep,
    )  # fmt: skip
    estimator = latent.ChainedAttentionEstimator(
        hops, symbols, targets, pseudo_count=pseudo, emission_smoothing=smoothing, sigma2=sigma2
    )
    keys, emission = rng.normal(size=(hops, symbols, symbols)), rng.dirichlet(np.ones(targets), symbols)
    start = latent.ChainedAttentionDistribution(keys, emission, sigma2)
    weights = rng.random(count) * (rng.random(count) < 0.8)
    found = latent.fit(rows, estimator, 25, None, weights=weights, start=start, accelerate=accelerate)
    assert falls(found.objective) < 1e-11
    assert found.evaluations <= 26
    assert np.isfinite(found.model.log_affinity).all()


@pytest.mark.parametrize("hops", [1, 2, 3, 4])
def test_the_exact_objective_never_falls_on_the_study(hops):
    for seed in range(3):
        rows, _ = study(hops, seed, count=300)
        found = latent.fit(rows, latent.ChainedAttentionEstimator(hops, 8, 8), 60, None, rng=seed)
        assert falls(found.objective) < 1e-13
        assert found.objective[-1] > found.objective[0] + 20


@pytest.mark.parametrize("hops", [1, 2, 3])
def test_keys_are_found_from_random_starts(hops):
    """The quick form of `python -m tests.latent_study`, which takes five starts of plain EM."""
    rows, permutations = study(hops)
    estimator = latent.ChainedAttentionEstimator(hops, 8, 8)
    found = latent.fit(rows, estimator, 200, 1e-2, rng=1, accelerate=True)
    np.testing.assert_array_equal(found.model.keys.argmax(axis=2), permutations)


@pytest.mark.parametrize("hops", [1, 3, 6])
def test_recall_is_solved(hops):
    rng = np.random.default_rng(hops)
    rows, others = recall(hops, 2000, rng), recall(hops, 1000, rng)
    found = latent.fit(rows, latent.ChainedAttentionEstimator(hops, 8, 8), 200, 1e-2, rng=0, accelerate=True)
    probabilities = found.model.predict_proba(*list(others)[:3])
    assert (probabilities.argmax(axis=1) == others.target).all()


def test_acceleration_gets_further_in_as_many_steps():
    rows, _ = study(3, count=500)
    estimator = latent.ChainedAttentionEstimator(3, 8, 8)
    plain, fast = (latent.fit(rows, estimator, 60, None, rng=3, accelerate=a) for a in (False, True))
    assert plain.evaluations == fast.evaluations == 61
    assert fast.objective[-1] > plain.objective[-1] + 10
    assert falls(fast.objective) == 0


def test_on_step_hears_of_every_step_and_the_tolerance_stops():
    rows, _ = study(1, count=200)
    estimator = latent.ChainedAttentionEstimator(1, 8, 8)
    heard = []
    found = latent.fit(
        rows, estimator, 500, 0.5, rng=0, on_step=lambda step, log_likelihood: heard.append((step, log_likelihood))
    )
    assert heard == list(enumerate(found.log_likelihood))
    assert found.converged
    assert found.steps == len(heard) - 1 < 500
    assert found.objective[-1] - found.objective[-2] < 0.5 <= found.objective[-2] - found.objective[-3]
    assert found.log_likelihood[-1] == pytest.approx(found.model.seq_log_density(rows).sum(), rel=1e-12)
    none = latent.fit(rows, estimator, 0, rng=0)
    assert none.steps == 0
    assert not none.converged


def test_restarts_keep_the_best():
    rows, _ = study(2, count=200)
    estimator = latent.ChainedAttentionEstimator(2, 8, 8)
    ends = []
    rng = np.random.default_rng(5)
    for _ in range(4):
        ends.append(latent.fit(rows, estimator, 15, rng=rng).objective[-1])
    found = latent.fit(rows, estimator, 15, rng=5, restarts=4)
    assert found.objective[-1] == max(ends)
    assert min(ends) < max(ends)


def test_rows_held_out_choose_the_model():
    """With few rows the likelihood rises on and on, and that of other rows turns."""
    rows, _ = study(2, count=60)
    others, _ = study(2, count=500)
    estimator = latent.ChainedAttentionEstimator(2, 8, 8)
    found = latent.fit(rows, estimator, 400, None, rng=0, held_out=others, patience=5)
    assert found.steps < 400
    best = int(np.argmax(found.held_out))
    assert found.steps == best + 5
    assert found.model.seq_log_density(others).mean() == pytest.approx(found.held_out[best], rel=1e-12)
    assert len(found.held_out) == len(found.log_likelihood)


def test_batches_and_a_stream_learn():
    rows, permutations = study(1, count=1500)
    estimator = latent.ChainedAttentionEstimator(1, 8, 8)
    found = latent.fit(rows, estimator, 6, rng=0, batch_size=100)
    np.testing.assert_array_equal(found.model.keys.argmax(axis=2), permutations)
    full = latent.fit(rows, estimator, 60, rng=0)
    assert found.model.seq_log_density(rows).sum() > full.log_likelihood[0] + 0.9 * np.ptp(full.log_likelihood)

    stream = latent.Stream(estimator, rng=0)
    means = [stream.update(rows.take(slice(at, at + 100))) for at in range(0, 1500, 100)]
    assert np.mean(means[-3:]) > np.mean(means[:3]) + 0.5
    assert (stream.steps, stream.seen) == (15, 1500)


def test_batches_without_weight_and_in_one_process_of_a_group():
    rows, _ = study(1, count=60)
    estimator = latent.ChainedAttentionEstimator(1, 8, 8)
    weights = np.where(np.arange(60) < 20, 1.0, 0.0)
    options = dict(rng=3, batch_size=7, weights=weights, restarts=2)
    one, same = (latent.fit(rows, estimator, 4, reduce=reduce, **options) for reduce in (None, lambda sums: sums))
    assert one.log_likelihood == same.log_likelihood
    assert np.isfinite(one.log_likelihood).all()
    nothing = latent.fit(rows, estimator, 2, None, rng=0, batch_size=50, weights=np.zeros(60))
    assert nothing.log_likelihood == (0, 0, 0)


def test_a_model_is_made_although_an_observation_cannot_be():
    """With an emission of 0 that stays 0 the log-likelihood is −∞ at every step; the rest is learned all the same."""
    rows = [([0, 1], [0, 0], 0, 1)] + [([0, 1], [0, 1], 1, 1), ([0, 1], [0, 1], 0, 0)] * 20
    start = latent.ChainedAttentionDistribution.from_affinities(np.zeros((1, 2, 2)), np.eye(2))
    estimator = latent.ChainedAttentionEstimator(1, 2, 2, emission_smoothing=0)
    found = latent.fit(rows, estimator, 20, None, start=start)
    assert set(found.log_likelihood) == {-np.inf}
    np.testing.assert_array_equal(found.model.log_affinity[0].argmax(axis=1), [0, 1])


def test_a_stream_of_one_batch_is_a_step():
    rows, _ = study(2, count=100)
    estimator = latent.ChainedAttentionEstimator(2, 8, 8, pseudo_count=1.0)
    stream = latent.Stream(estimator, rng=7)
    assert stream.update(rows) * 100 == pytest.approx(latent.fit(rows, estimator, 1, rng=7).log_likelihood[0])
    one = latent.fit(rows, estimator, 1, rng=7).model
    np.testing.assert_allclose(stream.model.log_affinity, one.log_affinity, atol=1e-12)
    np.testing.assert_allclose(stream.model.emission, one.emission, atol=1e-14)


def test_the_moment_step_ends_where_it_falls_and_returns_the_best():
    rows, _ = study(2)
    estimator = latent.ChainedAttentionEstimator(2, 8, 8, mstep="moment")
    found = latent.fit(rows, estimator, 100, rng=0)
    assert found.converged
    assert found.log_likelihood[-1] < found.log_likelihood[-2] == found.model.seq_log_density(rows).sum()


def test_the_bar_is_drawn_on_a_terminal_and_when_asked(monkeypatch):
    rows, _ = study(1, count=50)
    estimator = latent.ChainedAttentionEstimator(1, 8, 8)
    for progress, terminal, drawn in ((True, False, True), (None, False, False), (False, True, False)):
        written = io.StringIO()
        written.isatty = lambda terminal=terminal: terminal
        monkeypatch.setattr(sys, "stderr", written)
        latent.fit(rows, estimator, 3, rng=0, progress=progress)
        monkeypatch.undo()
        assert ("log-likelihood" in written.getvalue()) == drawn


def test_four_processes_fit_what_one_fits():
    rows, _ = study(2, count=203)
    estimator = latent.ChainedAttentionEstimator(2, 8, 8)
    one = latent.fit(rows, estimator, 30, rng=11, accelerate=True)
    found = shards(rows, processes=4)
    for log_likelihood, affinity, emission in found:
        np.testing.assert_allclose(log_likelihood, one.log_likelihood, rtol=1e-10)
        np.testing.assert_allclose(affinity, one.model.log_affinity, atol=1e-10)
        np.testing.assert_allclose(emission, one.model.emission, atol=1e-10)


def test_processes_with_different_starts_are_refused():
    calls = []

    def apart(vector):  # another process holds something else
        calls.append(vector)
        return 2 * vector if len(vector) == 1 else 2 * vector + 0.1

    rows, _ = study(1, count=20)
    with pytest.raises(ta.TensorattnError) as caught:
        latent.fit(rows, latent.ChainedAttentionEstimator(1, 8, 8), 3, rng=0, reduce=apart)
    assert caught.value.code == "E-VALUE"
    assert "the same seed" in str(caught.value)
    assert len(calls) == 3
