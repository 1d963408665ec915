"""The positions that a chain visits: attention before the target is known, posterior, and the most probable path."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tensorattn.latent import logarithmic
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
    """`positions` (n, L): the most probable z given the target, the first of equals; `log_density` (n,): of path and
    target together."""

    positions: Array
    log_density: Array


def attention(rows: Rows, scores: Array) -> Attention:
    """The weights of every hop, as a context and a query give them."""
    found = logarithmic.chain(rows, scores)
    return Attention(np.exp(found.first), np.exp(_expanded(found)))


def posterior(rows: Rows, scores: Array, emission: Array) -> Posterior:
    """The posterior of every hop by forward–backward in logs."""
    found = logarithmic.chain(rows, scores)
    messages, log_p = logarithmic.backward(found, _emitted(rows, emission))
    masses = np.stack(logarithmic.forward(found))
    at = np.where(np.isfinite(log_p), log_p, np.nan)
    positions = np.exp(masses + np.stack(messages) - at[:, None])
    pairs = masses[:-1, :, :, None] + _expanded(found)
    if len(pairs):
        pairs = np.exp(pairs + np.stack(messages[1:])[:, :, None, :] - at[:, None, None])
    return Posterior(positions, pairs, log_p)


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
    return Path(np.stack(path, axis=1), start.max(axis=1))


def _emitted(rows: Rows, emission: Array) -> Array:
    with np.errstate(divide="ignore"):
        return np.log(emission[rows.context_values, rows.target[:, None]])


def _expanded(found: logarithmic.Chain) -> Array:
    """log A of every later hop from positions, (L − 1, n, N, N); a row that no position is, is left out."""
    n, length = found.row.shape
    tables = [np.take_along_axis(weights, found.row[:, :, None], axis=1) for weights in found.later]
    return np.stack(tables) if tables else np.zeros((0, n, length, length))
