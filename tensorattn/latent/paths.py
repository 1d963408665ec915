"""The positions that a chain visits: attention before the target is known, posterior, and the most probable path."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tensorattn.latent import forward, logarithmic
from tensorattn.latent.rows import Array, Rows


class Attention(NamedTuple):
    """`first` (n, N): a, the weights of hop 1; `later` (L − 1, n, N, N): A^l_ij, from position i to position j."""

    first: Array
    later: Array


class Posterior(NamedTuple):
    """Given the target: `positions` (L, n, N): γ^l_i = P(z_l = i); `pairs` (L − 1, n, N, N):
    ξ^l_ij = P(z_{l−1} = i, z_l = j); `log_density` (n,). NaN where the target cannot be."""

    positions: Array
    pairs: Array
    log_density: Array


class Path(NamedTuple):
    """`positions` (n, L): the most probable z given the target, the first of equals, −1 where the target cannot
    be; `log_density` (n,): of path and target together."""

    positions: Array
    log_density: Array


def attention(rows: Rows, scores: Array) -> Attention:
    """The weights of every hop, as a context and a query give them."""
    found = logarithmic.chain(rows, scores)
    return Attention(np.exp(found.first), np.exp(_expanded(found)))


def posterior(rows: Rows, scores: Any, emission: Any) -> Posterior:
    """The posterior of every hop, from the posteriors of the compiled chain."""
    log_p = forward.log_density(rows, scores, emission)
    found = forward.posteriors(rows, scores, emission)
    if isinstance(log_p, np.ndarray):
        xp: Any = np
    else:
        import torch as xp
    cannot = log_p == -np.inf
    if cannot.any():
        found = [xp.where(cannot.reshape((-1,) + (1,) * (part.ndim - 1)), np.nan, part) for part in found]
    positions = [found[0], *(part.sum(1) for part in found[1:])]
    size = (0, *found[0].shape, found[0].shape[1])
    return Posterior(
        xp.stack(positions), xp.stack(found[1:]) if found[1:] else log_p.reshape(-1)[:0].reshape(size), log_p
    )


def decode(rows: Rows, scores: Array, emission: Array) -> Path:
    """The Viterbi path: max in place of Σ on the way back, then forward along the choices."""
    found = logarithmic.chain(rows, scores)
    best, choices = _emitted(rows, emission), []
    for weights in reversed(found.later):
        reached = weights + best[:, None, :]
        choices.insert(0, logarithmic.at_positions(reached.argmax(axis=2), found.row))
        best = logarithmic.at_positions(reached.max(axis=2), found.row)
    start = found.first + best
    path = [start.argmax(axis=1)]
    for choice in choices:
        path.append(np.take_along_axis(choice, path[-1][:, None], axis=1)[:, 0])
    positions, log_p = np.stack(path, axis=1), start.max(axis=1)
    return Path(np.where(np.isfinite(log_p)[:, None], positions, -1), log_p)


def _emitted(rows: Rows, emission: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(emission[rows.context_values, rows.target[:, None]])


def _expanded(found: logarithmic.Chain) -> Array:
    """log A of every later hop from positions, (L − 1, n, N, N); a row that no position is, is left out."""
    n, length = found.row.shape
    tables = [np.take_along_axis(weights, found.row[:, :, None], axis=1) for weights in found.later]
    return np.stack(tables) if tables else np.zeros((0, n, length, length))
