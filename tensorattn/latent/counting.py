"""Rows and a model's tables → log-probabilities and statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorattn.latent import linear, logarithmic
from tensorattn.latent.rows import Array, Rows
from tensorattn.latent.statistics import Statistics, zeros

CHUNK_ENTRIES = 1 << 18  # of the largest array that is made
LEAST_REFERENCE = -600.0


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """A model for the expectation step: `scores` (L, S, S) [hop, query symbol, key symbol] and `emission` (S, T)."""

    scores: Array
    emission: Array


def log_density(rows: Rows, tables: Tables) -> Array:
    """log p of the targets, (n,)."""
    symbols = tables.scores.shape[1]
    out = np.empty(len(rows))
    W = np.exp(tables.scores)
    for part in chunks(len(rows), symbols):
        own = rows.take(part)
        back = _backward(own, linear.places(own, symbols), W, tables)
        with np.errstate(divide="ignore", invalid="ignore"):
            out[part] = np.log(back.p)
        for left in _left(~back.sound, rows.length, symbols):
            again = own.take(left)
            found = logarithmic.chain(again, tables.scores)
            with np.errstate(divide="ignore"):
                last = np.log(tables.emission[again.context_values, again.target[:, None]])
            out[part][left] = logarithmic.backward(found, last)[1]
    return out


def collect(rows: Rows, tables: Tables, weights: Array) -> Statistics:
    """The statistics of these rows with these weights, (n,)."""
    hops, symbols, _ = tables.scores.shape
    sums = zeros(hops, symbols, tables.emission.shape[1])
    C, D, E = np.zeros_like(sums.key_num), np.zeros_like(sums.reach), sums.emission_count
    reference = np.maximum(tables.scores, LEAST_REFERENCE)
    W, ll = np.exp(tables.scores), 0.0
    for part in chunks(len(rows), symbols):
        ll += _collect(rows.take(part), tables, W, weights[part], reference, (C, D, E))
    C, D, reference = (np.ascontiguousarray(table.swapaxes(1, 2)) for table in (C, D, reference))
    return Statistics(C, C.sum(axis=2), E, float(ll), float(weights.sum()), D, reference)


def _collect(rows: Rows, tables: Tables, W: Array, weights: Array, reference: Array, into: tuple[Array, ...]) -> float:
    """Adds C, D and E of these rows; returns Σ w log p."""
    C, D, E = into
    symbols, targets = tables.emission.shape
    at = linear.places(rows, symbols)
    back = _backward(rows, at, W, tables)
    first = W[0].take(rows.query, axis=0)
    sound = back.sound
    own_weights = weights if sound.all() else np.where(sound, weights, 0.0)
    chosen, reach, last = linear.counts(at, W, first, back, rows.query, own_weights)
    C += chosen
    D += reach * np.exp(reference)
    E += linear.by_symbol(last, rows.target, targets).T
    ll = own_weights @ np.log(np.where(sound, back.p, 1.0))
    for left in _left(~sound & (weights > 0), rows.length, symbols):
        again, own_weights = rows.take(left), weights[left]
        emitted = tables.emission[again.context_values, again.target[:, None]]
        log_p, chosen, reach, last = logarithmic.counts(again, tables.scores, emitted, own_weights, reference)
        C += chosen
        D += reach
        np.add.at(E, (again.context_values, again.target[:, None]), last)
        ll += own_weights @ log_p
    return ll


def _backward(rows: Rows, at: linear.Places, W: Array, tables: Tables) -> linear.Backward:
    first = W[0].take(rows.query, axis=0)
    last = np.ascontiguousarray(tables.emission.T).take(rows.target, axis=0)
    return linear.backward(at, W, first, last)


def chunks(count: int, entries: int) -> list[slice]:
    """Slices of rows, each with arrays (rows, entries) of bounded size."""
    step = max(1, CHUNK_ENTRIES // max(entries, 1))
    return [slice(start, start + step) for start in range(0, count, step)]


def _left(where: Array, length: int, symbols: int) -> list[Array]:
    """The numbers of the rows that are left to do in logs, in chunks."""
    rows = np.flatnonzero(where)
    return [rows[part] for part in chunks(len(rows), length * min(length, symbols))]
