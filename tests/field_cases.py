"""Faults that other attention and einsum code has had, as formulas with the value or the error they must give here.

Each case names where its kind was met. Inputs are drawn from generators seeded by the case and the input's name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

Draw = Callable[[np.random.Generator], np.ndarray]
Arrays = dict[str, np.ndarray]


def normal(*shape: int, scale: float = 1.0, offset: float = 0.0, dtype: str = "float64") -> Draw:
    return lambda rng: (rng.normal(size=shape) * scale + offset).astype(dtype)


def full(*shape: int, value: float = 1.0, dtype: str = "float64") -> Draw:
    return lambda rng: np.full(shape, value, dtype=dtype)


def given(value: object, dtype: str = "float64") -> Draw:
    return lambda rng: np.array(value, dtype=dtype)


def flags(*shape: int, share: float = 0.6, empty_row: int | None = None) -> Draw:
    """Booleans with True in the first column, but for one row that is empty."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        keep = rng.random(shape) < share
        keep[..., 0] = True
        if empty_row is not None:
            keep[empty_row] = False
        return keep

    return draw


def lengths(*counts: int, size: int) -> Draw:
    """A padding mask: the first `counts[b]` positions of row b."""
    return lambda rng: np.arange(size)[None] < np.array(counts)[:, None]


def stochastic(*shape: int) -> Draw:
    """Rows that sum to 1, with the transition 0 → 1 removed."""

    def draw(rng: np.random.Generator) -> np.ndarray:
        rows = rng.random(shape) + 0.1
        rows[..., 0, 1] = 0
        return rows / rows.sum(-1, keepdims=True)

    return draw


@dataclass(frozen=True)
class Value:
    """A formula, and its outputs by NumPy alone; `expected` takes the inputs by name."""

    id: str
    formula: str
    inputs: Mapping[str, Draw]
    expected: Callable[..., np.ndarray | Arrays]
    sizes: Mapping[str, int] = field(default_factory=dict)
    tolerance: float = 1e-10


@dataclass(frozen=True)
class Refusal:
    """A formula that must be refused with this code and a message that holds these words."""

    id: str
    formula: str
    inputs: Mapping[str, Draw]
    code: str
    must_name: tuple[str, ...]


def make(case: Value | Refusal) -> Arrays:
    return {
        name: draw(np.random.default_rng(zlib.crc32(f"{case.id} {name}".encode())))
        for name, draw in case.inputs.items()
    }


def softmax(score: np.ndarray, axes: int | tuple[int, ...], keep: np.ndarray | None = None) -> np.ndarray:
    """Joint over all of `axes`; where nothing is kept the weights are 0."""
    score = np.where(True if keep is None else keep, score.astype(np.float64), -np.inf)
    largest = np.max(score, axis=axes, keepdims=True, initial=-np.inf)
    shares = np.exp(score - np.where(np.isfinite(largest), largest, 0))
    total = shares.sum(axis=axes, keepdims=True)
    return np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, keep: np.ndarray | None = None) -> np.ndarray:
    return softmax(q @ np.swapaxes(k, -1, -2) / np.sqrt(max(q.shape[-1], 1)), -1, keep) @ v


ATTEND = "y^mu_n = softmax[nu](q^mu_d k^nu_d / sqrt(|d|)) v^nu_n"
MIX = "y^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n"


def _chain(arrays: Arrays, count: int) -> np.ndarray:
    product = np.eye(2)
    for number in range(count):
        product = product @ arrays[f"A{number}"]
    return product


def long_chain(count: int) -> Value:
    """More indices than the alphabet has letters (numpy issue 11938)."""
    factors = " ".join(f"A{n}^<i{n} i{n + 1}>" for n in range(count))
    return Value(
        f"chain-of-{count}",
        f"y^<i0 i{count}> = {factors}",
        {f"A{n}": normal(2, 2, scale=0.7) for n in range(count)},
        lambda **arrays: _chain(arrays, count),
        tolerance=1e-9,
    )


