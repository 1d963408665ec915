"""Relations between relations: attention over the outputs of two attentions, as one program.

Formula: the seven statements below; a and b embed relations, c and d attend from each to the other.
Source: "Higher Order Attention Mechanisms", section "Modelling Meta-Relations". The notes leave the values s and z and
the operator B of the second layer open, and their last formula has two stray indices, repaired here.
"""

import numpy as np

import tensorattn as ta

FORMULA = """
    W^<mu nu rho> = k^mu_i q^nu_j r^rho_kappa M_<i j kappa>    # scores of triples
    a^<mu rho>_m  = W^<mu bar(nu) rho> t^nu_m                  # the relation of mu and rho
    b^<mu nu>_n   = W^<mu nu bar(rho)> u^rho_n                 # the relation of mu and nu
    C^<mu rho nu> = a^<mu rho>_m b^<mu nu>_n B_<m n>           # scores of pairs of relations
    c^<mu rho>_g  = C^<mu rho bar(nu)> s^nu_g
    d^<mu nu>_h   = C^<mu bar(rho) nu> z^rho_h
    y^mu_l        = Mtilde_<l g h> G^<rho nu> c^<mu rho>_g d^<mu nu>_h
"""
AS_PRINTED = "y^mu_l = Mtilde_<l g h> G^<rho sigma> c^<mu rho>_g d^<mu nu>_h"
SIZES = {"mu": 3, "nu": 4, "rho": 5, "i": 2, "j": 3, "kappa": 4, "m": 2, "n": 3, "g": 2, "h": 3, "l": 4}
AXES = {
    "k": "mu i", "q": "nu j", "r": "rho kappa", "M": "i j kappa", "t": "nu m", "u": "rho n",
    "B": "m n", "s": "nu g", "z": "rho h", "Mtilde": "l g h", "G": "rho nu",
}  # fmt: skip


def softmax(x, axis):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def by_einsum(k, q, r, M, t, u, B, s, z, Mtilde, G):
    """The same with np.einsum."""
    W = np.einsum("mi,nj,rk,ijk->mnr", k, q, r, M)
    a = np.einsum("mnr,nk->mrk", softmax(W, 1), t)
    b = np.einsum("mnr,rk->mnk", softmax(W, 2), u)
    C = np.einsum("mra,mnb,ab->mrn", a, b, B)
    c = np.einsum("mrn,ng->mrg", softmax(C, 2), s)
    d = np.einsum("mrn,rh->mnh", softmax(C, 1), z)
    return {"a": a, "b": b, "y": np.einsum("lgh,rn,mrg,mnh->ml", Mtilde, G, c, d)}


def refusal(formula):
    """The error that a formula gets, or None."""
    try:
        ta.parse(formula)
    except ta.TensorattnError as error:
        return error
    return None


def main():
    rng = np.random.default_rng(0)
    inputs = {name: rng.normal(size=[SIZES[axis] for axis in axes.split()]) for name, axes in AXES.items()}

    relations = ta.compile(FORMULA, outputs=["a", "b", "y"])
    got, expected = relations(inputs), by_einsum(**inputs)
    print(relations.program)
    for name, value in got.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-9)
        print(f"{name} {value.shape} equals np.einsum to {np.abs(value - expected[name]).max():.0e}")

    print("\nThe last formula as the notes print it:")
    error = refusal(AS_PRINTED)
    assert error is not None
    assert error.code == "E-DANGLING"
    print(error)


if __name__ == "__main__":
    main()
