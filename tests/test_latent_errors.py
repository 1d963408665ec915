"""Wrong input to chained attention: the code, the words, and that nothing has changed."""

from __future__ import annotations

import numpy as np
import pytest

import tensorattn as ta

latent = ta.latent
GOOD = ([0, 1, 2], [1, 2, 3], 0, 1)
NAN, INF = float("nan"), float("inf")


@pytest.fixture
def model():
    return latent.ChainedAttentionDistribution(np.eye(4)[[[1, 2, 3, 0]] * 2], np.full((4, 3), 1 / 3))


ROWS = [
    ([], "E-EMPTY", "there are no observations"),
    ([GOOD, ([], [], 0, 1)], "E-EMPTY", "observation 1 has no position that counts"),
    ([(*GOOD, [False, False, False])], "E-EMPTY", "observation 0 has no position that counts"),
    ([([0, 4], [1, 1], 0, 1)], "E-RANGE", "`context_keys` at [0, 1] is 4, which is no symbol"),
    ([([0, 1], [1, -1], 0, 1)], "E-RANGE", "`context_values of observation 0` at [1] is -1"),
    ([([0, 1], [1, 1], 7, 1)], "E-RANGE", "`query` at [0] is 7"),
    ([([0, 1], [1, 1], 0, 3)], "E-RANGE", "symbols are 0 … 2"),
    ([([0, 1], [1, 1], -1, 1)], "E-RANGE", "`query of observation 0` is -1"),
    ([([0, 1], [1, 1], True, 1)], "E-DTYPE", "`query of observation 0` holds booleans, no integers"),
    ([([0, 1], [True, False], 0, 1)], "E-DTYPE", "`context_values of observation 0` holds booleans"),
    ([([0.0, 1.0], [1, 1], 0, 1)], "E-DTYPE", "holds float64 values, no integers"),
    ([([0, 1], [1, 1], 0.5, 1)], "E-DTYPE", "no integers"),
    ([([0, 1], [1, 1], NAN, 1)], "E-DTYPE", "no integers"),
    ([("ab", [1, 1], 0, 1)], "E-DTYPE", "no integers"),
    ([([0, 1], [1], 0, 1)], "E-EXTENT", "keys, values and mask of observation 0 are not of one length"),
    ([([[0], [1]], [1, 1], 0, 1)], "E-EXTENT", "context_keys: (2, 1)"),
    ([([[0], [1, 2]], [1, 1], 0, 1)], "E-RANK", "rows of several lengths"),
    ([([0, 1], [1, 1], [0], 1)], "E-RANK", "`query of observation 0` has shape (1,)"),
    ([([0, 1], [1, 1], 0)], "E-RANK", "observation 0 is tuple of length 3"),
    ([7], "E-RANK", "observation 0 is int, not (context_keys"),
    ([(*GOOD, [1, 0, 1])], "E-DTYPE", "`mask of observation 0` holds int64, no booleans"),
    ([(*GOOD, [True])], "E-EXTENT", "not of one length"),
]


def checked(action, code, words):
    with pytest.raises(ta.TensorattnError) as caught:
        action()
    assert caught.value.code == code
    assert words in str(caught.value)
    assert caught.value.hint


