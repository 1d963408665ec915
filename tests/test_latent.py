"""Chained attention: probabilities against the sum over all paths, statistics as additive numbers, priors, sampling."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn.latent import counting, linear
from tensorattn.latent.tables import centred, keys_of, scores_of

latent = ta.latent


def random_model(rng, hops=2, symbols=4, targets=3, spread=1.0, sigma2=0.3):
    emission = rng.dirichlet(np.ones(targets), symbols)
    return latent.ChainedAttentionDistribution(spread * rng.normal(size=(hops, symbols, symbols)), emission, sigma2)


def random_rows(rng, symbols=4, targets=3, count=9, least=1, most=5, masked=False):
    """Observations of several lengths; with `masked` each has a mask and rubbish where it is False."""
    rows = []
    for _ in range(count):
        size = int(rng.integers(least, most + 1))
        row = (*rng.integers(0, symbols, (2, size)), int(rng.integers(symbols)), int(rng.integers(targets)))
        if masked:
            keep = rng.permutation(np.arange(size) <= rng.integers(size))
            row = (np.where(keep, row[0], 99), np.where(keep, row[1], -7), *row[2:], keep)
        rows.append(row)
    return rows


def all_paths(model, row):
    """(path, P(path and target)) for every path of positions, by the definition."""
    keys, values, query, target = row[:4]
    places = np.flatnonzero(row[4]) if len(row) > 4 else range(len(keys))
    eye = np.eye(model.num_symbols)
    for path in itertools.product(places, repeat=model.n_hops):
        asked, probability = query, 1.0
        for table, z in zip(model.keys, path, strict=True):
            weights = {i: np.exp(-((eye[asked] - table[keys[i]]) ** 2).sum() / (2 * model.sigma2)) for i in places}
            probability *= weights[z] / sum(weights.values())
            asked = values[z]
        yield path, probability * model.emission[asked, target]


def by_paths(model, rows, weights):
    """ll, C [hop, key, query symbol], E and log p as sums over all paths."""
    C = np.zeros_like(model.keys)
    E = np.zeros_like(model.emission)
    log_p = []
    for row, weight in zip(rows, weights, strict=True):
        keys, values, query, target = row[:4]
        paths = list(all_paths(model, row))
        total = sum(p for _, p in paths)
        log_p.append(np.log(total))
        for path, p in paths:
            asked = query
            for hop, z in enumerate(path):
                C[hop, keys[z], asked] += weight * p / total
                asked = values[z]
            E[asked, target] += weight * p / total
    return np.array(log_p), C, E


def value_of(model, rows, weights=None):
    accumulator = model.estimator().accumulator_factory().make()
    accumulator.seq_update(accumulator.acc_to_encoder().seq_encode(rows), weights, model)
    return accumulator.value()


def same(found, expected, rtol=1e-10):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=rtol, atol=1e-12)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("hops", [1, 2, 3])
@pytest.mark.parametrize("logs", [False, True])
def test_statistics_are_sums_over_all_paths(hops, masked, logs, monkeypatch):
    if logs:
        monkeypatch.setattr(linear, "LEAST_PROBABILITY", 2.0)
    rng = np.random.default_rng(hops)
    model = random_model(rng, hops)
    rows = random_rows(rng, masked=masked)
    weights = rng.random(len(rows))
    log_p, C, E = by_paths(model, rows, weights)
    found = value_of(model, rows, weights)
    same(found[:5], (C, C.sum(axis=2), E, weights @ log_p, weights.sum()))
    encoded = model.dist_to_encoder().seq_encode(rows)
    same([model.seq_log_density(encoded)], [log_p])
    same([[model.log_density(row) for row in rows]], [log_p])
    same([[model.density(row) for row in rows]], [np.exp(log_p)])
    for row in rows[:4]:
        posterior, path = model.posterior(row), model.decode(row)
        paths = list(all_paths(model, row))
        total = sum(p for _, p in paths)
        gamma = np.zeros_like(posterior.positions)
        for places, p in paths:
            gamma[np.arange(hops), list(places)] += p / total
        same([posterior.positions], [gamma])
        best = max(p for _, p in paths)
        assert path.log_density == pytest.approx(np.log(best))
        assert dict(paths)[tuple(path.positions.tolist())] == pytest.approx(best)


@pytest.mark.parametrize("symbols", [40, 3])
def test_reach_is_the_derivative_of_the_normalisers(symbols):
    """∂ Σ w log p / ∂ log W = C − W D, by differences."""
    rng = np.random.default_rng(5)
    model = random_model(rng, 2, symbols)
    rows = random_rows(rng, symbols, count=4, most=4 if symbols == 3 else 2)
    found = value_of(model, rows)
    C, WD = found.key_num, found.reach * np.exp(centred(model.log_affinity).swapaxes(1, 2) - found.reference)
    for hop, (key, asked) in itertools.product(range(2), [(rows[0][0][0], rows[0][2]), (1, 2), (0, 0)]):
        ll = []
        for step in (1e-5, -1e-5):
            moved = model.log_affinity.copy()
            moved[hop, asked, key] += step
            other = latent.ChainedAttentionDistribution.from_affinities(moved, model.emission)
            ll.append(np.sum([other.log_density(row) for row in rows]))
        slope = (ll[0] - ll[1]) / 2e-5
        assert (C - WD)[hop, key, asked] == pytest.approx(slope, abs=1e-7)


def test_shards_add_up_and_ragged_equals_alone():
    rng = np.random.default_rng(0)
    model, rows, weights = random_model(rng, 3), random_rows(rng, count=40), rng.random(40)
    whole = value_of(model, rows, weights)
    parts = [value_of(model, rows[a:b], weights[a:b]) for a, b in ((0, 13), (13, 40))]
    combined = model.estimator().accumulator_factory().make().combine(parts[0]).combine(parts[1]).value()
    one_by_one = model.estimator().accumulator_factory().make()
    for row, weight in zip(rows, weights, strict=True):
        one_by_one.update(row, weight, model)
    same(combined, whole, 1e-12)
    same(one_by_one.value(), whole, 1e-12)
    same(one_by_one.scale(2.5).value()[:6], [2.5 * part for part in whole[:6]], 1e-12)
    again = model.estimator().accumulator_factory().make().from_value(tuple(whole))
    same(again.value(), whole)
    assert again.scale(0).value().ll == 0


def test_chunks_change_nothing(monkeypatch):
    rng = np.random.default_rng(1)
    model, rows = random_model(rng, 2), random_rows(rng, count=30)
    whole = value_of(model, rows)
    monkeypatch.setattr(counting, "CHUNK_ENTRIES", 17)
    same(value_of(model, rows), whole, 1e-12)
    monkeypatch.setattr(counting, "SPARSE", 0)
    same(value_of(model, rows), whole, 1e-12)


def test_statistics_of_several_models_add_up():
    """D is additive whatever the reference it is kept with."""
    rng = np.random.default_rng(2)
    one, other = random_model(rng), random_model(rng)
    first, second = value_of(one, random_rows(rng)), value_of(other, random_rows(rng))
    forth, back = first + second, second + first
    same(forth[:5], back[:5])
    D = [found.reach * np.exp(-found.reference) for found in (forth, back, first, second)]
    same(D[:1], [D[2] + D[3]])
    same(D[1:2], [D[2] + D[3]])


def test_tied_sites_share_their_sum():
    rng = np.random.default_rng(3)
    model = random_model(rng)
    factory = latent.ChainedAttentionAccumulatorFactory(2, 4, 3, keys="shared")
    sites = [factory.make(), factory.make()]
    alone = latent.ChainedAttentionAccumulatorFactory(2, 4, 3).make()
    for site in (*sites, alone):
        site.seq_update(latent.ChainedAttentionDataEncoder().seq_encode(random_rows(rng)), None, model)
    values = [site.value() for site in (*sites, alone)]
    shared = {}
    for site in (*sites, alone):
        site.key_merge(shared)
    for site in (*sites, alone):
        site.key_replace(shared)
    assert list(shared) == ["shared"]
    for site in sites:
        same(site.value(), values[0] + values[1])
    same(alone.value(), values[2])
    models = [model.estimator().estimate(None, site.value()) for site in sites]
    np.testing.assert_array_equal(models[0].log_affinity, models[1].log_affinity)


@pytest.mark.parametrize("sigma2", [1e-3, 1e-5])
def test_finite_for_every_finite_parameter(sigma2):
    rng = np.random.default_rng(4)
    emission = np.where(np.arange(3) == np.arange(4)[:, None] % 3, 1.0, 1e-300)
    model = latent.ChainedAttentionDistribution(3 * rng.normal(size=(3, 4, 4)), emission, sigma2)
    rows = random_rows(rng, count=60)
    encoded = model.dist_to_encoder().seq_encode(rows)
    found = value_of(model, rows)
    assert np.isfinite(model.seq_log_density(encoded)).all()
    assert found.ll == pytest.approx(model.seq_log_density(encoded).sum(), rel=1e-12)
    assert found.ll < -1000
    np.testing.assert_allclose(found.key_mass.sum(axis=1), len(rows))
    assert np.isfinite(found.reach).all()
    for mstep in ("exact", "moment"):
        made = latent.ChainedAttentionEstimator(3, 4, 3, mstep=mstep).estimate(None, found)
        assert np.isfinite(made.seq_log_density(encoded)).all()


def test_minus_infinity_only_where_p_is_zero():
    model = latent.ChainedAttentionDistribution(np.eye(2)[None], np.eye(2), 1e-3)
    assert model.log_density(([0, 1], [0, 1], 0, 1)) == pytest.approx(-1000)
    assert model.log_density(([0, 1], [0, 0], 0, 1)) == -np.inf
    assert np.isnan(model.posterior(([0, 1], [0, 0], 0, 1)).positions).all()
    found = value_of(model, [([0, 1], [0, 0], 0, 1), ([0, 1], [0, 1], 0, 0)])
    assert found.ll == -np.inf
    assert found.n == 2
    assert found.key_num.sum() == pytest.approx(1)  # what cannot be counts nothing


def test_key_tables_of_affinities_have_their_attention():
    rng = np.random.default_rng(6)
    for spread, sigma2 in itertools.product((0.1, 3.0, 40.0), (1e-3, 0.1, 5.0)):
        scores = spread * rng.normal(size=(2, 7, 7))
        keys = keys_of(scores, sigma2)
        size = (1 + np.square(keys).sum(axis=2).max()) / sigma2  # of what cancels in a score
        np.testing.assert_allclose(centred(scores_of(keys, sigma2)), centred(scores), rtol=0, atol=1e-12 * size)


def test_a_prior_of_pseudo_observations():
    rng = np.random.default_rng(7)
    model, rows = random_model(rng), random_rows(rng, count=30)
    found = value_of(model, rows)
    count = 2.0
    estimator = latent.ChainedAttentionEstimator(2, 4, 3, pseudo_count=count, emission_smoothing=0)
    made = estimator.estimate(None, found)
    D = found.reach * np.exp(-found.reference)
    W = ((found.key_num + count / 4) / (D + count / 4)).swapaxes(1, 2)
    np.testing.assert_allclose(np.exp(made.log_affinity), W / W.mean(axis=2, keepdims=True))
    E = found.emission_count + count / 3
    np.testing.assert_allclose(made.emission, E / E.sum(axis=1, keepdims=True))
    strong = estimator.replaced(pseudo_count=1e13).estimate(None, found)
    np.testing.assert_allclose(strong.log_affinity, 0, atol=1e-6)
    np.testing.assert_allclose(strong.emission, 1 / 3, atol=1e-6)


def test_unseen_key_symbols_are_neutral():
    rng = np.random.default_rng(8)
    rows = [
        (k[k != 3], v[k != 3], min(q, 2), t) for k, v, q, t in random_rows(rng, count=60, least=4) if (k != 3).any()
    ]
    rows = [row for row in rows if len(row[0])]
    model = latent.fit(rows, latent.ChainedAttentionEstimator(1, 4, 3), 20, rng=0).model
    np.testing.assert_allclose(model.log_affinity[0, :3, 3], 0, atol=1e-12)  # the mean of a row
    np.testing.assert_allclose(np.exp(model.log_affinity[0, :3, :3]).mean(axis=1), 1)
    np.testing.assert_allclose(model.log_affinity[0, 3], 0, atol=1e-12)  # never asked


def test_predict_proba_broadcasts():
    rng = np.random.default_rng(9)
    model = random_model(rng)
    keys, values = rng.integers(0, 4, (2, 3, 5))
    one = model.predict_proba(keys[0], values[0], 2)
    assert one.shape == (3,)
    assert one.sum() == pytest.approx(1)
    np.testing.assert_allclose(one, [model.density((keys[0], values[0], 2, t)) for t in range(3)])
    many = model.predict_proba(keys, values, [0, 1, 2])
    np.testing.assert_allclose(many[2], model.predict_proba(keys[2], values[2], 2))
    queries = model.predict_proba(keys[0], values[0], [2, 1])
    np.testing.assert_allclose(queries, [one, model.predict_proba(keys[0], values[0], 1)])
    contexts = model.predict_proba(keys, values, 2)
    np.testing.assert_allclose(contexts[0], one)
    masked = model.predict_proba(keys[0], values[0], 2, mask=np.arange(5) < 3)
    np.testing.assert_allclose(masked, model.predict_proba(keys[0, :3], values[0, :3], 2))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_float32_and_torch_are_taken(dtype):
    rng = np.random.default_rng(10)
    keys, emission = rng.normal(size=(2, 4, 4)).astype(dtype), rng.dirichlet(np.ones(3), 4).astype(dtype)
    rows = random_rows(rng)
    plain = latent.ChainedAttentionDistribution(keys, emission, 0.5)
    traced = latent.ChainedAttentionDistribution(torch.from_numpy(keys), torch.from_numpy(emission), 0.5)
    encoded = plain.dist_to_encoder().seq_encode(rows)
    found, expected = traced.seq_log_density(encoded), plain.seq_log_density(encoded)
    assert found.dtype == torch.from_numpy(keys).dtype
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found.numpy(), expected, rtol=tolerance, atol=tolerance)
    predicted = traced.predict_proba(*encoded.context_keys[None, 0], encoded.context_values[0], 1)
    np.testing.assert_allclose(predicted.numpy().sum(), 1, atol=1e-5)
    sums = value_of(plain, rows)
    smaller = tuple(np.asarray(part, dtype) for part in sums)
    made = plain.estimator().estimate(None, smaller)
    np.testing.assert_allclose(made.emission, plain.estimator().estimate(None, sums).emission, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 4), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_json_and_pickle_keep_everything(seed, hops, symbols, targets, fitted):
    rng = np.random.default_rng(seed)
    model = random_model(rng, hops, symbols, targets)
    model.name = "hops"
    if fitted:
        estimator = latent.ChainedAttentionEstimator(hops, symbols, targets, pseudo_count=0.5, keys="k", name="n")
        model = estimator.estimate(None, value_of(model, random_rows(rng, symbols, targets)))
        assert latent.ChainedAttentionEstimator.from_json(estimator.to_json()) == estimator
        assert model.estimator() == estimator
        assert model.estimator(2.0) == estimator.replaced(pseudo_count=2.0)
    for again in (latent.ChainedAttentionDistribution.from_json(model.to_json()), pickle.loads(pickle.dumps(model))):
        np.testing.assert_array_equal(again.log_affinity, model.log_affinity)
        np.testing.assert_array_equal(again.keys, model.keys)
        np.testing.assert_array_equal(again.emission, model.emission)
        assert (again.name, again.sigma2, again.estimator()) == (model.name, model.sigma2, model.estimator())


def test_draws_follow_the_model():
    rng = np.random.default_rng(11)
    model = random_model(rng, 2, 3, 3)
    drawn = model.sampler(seed=0).sample(40_000, length=2)
    rows = [(k.tolist(), v.tolist(), q) for k, v, q, _ in drawn]
    context = ([0, 1], [1, 2], 0)
    targets = [row[3] for row, given in zip(drawn, rows, strict=True) if given == context]
    expected = model.predict_proba(*context)
    shares = np.bincount(targets, minlength=3) / len(targets)
    assert np.abs(shares - expected).max() < 4 * np.sqrt(0.25 / len(targets))
    counts = np.bincount([row[2] for row in drawn], minlength=3) / len(drawn)
    assert np.abs(counts - 1 / 3).max() < 0.01


def test_draws_of_any_length_and_in_parts():
    model = random_model(np.random.default_rng(12))
    keys, values, query, target = model.sampler(1).sample()
    assert keys.shape == values.shape == (6,)
    assert isinstance(query, int)
    assert isinstance(target, int)
    ragged = model.sampler(1).sample(200, length=(2, 4))
    assert {len(row[0]) for row in ragged} == {2, 3, 4}
    assert model.sampler(1).sample(0) == []
    whole = model.sampler(1).sample(5, batched=False)
    parts = model.sampler(1)
    parts = parts.sample(2, batched=False) + parts.sample(3, batched=False)
    assert str(whole) == str(parts)
    assert str(model.sampler(np.random.default_rng(1)).sample(3)) == str(model.sampler(1).sample(3))


def test_a_model_of_several_rows_repeats_those_of_one():
    model = random_model(np.random.default_rng(13), 2)
    rows = random_rows(np.random.default_rng(14), least=5)
    encoded = model.dist_to_encoder().seq_encode(rows)
    for whole, one in (
        (model.seq_posterior(encoded), model.posterior(rows[3])),
        (model.seq_attention(encoded), model.attention(rows[3])),
    ):
        same([whole[0][..., 3, :], whole[1][:, 3]], one[:2]) if len(whole) == 3 else same(
            [whole[0][3], whole[1][:, 3]], one
        )
    np.testing.assert_array_equal(model.seq_decode(encoded).positions[3], model.decode(rows[3]).positions)
    assert model.dist_to_encoder() == latent.ChainedAttentionDataEncoder()
    assert len({hash(model.dist_to_encoder()), hash(latent.ChainedAttentionDataEncoder())}) == 1
    assert "L=2, S=4, T=3" in repr(model)


@pytest.mark.parametrize("sigma2", [0.1, 1e-4])
def test_json_changes_no_digit_of_a_fitted_model(sigma2):
    rng = np.random.default_rng(11)
    keys, emission = rng.normal(size=(3, 5, 5)), rng.dirichlet(np.ones(4), size=5)
    start = latent.ChainedAttentionDistribution(keys, emission, sigma2)
    rows = start.sampler(0).sample(40, length=(1, 7))
    model = latent.fit(rows, start.estimator(), 10, start=start).model
    assert model.keys.shape == (3, 5, 5)  # looking at them must not change what is written
    read = type(model).from_json(model.to_json())
    np.testing.assert_array_equal(read.log_affinity, model.log_affinity)
    np.testing.assert_array_equal(read.keys, model.keys)
    np.testing.assert_array_equal(read.emission, model.emission)
    assert (read.estimator(), read.to_json()) == (model.estimator(), model.to_json())


@pytest.mark.parametrize("sigma2", [1e-6, 0.1, 10.0, 1e6])
def test_key_tables_have_the_attention_at_any_sigma2(sigma2):
    affinity = 5 * np.random.default_rng(12).normal(size=(2, 7, 7))
    made = latent.ChainedAttentionDistribution.from_affinities(affinity, np.full((7, 3), 1 / 3), sigma2)
    read = latent.ChainedAttentionDistribution(made.keys, made.emission, sigma2)
    np.testing.assert_allclose(read.log_affinity, made.log_affinity, atol=1e-6)


def test_key_tables_that_overflow_are_refused():
    made = latent.ChainedAttentionDistribution.from_affinities(np.eye(3)[None], np.eye(3), 1e300)
    with pytest.raises(latent.ValueRefusedError, match="overflow at sigma2 1e\\+300"):
        made.keys  # noqa: B018
