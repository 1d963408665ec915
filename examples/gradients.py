"""Gradients are formulas: the derivative of attention against one by hand, and a fit by gradient descent in NumPy.

Formula: ta.grad of y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>.
Source: the Jacobian of the softmax, diag(p) - p pᵀ, row by row.
"""

import numpy as np

import tensorattn as ta

ATTENTION = "y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>"
KERNEL = """
    s_<i j> = -scale * (x_i - c_j)**2
    f_i     = s_<i bar(j)> h_j
    loss    = mean[i]((f_i - t_i)**2)
"""


def by_hand(Q, K, V, dy):
    """The three gradients, with the Jacobian of each row written out."""
    dQ, dK, dV = np.zeros_like(Q), np.zeros_like(K), np.zeros_like(V)
    root = np.sqrt(Q.shape[1])
    for i in range(len(Q)):
        scores = Q[i] @ K.T / root
        p = np.exp(scores - scores.max())
        p /= p.sum()
        jacobian = np.diag(p) - np.outer(p, p)
        ds = jacobian @ (V @ dy[i])
        dV += np.outer(p, dy[i])
        dQ[i] = ds @ K / root
        dK += np.outer(ds, Q[i]) / root
    return dQ, dK, dV


def fit(x, t, steps):
    """Centres and heights of a softmax kernel, by plain gradient descent on the formula's own gradient."""
    step = ta.compile(ta.grad(KERNEL, ["c", "h"]), outputs=["loss", "dc", "dh"])
    c, h = np.linspace(-2, 2, 8), np.zeros(8)
    losses = []
    for _ in range(steps):
        found = step(x=x, t=t, c=c, h=h, scale=4.0, dloss=1.0)
        losses.append(float(found["loss"]))
        c, h = c - 0.5 * found["dc"], h - 0.5 * found["dh"]
    return losses


def main():
    print(ta.grad(ATTENTION, ["Q", "K", "V"]), end="\n\n")
    rng = np.random.default_rng(0)
    Q, K, V, dy = (rng.normal(size=shape) for shape in ((5, 3), (7, 3), (7, 2), (5, 2)))
    gradient = ta.compile(ta.grad(ATTENTION, ["Q", "K", "V"]), outputs=["dQ", "dK", "dV"])
    found = gradient(Q=Q, K=K, V=V, dy=dy)
    for name, wanted in zip(("dQ", "dK", "dV"), by_hand(Q, K, V, dy), strict=True):
        np.testing.assert_allclose(found[name], wanted, atol=1e-12)

    x = np.linspace(-2, 2, 50)
    losses = fit(x, np.sin(2 * x), steps=200)
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.5f} in {len(losses)} steps")
    assert losses[-1] < 0.01 * losses[0]


if __name__ == "__main__":
    main()