@pytest.mark.parametrize(("rows", "code", "words"), ROWS)
def test_wrong_observations(model, rows, code, words):
    estimator = model.estimator()
    accumulator = estimator.accumulator_factory().make()
    accumulator.update(GOOD, 2.0, model)
    before = accumulator.value()
    encode = accumulator.acc_to_encoder().seq_encode
    checked(lambda: accumulator.seq_update(encode(rows), None, model), code, words)
    checked(lambda: accumulator.seq_initialize(encode(rows), None, np.random.default_rng(0)), code, words)
    checked(lambda: latent.fit(rows, estimator, 2), code, words)
    checked(lambda: latent.fit([GOOD], estimator, 2, held_out=rows), code, words)
    stream = latent.Stream(estimator, start=model)
    checked(lambda: stream.update(rows), code, words)
    assert (stream.model, stream.seen) == (model, 0)
    if len(rows) == 1:
        for call in (model.log_density, model.density, model.posterior, model.attention, model.decode):
            checked(lambda call=call: call(rows[0]), code, words)
        checked(lambda: accumulator.update(rows[0], 1.0, model), code, words)
        checked(lambda: accumulator.initialize(rows[0], 1.0, np.random.default_rng(0)), code, words)
    for now, then in zip(accumulator.value(), before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.parametrize(
    ("arrays", "code", "words"),
    [
        (([[0, 1]], [[0, 1]], [0]), "E-RANK", "are four arrays"),
        ("text", "E-DTYPE", "no integers"),
        (np.zeros((4, 3)), "E-RANK", "are four arrays"),
        (([[0, 4]], [[0, 1]], [0], [0]), "E-RANGE", "`context_keys` at [0, 1] is 4"),
        (([[0, 1]], [[0, -1]], [0], [0]), "E-RANGE", "`context_values` at [0, 1] is -1"),
        (([[0, 1]], [[0, 1]], [0], [3]), "E-RANGE", "`target` at [0] is 3"),
        (([[0, 1]], [[0, 1]], [0, 1], [0]), "E-EXTENT", "query: (2,)"),
        (([[0, 1]], [[0]], [0], [0]), "E-EXTENT", "context_values: (1, 1)"),
        (([0, 1], [0, 1], 0, 0), "E-RANK", "no right number of axes"),
        ((np.zeros((0, 2), int), np.zeros((0, 2), int), [], []), "E-EMPTY", "there are no observations"),
        (([[0]], [[0]], [0], [0], [[False]]), "E-EMPTY", "no position that counts"),
        (([[0]], [[0]], [0], [0], [[0]]), "E-DTYPE", "no booleans"),
    ],
)
def test_wrong_encoded_arrays(model, arrays, code, words):
    accumulator = model.estimator().accumulator_factory().make()
    for call in (model.seq_log_density, model.seq_posterior, model.seq_attention, model.seq_decode):
        checked(lambda call=call: call(arrays), code, words)
    checked(lambda: accumulator.seq_update(arrays, None, model), code, words)
    assert accumulator.n == 0


@pytest.mark.parametrize(
    ("weights", "code", "words"),
    [
        ([NAN], "E-VALUE", "`weights` holds NaN or an infinity"),
        ([INF], "E-VALUE", "`weights` holds NaN or an infinity"),
        ([-1.0], "E-VALUE", "`weights` holds negative numbers"),
        ([1.0, 2.0], "E-EXTENT", "`weights` has shape (2,), not (1)"),
        (1.0, "E-EXTENT", "`weights` has shape ()"),
        ([True], "E-DTYPE", "`weights` holds bool values"),
        (["1"], "E-DTYPE", "no real numbers"),
    ],
)
def test_wrong_weights(model, weights, code, words):
    accumulator = model.estimator().accumulator_factory().make()
    rows = accumulator.acc_to_encoder().seq_encode([GOOD])
    checked(lambda: accumulator.seq_update(rows, weights, model), code, words)
    checked(lambda: accumulator.seq_initialize(rows, weights, np.random.default_rng(0)), code, words)
    checked(lambda: latent.fit(rows, model.estimator(), 2, weights=weights), code, words)
    checked(lambda: latent.Stream(model.estimator(), rng=0).update(rows, weights), code, words)
    assert accumulator.n == 0


EYE, FLAT = np.eye(4)[None], np.full((4, 3), 1 / 3)


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ((EYE[0], FLAT), "E-EXTENT", "`keys` has shape (4, 4)"),
        ((EYE[:, :3], FLAT), "E-EXTENT", "`keys` has shape (1, 3, 4)"),
        ((EYE[:0], FLAT), "E-EXTENT", "`keys` has shape (0, 4, 4)"),
        ((EYE * NAN, FLAT), "E-VALUE", "`keys` holds NaN"),
        ((EYE * 1e200, FLAT), "E-VALUE", "the scores of `keys` overflow"),
        ((EYE * 1j, FLAT), "E-DTYPE", "`keys` holds complex128 values"),
        ((EYE, FLAT[:3]), "E-EXTENT", "`emission` has shape (3, 3), not (4, any)"),
        ((EYE, FLAT * 2), "E-VALUE", "the rows of `emission` are no probabilities"),
        ((EYE, FLAT[:, :0]), "E-EMPTY", "`emission` has no targets"),
        ((EYE, np.stack([FLAT[:, 0], -FLAT[:, 1], 1 + 0 * FLAT[:, 2]], axis=1)), "E-VALUE", "no probabilities"),
        ((EYE, FLAT, 0.0), "E-VALUE", "`sigma2` is 0"),
        ((EYE, FLAT, -1.0), "E-VALUE", "`sigma2` is -1"),
        ((EYE, FLAT, NAN), "E-VALUE", "`sigma2` holds NaN"),
        ((EYE, FLAT, "1"), "E-DTYPE", "`sigma2` holds"),
    ],
)
def test_wrong_parameters(arguments, code, words):
    checked(lambda: latent.ChainedAttentionDistribution(*arguments), code, words)


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        (lambda: latent.ChainedAttentionEstimator(0, 4, 3), "E-VALUE", "`n_hops` is 0"),
        (lambda: latent.ChainedAttentionEstimator(True, 4, 3), "E-DTYPE", "`n_hops` is True"),
        (lambda: latent.ChainedAttentionEstimator(1, 4.0, 3), "E-DTYPE", "`num_symbols` is 4.0"),
        (lambda: latent.ChainedAttentionEstimator(1, 4, 3, mstep="em"), "E-VALUE", "`mstep` is 'em'"),
        (lambda: latent.ChainedAttentionEstimator(1, 4, 3, pseudo_count=-1), "E-VALUE", "`pseudo_count` is -1"),
        (lambda: latent.ChainedAttentionEstimator(1, 4, 3, emission_smoothing=NAN), "E-VALUE", "holds NaN"),
        (lambda: latent.ChainedAttentionAccumulator(1, -4, 3), "E-VALUE", "`num_symbols` is -4"),
        (lambda: latent.ChainedAttentionAccumulatorFactory(1, 4, 0), "E-VALUE", "`num_targets` is 0"),
        (lambda: latent.ChainedAttentionDistribution.from_affinities(EYE[0], FLAT), "E-EXTENT", "not (any, any, any)"),
        (lambda: latent.ChainedAttentionDistribution.from_affinities(EYE[:, :3], FLAT), "E-EXTENT", "(1, 3, 4)"),
        (lambda: latent.ChainedAttentionDistribution.from_json("{"), "E-VALUE", "the text is no JSON"),
        (lambda: latent.ChainedAttentionDistribution.from_json("{}"), "E-VALUE", "is no ChainedAttentionDistribution"),
        (lambda: latent.ChainedAttentionEstimator.from_json("[1]"), "E-VALUE", "is no ChainedAttentionEstimator"),
        (lambda: latent.Stream(latent.ChainedAttentionEstimator(1, 4, 3), decay=0.5), "E-VALUE", "`decay` is 0.5"),
        (lambda: latent.Stream(latent.ChainedAttentionEstimator(1, 4, 3), decay=2), "E-VALUE", "`decay` is 2"),
    ],
)
def test_wrong_settings(call, code, words):
    checked(call, code, words)


