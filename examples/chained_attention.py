"""Where each hop of a chain of attention heads looked, given the answer: posteriors against forward–backward by loops.

Formula: tensorattn.library.chain(L) and ta.posterior of its positions.
Source: forward–backward for a hidden chain over positions (Rabiner 1989) whose transitions are softmaxes.
"""

import numpy as np

import tensorattn as ta
from tensorattn.library import chain


def observations(rng, hops, symbols=6, targets=4, count=5, most=7):
    """Contexts of several lengths, padded to the longest, with the mask of what is there."""
    lengths = rng.integers(1, most + 1, size=count)
    arrays = {
        "q": rng.integers(0, symbols, count),
        "key": rng.integers(0, symbols, (count, most)),
        "val": rng.integers(0, symbols, (count, most)),
        "target": rng.integers(0, targets, count),
        "keep": np.arange(most) < lengths[:, None],
        "B": rng.dirichlet(np.ones(targets), size=symbols),
    }
    for hop in range(1, hops + 1):
        arrays[f"G{hop}"] = 3 * rng.normal(size=(symbols, symbols))
    return arrays


def forward_backward(x, hops, n):
    """p(target), and for every hop the posterior of the pair of positions that it goes between (the first: of one)."""
    there = np.flatnonzero(x["keep"][n])
    key, val, size = x["key"][n][there], x["val"][n][there], x["keep"].shape[1]

    def weights(scores):
        e = np.exp(scores - scores.max())
        return e / e.sum()

    gate = weights(x["G1"][x["q"][n], key])
    steps = [np.stack([weights(x[f"G{hop}"][v, key]) for v in val]) for hop in range(2, hops + 1)]
    alpha, beta = [gate], [x["B"][val, x["target"][n]]]
    for step in steps:
        alpha.append(alpha[-1] @ step)
    for step in reversed(steps):
        beta.insert(0, step @ beta[0])
    p = alpha[0] @ beta[0]
    first = np.zeros(size)
    first[there] = alpha[0] * beta[0] / p
    pairs = []
    for hop, step in enumerate(steps):
        pair = np.zeros((size, size))
        pair[np.ix_(there, there)] = alpha[hop][:, None] * step * beta[hop + 1] / p
        pairs.append(pair)
    return p, [first, *pairs]


def main():
    rng = np.random.default_rng(0)
    for hops in (1, 2, 3, 4):
        x = observations(rng, hops)
        program = chain(hops, masked=True)
        likelihood = ta.compile(program)(x)
        posteriors = [ta.compile(ta.posterior(program, f"i{hop}"))(x) for hop in range(1, hops + 1)]
        for n in range(len(x["q"])):
            p, expected = forward_backward(x, hops, n)
            assert np.allclose(likelihood[n], np.log(p), atol=1e-12)
            assert all(
                np.allclose(found[n], wanted, atol=1e-12) for found, wanted in zip(posteriors, expected, strict=True)
            )
        print(f"{hops} hops: log p = {np.round(likelihood, 3)}, posteriors as by forward-backward")
    landed = [posteriors[0][1], *(pairs[1].sum(0) for pairs in posteriors[1:])]
    print("most probable position of each hop of the second observation:", [int(np.argmax(row)) for row in landed])


if __name__ == "__main__":
    main()
