"""W9: relations between relations: two attentions over a pair tensor, attended again by each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Input, Sizes, Workload, normalised, product

FORMULA = """W^<mu nu rho> = k^mu_i q^nu_j r^rho_kappa M_<i j kappa>
a^<mu rho>_m = W^<mu bar(nu) rho> t^nu_m
b^<mu nu>_n = W^<mu nu bar(rho)> u^rho_n
C^<mu rho nu> = a^<mu rho>_m b^<mu nu>_n B_<m n>
c^<mu rho>_g = C^<mu rho bar(nu)> s^nu_g
d^<mu nu>_h = C^<mu bar(rho) nu> z^rho_h
y^mu_l = N_<l g h> G^<rho nu> c^<mu rho>_g d^<mu nu>_h"""


def dense(x: dict[str, np.ndarray], rows: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Row by row, in the order of the statements."""
    found = []
    for row in rows:
        W = np.einsum("i,nj,rl,ijl->nr", x["k"][row], x["q"], x["r"], x["M"], optimize=True)
        a = np.einsum("nr,nm->rm", normalised(W, 0), x["t"])
        b = np.einsum("nr,re->ne", normalised(W, 1), x["u"])
        C = np.einsum("rm,ne,me->rn", a, b, x["B"], optimize=True)
        c = np.einsum("rn,ng->rg", normalised(C, 1), x["s"])
        d = np.einsum("rn,rh->nh", normalised(C, 0), x["z"])
        found.append(np.einsum("lgh,rn,rg,nh->l", x["N"], x["G"], c, d, optimize=True))
    return np.stack(found)


def torch_dense(x: Arrays, sizes: Sizes) -> Any:
    """Matrix products, batched over μ."""
    i, j, kappa = x["M"].shape
    folded = (x["k"] @ x["M"].reshape(i, j * kappa)).unflatten(-1, (j, kappa))
    W = (x["q"] @ folded) @ x["r"].T
    a = W.softmax(1).transpose(1, 2) @ x["t"]
    b = W.softmax(2) @ x["u"]
    C = (a @ x["B"]) @ b.transpose(1, 2)
    c = C.softmax(2) @ x["s"]
    d = C.softmax(1).transpose(1, 2) @ x["z"]
    joined = c.transpose(1, 2) @ (x["G"] @ d)
    return joined.flatten(1) @ x["N"].flatten(1).T


def _sizes(length: int, width: int) -> dict[str, int]:
    indices = dict.fromkeys(("i", "j", "kappa", "m", "n", "g", "h", "l"), width)
    return {"mu": length, "nu": length, "rho": length, **indices}


W9 = Workload(
    name="W9", title="relations between relations", formula=FORMULA, dense=dense, row_axis=0, score="mu nu rho",
    inputs={
        "k": Input("mu i"), "q": Input("nu j"), "r": Input("rho kappa"), "M": Input("i j kappa", over="i j kappa"),
        "t": Input("nu m"), "u": Input("rho n"), "B": Input("m n"), "s": Input("nu g"), "z": Input("rho h"),
        "N": Input("l g h", over="g h"), "G": Input("rho nu", over="rho nu"),
    },
    sizes={
        "full": _sizes(128, 32), "small": _sizes(24, 8), "gpu": _sizes(512, 64),
        "check": dict(mu=5, nu=7, rho=11, i=2, j=3, kappa=4, m=2, n=3, g=2, h=3, l=4),
    },
    flops=lambda sizes: 2 * product("mu nu rho")(sizes) * (sizes["kappa"] + 2 * sum(sizes[index] for index in "mng")),
    exps=product("4 mu nu rho"), torch=torch_dense,
)  # fmt: skip

WORKLOADS = (W9,)
