r"""A paper's formulas, pasted: attention over pairs of objects, straight from the LaTeX of the notes that proposed it.

Formula: \bar W^{\mu\nu\rho} = k^{\mu}_{i} q^{\nu}_{j} r^{\rho}_{\kappa} M_{ij\kappa};
y^{\mu}_{n} = W^{\mu\bar{\nu\rho}} v^{\bar{\nu\rho}}_{n}
Source: "Higher Order Attention Mechanisms", section "Multiple Objects".
"""

import numpy as np

import tensorattn as ta

PASTED = r"""
$$
\bar W^{\mu\nu\rho} = k^{\mu}_{i} q^{\nu}_{j} r^{\rho}_{\kappa} M_{ij\kappa}
$$
$$
y^{\mu}_{n} = W^{\mu\bar{\nu\rho}} v^{\bar{\nu\rho}}_{n}
$$
"""
AS_UNICODE = """
W̄^⟨μ ν ρ⟩ = k^μᵢ q^νⱼ r^ρ_κ M_⟨i j κ⟩
y^μₙ = W^⟨μ bar(ν ρ)⟩ v^⟨bar(ν ρ)⟩ₙ
"""


def by_hand(k, q, r, M, v):
    """The scores by einsum, then one softmax over all pairs."""
    scores = np.einsum("ai,bj,ck,ijk->abc", k, q, r, M)
    weights = np.exp(scores - scores.max(axis=(1, 2), keepdims=True))
    weights /= weights.sum(axis=(1, 2), keepdims=True)
    return np.einsum("abc,bcn->an", weights, v)


def main():
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=size) for name, size in dict(k=(3, 2), q=(4, 3), r=(5, 4), M=(2, 3, 4)).items()}
    arrays["v"] = rng.normal(size=(4, 5, 6))

    program = ta.parse(PASTED)
    assert program == ta.parse(AS_UNICODE)
    print(f"the pasted formulas in the plain notation:\n{program}\n")
    y = ta.compile(program)(arrays)
    np.testing.assert_allclose(y, by_hand(**arrays), rtol=1e-10)
    print(f"{y.shape[0]} objects attend to {4 * 5} pairs: agrees with NumPy\n")

    try:
        ta.parse(r"y^{\mu}_{n} = W^{\mu\bar\nu} v^{(l)}_{n}")
    except ta.NotationError as error:
        print(error)


if __name__ == "__main__":
    main()
