"""`ChainedAttentionSampler`: uniform contexts and queries, then the chain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tensorattn.latent import accepting, logarithmic
from tensorattn.latent.rows import Array, Rows

if TYPE_CHECKING:
    from tensorattn.latent.distribution import ChainedAttentionDistribution

Seed = int | np.random.Generator | np.random.RandomState | None
LENGTH = 6
Observation = tuple[Array, Array, int, int]


class ChainedAttentionSampler:
    """Draws observations (context_keys, context_values, query, target).

    `seed`: an integer or None (a new `numpy.random.Generator`), a `Generator`, or a `RandomState`, which gives the very
    draws of mixle at length 6.
    """

    def __init__(self, dist: ChainedAttentionDistribution, seed: Seed = None) -> None:
        self.dist = dist
        self.rng = accepting.source(seed)

    def sample(self, size: int | None = None, *, batched: bool = True, length: int | tuple[int, int] = LENGTH) -> Any:
        """One observation, or a list of `size`; `length` positions each, or uniformly from (least, most).

        `batched` draws all at once; else one after the other, so that two calls draw what one call for both would.
        A `RandomState` always draws one after the other.
        Raises: ValueRefusedError `E-VALUE`, DTypeError `E-DTYPE`.
        """
        least, most = length if isinstance(length, tuple) and len(length) == 2 else (length, length)
        least = accepting.size(least, "length")
        most = accepting.size(most, "length", least)
        if size is None:
            return self._draw(1, least, most)[0]
        count = accepting.size(size, "size", 0)
        if batched and isinstance(self.rng, np.random.Generator):
            return self._draw(count, least, most)
        return [item for _ in range(count) for item in self._draw(1, least, most)]

    def _draw(self, count: int, least: int, most: int) -> list[Observation]:
        if isinstance(self.rng, np.random.RandomState):
            return [_legacy(self.dist, self.rng, least, most) for _ in range(count)]
        if count == 0:
            return []
        symbols, rng = self.dist.num_symbols, self.rng
        sizes = rng.integers(least, most + 1, size=count)
        keep = np.arange(most) < sizes[:, None]
        keys, values = (np.where(keep, rng.integers(0, symbols, size=keep.shape), 0) for _ in range(2))
        query = rng.integers(0, symbols, size=count)
        target = draw_targets(self.dist, Rows(keys, values, query, np.zeros(count, dtype=np.int64), keep), rng)
        rows = zip(keys, values, query.tolist(), target.tolist(), sizes.tolist(), strict=True)
        return [(k[:n], v[:n], q, t) for k, v, q, t, n in rows]


def draw_targets(dist: ChainedAttentionDistribution, rows: Rows, rng: np.random.Generator) -> Array:
    """Targets (n,) for these contexts and queries: a position a hop by the Gumbel maximum, then a target."""
    asked = rows.query
    for scores in dist.log_affinity:
        weights = np.where(rows.keep, scores[asked[:, None], rows.context_keys], -np.inf)
        position = (weights + rng.gumbel(size=weights.shape)).argmax(axis=1)
        asked = np.take_along_axis(rows.context_values, position[:, None], axis=1)[:, 0]
    reached = np.cumsum(dist.emission, axis=1)[asked]
    return (rng.random(len(rows))[:, None] * reached[:, -1:] >= reached).sum(axis=1)


def _legacy(dist: ChainedAttentionDistribution, rng: np.random.RandomState, least: int, most: int) -> Observation:
    """One observation by the calls, in their order, that mixle makes."""
    symbols = dist.num_symbols
    size = least if least == most else int(rng.randint(least, most + 1))
    keys, values = rng.randint(0, symbols, size=size), rng.randint(0, symbols, size=size)
    query = asked = int(rng.randint(0, symbols))
    for scores in dist.log_affinity:
        weights = scores[asked, keys]
        weights = np.exp(weights - logarithmic.log_sum_exp(weights))
        asked = int(values[rng.choice(size, p=weights)])
    return keys, values, query, int(rng.choice(dist.num_targets, p=dist.emission[asked]))
