"""W5: trilinear attention in two causal windows, with grouped heads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Function, Input, Peer, Sizes, Workload, normalised, product


def dense(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Row by row, over the positions inside both windows."""
    found = []
    for row in rows:
        near, far = (slice(max(row - sizes[width] + 1, 0), row + 1) for width in ("near", "far"))
        score = np.einsum("ghi,gni,gri->ghnr", a["k"][:, :, row], a["q"][:, near], a["r"][:, far], optimize=True)
        weights = normalised(score, (2, 3))
        found.append(np.einsum("ghnr,gne,gre->ghe", weights, a["v"][:, near], a["u"][:, far], optimize=True))
    return np.stack(found, axis=2)


def torch_dense(a: Arrays, sizes: Sizes) -> Any:
    """All pairs, the windows as a mask."""
    import torch

    length = a["k"].shape[2]
    positions = torch.arange(length, device=a["k"].device)
    behind = positions[:, None] - positions
    near, far = ((behind >= 0) & (behind < sizes[width]) for width in ("near", "far"))
    keys = (a["q"][:, :, None] * a["r"][:, None]).flatten(1, 2)
    values = (a["v"][:, :, None] * a["u"][:, None]).flatten(1, 2)
    score = a["k"] @ keys[:, None].transpose(-1, -2)
    mask = (near[:, :, None] & far[:, None]).flatten(1)
    return score.masked_fill(~mask, -math.inf).softmax(-1) @ values[:, None]


def _windows(x: Any, width: int) -> Any:
    """(g, length, i) → (g, length, width, i): the last `width` positions up to each, zeros before the first."""
    from torch.nn.functional import pad

    return pad(x, (0, 0, width - 1, 0)).unfold(1, width, 1).movedim(-1, -2)


def windowed(workload: Workload, sizes: Sizes) -> Function:
    """Hand-written: the windows of every position as views, two matrix products per position and head."""
    import torch

    near, far = sizes["near"], sizes["far"]

    def call(a: Arrays) -> Any:
        length, device = a["k"].shape[2], a["k"].device
        q, v = (_windows(a[name], near)[:, None] for name in "qv")
        r, u = (_windows(a[name], far)[:, None] for name in "ru")
        score = (a["k"][..., None, :] * q) @ r.transpose(-1, -2)
        positions = torch.arange(length, device=device)[:, None]
        inside = [positions - width + 1 + torch.arange(width, device=device) >= 0 for width in (near, far)]
        mask = inside[0][:, :, None] & inside[1][:, None]
        weights = score.masked_fill(~mask, -math.inf).flatten(-2).softmax(-1).unflatten(-1, (near, far))
        return ((weights @ u) * v).sum(-2)

    return call


def _windowed_bytes(workload: Workload, sizes: Sizes) -> int:
    return 4 * product("g h mu near")(sizes) * (3 * sizes["far"] + 2 * sizes["n"])


def _sizes(g: int, h: int, length: int, near: int, far: int, i: int) -> dict[str, int]:
    lengths = dict.fromkeys(("mu", "nu", "rho"), length)
    return {"g": g, "h": h, **lengths, "near": near, "far": far, "i": i, "n": i}


W5 = Workload(
    name="W5", title="trilinear, causal windows, grouped heads", dense=dense, row_axis=2, score="g h mu nu rho",
    formula="S^<g h mu nu rho> = k^<g h mu>_i q^<g nu>_i r^<g rho>_i; y^<g h mu>_n = S^<g h mu "
    "bar(nu rho : mu - {near} < nu and nu <= mu and mu - {far} < rho and rho <= mu)> v^<g nu>_n u^<g rho>_n",
    inputs={
        "k": Input("g h mu i", over="i"), "q": Input("g nu i"), "r": Input("g rho i"),
        "v": Input("g nu n"), "u": Input("g rho n"),
    },
    sizes={
        "full": _sizes(2, 4, 1024, 16, 64, 64), "small": _sizes(2, 2, 64, 4, 8, 16), "check": _sizes(2, 3, 13, 3, 5, 4),
        "gpu": _sizes(1, 64, 4096, 32, 512, 128),
    },
    flops=lambda sizes: 2 * product("g h mu near far")(sizes) * (sizes["i"] + sizes["n"]),
    exps=product("g h mu near far"), torch=torch_dense,
    peers=(Peer("windowed torch", windowed, predicted_bytes=_windowed_bytes),),
)  # fmt: skip

WORKLOADS = (W5,)
