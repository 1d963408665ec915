"""Two-index attention that generated NumPy code calls: a loop over chunks of keys with an online softmax.

Source: Milakov and Gimelshein 2018 (online softmax).
"""

import math

import numpy as np

from tensorattn.backends.limits import LEAST_KEYS, MOST_SCORES
from tensorattn.backends.numpy.functions import select


def attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float | tuple[float, float],
    bias: np.ndarray | None = None,
    where: np.ndarray | None = None,
    causal: bool = False,
    parts: bool = False,
) -> np.ndarray | tuple[np.ndarray, np.ndarray, np.ndarray]:
    """softmax(scale · q·k + bias) · v over the admitted keys; with `parts` Σ e·v, m and Σ e of e = exp(score − m).

    q (batch…, L, E), k (batch…, S, E), v (batch…, S, V), `bias` and `where` (batch…, L, S); batch dimensions of size 1,
    and L and S of `bias` and `where`, are broadcast. A row with nothing admitted is 0, its m −∞.
    """
    if isinstance(scale, tuple):  # the divisor is 0 only where E is 0, and every score with it
        scale = scale[0] / scale[1] if scale[1] else 1.0
    operands = [q, k, v, *(x for x in (bias, where) if x is not None)]
    batch, rows = np.broadcast_shapes(*(x.shape[:-2] for x in operands)), q.shape[-2]
    out = np.zeros((*batch, rows, v.shape[-1]), v.dtype)
    greatest, total = np.full((*batch, rows), -np.inf, q.dtype), np.zeros((*batch, rows), q.dtype)
    whole = math.prod(batch) * rows * LEAST_KEYS <= MOST_SCORES  # all of the batch in one product, or one by one
    count = max(MOST_SCORES // max((math.prod(batch) if whole else 1) * rows, 1), LEAST_KEYS)
    factor = q.dtype.type(scale)
    q = q * factor if whole else q
    for at in [...] if whole else np.ndindex(batch):
        query, key, value = (np.broadcast_to(x, (*batch, *x.shape[-2:]))[at] for x in (q, k, v))
        masks = [bias, where]  # which broadcast by themselves, with less to look at
        if not whole:
            query = query * factor
            masks = [None if x is None else np.broadcast_to(x, (*batch, *x.shape[-2:]))[at] for x in masks]
        _attend(query, key, value, *masks, count=count, causal=causal, state=(out[at], greatest[at], total[at]))
    if parts:
        return out, greatest, total
    out /= np.where(total == 0, 1, total)[..., None]
    return out


def _attend(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    bias: np.ndarray | None,
    where: np.ndarray | None,
    *,
    count: int,
    causal: bool,
    state: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    """Adds the attention of matrices, or of stacks of them, to the state of no keys, `count` keys at a time."""
    out, greatest, total = state
    for start in range(0, k.shape[-2], count):
        stop = min(start + count, k.shape[-2])
        first = min(start, q.shape[-2]) if causal else 0  # the rows before it admit none of these keys
        score = q[..., first:, :] @ np.swapaxes(k[..., start:stop, :], -1, -2)
        if bias is not None:
            score += _cut(bias, first, start, stop)
        if where is not None:
            select(_cut(where, first, start, stop), score, -np.inf, score)
        if causal:
            select(np.arange(start, stop) <= np.arange(first, q.shape[-2])[:, None], score, -np.inf, score)
        high = np.maximum(greatest[..., first:], np.max(score, axis=-1, initial=-np.inf))
        shift = np.where(high == -np.inf, 0, high)
        score -= shift[..., None]
        np.exp(score, out=score)
        keep = np.exp(greatest[..., first:] - shift)
        total[..., first:] = total[..., first:] * keep + np.sum(score, axis=-1)
        out[..., first:, :] *= keep[..., None]
        out[..., first:, :] += score @ v[..., start:stop, :]
        greatest[..., first:] = high
        del score  # before the next one is made


def _cut(mask: np.ndarray, first: int, start: int, stop: int) -> np.ndarray:
    """The part of a mask for the rows from `first` on and these keys; a dimension of size 1 is broadcast."""
    part = mask if mask.shape[-2] == 1 else mask[..., first:, :]
    return part if part.shape[-1] == 1 else part[..., start:stop]
