"""Elementwise functions and folds, in both back ends, against the standard library and NumPy."""

import math

import numpy as np
import pytest
import torch

from tensorattn.backends.numpy import functions as numpy_functions
from tensorattn.backends.torch import tiles as torch_tiles
from tensorattn.kernel import (
    Apply,
    Fill,
    Fold,
    Iota,
    Literal,
)  # fmt: skip
from tensorattn.sizes import Size
from tests.kernels import BOTH, INF, NAN, call, close, kernel, one, random, register

# Elementwise ----------------------------------------------------------------------------------------------------

POINTS = np.array([-INF, -800.0, -20.0, -1.5, -1e-12, -0.0, 0.0, 1e-12, 0.3, 2.0, 30.0, 800.0, INF, NAN])


def _elementwise(function, x):
    with np.errstate(all="ignore"):
        match function:
            case "sigmoid":
                return math.exp(x) / (1 + math.exp(x)) if x < 0 else 1 / (1 + math.exp(-x))
            case "silu":
                return x * _elementwise("sigmoid", x)
            case "relu":
                return x if x > 0 or math.isnan(x) else 0.0
            case "leaky_relu":
                return x if x > 0 else 0.2 * x
            case "elu":
                return x if x > 0 else math.expm1(x)
            case "gelu":
                return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))
            case "softplus":
                return x if x > 700 else math.log1p(math.exp(x))
            case "sign":
                return x if math.isnan(x) else float((x > 0) - (x < 0))
            case "negate":
                return -x
            case "reciprocal":
                return np.float64(1) / np.float64(x)
            case _:
                return getattr(np, function)(np.float64(x))


@BOTH
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    "function",
    "exp log tanh sigmoid relu leaky_relu elu gelu silu softplus sqrt abs sin cos sign negate reciprocal".split(),
)
def test_functions_of_one_argument(library, function, dtype):
    apply = Apply(register("r", "i", dtype), function, (register("x", "i", dtype),))
    result = one(library, {"x": ("i", dtype)}, apply, POINTS)
    with np.errstate(all="ignore"):
        points = POINTS.astype(dtype)
        expected = np.array([_elementwise(function, float(x)) for x in points]).astype(dtype)
    np.testing.assert_allclose(result, expected, rtol=1e-14 if dtype == "float64" else 3e-6, atol=1e-15)
    assert result.dtype == dtype
    scalar = Apply(register("r", "", dtype), function, (register("x", "", dtype),))
    alone = one(library, {"x": ("", dtype)}, scalar, 0.3)  # torch rounds what fills a vector of the processor otherwise
    np.testing.assert_allclose(alone, result[8], rtol=2 * np.finfo(dtype).eps, atol=0)


BINARY = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide, "maximum": np.maximum,
    "minimum": np.minimum, "less": np.less, "less_equal": np.less_equal, "equal": np.equal, "greater": np.greater,
    "greater_equal": np.greater_equal, "not_equal": np.not_equal,
}  # fmt: skip


@BOTH
@pytest.mark.parametrize("function", BINARY)
@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("int64", "float64"), ("int64", "int64")])
def test_functions_of_two_arguments(library, function, dtypes):
    x, y = np.round(2 * random(2, 3)).astype(dtypes[0]), np.round(2 * random(4, 2, seed=1)).astype(dtypes[1])
    dtype = "bool" if "less" in function or "equal" in function or "greater" in function else dtypes[1]
    dtype = "float64" if function == "divide" and dtype == "int64" else dtype
    arguments = register("x", "i j", dtypes[0]), register("y", "k i", dtypes[1])
    inputs = {"x": ("i j", dtypes[0]), "y": ("k i", dtypes[1])}
    with np.errstate(all="ignore"):
        expected = BINARY[function](x[:, :, None], y.T[:, None]).transpose(1, 0, 2).astype(dtype)
        by_number = BINARY[function](x, x.dtype.type(2)).astype(dtype)
    close(one(library, inputs, Apply(register("r", "j i k", dtype), function, arguments), x, y), expected, 1e-6)
    literal = Apply(register("r", "i j", dtype), function, (arguments[0], Literal(2)))
    close(one(library, {"x": inputs["x"]}, literal, x), by_number, 1e-6)


@BOTH
def test_literals_sizes_and_logic(library):
    x = random(3, 4)
    scalar, base, truth = register("s", ""), register("x", "i j"), register("p", "i j", "bool")
    body = (
        Apply(scalar, "sqrt", (Literal(Size.of("j")),)),
        Apply(register("a", "i j"), "power", (Literal(2), base)),
        Apply(register("b", "i j"), "multiply", (base, Literal(Size.of("i") * Size.of("j") - 1))),
        Apply(truth, "and", (Literal(True), register("q", "i j", "bool"))),
        Apply(register("c", "i j"), "select", (truth, Literal(1.0), Literal(-INF))),
        Apply(register("d", "i j", "bool"), "isfinite", (register("c", "i j"),)),
        Apply(register("e", "j i", "bool"), "or", (register("d", "i j", "bool"), Literal(0))),
        Apply(register("f", "i j", "bool"), "not", (truth,)),
        Apply(register("g", "i j"), "where", (base, Literal(1), register("x", "i j"))),
        Apply(register("h", "i j", "int64"), "add", (truth, truth, Literal(3))),
    )
    positive = Apply(register("q", "i j", "bool"), "greater", (base, Literal(0)))
    outs = [instruction.out for instruction in body]
    p = x > 0
    expected = [
        np.asarray(2.0), 2**x, x * 11, p, np.where(p, 1, -INF), p, p.T, ~p, np.ones_like(x), p.astype(np.int64) * 2 + 3,
    ]  # fmt: skip
    for actual, value in zip(
        call(library, kernel({"x": ("i j", "float64")}, (positive, *body), outs), x), expected, strict=True
    ):
        close(actual, value)


