"""W1–W3: attention over one barred index: plain, causal with ALiBi (and a soft cap, and narrow values), triangle."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Einsums, Function, Input, Peer, Sizes, Workload, normalised, product

CAP = 20
ROWS = product("b h mu nu")


# independent meaning -------------------------------------------------------------------------------------------------


def _scores(a: dict[str, np.ndarray], rows: np.ndarray) -> np.ndarray:
    return np.einsum("bhmi,bhni->bhmn", a["q"][:, :, rows], a["k"]) / math.sqrt(a["q"].shape[-1])


def dense(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W1."""
    return np.einsum("bhmn,bhne->bhme", normalised(_scores(a, rows), -1), a["v"])


def dense_alibi(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes, cap: float = 0) -> np.ndarray:
    """W2."""
    distance = np.arange(a["k"].shape[2])[None] - rows[:, None]
    score = _scores(a, rows) + a["slope"][:, None, None] * distance
    score = cap * np.tanh(score / cap) if cap else score
    return np.einsum("bhmn,bhne->bhme", normalised(np.where(distance > 0, -np.inf, score), -1), a["v"])


def dense_capped(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W2 with a soft cap."""
    return dense_alibi(a, rows, sizes, CAP)


def dense_triangle(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W3; b is the row of the triangle."""
    return np.einsum("bhmn,bhne->bhme", normalised(_scores(a, rows) + a["B"][None, :, rows], -1), a["v"])


# torch ---------------------------------------------------------------------------------------------------------------


def _attend(score: Any, v: Any) -> Any:
    return score.softmax(-1).to(v.dtype) @ v


def _torch_scores(a: Arrays) -> Any:
    return (a["q"] / math.sqrt(a["q"].shape[-1])) @ a["k"].transpose(-1, -2)


def torch_dense(a: Arrays, sizes: Sizes) -> Any:
    """W1."""
    return _attend(_torch_scores(a), a["v"])


def _distance(a: Arrays) -> Any:
    import torch

    positions = torch.arange(a["k"].shape[2], device=a["k"].device)
    return positions - positions[:, None]


def torch_alibi(a: Arrays, sizes: Sizes, cap: float = 0) -> Any:
    """W2."""
    distance = _distance(a)
    score = _torch_scores(a) + a["slope"][:, None, None] * distance
    score = cap * (score / cap).tanh() if cap else score
    return _attend(score.masked_fill(distance > 0, -math.inf), a["v"])


def torch_capped(a: Arrays, sizes: Sizes) -> Any:
    """W2 with a soft cap."""
    return torch_alibi(a, sizes, CAP)


def torch_triangle(a: Arrays, sizes: Sizes) -> Any:
    """W3."""
    return _attend(_torch_scores(a) + a["B"], a["v"])


# other peers ---------------------------------------------------------------------------------------------------------


def sdpa(workload: Workload, sizes: Sizes) -> Function:
    """The platform's own attention, with the bias as its mask where there is one."""
    from torch.nn.functional import scaled_dot_product_attention

    def call(a: Arrays) -> Any:
        bias = None
        if "B" in a:
            bias = a["B"][None]
        if "slope" in a:
            distance = _distance(a)
            slope = a["slope"][:, None, None] * distance
            bias = slope.masked_fill(distance > 0, -math.inf)[None].to(a["q"].dtype)
        return scaled_dot_product_attention(a["q"], a["k"], a["v"], attn_mask=bias)

    return call


def flex(workload: Workload, sizes: Sizes) -> Function:
    """FlexAttention, compiled, with its block mask made once."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    compiled = torch.compile(flex_attention, dynamic=False)
    mask: list[Any] = []

    def call(a: Arrays) -> Any:
        if "slope" in a and not mask:
            length, device = a["k"].shape[2], a["k"].device
            causal: Callable[..., Any] = lambda b, h, m, n: n <= m  # noqa: E731
            mask.append(create_block_mask(causal, None, None, length, length, device=device))
        return compiled(a["q"], a["k"], a["v"], score_mod=_modified(a, workload), block_mask=mask[0] if mask else None)

    return call


def _modified(a: Arrays, workload: Workload) -> Callable[..., Any] | None:
    if "B" in a:
        bias = a["B"]
        return lambda score, b, h, m, n: score + bias[h, m, n]
    if "slope" not in a:
        return None
    slope = a["slope"]
    if workload.dense is dense_capped:
        return lambda score, b, h, m, n: CAP * ((score + slope[h] * (n - m)) / CAP).tanh()
    return lambda score, b, h, m, n: score + slope[h] * (n - m)


def keops(workload: Workload, sizes: Sizes) -> Function:
    """KeOps: lazy scores, reduced by its own generated code."""
    from pykeops.torch import LazyTensor

    def call(a: Arrays) -> Any:
        rows = LazyTensor((a["q"] / math.sqrt(a["q"].shape[-1]))[..., :, None, :].contiguous())
        keys, values = (LazyTensor(a[name][..., None, :, :].contiguous()) for name in "kv")
        return (rows | keys).sumsoftmaxweight(values, dim=3)

    return call


def _flops(sizes: Sizes) -> int:
    return 2 * ROWS(sizes) * (sizes["i"] + sizes["n"])


QKV = {"q": Input("b h mu i"), "k": Input("b h nu i"), "v": Input("b h nu n")}
SLOPED = {**QKV, "slope": Input("h", slopes=True)}
SDPA, FLEX = Peer("SDPA", sdpa), Peer("FlexAttention, compiled", flex)
KEOPS = Peer("KeOps", keops, needs=("pykeops",))
SCORE = "q^<b h mu>_i k^<b h nu>_i / sqrt(|i|)"


def _sizes(b: int, h: int, length: int, i: int, n: int) -> dict[str, int]:
    return {"b": b, "h": h, "mu": length, "nu": length, "i": i, "n": n}


def _levels(n: int) -> dict[str, dict[str, int]]:
    return {"full": _sizes(1, 8, 2048, 64, n), "small": _sizes(1, 2, 256, 64, n), "check": _sizes(2, 3, 13, 8, n // 8)}


W1 = Workload(
    name="W1", title="attention", dense=dense, row_axis=2, score="b h mu nu", flops=_flops, exps=ROWS,
    formula=f"W^<b h mu nu> = {SCORE}; y^<b h mu>_n = W^<b h mu bar(nu)> v^<b h nu>_n",
    inputs=QKV, sizes={**_levels(64), "gpu": _sizes(8, 8, 8192, 128, 128)},
    torch=torch_dense, peers=(SDPA, FLEX, KEOPS),
    einsums=Einsums("bhmn", 1, (("bhmi,bhni->bhmn", "q k"),), ("bhmn,bhne->bhme", "v"), divide="i"),
)  # fmt: skip


def _alibi(name: str, title: str, score: str, capped: bool, n: int, peers: tuple[Peer, ...]) -> Workload:
    return Workload(
        name=name, title=title, row_axis=2, score="b h mu nu", inputs=SLOPED, sizes=_levels(n), peers=peers,
        formula=f"W^<b h mu nu> = {score}; y^<b h mu>_n = W^<b h mu bar(nu : nu <= mu)> v^<b h nu>_n",
        dense=dense_capped if capped else dense_alibi, torch=torch_capped if capped else torch_alibi,
        flops=lambda sizes: _flops(sizes) // 2, exps=lambda sizes: ROWS(sizes) // 2,
    )  # fmt: skip


SLOPE = f"{SCORE} + slope_h * (nu - mu)"
W3_FULL = {"b": 192, "h": 4, "mu": 192, "nu": 192, "i": 32, "n": 32}
W3 = Workload(
    name="W3", title="triangle attention", dense=dense_triangle, row_axis=2, score="b h mu nu", flops=_flops, exps=ROWS,
    formula=f"W^<b h mu nu> = {SCORE} + B^<h mu nu>; y^<b h mu>_n = W^<b h mu bar(nu)> v^<b h nu>_n",
    inputs={**QKV, "B": Input("h mu nu")}, torch=torch_triangle, peers=(SDPA, FLEX),
    sizes={
        "full": W3_FULL, "small": _sizes(32, 4, 32, 32, 32), "check": _sizes(5, 2, 7, 8, 8),
        "gpu": _sizes(768, 4, 768, 32, 32),
    },
    einsums=Einsums("bhmn", 1, (("bhmi,bhni->bhmn", "q k"), ("hmn->hmn", "B")), ("bhmn,bhne->bhme", "v"), divide="i"),
)  # fmt: skip

WORKLOADS = (
    W1,
    _alibi("W2", "causal, ALiBi", SLOPE, False, 64, (SDPA, FLEX)),
    _alibi("W2-softcap", "causal, ALiBi, soft cap", f"{CAP} * tanh(({SLOPE}) / {CAP})", True, 64, (FLEX,)),
    _alibi("W2-narrow", "causal, ALiBi, values half as wide", SLOPE, False, 32, (SDPA, FLEX)),
    W3,
)
