"""Normalisers, log-sum-exp and the largest entries, in both back ends, against their definitions row by row."""

import itertools
import math

import numpy as np
import pytest
import torch

from tensorattn import backends
from tensorattn.kernel import Apply, Largest, LogSumExp, Normalised
from tensorattn.parts import Literal
from tests.kernels import BOTH, INF, NAN, axes, close, kernel, one, random, register

KINDS = ("softmax", "sparsemax", "entmax", "l1norm", "l2norm")
ALPHAS = (1.0, 1.05, 1.5, 1.7, 2.0, 2.5)


def by_definition(kind, row, options):
    """Weights of the admitted entries of one row (a list), from the definition."""
    row = np.array(row, float)
    if kind in ("softmax", "sparsemax", "entmax"):
        keep = row != -INF
        if not keep.all():
            weights = np.zeros_like(row)
            weights[keep] = by_definition(kind, row[keep], options)
            return weights
        if not row.size:
            return row
        if not np.isfinite(row).all():
            return np.full_like(row, NAN)
    if kind == "l1norm":
        total = row.sum() + options.get("eps", 0)
        return row / total if total else row * 0
    if kind == "l2norm":
        total = math.sqrt((row**2).sum())
        return row / total if total else row * 0
    alpha = {"softmax": 1, "sparsemax": 2}.get(kind) or options["alpha"]
    if alpha == 1:
        exponentials = np.exp(row - row.max())
        beside = math.exp(options["sink"] - row.max()) if "sink" in options else 0
        return exponentials / (exponentials.sum() + beside)
    low, high = (alpha - 1) * row.max() - 1, (alpha - 1) * row.max()
    for _ in range(200):
        middle = (low + high) / 2
        total = (np.maximum((alpha - 1) * row - middle, 0) ** (1 / (alpha - 1))).sum()
        low, high = (middle, high) if total >= 1 else (low, middle)
    return np.maximum((alpha - 1) * row - low, 0) ** (1 / (alpha - 1))


def expected_weights(kind, x, where, options):
    """Over the last two axes of x (a i j), jointly."""
    weights = np.zeros_like(x)
    for a in range(len(x)):
        places = [p for p in itertools.product(range(x.shape[1]), range(x.shape[2])) if where is None or where[a, *p]]
        row = by_definition(kind, [x[a, *p] for p in places], {n: v[a] for n, v in options.items()})
        for place, weight in zip(places, row, strict=True):
            weights[a, *place] = weight
    return weights


def scores():
    x = random(6, 3, 4, seed=3) * 1.5
    x[1, 0] = -INF
    x[2] = -INF
    x[3, 1, 1], x[4, 2, 2], x[5, 0, 0] = NAN, INF, 40
    return x


def mask():
    where = np.random.default_rng(4).random((6, 3, 4)) < 0.7
    where[0, 0, 0], where[5] = True, False
    return where


@BOTH
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    ("kind", "alpha"), [(k, None) for k in KINDS if k != "entmax"] + [("entmax", a) for a in ALPHAS]
)
def test_normalised(library, kind, alpha, masked):
    x, where = scores(), mask() if masked else None
    if kind in ("l1norm", "l2norm"):
        x[np.isinf(x)] = 0
    options = () if alpha is None else (("alpha", Literal(alpha)),)
    masks = register("m", "a i j", "bool") if masked else None
    # The score lies as (i, a, j) and the result as (j, a, i): axes go by index, not by place.
    weights = Normalised(register("r", "i a j"), kind, axes("j i"), register("x", "i a j"), masks, options)
    inputs = {"x": ("i a j", "float64"), "m": ("a i j", "bool")}
    arrays = (x.transpose(1, 0, 2), mask())
    result = one(library, inputs, weights, *arrays)
    expected = expected_weights(kind, x, where, {} if alpha is None else {"alpha": [alpha] * len(x)})
    close(result, expected.transpose(1, 0, 2), 2e-13)
    assert not masked or not result.transpose(1, 0, 2)[~where].any()


@BOTH
@pytest.mark.parametrize("option", ["sink", "alpha", "eps"])
def test_options_that_are_registers(library, option):
    kind = {"sink": "softmax", "alpha": "entmax", "eps": "l1norm"}[option]
    x, where = random(6, 3, 4), mask()
    values = {
        "sink": [0.0, -INF, 50.0, -50.0, 1.0, 2.0], "alpha": [1, 1.2, 1.5, 1.9, 2, 3], "eps": [0, 1, 2, 3, 4, 5.0],
    }[option]  # fmt: skip
    weights = Normalised(
        register("r", "a i j"), kind, axes("i j"), register("x", "a i j"), register("m", "a i j", "bool"),
        ((option, register("o", "a")),),
    )  # fmt: skip
    inputs = {"x": ("a i j", "float64"), "m": ("a i j", "bool"), "o": ("a", "float64")}
    result = one(library, inputs, weights, x, where, values)
    close(result, expected_weights(kind, x, where, {option: values}), 1e-12)


