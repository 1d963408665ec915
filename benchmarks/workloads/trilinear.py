"""W4, W6, W10: scores linear in the key, jointly normalised over two or three indices."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Einsums, Function, Input, Peer, Sizes, Workload, normalised, product

# independent meaning -------------------------------------------------------------------------------------------------


def dense(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W4, row by row."""
    r = a.get("r", a["q"])
    found = []
    for row in rows:
        score = np.einsum("hni,hri->hnr", a["k"][:, row, None] * a["q"], r, optimize=True)
        weights = normalised(score, (1, 2))
        found.append((np.einsum("hnr,hre->hne", weights, a["u"], optimize=True) * a["v"]).sum(1))
    return np.stack(found, axis=1)


def dense_operator(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W6, row by row."""
    found = []
    for row in rows:
        bilinear = np.einsum("hi,ijl->hjl", a["k"][:, row], a["M"])
        score = np.einsum("hnj,hjl,hrl->hnr", a["q"], bilinear, a["r"], optimize=True)
        found.append(np.einsum("hnr,hnre->he", normalised(score, (1, 2)), a["v"]))
    return np.stack(found, axis=1)


def dense_four(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W10, row by row."""
    found = []
    for row in rows:
        score = np.einsum("hni,hri,hsi->hnrs", a["k"][:, row, None] * a["q"], a["r"], a["t"], optimize=True)
        weights = normalised(score, (1, 2, 3))
        found.append(np.einsum("hnrs,hne,hre,hse->he", weights, a["v"], a["u"], a["w"], optimize=True))
    return np.stack(found, axis=1)


# torch ---------------------------------------------------------------------------------------------------------------


def pairs(x: Any, y: Any) -> Any:
    """Products over pairs of positions, flattened: (h, n, i), (h, r, i) → (h, n·r, i)."""
    return (x[:, :, None] * y[:, None]).flatten(1, 2)


def _keys_and_values(a: Arrays) -> tuple[Any, Any]:
    """The flattened keys and values over which each of these workloads is attention with two indices."""
    if "M" in a:
        h, r, length = a["q"].shape[0], a["r"], a["k"].shape[-1]
        i, j, kappa = a["M"].shape
        left = a["q"] @ a["M"].movedim(1, 0).reshape(j, i * kappa)
        keys = left.reshape(h, -1, kappa) @ r.transpose(-1, -2)
        return keys.reshape(h, -1, length, r.shape[1]).movedim(2, 3).flatten(1, 2), a["v"].flatten(1, 2)
    if "t" in a:
        return pairs(pairs(a["q"], a["r"]), a["t"]), pairs(pairs(a["v"], a["u"]), a["w"])
    return pairs(a["q"], a.get("r", a["q"])), pairs(a["v"], a["u"])


def torch_dense(a: Arrays, sizes: Sizes) -> Any:
    """Two matrix products around one softmax over the flattened keys."""
    keys, values = _keys_and_values(a)
    return (a["k"] @ keys.transpose(-1, -2)).softmax(-1) @ values


def flattened_sdpa(workload: Workload, sizes: Sizes) -> Function:
    """The platform's own attention over the flattened keys."""
    from torch.nn.functional import scaled_dot_product_attention

    def call(a: Arrays) -> Any:
        keys, values = _keys_and_values(a)
        return scaled_dot_product_attention(a["k"][None], keys[None], values[None], scale=1.0)[0]

    return call


def keops(workload: Workload, sizes: Sizes) -> Function:
    """KeOps over the flattened keys."""
    from pykeops.torch import LazyTensor

    def call(a: Arrays) -> Any:
        keys, values = _keys_and_values(a)
        rows = LazyTensor(a["k"][..., :, None, :].contiguous())
        lazy = [LazyTensor(x[..., None, :, :].contiguous()) for x in (keys, values)]
        return (rows | lazy[0]).sumsoftmaxweight(lazy[1], dim=2)

    return call


def flattened_bytes(workload: Workload, sizes: Sizes) -> int:
    """Flattened keys and values, each in two copies."""
    barred = [index for index in workload.score.split() if index not in ("h", "mu")]
    return 4 * 2 * sizes["h"] * product(*barred)(sizes) * (sizes["i"] + sizes["n"])


def _trilinear_flops(sizes: Sizes) -> int:
    return 2 * product("h mu nu rho")(sizes) * (sizes["i"] + sizes["n"])


FLATTENED = Peer("flattened SDPA", flattened_sdpa, predicted_bytes=flattened_bytes)
KEOPS = Peer("KeOps", keops, needs=("pykeops",), predicted_bytes=flattened_bytes)
VALUES = "y^<h mu>_n = S^<h mu bar(nu rho)> v^<h nu>_n u^<h rho>_n"


def _sizes(h: int, length: int, i: int) -> dict[str, int]:
    return {"h": h, "mu": length, "nu": length, "rho": length, "i": i, "n": i}


CHECK = {"h": 2, "mu": 5, "nu": 7, "rho": 11, "i": 3, "n": 4}
W4 = Workload(
    name="W4", title="trilinear, products of values", dense=dense, row_axis=1, score="h mu nu rho",
    formula=f"S^<h mu nu rho> = k^<h mu>_i q^<h nu>_i r^<h rho>_i; {VALUES}",
    inputs={
        "k": Input("h mu i", over="i"), "q": Input("h nu i"), "r": Input("h rho i"),
        "v": Input("h nu n"), "u": Input("h rho n"),
    },
    sizes={"full": _sizes(1, 384, 64), "small": _sizes(1, 48, 16), "check": CHECK, "gpu": _sizes(8, 1024, 64)},
    flops=_trilinear_flops, exps=product("h mu nu rho"), torch=torch_dense, peers=(FLATTENED, KEOPS),
    einsums=Einsums("hmnr", 2, (("hmi,hni,hri->hmnr", "k q r"),), ("hmnr,hne,hre->hme", "v u")),
)  # fmt: skip

W4_SYMMETRIC = Workload(
    name="W4-symmetric", title="trilinear with q = r", dense=dense, row_axis=1, score="h mu nu rho",
    formula=f"S^<h mu nu rho> = k^<h mu>_i q^<h nu>_i q^<h rho>_i; {VALUES}",
    inputs={name: given for name, given in W4.inputs.items() if name != "r"},
    sizes={"full": _sizes(1, 384, 64), "small": _sizes(1, 48, 16), "check": {**CHECK, "rho": 7}},
    flops=lambda sizes: _trilinear_flops(sizes) // 2, exps=lambda sizes: product("h mu nu rho")(sizes) // 2,
    torch=torch_dense, peers=(FLATTENED,),
    einsums=Einsums("hmnr", 2, (("hmi,hni,hri->hmnr", "k q q"),), ("hmnr,hne,hre->hme", "v u")),
)  # fmt: skip

W4_LONG = Workload(
    name="W4-long", title="trilinear, one copy of the weights is 4.3 GB", dense=dense, row_axis=1, score=W4.score,
    formula=W4.formula, inputs=W4.inputs,
    sizes={"full": _sizes(1, 1024, 32), "small": _sizes(1, 96, 8), "check": CHECK},
    flops=_trilinear_flops, exps=W4.exps, torch=torch_dense, peers=(FLATTENED,), einsums=W4.einsums,
)  # fmt: skip

W6_SIZES = {
    level: {**given, "j": given["i"], "kappa": given["i"]}
    for level, given in {"full": _sizes(1, 256, 32), "small": _sizes(1, 48, 16), "gpu": _sizes(4, 1024, 64)}.items()
}
W6 = Workload(
    name="W6", title="a trilinear operator M, values on pairs", dense=dense_operator, row_axis=1, score="h mu nu rho",
    formula="S^<h mu nu rho> = k^<h mu>_i q^<h nu>_j r^<h rho>_kappa M_<i j kappa>; "
    "y^<h mu>_n = S^<h mu bar(nu rho)> v^<h nu rho>_n",
    inputs={
        "k": Input("h mu i"), "q": Input("h nu j"), "r": Input("h rho kappa"),
        "M": Input("i j kappa", over="i j kappa"), "v": Input("h nu rho n"),
    },
    sizes={**W6_SIZES, "check": {**CHECK, "j": 2, "kappa": 5}},
    flops=lambda sizes: _trilinear_flops(sizes)
    + 2 * sizes["i"] * product("h nu kappa")(sizes) * (sizes["j"] + sizes["rho"]),
    exps=product("h mu nu rho"), torch=torch_dense, peers=(FLATTENED,),
    einsums=Einsums("hmnr", 2, (("hmi,hnj,hrl,ijl->hmnr", "k q r M"),), ("hmnr,hnre->hme", "v")),
)  # fmt: skip

W10 = Workload(
    name="W10", title="four-way, products of values", dense=dense_four, row_axis=1, score="h mu nu rho sigma",
    formula="S^<h mu nu rho sigma> = k^<h mu>_i q^<h nu>_i r^<h rho>_i t^<h sigma>_i; "
    "y^<h mu>_n = S^<h mu bar(nu rho sigma)> v^<h nu>_n u^<h rho>_n w^<h sigma>_n",
    inputs={**W4.inputs, "t": Input("h sigma i"), "w": Input("h sigma n")},
    sizes={
        "full": {**_sizes(1, 64, 32), "sigma": 64}, "small": {**_sizes(1, 16, 8), "sigma": 16},
        "check": {**CHECK, "sigma": 3}, "gpu": {**_sizes(1, 160, 64), "sigma": 160},
    },
    flops=lambda sizes: _trilinear_flops(sizes) * sizes["sigma"], exps=product("h mu nu rho sigma"),
    torch=torch_dense, peers=(FLATTENED,),
    einsums=Einsums("hmnrs", 3, (("hmi,hni,hri,hsi->hmnrs", "k q r t"),), ("hmnrs,hne,hre,hse->hme", "v u w")),
)  # fmt: skip

WORKLOADS = (W4, W4_SYMMETRIC, W4_LONG, W6)
FOUR_WAY = (W10,)