LONG_CHAIN = long_chain(60)  # not for the reference, which visits every tuple
PARSING = (
    Value(
        "matrix-not-diagonal",  # DUET issue 6: the same letter on both axes applied only the diagonal
        "y^<b x c e> = A^<e k> D^<b x c k>",
        {"A": normal(4, 4), "D": normal(2, 3, 2, 4)},
        lambda A, D: D @ A.T,
    ),
    Value(
        "bar-over-a-group",  # tree-sitter-latex issue 107: which indices share one softmax
        "y^mu_n = S^<mu bar(nu rho)> v^<bar(nu rho)>_n",
        {"S": normal(2, 3, 4), "v": normal(3, 4, 2)},
        lambda S, v: np.einsum("mjk,jkn->mn", softmax(S, (1, 2)), v),
    ),
    Value(
        "bar-over-one-of-two",
        "a^<mu rho>_n = S^<mu bar(nu) rho> v^<bar(nu) rho>_n",
        {"S": normal(2, 3, 4), "v": normal(3, 4, 2)},
        lambda S, v: np.einsum("mjk,jkn->mkn", softmax(S, 1), v),
    ),
    Value(
        "definitions-keep-their-own-index",  # sympy issue 24337: private dummies clash when inlined
        "a^mu_m = W^<mu nu> t^nu_m\nb^mu_m = U^<mu nu> u^nu_m\ny^mu = a^mu_m b^mu_m",
        {"W": normal(2, 3), "t": normal(3, 4), "U": normal(2, 3), "u": normal(3, 4)},
        lambda W, t, U, u: ((W @ t) * (U @ u)).sum(1),
    ),
    Value(
        "a-definition-used-twice",
        "a_i = W_<i j> t_j\ny = a_i a_i + a_j W_<j i> a_i",
        {"W": normal(3, 3), "t": normal(3)},
        lambda W, t: (W @ t) @ (W @ t) + (W @ t) @ W @ (W @ t),
    ),
    Value(
        "orphaned-sum",  # tensorgrad f2378d7: a summed index carried by no factor counts its size
        "y^mu = sum[a](x^mu)",
        {"x": normal(3)},
        lambda x: 5 * x,
        sizes={"a": 5},
    ),
    Value(
        "ten-factors",  # opt_einsum issue 243: the exhaustive search ran without end
        "y^<d b c> = A^a B^c C^d D^<d b> E^<a b> F^<c b> G^<a c> H^<c d> I^<a d> J^b",
        {n: normal(2) for n in "ABCJ"} | {n: normal(2, 2) for n in "DEFGHI"},
        lambda A, B, C, D, E, F, G, H, I, J: np.einsum(  # noqa: E741
            "a,c,d,db,ab,cb,ac,cd,ad,b->dbc", A, B, C, D, E, F, G, H, I, J
        ),
    ),
)

