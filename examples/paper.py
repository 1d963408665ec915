r"""A formula goes from a paper into the compiler, and its gradient goes back into the paper.

Formula: y^{\mu}_{n} = W^{\mu\bar{\nu}} v^{\nu}_{n} with W^{\mu\nu} = k^{\mu}_{i} q^{\nu}_{j} M_{ij}, as pasted.
Source: the gradient is compared with differences of the value, computed by NumPy from the printed text alone.
"""

import numpy as np

import tensorattn as ta

PASTED = r"""
\begin{align}
W^{\mu\nu} &= k^{\mu}_{i} q^{\nu}_{j} M_{ij} \\
y^{\mu}_{n} &= W^{\mu\bar{\nu}} v^{\bar\nu}_n.
\end{align}
"""


def attention(k, q, M, v):
    """The same by NumPy."""
    weights = np.exp(k @ M @ q.T)
    return weights / weights.sum(axis=1, keepdims=True) @ v


def main():
    rng = np.random.default_rng(0)
    shapes = {"k": (4, 2), "q": (5, 3), "M": (2, 3), "v": (5, 2)}
    arrays = {name: rng.normal(size=shape) for name, shape in shapes.items()}

    program = ta.parse(PASTED)
    np.testing.assert_allclose(ta.compile(program)(arrays), attention(**arrays), rtol=1e-10)
    print(program.unicode())

    gradient = ta.grad(program, ["M"]).latex()
    print("\nthe gradient, for the paper:\n")
    print(gradient)

    dM = ta.compile(gradient)(arrays | {"dy": np.ones((4, 2))})  # what was printed, read again
    for place in np.ndindex(2, 3):
        step = np.zeros((2, 3))
        step[place] = 1e-6
        up, down = (attention(**arrays | {"M": arrays["M"] + sign * step}).sum() for sign in (1, -1))
        np.testing.assert_allclose(dM[place], (up - down) / 2e-6, atol=1e-8)
    print("\nit equals the differences of NumPy's values")


if __name__ == "__main__":
    main()
