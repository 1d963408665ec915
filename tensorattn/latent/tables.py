"""Score tables: of key tables, as affinities in logs, and key tables for given affinities.

The score of key symbol k for query symbol v at hop l is G^l[v,k] = −‖e_v − K^l_k‖² / 2σ²; all that a hop needs of it is
its rows up to a constant each, since softmax takes no notice of one.
"""

from __future__ import annotations

import numpy as np

from tensorattn.latent.accepting import refused
from tensorattn.latent.rows import Array


def scores_of(keys: Array, sigma2: float) -> Array:
    """G (L, S, S) [hop, query symbol, key symbol] of key tables (L, S, S) [hop, key symbol, query symbol].

    Raises: ValueRefusedError where a squared norm overflows.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        halves = 0.5 * np.square(keys).sum(axis=2)
        scores = (keys.swapaxes(1, 2) - halves[:, None, :] - 0.5) / sigma2
    if not np.isfinite(scores).all():
        raise refused(
            "the scores of `keys` overflow", facts=[f"largest entry {abs(keys).max():g}, sigma2 {sigma2:g}"],
            hint="scale `keys` down, or give a larger `sigma2`",
        )  # fmt: skip
    return scores


def centred(scores: Array) -> Array:
    """The same attention with affinities e^score of mean 1 in each row."""
    top = scores.max(axis=-1, keepdims=True)
    scores = scores - top
    return scores - np.log(np.exp(scores).mean(axis=-1, keepdims=True))


def keys_of(log_affinity: Array, sigma2: float) -> Array:
    """Key tables (L, S, S) whose attention is that of these affinities (L, S, S) [hop, query symbol, key symbol].

    With r_k = ½‖K_k‖² the entries are K_k[v] = σ² log W[v,k] − s + r_k. Over v they are d_k[v] + u_k, d_k of mean 0,
    and u_k solves a quadratic; the shift s of a hop is the least, 0 or above, with which all have a solution, and u_k
    is the smaller one. Raises: ValueRefusedError where a squared norm overflows.
    """
    symbols = log_affinity.shape[-1]
    with np.errstate(over="ignore", invalid="ignore"):
        entries = sigma2 * log_affinity.swapaxes(1, 2)
        means = entries.mean(axis=2, keepdims=True)
        spread = np.square(entries - means).sum(axis=2, keepdims=True)
        needed = (spread + 2 * means - 1 / symbols) / 2
        shift = np.maximum(needed.max(axis=1, keepdims=True), 0.0)
        keys = entries - means + (1 - np.sqrt(2 * symbols * (shift - needed))) / symbols
    if not np.isfinite(keys).all():
        raise refused(f"the key tables overflow at sigma2 {sigma2:g}", hint="give a smaller `sigma2`")
    return keys
