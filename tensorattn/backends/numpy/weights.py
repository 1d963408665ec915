"""Normalisers that generated NumPy code calls: weights along the axes `dims` jointly, exactly 0 where excluded."""

from collections.abc import Callable

import numpy as np

from tensorattn.backends.numpy.functions import all_finite, rows, select, total, unrows
from tensorattn.errors import ShapeError


def softmax(
    score: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None, sink: np.ndarray | float | None = None
) -> np.ndarray:
    """exp(score) / (Σ exp(score) + exp(sink)), stable; a row with nothing admitted is 0, one with +∞ or NaN is NaN."""
    admitted = score if where is None else np.where(where, score, -np.inf)
    greatest = np.maximum.reduce(admitted, axis=dims, keepdims=True, initial=-np.inf)
    weights = admitted - greatest  # NaN in a row of −∞ alone
    np.exp(weights, out=weights)
    whole = total(weights, dims).reshape(greatest.shape)
    if sink is not None:
        whole = whole + np.exp(sink - greatest)  # may overflow to ∞: the weights are 0 then, as they should
    weights /= whole
    if not all_finite(whole):
        weights[admitted == -np.inf] = 0
    return weights


def weigh(
    score: np.ndarray,
    dims: tuple[int, ...],
    where: np.ndarray | None = None,
    exp: np.ufunc = np.exp,
    floor: np.ndarray | float = -np.inf,
    out: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A tile of a softmax: exp(score − m), m = max of the floor and the admitted scores, and the sum."""
    if where is not None and np.all(where):  # a tile within the predicate
        where = None
    admitted = score if where is None else select(where, score, -np.inf, out)
    greatest = np.maximum(np.max(admitted, axis=dims, initial=-np.inf), floor)
    shift = np.where(greatest == -np.inf, 0, greatest)
    weights = np.subtract(
        admitted, np.expand_dims(shift, dims), out=admitted if out is None and where is not None else out
    )
    exp(weights, out=weights)
    return weights, greatest, total(weights, dims)


def powers(score: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """exp(score − m), 0 where excluded, and m = max of the admitted scores (0 where there is none)."""
    admitted = score if where is None else np.where(where, score, -np.inf)
    greatest = np.max(admitted, axis=dims, keepdims=True, initial=-np.inf)
    shift = np.where(greatest == -np.inf, 0, greatest)
    weights = admitted - shift
    np.exp(weights, out=weights)
    return weights, np.squeeze(shift, dims)


def l1norm(
    score: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None, eps: np.ndarray | float = 0
) -> np.ndarray:
    """score / (Σ score + eps); 0 where the denominator is 0. Scaled by the greatest entry, so that no sum overflows."""
    admitted = score if where is None else np.where(where, score, 0)
    scale = _scale(admitted, dims)
    admitted = admitted / scale
    return _quotient(admitted, np.sum(admitted, axis=dims, keepdims=True) + eps / scale, where)


def l2norm(score: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None) -> np.ndarray:
    """score / √Σ score²; 0 where the denominator is 0. Scaled by the greatest entry: no square over- or underflows."""
    admitted = score if where is None else np.where(where, score, 0)
    admitted = admitted / _scale(admitted, dims)
    return _quotient(admitted, np.sqrt(np.sum(admitted * admitted, axis=dims, keepdims=True)), where)


def _scale(x: np.ndarray, dims: tuple[int, ...]) -> np.ndarray:
    """The greatest magnitude along the axes; 1 where there is none, or it is no finite number."""
    greatest = np.max(np.abs(x), axis=dims, keepdims=True, initial=0)
    return np.where((greatest > 0) & np.isfinite(greatest), greatest, 1)


def _quotient(admitted: np.ndarray, total: np.ndarray, where: np.ndarray | None) -> np.ndarray:
    weights = np.where(total == 0, 0, admitted / total)
    return weights if where is None else np.where(where, weights, 0)


def sparsemax(score: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None) -> np.ndarray:
    """The projection onto the simplex: max(score − τ, 0) with τ such that the weights sum to 1.

    Source: Martins and Astudillo 2016, algorithm 1.
    """
    return _sparse(score, dims, where, -2, lambda z: np.maximum(z - _sparsemax_threshold(z), 0))


def entmax_three_halves(score: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None) -> np.ndarray:
    """entmax with α = 1.5, exactly, by sorting. Source: Peters, Niculae and Martins 2019, algorithm 2."""

    def shares(z: np.ndarray) -> np.ndarray:
        half = z / 2
        return np.maximum(half - _three_halves_threshold(half), 0) ** 2

    return _sparse(score, dims, where, -4, shares)


def entmax(
    score: np.ndarray, dims: tuple[int, ...], where: np.ndarray | None = None, alpha: np.ndarray | float = 1.5
) -> np.ndarray:
    """max(1 + t (score − τ), 0)^(1/t) with t = α − 1 and τ such that the weights sum to 1; α = 1 is softmax."""
    t = np.asarray(alpha, score.dtype) - score.dtype.type(1)
    if not np.all(t >= 0):
        raise ShapeError("E-RANGE", "the exponent of entmax must be 1 or more", hint="1 is softmax, 2 is sparsemax")
    t = rows(t, dims) if t.ndim else t
    least = np.maximum(-2 / t, -1e4)  # so far below the greatest there is no share, whatever the exponent
    return _sparse(score, dims, where, least, lambda z: _bent(z - _general_shift(z, t), t))


def _sparse(
    score: np.ndarray,
    dims: tuple[int, ...],
    where: np.ndarray | None,
    least: np.ndarray | float,
    shares: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Weights of the entmax family, as shares of rows whose greatest entry is 0 and none of whose is below `least`.

    There every share is 0, so that what is far down adds no rounding error.
    """
    flat = rows(score, dims)
    if not flat.shape[-1]:
        return np.zeros_like(score)
    live = flat != -np.inf
    if where is not None:
        live = live & rows(np.broadcast_to(where, score.shape), dims)
    greatest = np.max(np.where(live, flat, -np.inf), axis=-1, keepdims=True)
    wild = ~(greatest < np.inf)
    shift = np.where(np.isfinite(greatest), greatest, 0)
    tame = live & ~wild
    nothing = np.where(np.any(tame, axis=-1, keepdims=True), least, 0)
    z = np.where(tame, np.maximum(flat - shift, nothing), nothing).astype(score.dtype, copy=False)
    weights = np.where(live, np.where(wild, np.nan, shares(z)), 0).astype(score.dtype, copy=False)
    return unrows(weights, dims, score.shape)


def _sparsemax_threshold(z: np.ndarray) -> np.ndarray:
    ordered = -np.sort(-z, axis=-1)
    rank = np.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    total = np.cumsum(ordered, axis=-1)
    count = np.sum(1 + rank * ordered > total, axis=-1, keepdims=True)
    return _linear_threshold(z, z > (np.take_along_axis(total, np.maximum(count - 1, 0), axis=-1) - 1) / count)


def _linear_threshold(z: np.ndarray, support: np.ndarray) -> np.ndarray:
    return (np.sum(np.where(support, z, 0), axis=-1, keepdims=True) - 1) / np.sum(support, axis=-1, keepdims=True)


def _three_halves_threshold(z: np.ndarray) -> np.ndarray:
    ordered = -np.sort(-z, axis=-1)
    rank = np.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    mean = np.cumsum(ordered, axis=-1) / rank
    spread = np.cumsum(ordered * ordered, axis=-1) - rank * mean * mean
    tau = mean - np.sqrt(np.maximum((1 - spread) / rank, 0))
    count = np.sum(tau <= ordered, axis=-1, keepdims=True)
    return _square_threshold(z, z > np.take_along_axis(tau, np.maximum(count - 1, 0), axis=-1))


def _square_threshold(z: np.ndarray, support: np.ndarray) -> np.ndarray:
    """τ of Σ (z − τ)² = 1 over a known support, from centred moments."""
    count = np.sum(support, axis=-1, keepdims=True)
    mean = np.sum(np.where(support, z, 0), axis=-1, keepdims=True) / count
    spread = np.sum(np.where(support, (z - mean) ** 2, 0), axis=-1, keepdims=True)
    return mean - np.sqrt(np.maximum((1 - spread) / count, 0))


def _general_shift(z: np.ndarray, t: np.ndarray) -> np.ndarray:
    """The greatest τ at which Σ is at least 1, one bit of it a round; n equal entries have (1 − n^−t) / t ≤ log n."""
    low = np.zeros_like(z[..., :1])
    high = low + np.minimum(1 / t, np.log(z.dtype.type(z.shape[-1])))
    for _ in range(np.finfo(z.dtype).nmant + 2):
        middle = (low + high) / 2
        heavy = np.sum(_bent(z - middle, t), axis=-1, keepdims=True) >= 1
        low, high = np.where(heavy, middle, low), np.where(heavy, high, middle)
    return low


def _bent(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    """(1 + t x)^(1/t) where that is positive, else 0; at t = 0 it is exp(x)."""
    inside = np.maximum(t * x, -1)
    return np.exp(np.where(inside == 0, x, np.log1p(inside) / t))
