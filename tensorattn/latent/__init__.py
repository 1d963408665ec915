"""Chained (multi-hop) attention fitted by expectation–maximisation.

>>> import numpy as np
>>> import tensorattn as ta
>>> truth = ta.latent.ChainedAttentionDistribution(np.eye(5)[[[1, 2, 3, 4, 0]] * 2], np.eye(5) * 0.9 + 0.02)
>>> rows = truth.sampler(seed=0).sample(400, length=8)
>>> found = ta.latent.fit(rows, truth.estimator(), max_its=200, rng=0, accelerate=True)
>>> [int(k) for k in found.model.log_affinity[0].argmax(axis=1)]  # the key that each query chooses
[4, 0, 1, 2, 3]
"""

from __future__ import annotations

from tensorattn.latent.accepting import EmptyError, ValueRefusedError
from tensorattn.latent.accumulator import ChainedAttentionAccumulator, ChainedAttentionAccumulatorFactory
from tensorattn.latent.distribution import ChainedAttentionDistribution
from tensorattn.latent.drawing import draw_attention, draw_keys
from tensorattn.latent.encoder import ChainedAttentionDataEncoder
from tensorattn.latent.estimator import ChainedAttentionEstimator
from tensorattn.latent.fitting import Fit, fit
from tensorattn.latent.paths import Attention, Path, Posterior
from tensorattn.latent.reducing import AllReduce
from tensorattn.latent.rows import Rows
from tensorattn.latent.sampler import ChainedAttentionSampler
from tensorattn.latent.statistics import Statistics
from tensorattn.latent.streaming import Stream

__all__ = [
    "AllReduce",
    "Attention",
    "ChainedAttentionAccumulator",
    "ChainedAttentionAccumulatorFactory",
    "ChainedAttentionDataEncoder",
    "ChainedAttentionDistribution",
    "ChainedAttentionEstimator",
    "ChainedAttentionSampler",
    "EmptyError",
    "Fit",
    "Path",
    "Posterior",
    "Rows",
    "Statistics",
    "Stream",
    "ValueRefusedError",
    "draw_attention",
    "draw_keys",
    "fit",
]
