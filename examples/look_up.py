"""Transitive look-up: a → b → c with two hops, learned from answers alone; one hop cannot do it.

Formula: tensorattn.library's chain of two hops, `logp^n = log(T1^<n bar(i1)> exp(m1^<n i1>))` and so on (printed).
Source: Sukhbaatar et al. 2015, "End-To-End Memory Networks"; the task is one of following pointers.
"""

import numpy as np

import tensorattn as ta
from tensorattn.library.chaining import chain

SYMBOLS = 8


def draw(rng, count):
    """Contexts in which every symbol points to a random one; the answer to a is the symbol that b, its symbol, has."""
    rows = []
    for _ in range(count):
        keys = rng.permutation(SYMBOLS)
        values = rng.integers(0, SYMBOLS, SYMBOLS)
        points = dict(zip(keys.tolist(), values.tolist(), strict=True))
        a = int(rng.integers(SYMBOLS))
        rows.append((keys, values, a, points[points[a]]))
    return rows


def accuracy(model, rows):
    """How often the most probable target is the answer."""
    keys, values, query, target = model.dist_to_encoder().seq_encode(rows)
    return float((model.predict_proba(keys, values, query).argmax(axis=1) == target).mean())


def main():
    rng = np.random.default_rng(0)
    rows, others = draw(rng, 1000), draw(rng, 1000)
    print(chain(2))
    reached = {}
    for hops in (1, 2):
        estimator = ta.latent.ChainedAttentionEstimator(hops, SYMBOLS, SYMBOLS)
        found = ta.latent.fit(rows, estimator, 100, 1e-2, rng=0, accelerate=True)
        reached[hops] = accuracy(found.model, others)
        print(f"{hops} hop(s): {found.steps} steps, accuracy on new contexts {reached[hops]:.3f}")
    assert reached[2] == 1
    assert reached[1] < 0.5

    keys, values, a, c = others[0]
    first, second = found.model.decode(others[0]).positions
    print(f"asked {a}: position {first} ({keys[first]}→{values[first]}), position {second} ({keys[second]}→{c})")
    assert (keys[first], keys[second], values[second]) == (a, values[first], c)


if __name__ == "__main__":
    main()
