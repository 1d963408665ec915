"""Multi-head attention: a head is one more index, and the concatenation of the heads is a merged axis.

Formula: Q = x Wq, K = x Wk, V = x Wv per head h; z_<i (h e)> = softmax over j of each head; y = z Wo
Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.2.
"""

import numpy as np

import tensorattn as ta

FORMULA = """
    Q_<h i d>   = x_<i c> Wq_<h c d>
    K_<h j d>   = x_<j c> Wk_<h c d>
    V_<h j e>   = x_<j c> Wv_<h c e>
    S_<h i j>   = Q_<h i d> K_<h j d> / sqrt(|d|)
    z_<i (h e)> = S_<h i bar(j)> V_<h j e>
    y_<i o>     = z_<i f> Wo_<f o>
"""


def head_by_head(x, Wq, Wk, Wv, Wo):
    """One head after the other, then concatenated."""
    heads = []
    for a, b, c in zip(Wq, Wk, Wv, strict=True):
        weights = np.exp((x @ a) @ (x @ b).T / np.sqrt(a.shape[1]))
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ (x @ c))
    return np.concatenate(heads, axis=1) @ Wo


def main():
    rng = np.random.default_rng(0)
    n, width, heads, size = 6, 8, 4, 2
    x = rng.normal(size=(n, width))
    Wq, Wk, Wv = (rng.normal(size=(heads, width, size)) for _ in range(3))
    Wo = rng.normal(size=(heads * size, width))

    attend = ta.compile(FORMULA)
    y = attend(x=x, Wq=Wq, Wk=Wk, Wv=Wv, Wo=Wo)
    expected = head_by_head(x, Wq, Wk, Wv, Wo)
    np.testing.assert_allclose(y, expected, rtol=1e-9)
    print(attend.program)
    print(f"y {y.shape} equals the heads one by one to {np.abs(y - expected).max():.0e}")

    # Weights of one matrix for all heads: the axis is split where it is read, and only the number of heads is said.
    packed = ta.compile(FORMULA.replace("_<h c d>", "_<c (h d)>").replace("_<h c e>", "_<c (h e)>"), sizes={"h": heads})
    one = {name: W.transpose(1, 0, 2).reshape(width, -1) for name, W in {"Wq": Wq, "Wk": Wk, "Wv": Wv}.items()}
    np.testing.assert_allclose(packed(x=x, Wo=Wo, **one), expected, rtol=1e-9)
    print("one matrix for all heads, split as (h d): the same")


if __name__ == "__main__":
    main()
