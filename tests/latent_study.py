"""Chains that can be recovered, and a command that recovers them: `python -m tests.latent_study`, about two minutes.

For L = 1, 2, 3 from five random starts each, at most 600 steps of plain EM; and the recall task for L = 1 … 6.
"""

from __future__ import annotations

import numpy as np

from tensorattn import latent
from tensorattn.latent.accepting import padded

STARTS, STEPS = 5, 600


def study(hops, seed=0, count=2000, symbols=8, length=10):
    """Rows of a chain whose keys are permutations, and the permutations [hop, key]."""
    rng = np.random.default_rng(seed)
    permutations = np.array([rng.permutation(symbols) for _ in range(hops)])
    emission = np.full((symbols, symbols), 0.1 / (symbols - 1))
    np.fill_diagonal(emission, 0.9)
    model = latent.ChainedAttentionDistribution(np.eye(symbols)[permutations], emission, 0.1)
    return model.dist_to_encoder().seq_encode(model.sampler(rng).sample(count, length=length)), permutations


def recall(hops, count, rng, symbols=8):
    """Every symbol is a key once, values are random; the target is where L pointers lead."""
    keys = np.argsort(rng.random((count, symbols)), axis=1)
    values = rng.integers(0, symbols, keys.shape)
    table = np.empty_like(values)
    np.put_along_axis(table, keys, values, axis=1)
    query = rng.integers(0, symbols, count)
    target = query
    for _ in range(hops):
        target = table[np.arange(count), target]
    return padded(keys, values, query, target)


def main():
    for hops in (1, 2, 3):
        rows, permutations = study(hops)
        estimator = latent.ChainedAttentionEstimator(hops, 8, 8)
        for start in range(STARTS):
            found = latent.fit(rows, estimator, STEPS, None, rng=start)
            right = (found.model.keys.argmax(axis=2) == permutations).mean()
            falls = max(0.0, -float(np.diff(found.objective).min()))
            print(f"L={hops} start {start}: keys right {right:.0%}, log-likelihood {found.log_likelihood[-1]:.2f}, "
                  f"falls by at most {falls:.1g}", flush=True)  # fmt: skip
            assert right == 1
            assert falls < 1e-9
    for hops in range(1, 7):
        for start in range(STARTS):
            rng = np.random.default_rng(start)
            rows, others = recall(hops, 2000, rng), recall(hops, 1000, rng)
            found = latent.fit(rows, latent.ChainedAttentionEstimator(hops, 8, 8), STEPS, 1e-3, rng=start)
            solved = (found.model.predict_proba(*list(others)[:3]).argmax(axis=1) == others.target).mean()
            print(f"recall L={hops} start {start}: solved {solved:.3f} after {found.steps} steps", flush=True)
            assert solved == 1


if __name__ == "__main__":
    main()
