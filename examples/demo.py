"""The notes' formulas, run: read, checked, planned, computed, compared with plain NumPy; then what an error looks like.

Needs NumPy and tensorattn alone. Every computed value is compared with plain NumPy, every error's code is checked.
"""

import numpy as np
from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.table import Table

import tensorattn as ta

CONSOLE = Console(highlight=False, width=min(Console().width, 110))

JOINT = """
    W^<mu nu rho> = k^mu_i q^nu_j r^rho_kappa M_<i j kappa>
    y^mu_n        = W^<mu bar(nu rho)> v^<nu rho>_n
"""
ATTENTION = """
    S^<mu nu> = q^mu_i k^nu_i / sqrt(|i|)
    y^mu_n    = S^<mu bar(nu)> v^nu_n
"""
MISSPELT = "S_<query key> = q_<query feature> k_<key featrue>"
AS_PRINTED = "y^mu_l = Mtilde_<l g h> G^<rho sigma> c^<mu rho>_g d^<mu nu>_h"


def softmax(x, axes):
    e = np.exp(x - x.max(axis=axes, keepdims=True))
    return e / e.sum(axis=axes, keepdims=True)


def joint_by_numpy(k, q, r, M, v):
    W = np.einsum("mi,nj,rk,ijk->mnr", k, q, r, M)
    return np.einsum("mnr,rnk->mk", softmax(W, (1, 2)), v.swapaxes(0, 1))


def heads_by_numpy(x, Wq, Wk, Wv):
    heads = []
    for a, b, c in zip(Wq, Wk, Wv, strict=True):
        heads.append(softmax((x @ a) @ (x @ b).T / np.sqrt(a.shape[1]), 1) @ (x @ c))
    return np.concatenate(heads, axis=1)


def nested_by_numpy(k, q, r, M, t, u, B, s, z, Mtilde, G):
    W = np.einsum("mi,nj,rk,ijk->mnr", k, q, r, M)
    a, b = np.einsum("mnr,nk->mrk", softmax(W, 1), t), np.einsum("mnr,rk->mnk", softmax(W, 2), u)
    C = np.einsum("mra,mnb,ab->mrn", a, b, B)
    c, d = np.einsum("mrn,ng->mrg", softmax(C, 2), s), np.einsum("mrn,rh->mnh", softmax(C, 1), z)
    return np.einsum("lgh,rn,mrg,mnh->ml", Mtilde, G, c, d)


# Formulas of the library, each with the same computation in plain NumPy.
COMPARED = {
    "dot_product_attention": lambda k, q, M, v: softmax(k @ M @ q.T, 1) @ v,
    "joint_attention": joint_by_numpy,
    "relation_a": lambda W, t: np.einsum("mnr,nk->mrk", softmax(W, 1), t),
    "relation_b": lambda W, u: np.einsum("mnr,rk->mnk", softmax(W, 2), u),
    "nested_relations": nested_by_numpy,
    "self_attention": lambda x: softmax(x @ x.T, 1) @ x,
    "self_attention_ratio": lambda x: softmax(x @ x.T, 1) @ x,
    "projected_attention": lambda x, Wq, Wk, Wv: heads_by_numpy(x, Wq[None], Wk[None], Wv[None]),
    "multi_head_attention": heads_by_numpy,
    "position_appended": lambda x: np.concatenate([x, (np.arange(len(x)) / len(x))[:, None]], axis=1),
    "bag_of_words": lambda word: np.stack([np.bincount(row, minlength=4) for row in word]),
}


def heading(text):
    CONSOLE.print()
    CONSOLE.rule(f"[bold]{text}", align="left")


def show(text):
    CONSOLE.print(str(text), markup=False)


def refusal(call):
    """The error that a call raises; None if it raises none."""
    try:
        call()
    except ta.TensorattnError as error:
        return error
    return None


def formulas_are_programs():
    heading("1  A formula is a program")
    program = ta.parse(JOINT)
    show(program)
    assert ta.parse(str(program)) == program
    show(f"\ninputs: {', '.join(program.inputs)}; a bar is a softmax, here one over all pairs (nu, rho)")


def shapes_are_checked():
    heading("2  Shapes are checked with symbols, before there is data")
    shapes = ta.check(ta.parse(ATTENTION), q="M D", k="R D", v="S E")
    show(ta.parse(ATTENTION))
    show(f"\nwith q: M D, k: R D, v: S E\n{shapes}")
    (required,) = shapes.required
    assert str(required).startswith("R = S")
    assert {index: str(size) for index, size in shapes.sizes.items()} == {"mu": "M", "nu": "R", "i": "D", "n": "E"}


def plans_are_explained():
    heading("3  The plan, in words")
    sizes = {"mu": 64, "nu": 64, "rho": 64, "i": 8, "j": 8, "kappa": 8, "n": 16}
    explained = ta.compile(JOINT).explain(**sizes)
    show(explained)
    assert "FLOPs" in str(explained)


def values_are_compared():
    heading("4  The notes' formulas against plain NumPy, on small random data")
    table = Table()
    for column in ("formula", "what", "result", "largest difference"):
        table.add_column(column, justify="right" if column.startswith("largest") else "left")
    rng = np.random.default_rng(0)
    for name, by_numpy in COMPARED.items():
        entry = ta.formulas[name]
        inputs = entry.example(rng)
        value = ta.compile(entry.program, sizes=dict(entry.sizes))(inputs)
        expected = by_numpy(**inputs)
        np.testing.assert_allclose(value, expected, rtol=1e-10, atol=1e-12, err_msg=name)
        table.add_row(name, entry.title, str(value.shape), f"{np.abs(value - expected).max():.1e}")
    CONSOLE.print(table)


def errors_are_shown():
    heading("5  What a wrong formula gets")
    rng = np.random.default_rng(0)
    attend = ta.compile(ATTENTION)
    wrong = {"q": rng.normal(size=(3, 4)), "k": rng.normal(size=(5, 4)), "v": rng.normal(size=(6, 2))}
    cases = (
        ("a misspelt index", "E-DANGLING", lambda: ta.parse(MISSPELT)),
        ("keys and values of different length", "E-EXTENT", lambda: attend(wrong)),
        ("the last formula as the notes print it", "E-DANGLING", lambda: ta.parse(AS_PRINTED)),
    )
    for title, code, call in cases:
        error = refusal(call)
        assert error is not None, f"{title}: accepted"
        assert error.code == code, f"{title}: {error.code}"
        CONSOLE.print(Panel(str(error).replace("[", "\\["), title=title, title_align="left", border_style="red"))


def source_is_shown():
    heading("6  The code that runs")
    source = ta.compile(ATTENTION).source("numpy")
    CONSOLE.print(Syntax(source, "python", background_color="default", word_wrap=True))
    names = {}
    exec(source, names)
    q, k, v = (np.random.default_rng(n).normal(size=(4, 3)) for n in range(3))
    (y,) = names["formula"](q, k, v)
    np.testing.assert_allclose(y, softmax(q @ k.T / np.sqrt(3), 1) @ v, rtol=1e-10)
    assert "tensorattn" not in source
    show("run by itself, without tensorattn: equal to plain NumPy")


def main():
    formulas_are_programs()
    shapes_are_checked()
    plans_are_explained()
    values_are_compared()
    errors_are_shown()
    source_is_shown()
    heading(f"done: every value was compared with plain NumPy; {len(ta.formulas)} formulas in ta.formulas")


if __name__ == "__main__":
    main()
