"""One row at a time: functions of numbers, reductions and normalisers of a row of admitted entries."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np

from tensorattn.errors import DTypeError

BISECTIONS = 200
GAMMA = 0x9E3779B97F4A7C15  # splitmix64, as tensorattn.backends.hashing


def elementwise(function: str, arguments: Sequence[np.ndarray]) -> np.ndarray:
    """One of the functions or operators of the IR, with broadcasting."""
    match function:
        case "and":
            return functools.reduce(np.logical_and, arguments)
        case "or":
            return functools.reduce(np.logical_or, arguments)
        case "not" | "less_equal" | "greater_equal" | "equal" | "not_equal" | "less" | "greater":
            return getattr(np, {"not": "logical_not"}.get(function, function))(*arguments)
        case "where":
            return np.where(arguments[0], *(_number(a) for a in arguments[1:]))
        case "negate":
            return -_number(arguments[0])
        case "uniform":
            return np.vectorize(lambda *keys: hashed(*keys) / 2**24, otypes=[np.float64])(*arguments)
        case _:
            return _real(function, *(a.astype(np.float64) for a in arguments))


def hashed(seed: int, *positions: int) -> int:
    """24 bits of an integer seed and positions, in integers without end; a position may be a whole float."""
    state = _finalised(_whole(seed) + GAMMA)
    for position in positions:
        state = _finalised(state + GAMMA * (_whole(position) + 1))
    return state >> 40


def _whole(number: float) -> int:
    if isinstance(number, float) and abs(number) > 2**53:
        raise DTypeError("E-DTYPE", f"{number} is no exact integer", hint="give `uniform` a seed by itself")
    return int(number)


def _finalised(state: int) -> int:
    state %= 2**64
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ state >> 27) * 0x94D049BB133111EB % 2**64
    return state ^ state >> 31


def _number(array: np.ndarray) -> np.ndarray:
    """A boolean used as a number is 0 or 1."""
    return array.astype(np.int64) if array.dtype == np.bool_ else array


def _real(function: str, x: np.ndarray, *more: np.ndarray) -> np.ndarray:
    match function:
        case "exp" | "log" | "tanh" | "sqrt" | "abs" | "sin" | "cos" | "sign" | "maximum" | "minimum":
            return getattr(np, function)(x, *more)
        case "reciprocal":
            return 1.0 / x
        case "power":
            return x ** more[0]
        case "sigmoid":
            return _sigmoid(x)
        case "relu":
            return np.where(x > 0, x, np.where(np.isnan(x), x, 0.0))
        case "leaky_relu":
            return np.where(x > 0, x, (more[0] if more else 0.2) * x)
        case "elu":
            return np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
        case "gelu":
            return x * 0.5 * (1 + np.vectorize(math.erf, otypes=[np.float64])(x / math.sqrt(2)))
        case "silu":
            return x * _sigmoid(x)
        case "softplus":
            return np.logaddexp(0, x)
    raise TypeError(f"not a function: {function}")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1, small) / (1 + small)


def reduce_row(kind: str, row: np.ndarray) -> float:
    """The reduction of the admitted entries of a row, and its value where there is none."""
    match kind:
        case "sum":
            return row.sum()
        case "mean":
            return row.sum() / len(row) if len(row) else 0.0
        case "prod":
            return row.prod() if len(row) else 1.0
        case "max":
            return row.max() if len(row) else -np.inf
        case "min":
            return row.min() if len(row) else np.inf
        case "lse":
            largest = row.max() if len(row) else -np.inf
            return largest + np.log(np.exp(row - float(largest)).sum()) if np.isfinite(largest) else float(largest)
    raise TypeError(f"not a reduction: {kind}")


def weigh_row(
    kind: str, row: np.ndarray, sink: float | None = None, eps: float = 0.0, alpha: float = 1.5
) -> np.ndarray:
    """The weights of the admitted scores of a row; with nothing to share they are 0."""
    match kind:
        case "l1norm":
            return _divide(row, row.sum() + eps)
        case "l2norm":
            return _divide(row, math.sqrt((row * row).sum()))
    weights, present = np.zeros(row.shape), row != -np.inf  # -∞ as data is an excluded entry
    if np.any(np.isnan(row) | (row == np.inf)):
        weights[present] = np.nan
        return weights
    if not present.any():
        return weights
    match kind:
        case "softmax":
            weights[present] = _softmax(row[present], -np.inf if sink is None else sink)
        case "sparsemax":
            weights[present] = _entmax(row[present], 2.0)
        case "entmax":
            weights[present] = _softmax(row[present], -np.inf) if alpha == 1 else _entmax(row[present], alpha)
        case _:
            raise TypeError(f"not a normaliser: {kind}")
    return weights


def _divide(row: np.ndarray, by: float) -> np.ndarray:
    return np.zeros(row.shape) if by == 0 else row / by


def _softmax(row: np.ndarray, sink: float) -> np.ndarray:
    if sink == np.inf:  # nothing is left for the others
        return np.zeros(row.shape)
    largest = np.maximum(row.max(), sink)
    shares = np.exp(row - largest)
    return shares / (shares.sum() + np.exp(sink - largest))


def _entmax(row: np.ndarray, alpha: float) -> np.ndarray:
    """`[(α−1)x − τ]₊^(1/(α−1))` with τ such that the shares sum to 1, by bisection.

    Source: Peters, Niculae, Martins 2019, "Sparse sequence-to-sequence models", eq. 10.
    """
    scaled, power = (alpha - 1) * row, 1 / (alpha - 1)
    low, high = scaled.max() - 1, scaled.max()  # at `low` the largest share alone is 1, at `high` all are 0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if (np.maximum(scaled - middle, 0) ** power).sum() >= 1:
            low = middle
        else:
            high = middle
    return np.maximum(scaled - low, 0) ** power
