"""Gradients of what is read at computed positions under a predicate, and masked definitions that are looked up."""

from __future__ import annotations

import numpy as np
import pytest

import tensorattn as ta
from tests.gradients import agree, by_program, close

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
RNG = np.random.default_rng(5)
SIZES = {"i": 5, "j": 5, "l": 4, "d": 3, "n": 2, "s": 3}
AXES = {"q": "id", "k": "jd", "r": "ld", "v": "jn", "w": "ln", "x": "in", **dict.fromkeys("bgut", "j"), "s": ""}
SHIFTED = [
    "y_<i n> = softmax[j : j >= 1](q_<i d> k_<j d>) v_<j-1, n>",
    "y_<i n> = softmax[j : j >= 1 and j <= i](q_<i d> k_<j d>) v_<j-1, n>",
    "y_<i n> = softmax[j : j >= 1](q_<i d> k_<j-1, d>) v_<j n>",
    "y_<i n> = softmax[j : j >= 2](q_<i d> k_<j-2, d> + k_<j d> q_<i d>) v_<j-1, n>",
    "y_<i n> = softmax[j : j + 2 < |j|](q_<i d> k_<j d>) v_<j+2, n>",
    "y_<i n> = softmax[j : j <= i and i - j < 3](q_<i d> k_<j d> + b_<i-j>) v_<j n>",
    "y_<i n> = softmax[j : j >= 1 and i >= 1](q_<i-1, d> k_<j-1, d>) v_<j-1, n>",
    "y_<i n> = softmax[j : 1 <= j](q_<i d> k_<j d> * g_<j-1>) v_<j-1, n> u_<j-1> t_j",
    "y_<i n> = softmax[j : j >= 1; sink=s](tanh(q_<i d> k_<j-1, d>)) v_<j-1, n>",
    "y_<i n> = l1norm[j : j >= 1](exp(q_<i d> k_<j d>)) v_<j-1, n>",
    "y_<i n> = sparsemax[j : j >= 1](q_<i d> k_<j d>) v_<j-1, n>",
    "y_<i n> = softmax[j l : j >= 1 and l >= 2 and j + l <= i](q_<i d> k_<j d> r_<l d>) v_<j-1, n> w_<l-2, n>",
    "y_<i n> = softmax[s : 0 <= i - s and s <= 2](q_<i d> k_<i-s, d> + b_s) v_<i-s, n>",
    "y_<i n> = softmax[s : 0 <= i + s - 1 and i + s - 1 < |i|](q_<i d> k_<i+s-1, d>) v_<i+s-1, n>",
    "y_<i n> = softmax[j : j >= 1](q_<i d> k_<j d>) (v_<j-1, n> + v_<j n>)",
    "y_<i n> = (softmax[j : j >= 1](q_<i d> k_<j d>) - softmax[j : j >= 2](q_<i d> k_<j d>)) v_<j-1, n>",
    "W_<i j> = softmax[j : j >= 1](q_<i d> k_<j d>)\ny_<i n> = W_<i j> v_<j-1, n>",
    "W_<i j> = softmax[j : j >= 1](q_<i d> k_<j d>)\nZ_<i j> = W_<i j> t_j\ny_<i n> = Z_<i j> v_<j-1, n>",
    "W_<i j> = softmax[j : j >= 1](q_<i d> k_<j d>)\ny_<i n> = sum[j](W_<i j> tanh(v_<j-1, n>) u_j)",
    "Z_i = sum[j : i >= 1 and j < i](g_j x_<i n> v_<j n>)\ny_<i n> = Z_i x_<i-1, n>",
    "z_<i n> = x_<i n>**2\ny_<i n> = softmax[j : j >= 1](q_<i d> k_<j d>) z_<j-1, n>",
    "y_i = lse[j : j >= 1](q_<i d> k_<j-1, d>) + max[j : j >= 1](q_<i d> k_<j-1, d>)",
    "y_i = prod[j : j >= 1](q_<i d> k_<j-1, d>) + mean[j : j >= 1](tanh(q_<i d> k_<j-1, d>))",
]


def drawn(program: ta.Program) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    rng = np.random.default_rng(0)
    arrays = {n: rng.normal(size=[SIZES[a] for a in AXES[n]]) for n in program.inputs}
    plain = {s.name for t in program.tensors for s in t.slots if isinstance(s, ta.ir.Index)}
    return arrays, {n: SIZES[n] for n in program.indices if n not in plain}


@pytest.mark.parametrize("text", SHIFTED)
def test_shifts_under_a_predicate(text: str) -> None:
    program = ta.parse(text)
    arrays, sizes = drawn(program)
    agree(program, list(arrays), arrays, sizes)


