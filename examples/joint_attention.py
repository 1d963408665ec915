"""Joint attention: one object attends to pairs of two others, with one softmax over all pairs.

Formula: W^<mu nu rho> = k^mu_i q^nu_j r^rho_kappa M_<i j kappa>; y^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n
Source: "Higher Order Attention Mechanisms", section "Multiple Objects".
"""

import numpy as np

import tensorattn as ta

FORMULA = """
    W^<mu nu rho> = k^mu_i q^nu_j r^rho_kappa M_<i j kappa>
    y^mu_n        = W^<mu bar(nu rho)> v^<nu rho>_n
"""


def by_loops(k, q, r, M, v):
    """The same with explicit loops over every index of an object."""
    y = np.zeros((len(k), v.shape[-1]))
    for mu in range(len(k)):
        total = 0.0
        for nu in range(len(q)):
            for rho in range(len(r)):
                score = sum(
                    k[mu, i] * q[nu, j] * r[rho, kappa] * M[i, j, kappa] for i, j, kappa in np.ndindex(*M.shape)
                )
                y[mu] += np.exp(score) * v[nu, rho]
                total += np.exp(score)
        y[mu] /= total
    return y


def main():
    rng = np.random.default_rng(0)
    k, q, r = rng.normal(size=(3, 2)), rng.normal(size=(4, 3)), rng.normal(size=(5, 4))
    M, v = rng.normal(size=(2, 3, 4)), rng.normal(size=(4, 5, 6))

    attend = ta.compile(FORMULA)
    y = attend(k=k, q=q, r=r, M=M, v=v)
    np.testing.assert_allclose(y, by_loops(k, q, r, M, v), rtol=1e-10)
    print(attend.program)
    print(f"y {y.shape} equals the loops over mu, nu, rho to {np.abs(y - by_loops(k, q, r, M, v)).max():.0e}")

    # The bar decides what is normalised: over the pairs jointly, or over nu alone for every rho.
    W = rng.normal(size=(3, 4, 5))
    joint = ta.compile("P^<mu nu rho> = W^<mu bar(nu rho)>")(W=W)
    single = ta.compile("P^<mu nu rho> = W^<mu bar(nu) rho>")(W=W)
    np.testing.assert_allclose(joint.sum(axis=(1, 2)), np.ones(3))
    np.testing.assert_allclose(single.sum(axis=1), np.ones((3, 5)))
    print("bar(nu rho): the weights of each mu sum to 1; bar(nu): those of each mu and rho do")

    # With the generalised Kronecker delta in place of M the three vectors meet on one index.
    delta = ta.compile(FORMULA.replace("M_<", "delta_<"))
    d = 2
    k, q, r = (rng.normal(size=(n, d)) for n in (3, 4, 5))
    diagonal = np.zeros((d, d, d))
    diagonal[range(d), range(d), range(d)] = 1.0
    np.testing.assert_allclose(delta(k=k, q=q, r=r, v=v), by_loops(k, q, r, diagonal, v), rtol=1e-10)
    print("M = delta: equal to the loops with a diagonal M")


if __name__ == "__main__":
    main()