@BOTH
def test_powers_of_whole_numbers_are_exact(library):
    x = np.arange(-9.0, 10.0)
    for exponent in range(8):
        power = Apply(register("r", "i"), "power", (register("x", "i"), Literal(exponent)))
        assert one(library, {"x": ("i", "float64")}, power, x).tolist() == [float(int(v) ** exponent) for v in x]
    power = Apply(register("r", "i", "int64"), "power", (register("x", "i", "int64"), Literal(13)))
    assert one(library, {"x": ("i", "int64")}, power, [3, -7]).tolist() == [3**13, (-7) ** 13]


@BOTH
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all"])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 0, 4), (0, 3, 4)])
@pytest.mark.parametrize("dtype", ["float64", "int64", "bool"])
def test_fold(library, kind, shape, dtype):
    logical = kind in ("any", "all")
    x = (random(*shape) * 3).astype(dtype)
    out = "bool" if logical else "float64" if dtype == "bool" or (kind in ("max", "min")) else dtype
    dtype = "bool" if logical else dtype
    fold = Fold(register("r", "c", out), kind, register("x", "a c b", dtype))
    result = one(library, {"x": ("a c b", dtype)}, fold, x)
    reduce = {"sum": np.sum, "prod": np.prod, "any": np.any, "all": np.all}.get(kind)
    if reduce is None:
        with np.errstate(all="ignore"):
            start = -INF if kind == "max" else INF
            expected = getattr(np, kind)(x.astype(float), axis=(0, 2), initial=start)
    else:
        expected = reduce(x.astype(out), axis=(0, 2))
    close(result, np.asarray(expected, out))


@BOTH
def test_iota_and_fill(library):
    sizes = (("j", 3),)
    iota = Iota(register("r", "n", "int64"), Size.of("n"))
    assert one(library, {"x": ("n", "float64")}, iota, np.zeros(4)).tolist() == [0, 1, 2, 3]
    fill = Fill(register("r", "n j", "float32"), -INF)
    close(one(library, {"x": ("n", "float64")}, fill, np.zeros(2), sizes=sizes), np.full((2, 3), -INF, np.float32))


@pytest.mark.parametrize("small", [0, torch_tiles.SMALL_TILE])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("other", [0, -math.inf, 1.5, math.nan])
def test_a_selection_in_place(dtype, other, small, monkeypatch):
    """By bits or place by place, where the predicate may lack axes or be longer than a stretch, and arrays lie in any
    order."""
    monkeypatch.setattr(torch_tiles, "SMALL_TILE", small)
    rng = np.random.default_rng(0)
    for shape in ((3, 4, 5), (1, 4, 5), (3, 1, 5), (), (7,), (0, 4), (300, 400)):
        alternate = tuple(1 if n % 2 else size for n, size in enumerate(shape))
        for where in {shape, shape[1:], shape[-1:], (1,) * len(shape), alternate, ()}:
            a, some = rng.normal(size=shape).astype(dtype), np.asarray(rng.random(where) < 0.5)
            a.reshape(-1)[::3], a.reshape(-1)[1::5] = np.nan, np.inf
            for p in (some, _true_but_in_a_stretch(some), _true_but_at_one_place(some), np.ones_like(some)):
                expected = np.where(p, a, dtype(other))
                copies = [lambda a=a: a.copy(), lambda a=a: np.array(a.T, order="C").T]
                for made in (copy() for copy in copies):
                    np.testing.assert_array_equal(numpy_functions.select(p, made, other, made), expected)
                np.testing.assert_array_equal(numpy_functions.select(p, a, other, np.empty_like(a)), expected)
                for made in (torch.from_numpy(copy()) for copy in copies if a.ndim):
                    np.testing.assert_array_equal(torch_tiles.select(torch.tensor(p), made, other, made), expected)


def _true_but_in_a_stretch(p):
    """Of the last axis, neither its beginning nor its end."""
    p = p.copy()
    if p.ndim:
        n = p.shape[-1]
        p[..., : n // 3], p[..., n - n // 4 :] = True, True
    return p


def _true_but_at_one_place(p):
    """In the middle."""
    found = np.ones_like(p)
    found.reshape(-1)[found.size // 2 : found.size // 2 + 1] = False
    return found


def test_a_selection_in_place_keeps_the_sign_of_zero():
    p, a = np.array([True, False]), np.ones(2, np.float32)
    for found in (
        numpy_functions.select(p, a.copy(), -0.0, a.copy()),
        torch_tiles.select(torch.tensor(p), torch.tensor(a), -0.0, torch.tensor(a)),
    ):
        assert np.signbit(np.asarray(found)).tolist() == [False, True]
