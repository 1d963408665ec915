"""`ChainedAttentionAccumulator`: the additive statistics of an expectation step, and its factory."""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorattn.errors import ShapeError
from tensorattn.latent import accepting, statistics
from tensorattn.latent.counting import chunks, collect
from tensorattn.latent.distribution import ChainedAttentionDistribution
from tensorattn.latent.encoder import ChainedAttentionDataEncoder
from tensorattn.latent.rows import Array, Rows
from tensorattn.latent.statistics import Statistics

Random = np.random.Generator | np.random.RandomState


class ChainedAttentionAccumulator:
    """Sums over observations; those of several shards, processes or sites add up.

    `keys`: a label; accumulators with one label share their sum (`key_merge`, then `key_replace`).
    A call that raises leaves the sums as they were.
    """

    def __init__(
        self, n_hops: int, num_symbols: int, num_targets: int, keys: str | None = None, name: str | None = None
    ) -> None:
        self.n_hops = accepting.size(n_hops, "n_hops")
        self.num_symbols = accepting.size(num_symbols, "num_symbols")
        self.num_targets = accepting.size(num_targets, "num_targets")
        self.keys, self.name = keys, name
        self._sums = statistics.zeros(self.n_hops, self.num_symbols, self.num_targets)

    def __repr__(self) -> str:
        sizes = f"{self.n_hops}, {self.num_symbols}, {self.num_targets}"
        return f"ChainedAttentionAccumulator({sizes}, keys={self.keys!r}, name={self.name!r})"

    def seq_update(self, x: Any, weights: Any, estimate: ChainedAttentionDistribution) -> None:
        """Adds encoded observations with weights (n,), or 1 each for None, by forward–backward under `estimate`.

        Raises: ShapeError, DTypeError, ValueRefusedError.
        """
        accepting.made(estimate, ChainedAttentionDistribution, "estimate")
        sizes = (estimate.n_hops, estimate.num_symbols, estimate.num_targets)
        if sizes != (self.n_hops, self.num_symbols, self.num_targets):
            raise ShapeError(
                "E-EXTENT",
                "the model and the accumulator have different sizes",
                facts=[f"(L, S, T) are {sizes} and {(self.n_hops, self.num_symbols, self.num_targets)}"],
                hint="make the accumulator with `estimate.estimator().accumulator_factory().make()`",
            )
        rows = self._rows(x)
        self._sums = self._sums + collect(rows, estimate.tables, accepting.weights(weights, len(rows)))

    def seq_initialize(self, x: Any, weights: Any, rng: Random) -> None:
        """Adds encoded observations with random responsibilities of the positions; O(L·N²) draws an observation.

        Raises: ShapeError, DTypeError, ValueRefusedError.
        """
        rows, source = self._rows(x), accepting.source(rng)
        self._sums = self._sums + _random(rows, accepting.weights(weights, len(rows)), source, self._sums)

    def update(self, x: Any, weight: float, estimate: ChainedAttentionDistribution) -> None:
        """Adds one observation. Raises: as `seq_update`."""
        self.seq_update(accepting.observations([x]), [weight], estimate)

    def initialize(self, x: Any, weight: float, rng: Random) -> None:
        """Adds one observation with random responsibilities. Raises: as `seq_initialize`."""
        self.seq_initialize(accepting.observations([x]), [weight], rng)

    def combine(self, suff_stat: Any) -> ChainedAttentionAccumulator:
        """Adds the value of another accumulator. Raises: ShapeError, DTypeError, ValueRefusedError."""
        self._sums = self._sums + suff_stat
        return self

    def scale(self, c: float) -> ChainedAttentionAccumulator:
        """Multiplies all weights by c ≥ 0. Raises: ValueRefusedError."""
        self._sums = self._sums.times(accepting.number(c, "c", least=0))
        return self

    def value(self) -> Statistics:
        """The sums: (key_num, key_mass, emission_count, ll, n, reach, reference)."""
        return self._sums.copied()

    def from_value(self, x: Any) -> ChainedAttentionAccumulator:
        """Takes the value of another accumulator. Raises: ShapeError, DTypeError, ValueRefusedError."""
        self._sums = statistics.restored(x, self.n_hops, self.num_symbols, self.num_targets)
        return self

    def key_merge(self, stats_dict: dict[str, Any]) -> None:
        """Adds the sums to those under this accumulator's label; without a label does nothing."""
        if self.keys is not None:
            known = stats_dict.get(self.keys)
            stats_dict[self.keys] = self.value() if known is None else self._sums + known

    def key_replace(self, stats_dict: dict[str, Any]) -> None:
        """Takes the sums under this accumulator's label, where there are any."""
        if self.keys is not None and self.keys in stats_dict:
            self.from_value(stats_dict[self.keys])

    def acc_to_encoder(self) -> ChainedAttentionDataEncoder:
        """The encoder of observations."""
        return ChainedAttentionDataEncoder()

    def _rows(self, x: Any) -> Rows:
        return accepting.encoded(x, self.num_symbols, self.num_targets)

    key_num = property(lambda self: self._sums.key_num)
    key_mass = property(lambda self: self._sums.key_mass)
    emission_count = property(lambda self: self._sums.emission_count)
    ll = property(lambda self: self._sums.ll)
    n = property(lambda self: self._sums.n)