def test_a_shift_against_loops() -> None:
    arrays, _ = drawn(ta.parse(SHIFTED[1]))
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    dy = np.random.default_rng(1).normal(size=(5, 2))
    dq, dk, dv = np.zeros_like(q), np.zeros_like(k), np.zeros_like(v)
    for i in range(1, 5):
        keys = range(1, i + 1)
        weights = np.exp([q[i] @ k[j] for j in keys])
        weights /= weights.sum()
        slopes = np.array([dy[i] @ v[j - 1] for j in keys])
        for j, w, score in zip(keys, weights, weights * (slopes - weights @ slopes), strict=True):
            dq[i] += score * k[j]
            dk[j] += score * q[i]
            dv[j - 1] += w * dy[i]
    gradient = ta.grad(SHIFTED[1], ["q", "k", "v"])
    for plan in ("dense", "auto"):
        close(by_program(gradient, 3, {**arrays, "dy": dy}, plan=plan), [dq, dk, dv], 1e-12)


@pytest.mark.parametrize("plan", ["dense", "auto"])
def test_a_masked_definition_is_0_where_it_is_looked_up_outside_its_predicate(plan: str) -> None:
    """Its own predicate excludes s = 2, 3; the positions i − p that are read reach them."""
    weights = "T_<i s> = softmax[s : s <= i and s <= 1](b_s + c_i)\n"
    table = "i : i >= p and i - p < |s|"
    texts = {
        "product": f"y_p = sum[{table}](T_<i, i-p> x_<p i>)",
        "alone": f"y_p = sum[{table}](T_<i, i-p>) + 0 * x_<p 0>",
        "beside weights": f"y_p = softmax[{table}](x_<p i>) T_<i, i-p>",
        "difference": f"y_p = softmax[{table}](x_<p i>) (T_<3, i-p> - 2 T_<2, i-p>)",
    }
    rng = np.random.default_rng(0)
    b, c, x = rng.normal(size=5), rng.normal(size=4), rng.normal(size=(4, 4))
    T, U = np.zeros((4, 5)), np.zeros((4, 4))
    for i in range(4):
        T[i, : min(i, 1) + 1] = np.exp(b[: min(i, 1) + 1])
        U[i, i:] = np.exp(x[i, i:])
    T, U = T / T.sum(1, keepdims=True), U / U.sum(1, keepdims=True)
    looked_up = np.array([[T[i, i - p] if i >= p else 0 for i in range(4)] for p in range(4)])
    wanted = {
        "product": (looked_up * x).sum(1),
        "alone": looked_up.sum(1),
        "beside weights": (looked_up * U).sum(1),
        "difference": (np.array([[T[3, i - p] - 2 * T[2, i - p] for i in range(4)] for p in range(4)]) * U).sum(1),
    }
    for name, text in texts.items():
        found = ta.compile(weights + text, plan=plan)(b=b, c=c, x=x)
        np.testing.assert_allclose(found, wanted[name], rtol=1e-12, err_msg=name)


def test_a_shifted_input_that_is_read_whole_too_streams() -> None:
    text = "y_<i n> = softmax[j : j >= 1](q_<i d> k_<j d>) v_<j-1, n> + v_<i n>"
    arrays, _ = drawn(ta.parse(text))
    wanted = ta.compile(text, plan="dense")(arrays)
    np.testing.assert_allclose(ta.compile(text, plan="streamed")(arrays), wanted, rtol=1e-12)


@pytest.mark.parametrize("condition", ["j != i and 0 < j", "0 < j and j <= i + 1"])
@pytest.mark.parametrize("kind", ["l1norm", "l2norm", "softmax", "lse", "mean", "prod"])
def test_second_derivatives_below_a_predicate_and_a_shift(kind: str, condition: str) -> None:
    weights = kind in ("l1norm", "l2norm", "softmax")
    text = f"y_i = {kind}[j : {condition}](x_<i, j-1>){' v_j' if weights else ''}"
    program = ta.parse(text)
    arrays = {"x": RNG.uniform(0.5, 1.5, size=(4, 5)), **({"v": RNG.normal(size=5)} if weights else {})}
    sizes = {} if weights else {"j": 5}
    first = ta.grad(program, "x")
    given = {n: arrays.get(n, RNG.normal(size=4)) for n in first.inputs}
    agree(program, ["x"], arrays, sizes)
    agree(first, list(first.inputs), given, sizes)
    agree(ta.grad(first, "x"), ["x"], {**given, "ddx": RNG.normal(size=(4, 5))}, sizes)


def test_an_index_that_a_factor_binds_is_no_axis_of_the_gradient() -> None:
    arrays = {"a": RNG.normal(size=3), "c": RNG.normal(size=3), "N": RNG.normal(size=(3, 4))}
    gradient = agree("y_k = mean[j](exp(a_k) c_k) sum[j](N_<k j>)", ["a", "c", "N"], arrays)
    assert "delta_<j1 j>" in str(gradient)
