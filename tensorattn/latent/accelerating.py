"""SQUAREM: a long step along the path of three successive models of EM.

With r = x₁ − x₀ and v = (x₂ − x₁) − r in logs, y = x₀ + 2 s r + s² v, s = ‖r‖ / ‖v‖ ≥ 1. Whoever uses y checks that
the objective does not fall there.
Source: Varadhan & Roland 2008, "Simple and globally convergent methods for accelerating the convergence of any EM
algorithm", Scandinavian Journal of Statistics 35, scheme S3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tensorattn.latent.distribution import ChainedAttentionDistribution
from tensorattn.latent.rows import Array

LONGEST = 64.0


def extrapolated(models: Sequence[ChainedAttentionDistribution]) -> ChainedAttentionDistribution | None:
    """The model ahead of three successive ones, or None where they give no direction."""
    affinities = [model.log_affinity for model in models]
    with np.errstate(divide="ignore"):
        emissions = [np.log(model.emission) for model in models]
    finite = np.all([np.isfinite(table) for table in emissions], axis=0)
    if not finite.any(axis=1).all():
        return None
    points = [np.concatenate([w.ravel(), b[finite]]) for w, b in zip(affinities, emissions, strict=True)]
    r, second = points[1] - points[0], points[2] - points[1]
    v = second - r
    if not v.any():
        return None
    length = min(float(np.linalg.norm(r) / np.linalg.norm(v)), LONGEST)
    if length <= 1:
        return None
    point = points[0] + 2 * length * r + length**2 * v
    size = affinities[0].size
    return _model(models[-1], point[:size].reshape(affinities[0].shape), point[size:], finite)


def _model(
    like: ChainedAttentionDistribution, affinity: Array, log_emission: Array, finite: Array
) -> ChainedAttentionDistribution:
    table = np.full(finite.shape, -np.inf)
    table[finite] = log_emission
    emission = np.exp(table - table.max(axis=1, keepdims=True))
    emission /= emission.sum(axis=1, keepdims=True)
    made = ChainedAttentionDistribution.from_affinities(affinity, emission, like.sigma2, like.name)
    made.made_by = like.made_by
    return made
