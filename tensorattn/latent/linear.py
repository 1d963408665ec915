"""The expectation step in symbol space, as sums and matrix products: O(L·S·(S + N)) an observation, no N² object.

With W^l = e^{G^l} (rows of mean 1) and n_k = #{j : k_j = k}:
    r^l[k] = Σ_j [k_j = k] b^l[v_j],   b^{l−1}[v] = Σ_k W^l[v,k] r^l[k] / Z^l[v],   Z^l[v] = Σ_k W^l[v,k] n_k
and forward x^l[v] = Σ_j [v_j = v] Σ_u x^{l−1}[u] W^l[u,k_j] / Z^l[u]. It is exact where no Z and no p is tiny: what
underflowed then could not have changed a digit. The other observations are named, for `logarithmic` to do.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorattn.latent.rows import Array, Rows

LEAST_NORMALISER, LEAST_PROBABILITY = 1e-100, 1e-150


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the positions of n contexts lie in arrays (n, S) by key symbol and by value symbol, and the counts n_k."""

    key: Array
    value: Array
    count: Array

    def by_key(self, table: Array) -> Array:
        """Σ_j [k_j = k] table[v_j] (n, S)."""
        return _summed(table, self.value, self.key)

    def by_value(self, table: Array) -> Array:
        """Σ_j [v_j = v] table[k_j] (n, S)."""
        return _summed(table, self.key, self.value)


def _summed(table: Array, read: Array, write: Array) -> Array:
    return np.bincount(write, table.ravel().take(read), table.size).reshape(table.shape)


def places(rows: Rows, symbols: int) -> Places:
    """The places of these rows."""
    n = len(rows)
    start = symbols * np.arange(n)[:, None]
    key, value = (start + rows.context_keys), (start + rows.context_values)
    if rows.keep.all():
        key, value = key.ravel(), value.ravel()
    else:
        key, value = key[rows.keep], value[rows.keep]
    count = np.bincount(key, minlength=n * symbols).reshape(n, symbols).astype(np.float64)
    return Places(key, value, count)


@dataclass(frozen=True, slots=True, eq=False)
class Backward:
    """What the backward pass leaves, a list entry a hop: r, b and Z (n, S); of the first hop the query's row alone.

    `p` (n,) is the probability of the target, `sound` (n,) where it is exact.
    """

    chosen: list[Array]
    message: list[Array]
    normaliser: list[Array]
    p: Array
    sound: Array


def backward(at: Places, W: Array, first: Array, last: Array) -> Backward:
    """From the last hop to the first. `first` (n, S): W^1 at the query; `last` (n, S): the emission of the target."""
    hops = len(W)
    chosen, message, normaliser = [last] * hops, [last] * hops, [last] * hops
    sound = np.ones(len(last), dtype=bool)
    with np.errstate(divide="ignore", invalid="ignore", under="ignore"):
        for hop in range(hops - 1, 0, -1):
            chosen[hop] = at.by_key(message[hop])
            normaliser[hop] = at.count @ W[hop].T
            sound &= normaliser[hop].min(axis=1) >= LEAST_NORMALISER
            message[hop - 1] = chosen[hop] @ W[hop].T
            message[hop - 1] /= normaliser[hop]
        chosen[0] = at.by_key(message[0])
        normaliser[0] = np.einsum("ns,ns->n", first, at.count)
        p = np.einsum("ns,ns->n", first, chosen[0]) / normaliser[0]
    sound &= (normaliser[0] >= LEAST_NORMALISER) & (p >= LEAST_PROBABILITY)
    return Backward(chosen, message, normaliser, p, sound)


def counts(at: Places, W: Array, first: Array, back: Backward, query: Array, weights: Array) -> tuple[Array, ...]:
    """C and W D (both (L, S, S) [hop, query symbol, key symbol]) and the posterior of the last value (n, S).

    What is not sound must have weight 0.
    """
    hops, symbols = len(W), W.shape[1]
    C, M = np.empty_like(W), np.empty_like(W)
    for hop in range(1, hops):  # 0 · NaN of rows that are not sound
        for part in (back.message[hop - 1], back.chosen[hop - 1], back.normaliser[hop]):
            part[~back.sound] = 1.0
    scaled = weights / np.where(back.sound, back.p * back.normaliser[0], 1.0)
    mass = first * scaled[:, None]
    C[0] = by_symbol(mass * back.chosen[0], query, symbols)
    reach = weights / np.where(back.sound, back.normaliser[0], 1.0)
    M[0] = by_symbol(at.count * reach[:, None], query, symbols)
    for hop in range(1, hops):
        mass = at.by_value(mass)
        mass /= back.normaliser[hop]
        C[hop] = mass.T @ back.chosen[hop]
        C[hop] *= W[hop]
        M[hop] = (mass * back.message[hop - 1]).T @ at.count
        mass = mass @ W[hop]
    return C, M * W, at.by_value(mass) * back.message[-1]


def by_symbol(table: Array, symbol: Array, symbols: int) -> Array:
    """Σ_n [symbol_n = s] table[n, :], (symbols, columns)."""
    columns = table.shape[1]
    place = (columns * symbol)[:, None] + np.arange(columns)
    return np.bincount(place.ravel(), table.ravel(), symbols * columns).reshape(symbols, columns)
