"""`Stream`: online EM on batches as they come, with statistics that forget slowly.

Source: Cappé & Moulines 2009, "On-line expectation–maximization algorithm for latent data models", JRSS B 71.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tensorattn.latent import accepting
from tensorattn.latent.counting import collect
from tensorattn.latent.distribution import ChainedAttentionDistribution
from tensorattn.latent.estimator import ChainedAttentionEstimator
from tensorattn.latent.reducing import Reduce, reduced, same_everywhere
from tensorattn.latent.statistics import Statistics


class Stream:
    """Online EM: after batch t the statistics are (1 − ρ) old + ρ new, ρ = (t + delay)^−decay, and a new model is made.

    `start`: a model, else a random one of `rng`. `decay` in (0.5, 1]; `delay` ≥ 0. `total`: the observations that the
    statistics stand for beside the prior; None: all seen so far. `reduce`: sums over processes, each with its batches.

    Raises: ValueRefusedError `E-VALUE`, DTypeError `E-DTYPE`.
    """

    def __init__(
        self,
        estimator: ChainedAttentionEstimator,
        *,
        start: ChainedAttentionDistribution | None = None,
        rng: int | np.random.Generator | None = None,
        decay: float = 0.6,
        delay: float = 1.0,
        total: float | None = None,
        reduce: Reduce | None = None,
    ) -> None:
        accepting.made(estimator, ChainedAttentionEstimator, "estimator")
        if start is not None:
            accepting.made(start, ChainedAttentionDistribution, "start")
        self.estimator, self.reduce = estimator, reduce
        self.decay = accepting.number(decay, "decay", above=0.5)
        if self.decay > 1:
            raise accepting.refused(f"`decay` is {decay:g}", hint="give a number above 0.5, up to 1")
        self.delay = accepting.number(delay, "delay", least=0)
        self.total = None if total is None else accepting.number(total, "total", least=0)
        self.model = estimator.random(rng) if start is None else start
        same_everywhere(self.model, reduce)
        self.steps, self.seen = 0, 0.0
        self._mean: Statistics | None = None  # a unit of weight

    def update(self, rows: Any, weights: Any = None) -> float:
        """Learns from a batch of observations; the mean log-likelihood that the model before it gave them.

        Raises: ShapeError, DTypeError, ValueRefusedError; then nothing has changed.
        """
        batch = accepting.sizes_of(accepting.observations(rows), self.estimator.num_symbols, self.estimator.num_targets)
        found = reduced(collect(batch, self.model.tables, accepting.weights(weights, len(batch))), self.reduce)
        if found.n == 0:
            return float("nan")
        rate = min(1.0, (self.steps + 1 + self.delay) ** -self.decay) if self._mean is not None else 1.0
        mean = found.times(rate / found.n)
        if self._mean is not None:
            mean = mean + self._mean.times(1 - rate)
        total = self.seen + found.n if self.total is None else self.total
        self.model = self.estimator.estimate(None, mean.times(total / mean.n))
        self._mean, self.seen, self.steps = mean, self.seen + found.n, self.steps + 1
        return found.ll / found.n
