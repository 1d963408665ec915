"""Positions: a bare index is its own position, so encodings are formulas and need no tables.

Formula: cat[f = c + one](x_<i c>, ones_<one> * i / |i|) appends; x_<i c> + P_<i c> adds sines and cosines.
Source: Vaswani et al. 2017, section 3.5, for the sines; Press et al. 2022 (ALiBi) for the bias in the score.
"""

import math

import numpy as np

import tensorattn as ta

APPENDED = "z_<i f> = cat[f = c + one](x_<i c>, ones_<one> * i / |i|)"
ADDED = """
    P_<i (f r)> = where(r == 0, sin(i * 10000 ** (-f / |f|)), cos(i * 10000 ** (-f / |f|)))
    z_<i c>     = x_<i c> + P_<i c>
"""
BIASED = "y_<h i e> = softmax[j : j <= i](S_<h i j> + 2 ** (-8 * (h + 1) / |h|) * (j - i)) v_<h j e>"


def sines(length, width):
    """The table of the paper, entry by entry."""
    table = np.zeros((length, width))
    for position in range(length):
        for column in range(width):
            angle = position / 10000 ** (2 * (column // 2) / width)
            table[position, column] = math.cos(angle) if column % 2 else math.sin(angle)
    return table


def biased(S, v):
    """ALiBi by loops: a distance costs more in the first heads."""
    heads, n, _ = S.shape
    y = np.zeros((heads, n, v.shape[2]))
    for h in range(heads):
        slope = 2 ** (-8 * (h + 1) / heads)
        for i in range(n):
            weights = np.exp([S[h, i, j] - slope * (i - j) for j in range(i + 1)])
            y[h, i] = weights / weights.sum() @ v[h, : i + 1]
    return y


def main():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(5, 8))

    appended = ta.compile(APPENDED, sizes={"one": 1})(x=x)
    np.testing.assert_allclose(appended, np.concatenate([x, (np.arange(5) / 5)[:, None]], axis=1))
    print("appended:", ta.parse(APPENDED))
    print("          the last column is", appended[:, -1])

    added = ta.compile(ADDED, sizes={"r": 2})(x=x)
    np.testing.assert_allclose(added, x + sines(5, 8), rtol=1e-12)
    print("added:   ", str(ta.parse(ADDED)).replace("\n", "\n          "))

    S, v = rng.normal(size=(2, 6, 6)), rng.normal(size=(2, 6, 3))
    np.testing.assert_allclose(ta.compile(BIASED)(S=S, v=v), biased(S, v), rtol=1e-10)
    print("biased:  ", ta.parse(BIASED))
    print("all three equal the same computed entry by entry")


if __name__ == "__main__":
    main()
