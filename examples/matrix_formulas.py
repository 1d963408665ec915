"""Formulas pasted from notes: matrix formulas with declared axes, and einsum strings in and out.

Formula: self-attention `Softmax[XXᵀ]X`, projected attention in four displays, scaled attention in LaTeX.
"""

import numpy as np

import tensorattn as ta

DISPLAYS = r"""
{% Q = XW^{q} %}
{% K = XW^{k} %}
{% V = XW^{v} %}
{% Y = Softmax[\frac{QK^T}{\sqrt{D_k}}] V %}
"""
SCALED = r"$$ \text{Attention}(Q, K, V) = \text{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V $$"
SIZES = {"t": 5, "m": 4, "i": 3, "n": 2, "mu": 3, "nu": 6}


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q, k, v):
    return softmax(q @ k.T / np.sqrt(q.shape[1])) @ v


def evaluated(text, axes, rng):
    """The program of a pasted text, its value, and the inputs."""
    program = ta.parse(text, axes=axes)
    arrays = {name: rng.normal(size=[SIZES[a] for a in of.split()]) for name, of in axes.items()}
    print(f"{text.strip()}\n{program}\n")
    return program, ta.compile(program)(arrays), arrays


def main():
    rng = np.random.default_rng(0)

    _, y, of = evaluated("{% Y = Softmax[XX^T]X %}", {"X": "t m"}, rng)
    np.testing.assert_allclose(y, softmax(of["X"] @ of["X"].T) @ of["X"], atol=1e-10)

    _, y, of = evaluated(DISPLAYS, {"X": "t m", "Wq": "m i", "Wk": "m i", "Wv": "m n"}, rng)
    np.testing.assert_allclose(y, attention(*(of["X"] @ of[w] for w in ("Wq", "Wk", "Wv"))), atol=1e-10)

    program, y, of = evaluated(SCALED, {"Q": "mu i", "K": "nu i", "V": "nu n"}, rng)
    np.testing.assert_allclose(y, attention(of["Q"], of["K"], of["V"]), atol=1e-10)
    print(ta.grad(program, "V"), "\n")  # a program like any other

    scores = ta.from_einsum("bhid,bhjd->bhij", "q k", result="s")
    q, k = rng.normal(size=(2, 3, 4, 5)), rng.normal(size=(2, 3, 6, 5))
    np.testing.assert_allclose(ta.compile(scores)(q=q, k=k), np.einsum("bhid,bhjd->bhij", q, k), atol=1e-10)

    out = ta.parse("S^<mu nu> = q^mu_i k^nu_i\ny^mu_n = S^<mu nu> v^nu_n").einsum("letters")
    print(f"{out} of {' '.join(out.operands)}")
    q, k, v = rng.normal(size=(3, 5)), rng.normal(size=(4, 5)), rng.normal(size=(4, 2))
    np.testing.assert_allclose(np.einsum(str(out), q, k, v), q @ k.T @ v, atol=1e-10)


if __name__ == "__main__":
    main()
