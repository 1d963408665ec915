"""The maximisation steps: statistics → affinities or key tables, and emission.

`exact`: each hop is a Luce choice, so W ← (C + a)/(D + b) never lowers the (penalised) likelihood.
Source: Hunter 2004, "MM algorithms for generalized Bradley–Terry models", Annals of Statistics 32.
`moment`: key tables as means of one-hot queries. It leaves the softmax's normaliser out and can lower the likelihood.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensorattn.latent.rows import Array
from tensorattn.latent.statistics import Statistics
from tensorattn.latent.tables import centred

SMALLEST = 1e-300  # of a count, so that logs stay finite
LEAST_AFFINITY = -600.0  # below it a count may be lost to underflow, above it a count of 0 is one
LEAST_MASS = 1e-9


@dataclass(frozen=True, slots=True)
class Prior:
    """`choices`: pseudo-choices of every query symbol at every hop, spread evenly over the keys: affinities have the
    prior Gamma(a + 1, a), a = choices / S. `targets`: pseudo-targets of every value symbol, spread evenly, added to
    `smoothing` in each entry: rows of the emission have a Dirichlet prior."""

    choices: float = 0.0
    targets: float = 0.0
    smoothing: float = 0.0

    def log_density(self, log_affinity: Array, emission: Array) -> float:
        """Up to a constant: what is added to the log-likelihood in the objective of the exact step."""
        found = 0.0
        if self.choices:
            found += self.choices / log_affinity.shape[-1] * float((log_affinity - np.exp(log_affinity)).sum())
        each = self.smoothing + self.targets / emission.shape[1]
        if each:
            with np.errstate(divide="ignore"):
                found += each * float(np.log(emission).sum())
        return found


def exact(found: Statistics, prior: Prior) -> Array:
    """log W (L, S, S) [hop, query symbol, key symbol], rows of mean 1.

    A key symbol that a query symbol never could choose has the affinity 1, the prior's mean. Each entry is a step of
    its own, so one that is kept short of its optimum, because its count is below what floats hold, is no loss.
    """
    C, reach, reference = (table.swapaxes(1, 2) for table in (found.key_num, found.reach, found.reference))
    lost = (reference < LEAST_AFFINITY) & (reach < SMALLEST)
    reach = np.where(lost, SMALLEST, reach)
    seen = reach > 0
    log_d = np.log(np.where(seen, reach, 1.0)) - reference
    if prior.choices:
        a = prior.choices / C.shape[-1]
        return centred(np.log(C + a) - np.logaddexp(np.where(seen, log_d, -np.inf), np.log(a)))
    log_w = np.log(np.maximum(C, np.minimum(reach, SMALLEST)), where=seen, out=np.zeros_like(C)) - log_d
    top = log_w.max(axis=2, keepdims=True, where=seen, initial=-np.inf)
    top = np.where(np.isfinite(top), top, 0.0)
    total = np.exp(np.where(seen, log_w - top, -np.inf)).sum(axis=2, keepdims=True)
    mean = np.where(total > 0, total / np.maximum(seen.sum(axis=2, keepdims=True), 1), 1.0)
    return np.where(seen, log_w - top - np.log(mean), 0.0)


def moment(found: Statistics, prior: Prior) -> Array:
    """Key tables (L, S, S) [hop, key symbol, query symbol]: the mean query of each key."""
    mass = found.key_mass[:, :, None]
    if prior.choices:
        return (found.key_num + prior.choices / found.key_num.shape[-1]) / (mass + prior.choices)
    return found.key_num / np.maximum(mass, LEAST_MASS)


def emission(found: Statistics, prior: Prior) -> Array:
    """B (S, T), rows of the counts and the prior's, normalised; a row without either is uniform."""
    counts = found.emission_count + (prior.smoothing + prior.targets / found.emission_count.shape[1])
    sums = counts.sum(axis=1, keepdims=True)
    return np.where(sums > 0, counts / np.where(sums > 0, sums, 1.0), 1.0 / counts.shape[1])