def test_json_with_parts_missing_or_changed(model):
    text = model.to_json()
    checked(lambda: type(model).from_json(text.replace('"emission"', '"other"')), "E-VALUE", "has no 'emission'")
    checked(lambda: type(model).from_json(text.replace('"keys": [[[0.0', '"keys": [[["a"')), "E-DTYPE", "`keys`")
    made = model.estimator()
    checked(lambda: type(made).from_json(made.to_json().replace("n_hops", "hops")), "E-VALUE", "other settings")
    fitted = latent.fit([GOOD], made, 1, rng=0).model.to_json()
    checked(lambda: type(model).from_json(fitted.replace("n_hops", "hops")), "E-VALUE", "other settings")


def test_wrong_statistics(model):
    accumulator = model.estimator().accumulator_factory().make()
    accumulator.update(GOOD, 1.0, model)
    good = accumulator.value()
    other = latent.ChainedAttentionAccumulator(1, 4, 3).value()
    for action in (accumulator.combine, accumulator.from_value):
        checked(lambda action=action: action(other), "E-EXTENT", "`key_num` has shape (1, 4, 4), not (2, 4, 4)")
        checked(lambda action=action: action(None), "E-RANK", "statistics are what `value()` returns")
        checked(lambda action=action: action(good._replace(n=NAN)), "E-VALUE", "`n` holds NaN")
        checked(lambda action=action: action(good._replace(key_num=-good.key_num)), "E-VALUE", "negative")
    checked(lambda: accumulator.scale(-1.0), "E-VALUE", "`c` is -1")
    checked(lambda: model.estimator().estimate(None, good[:5]), "E-VALUE", "lack `reach`")
    smaller = latent.ChainedAttentionEstimator(1, 4, 3)
    checked(lambda: smaller.estimate(None, good), "E-EXTENT", "`key_num`")
    wrong = smaller.accumulator_factory().make()
    rows = wrong.acc_to_encoder().seq_encode([GOOD])
    checked(lambda: wrong.seq_update(rows, None, model), "E-EXTENT", "different sizes")
    for now, then in zip(accumulator.value(), good, strict=True):
        np.testing.assert_array_equal(now, then)
    moment = model.estimator().replaced(mstep="moment")
    np.testing.assert_array_equal(moment.estimate(None, good[:5]).keys, moment.estimate(None, good).keys)


