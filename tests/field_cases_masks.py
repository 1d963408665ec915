"""Cases about masks, types, empty axes and memory; see `field_cases`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tests.field_cases import ATTEND, MIX, Draw, Value, attention, flags, full, given, lengths, normal, softmax

CAUSAL = np.tri(5, dtype=bool)


def _with_nan(draw: Draw, *place: int) -> Draw:
    def changed(rng: np.random.Generator) -> np.ndarray:
        array = draw(rng)
        array[place] = np.nan
        return array

    return changed


MASKED = "y^mu_n = softmax[nu : M^<mu nu>](q^mu_d k^nu_d / sqrt(|d|)) v^nu_n"

MASKS = (
    Value(
        "a-padding-mask-has-no-head-axis",  # repeated over heads in tiled order: another sample's mask was used
        "y^<b h m>_c = S^<b h m bar(n : M^<b n>)> v^<b h bar(n)>_c",
        {"S": normal(2, 2, 3, 4), "v": normal(2, 2, 4, 2), "M": lengths(4, 2, size=4)},
        lambda S, v, M: softmax(S, 3, M[:, None, None, :]) @ v,
    ),
    Value(
        "a-padding-mask-on-the-keys",
        "y^<b m>_c = S^<b m bar(n : M^<b n>)> v^<b bar(n)>_c",
        {"S": normal(2, 4, 4), "v": normal(2, 4, 3), "M": lengths(4, 2, size=4)},
        lambda S, v, M: softmax(S, 2, M[:, None, :]) @ v,
    ),
    Value(
        "a-padding-mask-on-the-queries",  # the same array under the other name: whole rows are empty
        "y^<b m>_c = S^<b m bar(n : M^<b m>)> v^<b bar(n)>_c",
        {"S": normal(2, 4, 4), "v": normal(2, 4, 3), "M": lengths(4, 2, size=4)},
        lambda S, v, M: softmax(S, 2, M[:, :, None]) @ v,
    ),
    Value(
        "a-query-without-a-key",
        MASKED,
        {"q": normal(3, 4), "k": normal(5, 4), "v": normal(5, 2), "M": flags(3, 5, empty_row=1)},
        lambda q, k, v, M: attention(q, k, v, M),
    ),
    Value(
        "a-joint-row-without-a-pair",
        "y^mu_n = W^<mu bar(nu rho : M^<mu nu> and nu < rho)> v^<bar(nu rho)>_n",
        {"W": normal(3, 4, 4), "v": normal(4, 4, 2), "M": flags(3, 4, empty_row=2)},
        lambda W, v, M: np.einsum(
            "mjk,jkn->mn", softmax(W, (1, 2), M[:, :, None] & (np.arange(4)[:, None] < np.arange(4))), v
        ),
    ),
    Value(
        "nan-in-a-masked-value",
        "y^mu_n = W^<mu bar(nu : nu <= mu)> v^<bar(nu)>_n",
        {"W": normal(4, 5), "v": _with_nan(normal(5, 2), 4)},
        lambda W, v: softmax(W, 1, CAUSAL[:4]) @ np.nan_to_num(v),
    ),
    Value(
        "nan-in-a-masked-key",
        MASKED,
        {
            "q": normal(3, 4),
            "k": _with_nan(normal(5, 4), 2),
            "v": _with_nan(normal(5, 2), 2),
            "M": given(np.arange(15).reshape(3, 5) % 5 != 2, "bool"),
        },
        lambda q, k, v, M: attention(q, np.nan_to_num(k), np.nan_to_num(v), M),
    ),
    Value(
        "nan-in-a-masked-value-through-a-definition",
        "P^<mu nu> = W^<mu bar(nu : nu <= mu)>\ny^mu_n = P^<mu nu> v^nu_n",
        {"W": normal(4, 5), "v": _with_nan(normal(5, 2), 4)},
        lambda W, v: softmax(W, 1, CAUSAL[:4]) @ np.nan_to_num(v),
    ),
    Value(
        "nan-in-a-masked-value-through-a-parenthesis",
        "y^mu_n = (W^<mu bar(nu : nu <= mu)> u^mu) v^nu_n",
        {"W": normal(4, 5), "u": normal(4), "v": _with_nan(normal(5, 2), 4)},
        lambda W, u, v: u[:, None] * (softmax(W, 1, CAUSAL[:4]) @ np.nan_to_num(v)),
    ),
    Value(
        "an-admitted-nan-stays",
        "y^mu_n = W^<mu bar(nu : nu <= mu)> v^<bar(nu)>_n",
        {"W": normal(4, 5), "v": _with_nan(normal(5, 2), 2, 1)},
        lambda W, v: np.where(
            (np.arange(4)[:, None] >= 2) & (np.arange(2) == 1), np.nan, softmax(W, 1, CAUSAL[:4]) @ np.nan_to_num(v)
        ),
    ),
    Value(
        "infinity-in-a-masked-value",
        "y^mu_n = W^<mu bar(nu : M^nu)> v^<bar(nu)>_n",
        {"W": normal(3, 3), "v": given([[1, 2], [np.inf, -np.inf], [3, 4]]), "M": given([1, 0, 1], "bool")},
        lambda W, v, M: softmax(W, 1, M) @ np.array([[1.0, 2], [0, 0], [3, 4]]),
    ),
    Value(
        "keep-and-drop",  # True means take part
        "a^mu_n = S^<mu bar(nu : M^<mu nu>)> v^<bar(nu)>_n\nb^mu_n = S^<mu bar(nu : not M^<mu nu>)> v^<bar(nu)>_n",
        {"S": normal(3, 4), "v": normal(4, 2), "M": flags(3, 4, share=0.5)},
        lambda S, v, M: {"a": softmax(S, 1, M) @ v, "b": softmax(S, 1, ~M) @ v},
    ),
    Value(
        "causal-from-the-start-or-the-end",  # two readings where the lengths differ
        "a^mu_n = S^<mu bar(nu : nu <= mu)> v^<bar(nu)>_n\n"
        "b^mu_n = S^<mu bar(nu : nu <= mu + |nu| - |mu|)> v^<bar(nu)>_n",
        {"S": normal(2, 5), "v": normal(5, 2)},
        lambda S, v: {
            "a": softmax(S, 1, np.arange(5) <= np.arange(2)[:, None]) @ v,
            "b": softmax(S, 1, np.arange(5) <= np.arange(2)[:, None] + 3) @ v,
        },
    ),
    Value(
        "a-window-alone",
        "y^mu_n = S^<mu bar(nu : abs(mu - nu) <= 1)> v^<bar(nu)>_n",
        {"S": normal(5, 5), "v": normal(5, 2)},
        lambda S, v: softmax(S, 1, abs(np.arange(5)[:, None] - np.arange(5)) <= 1) @ v,
    ),
    Value(
        "weights-and-value",
        "w^<mu nu> = S^<mu bar(nu : nu <= mu and mu - nu < 10)>\ny^mu_n = w^<mu nu> v^nu_n",
        {"S": normal(64, 64), "v": normal(64, 2)},
        lambda S, v: (lambda w: {"w": w, "y": w @ v})(
            softmax(S, 1, np.tri(64, dtype=bool) & ~np.tri(64, k=-10, dtype=bool))
        ),
        tolerance=1e-12,
    ),
    Value(
        "keys-that-do-not-fill-a-tile",
        ATTEND,
        {"q": normal(3, 4), "k": normal(13, 4), "v": normal(13, 2)},
        attention,
    ),
    Value(
        "a-guarded-relative-position",  # only admitted tuples are read
        "y_i = sum[j : j < i](x_<i - j - 1> w_j)",
        {"x": normal(4), "w": normal(5)},
        lambda x, w: np.array([sum(x[i - j - 1] * w[j] for j in range(i)) for i in range(5)]),
        sizes={"i": 5},
    ),
    Value(
        "a-guarded-score",
        "y_i = softmax[j : j <= i](R_<i - j>) v_j",
        {"R": normal(4), "v": normal(4)},
        lambda R, v: np.array([softmax(R[: i + 1][::-1], 0) @ v[: i + 1] for i in range(4)]),
        sizes={"i": 4},
    ),
    Value(
        "a-guarded-gather",  # -1 marks the padding
        "y_i = sum[j : ok_<i j>](x_<a_<i j>>)",
        {"x": normal(3), "a": given([[0, -1], [2, 7]], "int64"), "ok": given([[1, 0], [1, 0]], "bool")},
        lambda x, a, ok: x[[0, 2]],
    ),
    Value(
        "one-distribution-over-an-image",
        "y^b_c = S^<b bar(h w)> v^<b bar(h w)>_c",
        {"S": normal(2, 3, 4), "v": normal(2, 3, 4, 2)},
        lambda S, v: np.einsum("bi,bic->bc", softmax(S.reshape(2, 12), 1), v.reshape(2, 12, 2)),
    ),
)


EMPTY = (
    Value(
        "no-keys", ATTEND, {"q": normal(3, 4), "k": normal(0, 4), "v": normal(0, 2)}, lambda q, k, v: np.zeros((3, 2))
    ),
    Value(
        "no-queries",
        ATTEND,
        {"q": normal(0, 4), "k": normal(3, 4), "v": normal(3, 2)},
        lambda q, k, v: np.zeros((0, 2)),
    ),
    Value(
        "no-features",
        "y^mu_n = softmax[nu](q^mu_d k^nu_d) v^nu_n",
        {"q": normal(3, 0), "k": normal(4, 0), "v": normal(4, 2)},
        lambda q, k, v: np.broadcast_to(v.mean(0), (3, 2)),
    ),
    Value("no-values", MIX, {"W": normal(3, 4), "v": normal(4, 0)}, lambda W, v: np.zeros((3, 0))),
    Value("one-key", MIX, {"W": normal(3, 1), "v": normal(1, 2)}, lambda W, v: np.broadcast_to(v, (3, 2))),
    Value(
        "reductions-of-nothing",
        "a_i = sum[j](x_<i j>)\nb_i = mean[j](x_<i j>)\nc_i = max[j](x_<i j>)\nd_i = min[j](x_<i j>)\n"
        "e_i = lse[j](x_<i j>)\nf_i = prod[j](x_<i j>)",
        {"x": normal(2, 0)},
        lambda x: {
            n: np.full(2, value) for n, value in zip("abcdef", (0, 0, -np.inf, np.inf, -np.inf, 1), strict=True)
        },
    ),
    Value(
        "reductions-of-excluded-entries",
        "a_i = sum[j : j < i](x_<i j>)\nb_i = mean[j : j < i](x_<i j>)\nc_i = max[j : j < i](x_<i j>)\n"
        "d_i = min[j : j < i](x_<i j>)\ne_i = lse[j : j < i](x_<i j>)\nf_i = prod[j : j < i](x_<i j>)",
        {"x": normal(2, 2)},
        lambda x: {
            n: np.array([value, x[1, 0]])
            for n, value in zip("abcdef", (0, 0, -np.inf, np.inf, -np.inf, 1), strict=True)
        },
    ),
)

TYPES = (
    Value(
        "logits-beyond-half-precision",
        ATTEND,
        {
            "q": full(3, 128, value=150, dtype="float16"),
            "k": normal(4, 128, offset=150, dtype="float16"),
            "v": normal(4, 2, dtype="float16"),
        },
        lambda q, k, v: attention(*(t.astype(np.float64) for t in (q, k, v))).astype(np.float16),
        tolerance=4e-3,
    ),
    Value(
        "a-long-half-precision-sum",
        "y^n = x^<m n> w^m",
        {"x": full(4096, 2, dtype="float16"), "w": full(4096, dtype="float16")},
        lambda x, w: np.full(2, 4096, dtype=np.float16),
        tolerance=0,
    ),
    Value(
        "a-long-half-precision-sum-along-rows",
        "y^n = sum[m](x^<n m>)",
        {"x": full(2, 4096, dtype="float16")},
        lambda x: np.full(2, 4096, dtype=np.float16),
        tolerance=0,
    ),
    Value(
        "two-half-precision-masks-added",
        "y^mu_n = softmax[nu](S^<mu nu> + B^<mu nu> + C^<mu nu>) v^nu_n",
        {
            "S": normal(2, 3, scale=10, offset=-30, dtype="float16"),
            "B": given([[-65504.0] * 3, [0] * 3], "float16"),
            "C": given([[-65504.0, -65504.0, 0], [0] * 3], "float16"),
            "v": normal(3, 2, dtype="float16"),
        },
        lambda S, B, C, v: (softmax(S.astype(float) + B + C.astype(float), 1) @ v.astype(float)).astype(np.float16),
        tolerance=4e-3,
    ),
    Value(
        "an-integer-factor-keeps-float64",
        "y^mu = x^<mu nu> o^nu / |nu|",
        {"x": normal(3, 7), "o": given([0, 0, 1, 0, 0, 0, 0], "int64")},
        lambda x, o: x[:, 2] / 7,
        tolerance=1e-15,
    ),
    Value(
        "an-integer-factor-keeps-float32",
        "y^mu = x^<mu nu> o^nu / |nu|",
        {"x": normal(3, 7, dtype="float32"), "o": given([0, 0, 1, 0, 0, 0, 0], "int64")},
        lambda x, o: x[:, 2] / np.float32(7),
        tolerance=1e-6,
    ),
    Value(
        "integer-logits",
        "y^mu = S^<mu bar(nu)> v^<bar(nu)>",
        {"S": given([[0, 1, 2], [3, 1, 0]], "int64"), "v": given([1, 2, 4], "int64")},
        lambda S, v: softmax(S, 1) @ v,
    ),
    Value(
        "integers-stay-exact",
        "y_i = A_<i j> x_j + 2 x_i",
        {"A": given([[2**53 + 1, 1], [0, 3]], "int64"), "x": given([1, 0], "int64")},
        lambda A, x: A @ x + 2 * x,
        tolerance=0,
    ),
    Value(
        "a-boolean-counts-as-one",
        "deg_i = sum[j](adj_<i j>)",
        {"adj": flags(3, 4)},
        lambda adj: adj.sum(1),
        tolerance=0,
    ),
    Value(
        "a-mask-does-not-widen",
        "y_i = sum[j : m_<i j>](x_<i j>) / (1 + i)",
        {"m": flags(3, 4), "x": normal(3, 4, dtype="float32")},
        lambda m, x: (np.where(m, x, 0).sum(1) / (1 + np.arange(3))).astype(np.float32),
        tolerance=1e-5,
    ),
    Value(
        "float32-beside-float64",
        "y_i = A_<i j> x_j",
        {"A": normal(3, 4, dtype="float32"), "x": normal(4)},
        lambda A, x: A.astype(np.float64) @ x,
    ),
)


@dataclass(frozen=True)
class Bounded:
    """A formula whose NumPy call must allocate at most `peak_bytes`, with its value."""

    id: str
    formula: str
    inputs: Mapping[str, Draw]
    expected: Callable[..., np.ndarray]
    peak_bytes: int


FLOAT = 8
MEMORY = (
    Bounded(
        "a-sum-of-three-contractions",  # tiled to |mu||nu||d|
        "S^<mu nu> = w1_d c^mu_d + w2_d q^nu_d + w3_d c^mu_d q^nu_d",
        {"c": normal(60, 96), "q": normal(50, 96), "w1": normal(96), "w2": normal(96), "w3": normal(96)},
        lambda c, q, w1, w2, w3: (c @ w1)[:, None] + q @ w2 + (c * w3) @ q.T,
        6 * FLOAT * (60 * 50 + 60 * 96),
    ),
    Bounded(
        "two-factors-with-the-same-indices",  # an n³ intermediate instead of the elementwise product
        "D^<i l> = A^<i j> B^<j k> C^<k l> E^<j k>",
        {name: normal(100, 100) for name in "ABCE"},
        lambda A, B, C, E: A @ (B * E) @ C,
        5 * FLOAT * 100**2,
    ),
    Bounded(
        "seven-factors-of-a-tensor-method",
        "e = eta^<i P> t^<s P> M^<P Q> eta2^<j Q> t2^<t Q> h^<t i> h2^<s j>",
        {
            "eta": normal(30, 200),
            "t": normal(6, 200),
            "M": normal(200, 200),
            "eta2": normal(30, 200),
            "t2": normal(6, 200),
            "h": normal(6, 30),
            "h2": normal(6, 30),
        },
        lambda eta, t, M, eta2, t2, h, h2: ((eta.T @ (h.T @ t2)) * M * (t.T @ (h2 @ eta2))).sum(),
        5 * FLOAT * 200**2,
    ),
    Bounded(
        "pairwise-steps-only",  # many factors in one step: a small promised size, a huge one inside it
        "w^a = c1^<a i> c2^<a j> c3^<a k> c4^<a l> K^<i j k l>",
        {"K": normal(3, 3, 3, 3)} | {f"c{n}": normal(300, 3) for n in (1, 2, 3, 4)},
        lambda K, c1, c2, c3, c4: np.einsum("ai,aj,ak,al,ijkl->a", c1, c2, c3, c4, K, optimize=True),
        4 * FLOAT * 300 * 27,
    ),
    Bounded(
        "linear-attention-by-association",  # (q kᵀ) v against q (kᵀ v)
        "y_<i e> = q_<i d> k_<j d> v_<j e>",
        {"q": normal(800, 8), "k": normal(800, 8), "v": normal(800, 8)},
        lambda q, k, v: q @ (k.T @ v),
        4 * FLOAT * 800 * 8,
    ),
    Bounded(
        "a-delta-is-never-built",
        "W^<mu nu> = k^mu_i q^nu_j delta_<i j>",
        {"k": normal(4, 500), "q": normal(5, 500)},
        lambda k, q: k @ q.T,
        FLOAT * 500 * 20,
    ),
)