class ChainedAttentionAccumulatorFactory:
    """Makes empty accumulators."""

    def __init__(
        self, n_hops: int, num_symbols: int, num_targets: int, keys: str | None = None, name: str | None = None
    ) -> None:
        self._given = (n_hops, num_symbols, num_targets, keys, name)
        self.make()  # refuses wrong sizes here

    def make(self) -> ChainedAttentionAccumulator:
        """An empty accumulator."""
        return ChainedAttentionAccumulator(*self._given)


def _random(rows: Rows, weights: Array, rng: Random, like: Statistics) -> Statistics:
    """Flat Dirichlet responsibilities of the positions of each hop, and of pairs of positions between hops."""
    key_num, reach, E = (np.zeros_like(part) for part in (like.key_num, like.reach, like.emission_count))
    hops = len(key_num)
    positions = [_flat_dirichlet(rows.keep, rng) * weights[:, None] for _ in range(hops)]
    np.add.at(key_num[0], (rows.context_keys, rows.query[:, None]), positions[0])
    np.add.at(E, (rows.context_values, rows.target[:, None]), positions[-1])
    for hop in range(1, hops):
        for part in chunks(len(rows), rows.length**2):
            own, scaled = rows.take(part), weights[part]
            keep = own.keep[:, :, None] & own.keep[:, None, :]
            pairs = _flat_dirichlet(keep.reshape(len(own), -1), rng).reshape(keep.shape) * scaled[:, None, None]
            at = np.broadcast_arrays(own.context_keys[:, None, :], own.context_values[:, :, None])
            np.add.at(key_num[hop], tuple(at), pairs)
    _uniform_reach(rows, weights, reach)
    return Statistics(key_num, key_num.sum(axis=2), E, 0.0, float(weights.sum()), reach, np.zeros_like(reach))


def _flat_dirichlet(keep: Array, rng: Random) -> Array:
    """Uniform on the simplex of the positions that count, a row each."""
    drawn = np.where(keep, rng.standard_gamma(1.0, size=keep.shape), 0.0)
    return drawn * (1.0 / drawn.sum(axis=1, keepdims=True))


def _uniform_reach(rows: Rows, weights: Array, reach: Array) -> None:
    """D of equal affinities: every choice is uniform over the positions, whatever asks."""
    size = rows.keep.sum(axis=1)
    each = np.where(rows.keep, (weights / size)[:, None], 0.0)
    np.add.at(reach[0], (rows.context_keys, rows.query[:, None]), each)
    if len(reach) > 1:
        symbols = reach.shape[1]
        counts = np.zeros((2, len(rows), symbols))
        number = np.arange(len(rows))[:, None]
        np.add.at(counts[0], (number, rows.context_keys), rows.keep / size[:, None])
        np.add.at(counts[1], (number, rows.context_values), rows.keep / size[:, None])
        reach[1:] = (counts[0] * weights[:, None]).T @ counts[1]
