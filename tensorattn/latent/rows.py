"""Encoded observations: contexts of any length, padded, with the positions that count marked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """n observations of up to N positions; unpacks as (context_keys, context_values, query, target), with −1
    where no position is.

    `context_keys`, `context_values`: (n, N) symbols, 0 where `keep` (n, N) is False; `query`, `target`: (n,).
    """

    context_keys: Array
    context_values: Array
    query: Array
    target: Array
    keep: Array

    def __iter__(self) -> Iterator[Array]:
        keys, values = (np.where(self.keep, a, -1) for a in (self.context_keys, self.context_values))
        return iter((keys, values, self.query, self.target))

    def __len__(self) -> int:
        """The number of observations."""
        return len(self.query)

    @property
    def length(self) -> int:
        """N: the positions of the longest context."""
        return self.context_keys.shape[1]

    def take(self, chosen: Array | slice) -> Rows:
        """These observations only."""
        return Rows(
            self.context_keys[chosen],
            self.context_values[chosen],
            self.query[chosen],
            self.target[chosen],
            self.keep[chosen],
        )