@BOTH
def test_a_sink_takes_weight_from_rows_without_overflow(library):
    sink = (("sink", Literal(0)),)
    weights = Normalised(
        register("r", "i j", "float32"), "softmax", axes("j"), register("x", "i j", "float32"), None, sink
    )
    x = np.array([[1e4, 1e4], [-1e4, -1e4], [-INF, -INF], [NAN, 0], [INF, 0], [0, 0]])
    expected = np.array([[0.5, 0.5], [0, 0], [0, 0], [NAN, NAN], [NAN, NAN], [1 / 3, 1 / 3]], np.float32)
    close(one(library, {"x": ("i j", "float32")}, weights, x), expected, 1e-6)


@BOTH
def test_an_infinite_sink_takes_all_or_nothing_and_a_row_of_none_is_zero(library):
    weights = Normalised(
        register("r", "a j"), "softmax", axes("j"), register("x", "a j"), None, (("sink", register("o", "a")),)
    )
    x = np.array([[1, 2], [-INF, 3], [-INF, -INF]] * 2 + [[-INF, -INF], [-INF, 0]])
    sinks = np.array([INF] * 3 + [-INF] * 3 + [NAN] * 2)
    tail = 1 / (1 + math.e)
    expected = [[0, 0], [0, 0], [0, 0], [tail, 1 - tail], [0, 1], [0, 0], [0, 0], [0, NAN]]
    close(one(library, {"x": ("a j", "float64"), "o": ("a", "float64")}, weights, x, sinks), np.array(expected))


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (0, 0)])
def test_weights_over_nothing(library, kind, shape):
    options = (("alpha", Literal(1.3)),) if kind == "entmax" else ()
    weights = Normalised(register("r", "i j"), kind, axes("j"), register("x", "i j"), None, options)
    assert one(library, {"x": ("i j", "float64")}, weights, np.zeros(shape)).shape == shape


@BOTH
@pytest.mark.parametrize("masked", [False, True])
def test_log_sum_exp(library, masked):
    x, where = scores(), mask()
    x[3, 1, 1] = 800
    lse = LogSumExp(register("r", "a"), register("x", "i a j"), register("m", "a i j", "bool") if masked else None)
    result = one(library, {"x": ("i a j", "float64"), "m": ("a i j", "bool")}, lse, x.transpose(1, 0, 2), where)
    expected = [np.logaddexp.reduce(x[a][where[a]] if masked else x[a].ravel(), initial=-INF) for a in range(6)]
    close(result, np.array(expected))
    assert one(library, {"x": ("i a j", "float64")}, LogSumExp(lse.out, lse.source, None), x[:0]).shape == (3,)


@BOTH
@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_largest(library, dtype):
    x = np.round(random(5, 3, 4)) if dtype == "float64" else np.round(random(5, 3, 4) * 1.4).astype(dtype)
    if dtype == "float64":
        x[1, 0, :3], x[2], x[3, 0] = NAN, -INF, INF
    where = mask()[:5]
    where[4, 1:] = False
    counts = np.array([0, 3, 5, 20, 4])
    for masked, counted in itertools.product((False, True), (False, True)):
        top = Largest(
            register("r", "a i j", "bool"), axes("j i"), register("k", "a", "int64") if counted else Literal(3),
            register("x", "a i j", dtype), register("m", "a i j", "bool") if masked else None,
        )  # fmt: skip
        inputs = {"x": ("a i j", dtype), "m": ("a i j", "bool"), "k": ("a", "int64")}
        result = one(library, inputs, top, x, where, counts)
        expected = np.zeros_like(where)
        for a in range(5):
            places = [(i, j) for j in range(4) for i in range(3) if not masked or where[a, i, j]]
            places.sort(key=lambda p, a=a: (bool(np.isnan(x[a, *p])), -float(np.nan_to_num(x[a, *p]))))
            for place in places[: counts[a] if counted else 3]:
                expected[a, *place] = True
        assert np.array_equal(result, expected)


# Derivatives, in torch ------------------------------------------------------------------------------------------


def weights_function(kind, options=(), extra=()):
    """(x, m, *options) → weights over j and k, jointly, of x (i j k)."""
    given = tuple((name, register(name, "i") if name in extra else Literal(value)) for name, value in options)
    weights = Normalised(
        register("r", "i j k"), kind, axes("j k"), register("x", "i j k"), register("m", "i j k", "bool"), given
    )
    inputs = {"x": ("i j k", "float64"), "m": ("i j k", "bool"), **dict.fromkeys(extra, ("i", "float64"))}
    return backends.get("torch").build(kernel(inputs, (weights,), [weights.out]), "weights")