NUMERICS = (
    Value(
        "scale-by-the-contracted-index",  # vit-pytorch issue 65: scaled by the width of all heads
        "y^<h mu>_n = softmax[nu](q^<h mu>_d k^<h nu>_d / sqrt(|d|)) v^<h nu>_n",
        {"q": normal(4, 3, 16), "k": normal(4, 5, 16), "v": normal(4, 5, 2)},
        attention,
    ),
    Value(
        "bias-is-not-scaled",  # onnxruntime pull 14976
        "y^mu_n = softmax[nu](q^mu_d k^nu_d / sqrt(|d|) + B^<mu nu>) v^nu_n",
        {"q": normal(3, 16), "k": normal(4, 16), "B": normal(3, 4, scale=3), "v": normal(4, 2)},
        lambda q, k, B, v: softmax(q @ k.T / 4 + B, 1) @ v,
    ),
    Value(
        "bias-beside-a-full-mask",
        "y^mu_n = softmax[nu : M^<mu nu>](q^mu_d k^nu_d / sqrt(|d|) + B^<mu nu>) v^nu_n",
        {"q": normal(3, 16), "k": normal(4, 16), "B": normal(3, 4), "v": normal(4, 2), "M": full(3, 4, dtype="bool")},
        lambda q, k, B, v, M: softmax(q @ k.T / 4 + B, 1) @ v,
    ),
    Value(
        "large-float32-logits",
        MIX,
        {
            "W": given([[1000, 1001, 999], [-1000, -1001, 151.29]], "float32"),
            "v": normal(3, 2, dtype="float32"),
        },
        lambda W, v: softmax(W, 1) @ v,
        tolerance=1e-5,
    ),
    Value(
        "all-logits-very-negative",
        MIX,
        {"W": normal(3, 10, scale=2, offset=-90000, dtype="float32"), "v": normal(10, 2, dtype="float32")},
        lambda W, v: softmax(W, 1) @ v,
        tolerance=1e-5,
    ),
    Value(
        "largest-float64-logits",
        MIX,
        {"W": given([[1e308, -1e308, 1e308], [-1.7e308, -1.7e308, -1.7e308]]), "v": normal(3, 2)},
        lambda W, v: np.stack([(v[0] + v[2]) / 2, v.mean(0)]),
    ),
    Value(
        "one-in-the-denominator",  # the literal 1 must shift with the maximum
        "y^mu_n = softmax1[nu](S^<mu nu>) v^nu_n",
        {"S": normal(3, 4, scale=20), "v": normal(4, 2)},
        lambda S, v: softmax(np.concatenate([S, np.zeros((3, 1))], 1), 1)[:, :4] @ v,
    ),
    Value(
        "a-learned-sink",
        "y^mu_n = softmax[nu; sink=s^mu](S^<mu nu>) v^nu_n",
        {"S": normal(3, 4, scale=20), "s": normal(3, scale=20), "v": normal(4, 2)},
        lambda S, s, v: softmax(np.concatenate([S, s[:, None]], 1), 1)[:, :4] @ v,
    ),
    Value(
        "weights-of-underflown-sigmoids",  # the stable form of σ / Σσ
        "y^mu_n = softmax[nu](-softplus(-q^mu_d k^nu_d)) v^nu_n",
        {
            "q": lambda rng: np.where(np.arange(3)[:, None] == 1, -60, rng.normal(size=(3, 4))).astype("float32"),
            "k": full(5, 4, dtype="float32"),
            "v": normal(5, 2, dtype="float32"),
        },
        lambda q, k, v: softmax(-np.logaddexp(0, -q.astype(float) @ k.T.astype(float)), 1) @ v,
        tolerance=1e-4,
    ),
    Value(
        "a-zero-denominator",
        "y^mu_n = l1norm[nu](relu(S^<mu nu>)) v^nu_n",
        {"S": given([[1.0, 3.0], [-1.0, -2.0]]), "v": normal(2, 2)},
        lambda S, v: np.stack([(v[0] + 3 * v[1]) / 4, 0 * v[0]]),
    ),
    Value(
        "minus-infinity-as-data",
        MIX,
        {"W": given([[0, -np.inf, 1], [-np.inf, -np.inf, -np.inf]]), "v": normal(3, 2)},
        lambda W, v: softmax(W, 1) @ v,
    ),
)


def _forward_backward(pi: np.ndarray, T: np.ndarray, e: np.ndarray) -> np.ndarray:
    """Posterior of every hop, with each message rescaled to sum 1."""
    forward, backward = [pi], [e]
    for step in T:
        message = forward[-1] @ step
        forward.append(message / message.sum())
    for step in T[::-1]:
        message = step @ backward[-1]
        backward.append(message / message.sum())
    joint = np.stack(forward) * np.stack(backward[::-1])
    return joint / joint.sum(1, keepdims=True)


