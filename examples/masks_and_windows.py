"""Masks are predicates on the barred index: causal, windows, documents, padding, and their conjunctions.

Formula: y_<i e> = S_<i bar(j : predicate)> v_<j e>
An excluded entry has weight exactly 0, whatever stands there, and a row that excludes everything gives 0.
"""

import numpy as np

import tensorattn as ta

MASKS = {
    "causal": ("j <= i", lambda i, j, c: j <= i),
    "window": ("0 <= i - j < w", lambda i, j, c: 0 <= i - j < c["w"]),
    "both sides": ("abs(i - j) <= w", lambda i, j, c: abs(i - j) <= c["w"]),
    "documents": ("doc_i == doc_j and j <= i", lambda i, j, c: c["doc"][i] == c["doc"][j] and j <= i),
    "padding": ("keep_j", lambda i, j, c: c["keep"][j]),
    "strided": ("j <= i and (i - j < w or sink_j)", lambda i, j, c: j <= i and (i - j < c["w"] or c["sink"][j])),
}


def by_loops(S, v, admits):
    """The softmax over the admitted j only, row by row."""
    y = np.zeros((len(S), v.shape[1]))
    for i in range(len(S)):
        admitted = [j for j in range(len(v)) if admits(i, j)]
        weights = np.exp([S[i, j] for j in admitted])
        for j, weight in zip(admitted, weights, strict=True):
            y[i] += weight / weights.sum() * v[j]
    return y


def main():
    rng = np.random.default_rng(0)
    n = 8
    S, v = rng.normal(size=(n, n)), rng.normal(size=(n, 3))
    conditions = {
        "w": 3,
        "doc": np.array([0, 0, 0, 1, 1, 2, 2, 2]),
        "keep": np.arange(n) < 6,
        "sink": np.arange(n) % 4 == 0,
    }
    for name, (predicate, admits) in MASKS.items():
        attend = ta.compile(f"y_<i e> = S_<i bar(j : {predicate})> v_<j e>")
        given = {k: a for k, a in conditions.items() if k in attend.program.inputs}
        y = attend(S=S, v=v, **given)
        np.testing.assert_allclose(y, by_loops(S, v, lambda i, j, f=admits: f(i, j, conditions)), rtol=1e-10)
        print(f"{name:>10}: {attend.program}")

    attend = ta.compile("y_<i e> = S_<i bar(j : keep_j)> v_<j e>")
    spoilt = np.where(conditions["keep"][:, None], v, np.nan)
    np.testing.assert_array_equal(
        attend(S=S, v=spoilt, keep=conditions["keep"]), attend(S=S, v=np.nan_to_num(spoilt), keep=conditions["keep"])
    )
    print("a NaN in an excluded value changes nothing")
    nothing = attend(S=S, v=v, keep=np.zeros(n, dtype=bool))
    np.testing.assert_array_equal(nothing, np.zeros((n, 3)))
    print("a row that excludes everything is 0, not NaN")


if __name__ == "__main__":
    main()