DERIVED = [
    ("softmax", ()), ("softmax", (("sink", 0.3),)), ("sparsemax", ()), ("entmax", (("alpha", 1.5),)),
    ("entmax", (("alpha", 1.3),)), ("entmax", (("alpha", 1.8),)), ("l1norm", (("eps", 9.0),)), ("l2norm", ()),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options"), DERIVED)
def test_first_and_second_derivatives(kind, options):
    function, where = weights_function(kind, options), torch.tensor(mask()[:3, :2, :3])
    where[1] = False
    x = torch.tensor(random(3, 2, 3), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function(x, where)[0], (x,))
    assert torch.autograd.gradgradcheck(lambda x: function(x, where)[0], (x,))


@pytest.mark.parametrize(("kind", "option", "values"), [
    ("softmax", "sink", [0.5, -1.0, 2.0]), ("l1norm", "eps", [9.0, 8.0, 7.0]), ("entmax", "alpha", [1.3, 1.5, 1.7]),
])  # fmt: skip
def test_derivatives_by_options(kind, option, values):
    function, where = weights_function(kind, ((option, None),), (option,)), torch.tensor(mask()[:3, :2, :3])
    x = torch.tensor(random(3, 2, 3), requires_grad=True)
    o = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, o: function(x, where, o)[0], (x, o))
    assert torch.autograd.gradgradcheck(lambda x, o: function(x, where, o)[0], (x, o))
    plain = torch.autograd.grad((function(x, where, o)[0] ** 2).sum(), o)[0]
    beside_nan = torch.autograd.grad((function(torch.where(where, x, NAN), where, o)[0] ** 2).sum(), o)[0]
    assert torch.equal(plain, beside_nan)


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e300])
@pytest.mark.parametrize(("kind", "options"), DERIVED)
def test_excluded_entries_and_empty_rows_have_gradient_zero(kind, options, bad):
    where = torch.tensor(mask()[:3])
    where[1] = False
    x = torch.where(where, torch.tensor(random(3, 3, 4)).abs(), bad).requires_grad_()
    upstream = torch.tensor(random(3, 3, 4, seed=5))
    (weights,) = weights_function(kind, options)(x, where)
    with torch.autograd.detect_anomaly(check_nan=True):
        (gradient,) = torch.autograd.grad(weights, x, upstream, retain_graph=True)
    # A value that is NaN where it is excluded gives the weights a gradient that is NaN there.
    (beside_nan,) = torch.autograd.grad(weights, x, torch.where(where, upstream, NAN))
    assert torch.equal(gradient, beside_nan)
    assert torch.isfinite(gradient).all()
    assert not gradient[~where].any()
    assert not weights[~where].any()


def test_minus_infinity_in_a_score_has_gradient_zero():
    for kind, options in DERIVED[:6]:
        x = torch.tensor(random(2, 3, 4))
        x[0], x[1, 0] = -INF, -INF
        (weights,) = weights_function(kind, options)(x.requires_grad_(), torch.ones(2, 3, 4, dtype=torch.bool))
        (gradient,) = torch.autograd.grad(weights, x, torch.tensor(random(2, 3, 4, seed=1)))
        assert torch.isfinite(gradient).all()
        assert not gradient[x == -INF].any()


def test_log_sum_exp_has_finite_gradients():
    lse = LogSumExp(register("r", "i"), register("x", "i j"), register("m", "i j", "bool"))
    made = kernel({"x": ("i j", "float64"), "m": ("i j", "bool")}, (lse,), [lse.out])
    function = backends.get("torch").build(made, "lse")
    where = torch.tensor([[True, True, False], [False, False, False], [True, True, True]])
    x = torch.tensor(random(3, 3), requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: function(x, where)[0][[0, 2]], (x,))
    bad = torch.where(where, x.detach(), NAN)
    bad[2] = -INF
    (gradient,) = torch.autograd.grad(function(bad.requires_grad_(), where)[0].sum(), bad)
    assert not gradient[1:].any()
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("function", ["maximum", "minimum"])
def test_ties_share_the_gradient(function):
    apply = Apply(register("r", "i"), function, (register("x", "i"), Literal(1)))
    (result,) = backends.get("torch").build(kernel({"x": ("i", "float64")}, (apply,), [apply.out]), "f")(
        x := torch.tensor([1.0, 1.0, 0.0, 2.0], dtype=torch.float64, requires_grad=True)
    )
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert gradient.tolist() == [0.5, 0.5, float(function == "minimum"), float(function == "maximum")]