def _chain_posteriors(hops: int) -> str:
    lines = ["f0_i = log(pi_i)", f"b{hops}_i = log(e_i)"]
    lines += [f"f{n + 1}_j = lse[i](f{n}_i + log(T_<{n} i j>))" for n in range(hops)]
    lines += [f"b{n}_i = lse[j](log(T_<{n} i j>) + b{n + 1}_j)" for n in reversed(range(hops))]
    lines += [f"r{n}_i = softmax[i](f{n}_i + b{n}_i)" for n in range(hops + 1)]
    return "\n".join(lines)


HOPS = 40
POSTERIORS = Value(
    "posteriors-of-a-long-chain",  # zero transitions and an emission of 1e-300
    _chain_posteriors(HOPS),
    {"pi": given([1, 0, 0, 0]), "T": stochastic(HOPS, 4, 4), "e": given([0, 1e-300, 0.5, 0])},
    lambda pi, T, e: {f"r{n}": row for n, row in enumerate(_forward_backward(pi, T, e))},
    tolerance=1e-8,
)

SHAPES = (
    Value(
        "one-matrix-for-all-heads",  # read at its fixed position: no axis of length 1 is stretched
        "y^<b h i> = A^<b 0 i j> x^<b h j>",
        {"A": normal(2, 1, 3, 3), "x": normal(2, 4, 3)},
        lambda A, x: np.einsum("bij,bhj->bhi", A[:, 0], x),
    ),
    Value(
        "split-then-merge",  # heads mixed with positions by a plain reshape
        "q^<b h n>_d = X^<b n>_<(h d)>\nZ^<b n>_<(h d)> = q^<b h n>_d",
        {"X": normal(2, 3, 8)},
        lambda X: {"q": X.reshape(2, 3, 2, 4).transpose(0, 2, 1, 3), "Z": X},
        sizes={"h": 2},
    ),
    Value(
        "split-the-other-way",
        "q^<b h n>_d = X^<b n>_<(d h)>\nZ^<b n>_<(h d)> = q^<b h n>_d",
        {"X": normal(2, 3, 8)},
        lambda X: {
            "q": X.reshape(2, 3, 4, 2).transpose(0, 3, 1, 2),
            "Z": X.reshape(2, 3, 4, 2).swapaxes(2, 3).reshape(2, 3, 8),
        },
        sizes={"h": 2},
    ),
    Value(
        "two-wirings-of-a-triangle",  # incoming and outgoing edges swapped, hidden by square arrays
        "o^<i j>_d = a^<i k>_d b^<j k>_d\nz^<i j>_d = a^<k i>_d b^<k j>_d",
        {"a": normal(4, 4, 2), "b": normal(4, 4, 2)},
        lambda a, b: {"o": np.einsum("ikd,jkd->ijd", a, b), "z": np.einsum("kid,kjd->ijd", a, b)},
    ),
    Value(
        "third-order-jointly-normalised",  # normalised over the last axis only, but contracted over two
        "S^<k l m> = q^k_e a^l_e c^m_e / sqrt(|e|)\ny^k_d = S^<k bar(l m)> u^l_d w^m_d",
        {"q": normal(3, 2), "a": normal(4, 2), "c": normal(4, 2), "u": normal(4, 3), "w": normal(4, 3)},
        lambda q, a, c, u, w: np.einsum(
            "klm,ld,md->kd", softmax(np.einsum("ke,le,me->klm", q, a, c) / np.sqrt(2), (1, 2)), u, w
        ),
    ),
    Value(
        "a-parameter-with-batch-axes-only",  # only the first batch was computed
        "y^<b m> = sum[n](exp(-p^b * (x^m - z^n)**2))",
        {"x": normal(5), "z": normal(4), "p": given([0.5, 1, 2])},
        lambda x, z, p: np.exp(-p[:, None, None] * (x[:, None] - z) ** 2).sum(2),
    ),
)
