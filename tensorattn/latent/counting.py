"""Rows and a model's tables → statistics."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorattn.latent import linear, logarithmic
from tensorattn.latent.rows import Array, Rows
from tensorattn.latent.statistics import Statistics, zeros

CHUNK_ENTRIES = 1 << 18  # of the largest array that is made
SPARSE = 16  # times as many symbols as positions: products over all symbols then cost more than pairs of positions


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """A model for the expectation step: `scores` (L, S, S) [hop, query symbol, key symbol] and `emission` (S, T)."""

    scores: Array
    emission: Array


def collect(rows: Rows, tables: Tables, weights: Array) -> Statistics:
    """The statistics of these rows with these weights, (n,)."""
    sums = zeros(len(tables.scores), *tables.emission.shape)
    into = (np.zeros_like(sums.key_num), np.zeros_like(sums.reach), sums.emission_count)
    few = tables.scores.shape[1] > SPARSE * rows.length
    ll = (_in_logs if few else _linearly)(rows, tables, weights, into)
    C, M, reference = (np.ascontiguousarray(table.swapaxes(1, 2)) for table in (*into[:2], tables.scores))
    return Statistics(C, C.sum(axis=2), into[2], float(ll), float(weights.sum()), M, reference)


def _linearly(rows: Rows, tables: Tables, weights: Array, into: tuple[Array, ...]) -> float:
    """Adds C, W D and E of these rows, (L, S, S) [hop, query symbol, key symbol] and (S, T); Σ w log p."""
    choices, prior, emitted = into
    symbols, targets = tables.emission.shape
    W, by_target = np.exp(tables.scores), np.ascontiguousarray(tables.emission.T)
    ll = 0.0
    for part in chunks(len(rows), symbols):
        own, own_weights = rows.take(part), weights[part]
        at, first = linear.places(own, symbols), W[0].take(own.query, axis=0)
        back = linear.backward(at, W, first, by_target.take(own.target, axis=0))
        sound = back.sound
        scaled = own_weights if sound.all() else np.where(sound, own_weights, 0.0)
        chosen, reach, last = linear.counts(at, W, first, back, own.query, scaled)
        choices += chosen
        prior += reach
        emitted += linear.by_symbol(last, own.target, targets).T
        ll += float(scaled @ np.log(np.where(sound, back.p, 1.0)))
        if not sound.all():
            ll += _in_logs(own.take(~sound), tables, own_weights[~sound], into)
    return ll


def _in_logs(rows: Rows, tables: Tables, weights: Array, into: tuple[Array, ...]) -> float:
    """The same as `_linearly`, whatever the scores."""
    choices, prior, emitted = into
    rows, weights = rows.take(weights > 0), weights[weights > 0]
    ll = 0.0
    for part in chunks(len(rows), rows.length * min(rows.length, tables.scores.shape[1])):
        own, own_weights = rows.take(part), weights[part]
        given = tables.emission[own.context_values, own.target[:, None]]
        log_p, last = logarithmic.count(own, tables.scores, given, own_weights, choices, prior)
        np.add.at(emitted, (own.context_values, own.target[:, None]), last)
        ll += float(own_weights @ log_p)
    return ll


def chunks(count: int, entries: int) -> list[slice]:
    """Slices of rows, each with arrays (rows, entries) of bounded size."""
    step = max(1, CHUNK_ENTRIES // max(entries, 1))
    return [slice(start, start + step) for start in range(0, count, step)]
