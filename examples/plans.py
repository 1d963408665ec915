"""Plans that never hold the weights: streamed under a budget, factored, and packed documents, beside plain NumPy.

Formulas: attention over pairs with a trilinear score, a triangle of pairwise terms, attention within documents.
A plan changes what is computed and what is held, never what a formula means.
"""

import numpy as np

import tensorattn as ta

TRILINEAR = """
    S^<mu nu rho> = q^mu_i k^nu_j r^rho_l A_<i j l>
    y^mu_n        = S^<mu bar(nu rho)> v^nu_n w^rho_n
"""
TRIANGLE = "y^mu_n = sum[rho](softmax[nu rho](A^<mu nu> + B^<nu rho> + C^<mu rho>) v^nu_n)"
PACKED = "y^mu_n = softmax[nu : d_mu == d_nu and nu <= mu](q^mu_i k^nu_i) v^nu_n"


def weights(scores):
    """The softmax of each row over all its other axes, as one array."""
    e = np.exp(scores - scores.max(axis=(1, 2), keepdims=True))
    return e / e.sum(axis=(1, 2), keepdims=True)


def streamed_under_a_budget(rng):
    x = {name: rng.normal(size=(60, 4)) for name in "qkrvw"} | {"A": rng.normal(size=(4, 4, 4))}
    held = 60**3 * 8  # bytes of the weights as one array
    attend = ta.compile(TRILINEAR, plan="streamed", memory=held // 4)
    scores = np.einsum("mi,nj,rl,ijl->mnr", x["q"], x["k"], x["r"], x["A"], optimize=True)
    expected = np.einsum("mnr,nf,rf->mf", weights(scores), x["v"], x["w"], optimize=True)
    np.testing.assert_allclose(attend(x), expected, rtol=1e-10, atol=1e-12)

    sizes = {"mu": 60, "nu": 60, "rho": 60, "i": 4, "j": 4, "l": 4, "n": 4}
    peak = attend.cost(**sizes).at({}).peak_bytes
    assert peak < held // 4
    print(attend.explain(**sizes))
    print(f"weights: {held:,} bytes; the call holds {peak:,}")


def factored(rng):
    x = {name: rng.normal(size=(30, 30)) for name in "ABC"} | {"v": rng.normal(size=(30, 3))}
    triangle = ta.compile(TRIANGLE, plan="factored")
    scores = x["A"][:, :, None] + x["B"][None] + x["C"][:, None, :]
    expected = np.einsum("mnr,nf->mf", weights(scores), x["v"])
    np.testing.assert_allclose(triangle(x), expected, rtol=1e-10, atol=1e-12)
    exps = triangle.cost().exps
    assert str(exps) == "mu*nu + mu*rho + nu*rho"
    print(f"triangle: {exps} exponentials for mu*nu*rho weights")


def packed_documents(rng):
    lengths = (5, 9, 1, 7)
    total = sum(lengths)
    x = {name: rng.normal(size=(total, 4)) for name in "qkv"} | {"d": np.repeat(np.arange(4), lengths)}
    expected = np.zeros((total, 4))
    starts = np.cumsum((0, *lengths))
    for start, length in zip(starts[:-1], lengths, strict=True):  # every document by itself, row by row
        for row in range(start, start + length):
            e = np.exp(x["k"][start : row + 1] @ x["q"][row])
            expected[row] = e / e.sum() @ x["v"][start : row + 1]
    for plan in ("dense", "streamed"):
        np.testing.assert_allclose(ta.compile(PACKED, plan=plan)(x), expected, rtol=1e-10, atol=1e-12)
    print(f"packed: {len(lengths)} documents in one array of {total} rows, none sees another")


def main():
    rng = np.random.default_rng(0)
    streamed_under_a_budget(rng)
    factored(rng)
    packed_documents(rng)


if __name__ == "__main__":
    main()