def test_wrong_ways_to_fit(model):
    estimator = model.estimator()
    moment = estimator.replaced(mstep="moment")
    for words, asked, options in (
        ("`start` has (L, S, T) = (2, 4, 3), not (1, 4, 3)", estimator.replaced(n_hops=1), {"start": model}),
        ("both given", estimator, {"start": model, "restarts": 2}),
        ("cannot be accelerated", moment, {"accelerate": True}),
        ("both given", estimator, {"accelerate": True, "batch_size": 3}),
        ("`restarts` is 0", estimator, {"restarts": 0}),
        ("`batch_size` is 0", estimator, {"batch_size": 0}),
        ("`max_its` is -1", estimator, {"max_its": -1}),
        ("`delta` holds NaN", estimator, {"delta": NAN}),
    ):
        checked(lambda asked=asked, options=options: latent.fit([GOOD], asked, **options), "E-VALUE", words)


def test_wrong_draws(model):
    sampler = model.sampler(0)
    state = sampler.rng.bit_generator.state
    checked(lambda: sampler.sample(-1), "E-VALUE", "`size` is -1")
    checked(lambda: sampler.sample(2.5), "E-DTYPE", "`size` is 2.5")
    checked(lambda: sampler.sample(2, length=0), "E-VALUE", "`length` is 0")
    checked(lambda: sampler.sample(2, length=(4, 3)), "E-VALUE", "`length` is 3")
    assert sampler.rng.bit_generator.state == state


def test_wrong_predictions(model):
    checked(lambda: model.predict_proba([0, 1], [1, 2], -1), "E-RANGE", "`query` at [0] is -1")
    checked(lambda: model.predict_proba([0, 9], [1, 2], 1), "E-RANGE", "`context_keys` at [0, 1] is 9")
    checked(lambda: model.predict_proba([0, 1], [1, 2, 3], 1), "E-EXTENT", "do not go together")
    checked(lambda: model.predict_proba([[0, 1]] * 3, [1, 2], [1, 2]), "E-EXTENT", "do not go together")
    checked(lambda: model.predict_proba([], [], 1), "E-EMPTY", "no position that counts")
    checked(lambda: model.predict_proba([0, 1], [1, 2], True), "E-DTYPE", "`query` holds booleans")
    checked(lambda: model.predict_proba([0, 1], [1, 2], [[1]]), "E-RANK", "too many axes")


def made_rows(keys=((0, 1),), values=((1, 1),), query=(0,), target=(1,), keep=((True, True),)):
    return latent.Rows(*map(np.array, (keys, values, query, target, keep)))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"keys": [[-1, 0]]}, "E-RANGE"),
        ({"values": [[0, -1]]}, "E-RANGE"),
        ({"target": [-1]}, "E-RANGE"),
        ({"keys": [[0.0, 1.0]]}, "E-DTYPE"),
        ({"keep": [[1, 1]]}, "E-DTYPE"),
        ({"keep": [[False, False]]}, "E-EMPTY"),
        ({"query": [0, 1]}, "E-EXTENT"),
        ({"keep": [[True]]}, "E-EXTENT"),
    ],
)
def test_rows_made_by_hand_are_checked_too(model, changes, code):
    rows = made_rows(**changes)
    accumulator = model.estimator().accumulator_factory().make()
    for call in (
        model.seq_log_density,
        model.seq_posterior,
        model.seq_decode,
        lambda x: accumulator.seq_update(x, None, model),
        lambda x: latent.fit(x, model.estimator(), 2),
        latent.Stream(model.estimator(), start=model).update,
    ):
        checked(lambda call=call: call(rows), code, "")
    assert accumulator.n == 0


def test_the_parts_of_padded_rows_do_not_pass_for_whole_ones(model):
    encoded = model.dist_to_encoder().seq_encode([GOOD, ([0], [1], 0, 1)])
    keys, values, query, target = encoded
    checked(lambda: model.seq_log_density((keys, values, query, target)), "E-RANGE", "`context_keys` at [1, 1] is -1")
    given = model.seq_log_density((keys, values, query, target, encoded.keep))
    np.testing.assert_array_equal(given, model.seq_log_density(encoded))


@pytest.mark.parametrize("given", [None, 7, 2.5])
def test_observations_that_are_none(model, given):
    checked(lambda: latent.fit(given, model.estimator(), 2), "E-RANK", "observations are")
    checked(lambda: model.dist_to_encoder().seq_encode(given), "E-RANK", "observations are")


