"""Chained attention by explicit loops: the forward–backward recursions over positions, in logarithms."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

Arrays = dict[str, np.ndarray]


def drawn(rng: np.random.Generator, hops: int, n=3, N=5, S=4, T=3, scale=1.0, masked=False) -> Arrays:
    """Random inputs of a chain of hops; of the first observation everything is masked but one position."""
    x = {
        "q": rng.integers(0, S, n),
        "key": rng.integers(0, S, (n, N)),
        "val": rng.integers(0, S, (n, N)),
        "target": rng.integers(0, T, n),
        "B": rng.dirichlet(np.ones(T), size=S),
    }
    x |= {f"G{hop}": scale * rng.normal(size=(S, S)) for hop in range(1, hops + 1)}
    if masked:
        x["keep"] = rng.random((n, N)) < 0.6
        x["keep"][:1] = np.arange(N) == 0
    return x


def lse(x: np.ndarray) -> float:
    top = x.max(initial=-np.inf)
    return float(top + np.log(np.exp(x - top).sum())) if top > -np.inf else -np.inf


def logarithm(x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(x)


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - lse(x)


def forward_backward(x: Mapping[str, np.ndarray], hops: int, row: int) -> dict[str, np.ndarray]:
    """log p, γ (L, N), ξ (L-1, N, N) and p of all targets of one observation; masked positions have 0."""
    N = len(x["key"][row])
    there = np.flatnonzero(x["keep"][row]) if "keep" in x else np.arange(N)
    key, val = x["key"][row][there], x["val"][row][there]
    gate = log_softmax(x["G1"][x["q"][row], key])
    steps = [np.array([log_softmax(x[f"G{h}"][v, key]) for v in val]) for h in range(2, hops + 1)]
    alpha = [gate]
    for step in steps:
        alpha.append(np.array([lse(alpha[-1] + step[:, j]) for j in range(len(there))]))
    beta = [logarithm(x["B"][val, x["target"][row]])]
    for step in reversed(steps):
        beta.insert(0, np.array([lse(step[i] + beta[0]) for i in range(len(there))]))
    logp = lse(alpha[0] + beta[0])
    base = logp if logp > -np.inf else 0.0  # what is impossible has the posterior 0
    gamma, xi = np.zeros((hops, N)), np.zeros((hops - 1, N, N))
    for hop in range(hops):
        gamma[hop, there] = np.exp(alpha[hop] + beta[hop] - base)
    for hop, step in enumerate(steps):
        for i, place in enumerate(there):
            xi[hop, place, there] = np.exp(alpha[hop][i] + step[i] + beta[hop + 1] - base)
    return {"logp": np.array(logp), "gamma": gamma, "xi": xi, "p": np.exp(alpha[-1]) @ x["B"][val]}
