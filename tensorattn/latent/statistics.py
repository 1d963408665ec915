"""What an expectation step collects: additive numbers from which a maximisation step makes a new model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from tensorattn.errors import ShapeError
from tensorattn.latent.accepting import number, numbers, refused
from tensorattn.latent.rows import Array

ADDITIVE = ("key_num", "emission_count", "ll", "n", "reach")
LARGEST = 1e300


class Statistics(NamedTuple):
    """Sums over observations with weights w; all but `reference` are additive.

    `key_num` (L, S, S) [hop, key, query symbol]: C, how often a query symbol chose a key symbol; `key_mass` (L, S): its
    sums over query symbols; `emission_count` (S, T); `ll`: Σ w log p; `n`: Σ w;
    `reach` (L, S, S): W D, how often a query symbol would choose a key symbol before the target is known, with
    D[k,v] = Σ w γ_i [v_i = v] #{j : k_j = k} / Z_i; `reference` (L, S, S): log W, the affinities that it was counted
    under, of mean 1 over the keys.
    """

    key_num: Array
    key_mass: Array
    emission_count: Array
    ll: float
    n: float
    reach: Array
    reference: Array

    def __add__(self, other: tuple[Any, ...]) -> Statistics:
        """The statistics of both sets of observations. Raises: ShapeError where they are of different sizes."""
        other = restored(other, self.key_num.shape[0], *self.emission_count.shape)
        reach = self.reach + other.referred(self.reference) if self.reach.any() else other.reach
        return Statistics(
            self.key_num + other.key_num,
            self.key_mass + other.key_mass,
            self.emission_count + other.emission_count,
            self.ll + other.ll,
            self.n + other.n,
            np.zeros_like(reach) if self.lack_reach or other.lack_reach else reach,
            self.reference if self.reach.any() else other.reference,
        )

    @property
    def lack_reach(self) -> bool:
        """Whether these were collected without `reach`, or have a part that was."""
        return bool(self.key_num.any() and not self.reach.any())

    def times(self, factor: float) -> Statistics:
        """The statistics with every weight times a factor."""
        tables = (self.key_num * factor, self.key_mass * factor, self.emission_count * factor)
        ll = self.ll * factor if factor else 0.0  # 0 · −∞ is no number
        return Statistics(*tables, ll, self.n * factor, self.reach * factor, self.reference)

    def copied(self) -> Statistics:
        """The same in memory of their own."""
        tables = (self.key_num.copy(), self.key_mass.copy(), self.emission_count.copy())
        return Statistics(*tables, self.ll, self.n, self.reach.copy(), self.reference.copy())

    def referred(self, reference: Array) -> Array:
        """`reach` relative to another reference."""
        if np.array_equal(reference, self.reference):
            return self.reach
        with np.errstate(over="ignore", divide="ignore"):
            return np.minimum(np.exp(np.log(self.reach) + (reference - self.reference)), LARGEST)


def zeros(hops: int, symbols: int, targets: int) -> Statistics:
    """Of no observations."""
    tables = (np.zeros((hops, symbols, symbols)) for _ in range(3))
    key_num, reach, reference = tables
    return Statistics(key_num, np.zeros((hops, symbols)), np.zeros((symbols, targets)), 0.0, 0.0, reach, reference)


def restored(given: Any, hops: int, symbols: int, targets: int) -> Statistics:
    """Checked statistics of what `value()` returned; of five entries, without `reach`, as mixle has them, too.

    Raises: ShapeError, DTypeError, ValueRefusedError.
    """
    if not isinstance(given, (tuple, list)) or len(given) not in (5, 7):
        raise ShapeError(
            "E-RANK",
            "statistics are what `value()` returns: (key_num, key_mass, emission_count, ll, n, reach, reference)",
            hint="pass the value of an accumulator of the same sizes",
        )
    table = (hops, symbols, symbols)
    shapes = (table, (hops, symbols), (symbols, targets), None, None, table, table)
    names = Statistics._fields
    parts: list[Any] = []
    for part, name, shape in zip(given, names, shapes, strict=False):
        if shape is not None:
            parts.append(numbers(part, name, shape))
        elif name == "ll" and np.ndim(part) == 0 and part == -np.inf:  # an observation that cannot be
            parts.append(-np.inf)
        else:
            parts.append(number(part, name))
    if parts[4] < 0 or any((part < 0).any() for part in (*parts[:3], *parts[5:6])):
        raise refused("statistics are counts, and some are negative", hint="pass the value of an accumulator")
    if len(parts) == 5:
        parts += [np.zeros(table), np.zeros(table)]
    return Statistics(*parts)


def flat(statistics: Statistics) -> Array:
    """The additive parts as one vector."""
    return np.concatenate([np.ravel(part) for part in statistics[:6]])


def unflat(vector: Array, like: Statistics) -> Statistics:
    """The inverse of `flat`."""
    ends = np.cumsum([np.size(part) for part in like[:6]])
    parts = [p.reshape(np.shape(q)) for p, q in zip(np.split(vector, ends[:-1]), like[:6], strict=True)]
    key_num, key_mass, emission_count, ll, n, reach = parts
    return Statistics(key_num, key_mass, emission_count, float(ll), float(n), reach, like.reference)


def total(found: Iterable[Statistics]) -> Statistics:
    """The sum of one or more."""
    first, *others = found
    for other in others:
        first = first + other
    return first
