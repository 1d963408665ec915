"""W7 and W8: scores that are sums of terms in two indices each, so that factored algorithms exist."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Einsums, Function, Input, Peer, Sizes, Workload, normalised, product

# independent meaning: joint, row by row ------------------------------------------------------------------------------


def _triangle_weights(a: dict[str, np.ndarray], row: int) -> np.ndarray:
    score = np.einsum("hi,hni->hn", a["a"][:, row], a["b"])[:, :, None]
    score = score + a["c"] @ a["e"].swapaxes(1, 2)
    return normalised(score + np.einsum("hi,hri->hr", a["g"][:, row], a["f"])[:, None], (1, 2))


def dense_triangle(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W7."""
    weights = (_triangle_weights(a, row) for row in rows)
    return np.stack([np.einsum("hn,hne->he", w.sum(2), a["v"]) for w in weights], axis=1)


def dense_triangle_pairs(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W7 with values on both barred indices."""
    weights = (_triangle_weights(a, row) for row in rows)
    return np.stack([((w @ a["w"]) * a["v"]).sum(1) for w in weights], axis=1)


def dense_separable(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes, ordered: bool = False) -> np.ndarray:
    """W8."""
    found = []
    for row in rows:
        score = (a["q"] @ a["k"][row])[:, None] + a["r"] @ a["l"][row]
        score = np.where(np.tri(*score.shape, dtype=bool), score, -np.inf) if ordered else score
        found.append(((normalised(score, (0, 1)) @ a["u"]) * a["v"]).sum(0))
    return np.stack(found)


def dense_ordered(a: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """W8 with ρ ≤ ν."""
    return dense_separable(a, rows, sizes, ordered=True)


# torch ---------------------------------------------------------------------------------------------------------------


def _turned(x: Any) -> Any:
    return x.transpose(-1, -2)


def torch_triangle(a: Arrays, sizes: Sizes) -> Any:
    """W7 and its variant: the joint weights."""
    score = (a["a"] @ _turned(a["b"]))[..., None] + (a["c"] @ _turned(a["e"]))[:, None]
    score = score + (a["g"] @ _turned(a["f"]))[:, :, None]
    weights = score.flatten(2).softmax(-1).unflatten(-1, score.shape[2:])
    if "w" in a:
        return ((weights @ a["w"][:, None]) * a["v"][:, None]).sum(2)
    return weights.sum(-1) @ a["v"]


def factored_triangle(workload: Workload, sizes: Sizes) -> Function:
    """Hand-written: 3 N² exponentials, one matrix product (one per value feature in the variant)."""

    def exponential(score: Any, axis: int | tuple[int, ...]) -> Any:
        return (score - score.amax(axis, keepdim=True)).exp()

    def call(a: Arrays) -> Any:
        first = exponential(a["a"] @ _turned(a["b"]), -1)
        last = exponential(a["g"] @ _turned(a["f"]), -1)
        middle = exponential(a["c"] @ _turned(a["e"]), (-2, -1))
        weights = first * (last @ _turned(middle))
        total = weights.sum(-1, keepdim=True)
        if "w" not in a:
            return weights @ a["v"] / total
        features = [
            (first * ((last * a["w"][:, None, :, n]) @ _turned(middle))) @ a["v"][..., n, None]
            for n in range(a["w"].shape[-1])
        ]
        import torch

        return torch.cat(features, dim=-1) / total

    return call


def flattened_triangle(workload: Workload, sizes: Sizes) -> Function:
    """The platform's own attention: two features side by side, the third term as one more column."""
    import torch
    from torch.nn.functional import pad, scaled_dot_product_attention

    def call(a: Arrays) -> Any:
        h, nu, width = a["b"].shape
        rho = a["e"].shape[1]
        query = torch.cat([a["a"], a["g"], torch.ones_like(a["a"][..., :1])], dim=-1)
        bias = (a["c"] @ _turned(a["e"]))[..., None]
        left = a["b"][:, :, None].expand(h, nu, rho, width)
        right = a["f"][:, None].expand(h, nu, rho, width)
        keys = torch.cat([left, right, bias], dim=-1).flatten(1, 2)
        value = a["v"][:, :, None].expand(h, nu, rho, a["v"].shape[-1])
        value = (value * a["w"][:, None] if "w" in a else value).flatten(1, 2)
        short = max(keys.shape[-1] - value.shape[-1], 0)
        found = scaled_dot_product_attention(query[None], keys[None], pad(value, (0, short))[None], scale=1.0)
        return found[0, ..., : a["v"].shape[-1]]

    return call


def torch_separable(a: Arrays, sizes: Sizes) -> Any:
    """W8: the joint weights."""
    score = (a["k"] @ a["q"].T)[:, :, None] + (a["l"] @ a["r"].T)[:, None]
    weights = score.flatten(1).softmax(-1).unflatten(-1, score.shape[1:])
    return ((weights @ a["u"]) * a["v"]).sum(1)


def torch_ordered(a: Arrays, sizes: Sizes) -> Any:
    """W8 with ρ ≤ ν: the joint weights."""
    import torch

    score = (a["k"] @ a["q"].T)[:, :, None] + (a["l"] @ a["r"].T)[:, None]
    mask = torch.ones(score.shape[1:], dtype=torch.bool, device=score.device).tril()
    weights = score.masked_fill(~mask, float("-inf")).flatten(1).softmax(-1).unflatten(-1, score.shape[1:])
    return ((weights @ a["u"]) * a["v"]).sum(1)


def two_sdpa(workload: Workload, sizes: Sizes) -> Function:
    """The product of two attentions with two indices."""
    from torch.nn.functional import scaled_dot_product_attention

    def call(a: Arrays) -> Any:
        left = scaled_dot_product_attention(*(a[name][None, None] for name in "kqv"), scale=1.0)
        right = scaled_dot_product_attention(*(a[name][None, None] for name in "lru"), scale=1.0)
        return (left * right)[0, 0]

    return call


def prefix_sums(workload: Workload, sizes: Sizes) -> Function:
    """Hand-written: prefix sums over ρ of the weighted values, for a few rows at a time."""
    import torch

    def call(a: Arrays) -> Any:
        ones = torch.ones_like(a["u"][:, :1])
        padded_u, padded_v = torch.cat([a["u"], ones], dim=1), torch.cat([a["v"], ones], dim=1)
        found = []
        for k, l in zip(a["k"].split(16), a["l"].split(16), strict=True):  # noqa: E741
            first, second = k @ a["q"].T, l @ a["r"].T
            first, second = ((x - x.amax(-1, keepdim=True)).exp() for x in (first, second))
            sums = (second[..., None] * padded_u).cumsum(1) * padded_v
            summed = (first[:, None] @ sums)[:, 0]
            found.append(summed[:, :-1] / summed[:, -1:])
        return torch.cat(found)

    return call


# workloads -----------------------------------------------------------------------------------------------------------


def _flattened_bytes(workload: Workload, sizes: Sizes) -> int:
    return 4 * 3 * product("h nu rho")(sizes) * 2 * (2 * sizes["i"] + 1)


TRIANGLE = (
    "S^<h mu nu rho> = a^<h mu>_i b^<h nu>_i + c^<h nu>_i e^<h rho>_i + f^<h rho>_i g^<h mu>_i; "
    "y^<h mu>_n = {values}"
)  # fmt: skip
TRIANGLE_INPUTS = {
    "a": Input("h mu i", over="i"), "b": Input("h nu i"), "c": Input("h nu i", over="i"), "e": Input("h rho i"),
    "f": Input("h rho i"), "g": Input("h mu i", over="i"), "v": Input("h nu n"),
}  # fmt: skip
TRIANGLE_TERMS = (("hmi,hni->hmn", "a b"), ("hni,hri->hnr", "c e"), ("hri,hmi->hmr", "f g"))
TRIANGLE_PEERS = (
    Peer("hand-factored torch", factored_triangle),
    Peer("flattened SDPA", flattened_triangle, predicted_bytes=_flattened_bytes),
)
PAIRS = "h mu nu", "h nu rho", "h rho mu"


def _sizes(length: int, i: int, **more: int) -> dict[str, int]:
    return {**more, "mu": length, "nu": length, "rho": length, "i": i, "n": i}


def _pair_entries(sizes: Sizes) -> int:
    return sum(product(pair)(sizes) for pair in PAIRS)


CHECK = {"mu": 5, "nu": 7, "rho": 11, "i": 3, "n": 4}
W7 = Workload(
    name="W7", title="three pairwise terms", dense=dense_triangle, row_axis=1, score="h mu nu rho",
    formula=TRIANGLE.format(values="sum[rho](S^<h mu bar(nu rho)> v^<h nu>_n)"), inputs=TRIANGLE_INPUTS,
    sizes={
        "full": _sizes(768, 64, h=1), "small": _sizes(48, 16, h=1), "check": {**CHECK, "h": 2},
        "gpu": _sizes(2048, 64, h=32),
    },
    flops=lambda sizes: 2 * sizes["i"] * _pair_entries(sizes) + 2 * product("h mu nu rho")(sizes),
    exps=_pair_entries, torch=torch_triangle, peers=TRIANGLE_PEERS,
    einsums=Einsums("hmnr", 2, TRIANGLE_TERMS, ("hmnr,hne->hme", "v")),
)  # fmt: skip

W7_PAIRS = Workload(
    name="W7-pairs", title="three pairwise terms, values on pairs", dense=dense_triangle_pairs, row_axis=1,
    formula=TRIANGLE.format(values="S^<h mu bar(nu rho)> v^<h nu>_n w^<h rho>_n"), score="h mu nu rho",
    inputs={**TRIANGLE_INPUTS, "w": Input("h rho n")}, sizes={k: s for k, s in W7.sizes.items() if k != "gpu"},
    flops=lambda sizes: W7.flops(sizes) + 2 * product("h mu nu rho n")(sizes),
    exps=_pair_entries, torch=torch_triangle, peers=TRIANGLE_PEERS,
    einsums=Einsums("hmnr", 2, TRIANGLE_TERMS, ("hmnr,hne,hre->hme", "v w")),
)  # fmt: skip

SEPARABLE = "S^<mu nu rho> = k^mu_i q^nu_i + l^mu_i r^rho_i; y^mu_n = S^<mu bar(nu rho{where})> v^nu_n u^rho_n"
SEPARABLE_INPUTS = {
    "k": Input("mu i", over="i"), "q": Input("nu i"), "l": Input("mu i", over="i"), "r": Input("rho i"),
    "v": Input("nu n"), "u": Input("rho n"),
}  # fmt: skip
W8 = Workload(
    name="W8", title="separable score, products of values", dense=dense_separable, row_axis=0, score="mu nu rho",
    formula=SEPARABLE.format(where=""), inputs=SEPARABLE_INPUTS,
    sizes={"full": _sizes(2048, 64), "small": _sizes(64, 16), "check": CHECK, "gpu": _sizes(16384, 64)},
    flops=lambda sizes: 4 * product("mu nu")(sizes) * (sizes["i"] + sizes["n"]),
    exps=product("2 mu nu"), torch=torch_separable, peers=(Peer("two SDPA calls", two_sdpa),),
    einsums=Einsums("mnr", 2, (("mi,ni->mn", "k q"), ("mi,ri->mr", "l r")), ("mnr,ne,re->me", "v u")),
)  # fmt: skip

W8_ORDERED = Workload(
    name="W8-ordered", title="separable score, ρ ≤ ν", dense=dense_ordered, row_axis=0, score="mu nu rho",
    formula=SEPARABLE.format(where=" : rho <= nu"), inputs=SEPARABLE_INPUTS,
    sizes={"full": _sizes(2048, 64), "small": _sizes(64, 16), "check": {**CHECK, "rho": 7}},
    flops=W8.flops, exps=W8.exps, torch=torch_ordered, peers=(Peer("hand-factored torch", prefix_sums),),
)  # fmt: skip

WORKLOADS = (W7, W7_PAIRS, W8, W8_ORDERED)
