"""The expectation step in logs, for any finite scores: O(L·N·min(S, N)) an observation.

The rows of a hop are those of the S symbols, or of the N positions where there are fewer positions than symbols.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorattn.latent.rows import Array, Rows


@dataclass(frozen=True, slots=True, eq=False)
class Chain:
    """Log weights of n chains. `first` (n, N): log a; `later` [(n, R, N)]: log A from row r to position j;
    `symbol` (n, R): the value symbol of a row; `row` (n, N): the row of a position's value.
    """

    first: Array
    later: list[Array]
    symbol: Array
    row: Array


def chain(rows: Rows, scores: Array) -> Chain:
    """The log weights of every hop at these rows."""
    n, length = rows.context_keys.shape
    symbols = scores.shape[1]
    if symbols <= length:
        symbol, row = np.broadcast_to(np.arange(symbols), (n, symbols)), rows.context_values
    else:
        symbol, row = rows.context_values, np.broadcast_to(np.arange(length), (n, length))
    first = _normalised(scores[0][rows.query[:, None], rows.context_keys], rows.keep)
    keys, keep = rows.context_keys[:, None, :], rows.keep[:, None, :]
    later = [_normalised(table[symbol[:, :, None], keys], keep) for table in scores[1:]]
    return Chain(first, later, symbol, row)


def _normalised(scores: Array, keep: Array) -> Array:
    scores = np.where(keep, scores, -np.inf)
    return scores - log_sum_exp(scores)[..., None]


def log_sum_exp(terms: Array) -> Array:
    """Over the last axis; −∞ where all terms are."""
    top = terms.max(axis=-1)
    top = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(terms - top[..., None]).sum(axis=-1)) + top


def at_positions(table: Array, row: Array) -> Array:
    """table (n, R) at the rows of the positions, (n, N)."""
    return np.take_along_axis(table, row, axis=1)


def backward(found: Chain, last: Array) -> tuple[list[Array], Array]:
    """log β of every hop at the positions (n, N), and log p (n,). `last`: log of the emission at the positions."""
    messages = [last]
    for weights in reversed(found.later):
        messages.insert(0, at_positions(log_sum_exp(weights + messages[0][:, None, :]), found.row))
    return messages, log_sum_exp(found.first + messages[0])


def grouped(masses: Array, row: Array, rows: int) -> Array:
    """log Σ_i [row_i = r] e^mass_i, (n, R)."""
    out = np.full((len(masses), rows), -np.inf)
    np.logaddexp.at(out, (np.arange(len(masses))[:, None], row), masses)
    return out


def forward(found: Chain) -> list[Array]:
    """log α of every hop at the positions (n, N)."""
    masses = [found.first]
    for weights in found.later:
        before = grouped(masses[-1], found.row, weights.shape[1])
        masses.append(log_sum_exp((weights + before[:, :, None]).swapaxes(1, 2)))
    return masses


def count(rows: Rows, scores: Array, emission_at: Array, weights: Array, C: Array, M: Array) -> tuple[Array, Array]:
    """Adds to C and W D (L, S, S); log p (n,) and the posterior of the last position (n, N), weighted.

    An observation that cannot be (p = 0) counts nothing.
    """
    found = chain(rows, scores)
    with np.errstate(divide="ignore"):
        messages, log_p = backward(found, np.log(emission_at))
    masses = forward(found)
    weights = np.where(np.isfinite(log_p), weights, 0.0)
    shift = np.where(np.isfinite(log_p), log_p, 0.0)[:, None]
    posterior = np.exp(found.first + messages[0] - shift) * weights[:, None]
    np.add.at(C[0], (rows.query[:, None], rows.context_keys), posterior)
    np.add.at(M[0], (rows.query[:, None], rows.context_keys), weights[:, None] * np.exp(found.first))
    for hop, step in enumerate(found.later, start=1):
        before = grouped(masses[hop - 1], found.row, step.shape[1])
        pairs = (
            np.exp(before[:, :, None] + step + messages[hop][:, None, :] - shift[:, :, None]) * weights[:, None, None]
        )
        at = tuple(np.broadcast_arrays(found.symbol[:, :, None], rows.context_keys[:, None, :]))
        np.add.at(C[hop], at, pairs)
        np.add.at(M[hop], at, pairs.sum(axis=2, keepdims=True) * np.exp(step))
    return log_p, np.exp(masses[-1] + messages[-1] - shift) * weights[:, None]