def test_arguments_of_other_classes(model):
    estimator = model.estimator()
    accumulator = estimator.accumulator_factory().make()
    rows = model.dist_to_encoder().seq_encode([GOOD])
    for given in (None, model, "x"):
        checked(lambda given=given: latent.fit([GOOD], given, 2), "E-DTYPE", "no ChainedAttentionEstimator")
        checked(lambda given=given: latent.Stream(given), "E-DTYPE", "no ChainedAttentionEstimator")
    checked(lambda: latent.fit([GOOD], estimator, 2, start=estimator), "E-DTYPE", "`start` is")
    checked(lambda: latent.Stream(estimator, start=estimator), "E-DTYPE", "`start` is")
    checked(lambda: accumulator.seq_update(rows, None, estimator), "E-DTYPE", "`estimate` is")
    assert accumulator.n == 0


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_wrong_seeds(model, seed):
    estimator = model.estimator()
    accumulator = estimator.accumulator_factory().make()
    rows = model.dist_to_encoder().seq_encode([GOOD])
    for call in (
        lambda: latent.fit([GOOD], estimator, 2, rng=seed),
        lambda: latent.Stream(estimator, rng=seed),
        lambda: estimator.random(seed),
        lambda: model.sampler(seed),
        lambda: accumulator.seq_initialize(rows, None, seed),
    ):
        checked(call, "E-VALUE", "is no seed")
    assert accumulator.n == 0


def test_statistics_without_reach_make_sums_without_it(model):
    estimator = model.estimator()
    accumulator = estimator.accumulator_factory().make()
    accumulator.update(GOOD, 1.0, model)
    whole = accumulator.value()
    for first, second in ((whole, whole[:5]), (whole[:5], whole)):
        both = estimator.accumulator_factory().make().combine(first).combine(second)
        assert both.n == 2
        checked(lambda both=both: estimator.estimate(None, both.value()), "E-VALUE", "lack `reach`")
    empty = estimator.accumulator_factory().make().value()[:5]
    estimator.estimate(None, accumulator.combine(empty).value())


def test_positions_are_not_broadcast(model):
    checked(lambda: model.predict_proba([0], [1, 2, 3], 0), "E-EXTENT", "do not go together")
    checked(lambda: model.predict_proba([0, 1], [1, 2], 0, mask=[True]), "E-EXTENT", "do not go together")
    checked(lambda: model.predict_proba(0, 1, 0), "E-RANK", "positions")
    checked(lambda: model.sampler(0).sample(2, length=(1, 2, 3)), "E-DTYPE", "`length` is (1, 2, 3)")


def test_pictures_look_at_no_position_that_a_mask_leaves_out(model):
    from tensorattn.latent.drawing import attention_panels, key_panels

    masked = ([0, 2, 9], [2, 3, -1], 0, 2, [True, True, False])
    assert attention_panels(model, masked)[0].columns == ("0→2", "2→3", "–")
    checked(lambda: attention_panels(model, GOOD, ["a", "b"]), "E-VALUE", "2 names for 4 symbols")
    checked(lambda: key_panels(model, "abcde"), "E-VALUE", "5 names for 4 symbols")


def test_no_path_where_the_target_cannot_be():
    copy = latent.ChainedAttentionDistribution(np.eye(4)[[range(4)] * 2], np.eye(4))
    found = copy.decode(([0, 1, 2], [0, 1, 2], 0, 3, [False, True, True]))
    assert (found.positions.tolist(), found.log_density) == ([-1, -1], -INF)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_parameters_of_few_digits_survive_json(dtype):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    kind = getattr(torch, dtype)
    keys = torch.tensor(rng.normal(size=(2, 4, 4))).to(kind)
    emission = torch.tensor(rng.dirichlet(np.ones(3), size=4)).to(kind)
    model = latent.ChainedAttentionDistribution(keys, emission)
    np.testing.assert_allclose(model.emission.sum(axis=1), 1, rtol=1e-15)
    read = type(model).from_json(model.to_json())
    np.testing.assert_array_equal(read.emission, model.emission)
    tolerance = {"float32": 1e-4}.get(dtype, 0.3)
    np.testing.assert_allclose(float(model.log_density(GOOD)), read.log_density(GOOD), rtol=tolerance)


def test_a_random_state_gives_batches_too(model):
    found = [
        latent.fit([GOOD] * 3, model.estimator(), 2, rng=np.random.RandomState(0), batch_size=2).log_likelihood
        for _ in range(2)
    ]
    assert found[0] == found[1]
