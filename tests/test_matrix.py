"""Matrix formulas with declared axes: against NumPy, in three spellings, and what is refused."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import numpy as np
import pytest
from click.testing import CliRunner

import tensorattn as ta
from tensorattn.cli import main
from tests import goldens


def softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def arrays(axes, sizes, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=[sizes[a] for a in of.split()]) for name, of in axes.items()}


# formulas of papers ---------------------------------------------------------------------------------------------------

QKV = {"Q": "mu i", "K": "nu i", "V": "nu n"}
SIZES = {"mu": 3, "nu": 5, "i": 7, "n": 2, "t": 5, "m": 3}


def attention(Q, K, V):
    return softmax(Q @ K.T / np.sqrt(Q.shape[1])) @ V


def test_self_attention_as_printed():
    program = ta.parse("{% Y = Softmax[XX^T]X %}", axes={"X": "t m"})
    X = arrays({"X": "t m"}, SIZES)["X"]
    np.testing.assert_allclose(ta.compile(program)(X=X), softmax(X @ X.T) @ X, atol=1e-10)
    assert str(program) == "Y_<t m> = softmax[t'](X_<t m'> X_<t' m'>) X_<t' m>"


@pytest.mark.parametrize(
    "text",
    [
        "{% Q = XW^{q} %}\n{% K = XW^{k} %}\n{% V = XW^{v} %}\nand then: {% Y = Softmax[\\frac{QK^T}{\\sqrt{D_k}}] V %}"
        .replace("and then: ", ""),
        "{% Q = XW^{q} %}{% K = XW^{k} %}{% V = XW^{v} %}{% Y = Softmax[\\frac{QK^T}{\\sqrt{D_k}}] V %}",
        r"Q = XW^{q},\ K = XW^{k},\ V = XW^{v},\ Y = Softmax[\frac{QK^T}{\sqrt{D_k}}] V.",
        r"\begin{align}Q &= XW^{q} \\ K &= XW^{k} \\ V &= XW^{v} \\ Y &= Softmax[\frac{QK^T}{\sqrt{D_k}}] V\end{align}",
        "Q = X W^q\nK = X W^k\nV = X W^v\nY = softmax(Q K^T /\n    sqrt(D_k)) V\n",
    ],
)  # fmt: skip
def test_projections_as_printed(text):
    axes = {"X": "t m", "W^{q}": "m i", "W^k": "m i", "Wv": "m n"}
    program = ta.parse(text, axes=axes)
    assert program.inputs == ("X", "Wq", "Wk", "Wv")
    given = arrays({"X": "t m", "Wq": "m i", "Wk": "m i", "Wv": "m n"}, SIZES)
    X, Wq, Wk, Wv = given.values()
    np.testing.assert_allclose(ta.compile(program)(given), attention(X @ Wq, X @ Wk, X @ Wv), atol=1e-10)


@pytest.mark.parametrize(
    ("text", "scaled"),
    [
        ("Attention (Q, K, V) = Softmax( Q Kᵀ ) V", False),
        (
            "$$ \\text{Attention}(Q, K, V) = \\text{softmax}\\left(\\frac{QK^\\top}{\\sqrt{d_k}}\\right)V $$",
            True,
        ),
        ("   $$ \\text{Attention}(Q, K, V) = \\text{softmax}\\left(\\frac{QK^\\top}{\\sqrt{d_k}}\\right)V $$\n", True),
    ],
)
def test_attention_of_three_matrices_as_printed(text, scaled):
    program = ta.parse(text, axes=QKV)
    assert program.defined == ("Attention",)
    Q, K, V = arrays(QKV, SIZES).values()
    expected = attention(Q, K, V) if scaled else softmax(Q @ K.T) @ V
    np.testing.assert_allclose(ta.compile(program)(Q=Q, K=K, V=V), expected, atol=1e-10)


WAYS = [
    "Y = softmax(Q K^T / sqrt(d_k)) V",
    "Y = softmax(QK^T / sqrt(d)) V",
    "Y = softmax(Q K.T / sqrt(dk)) V",
    "Y = softmax(Q @ K.T / sqrt(|i|)) @ V",
    "Y = softmax[Q·Kᵀ/√dₖ]·V",
    "Y = Softmax(QKᵀ / √(d_head))V",
    "Y = softmax(Q K⊤ / √d_k) V",
    "Y = softmax_nu(Q K^T / sqrt(d_k)) V",
    r"Y = \mathrm{softmax}\left( \frac{ Q K^{\top} }{ \sqrt{d_{k}} } \right) V",
    r"Y = \operatorname{softmax}\Big(\tfrac{QK^{T}}{\sqrt d}\Big) V.",
    r"\[\mathbf{Y} = \text{SoftMax}\left[\dfrac{\mathbf{Q}\mathbf{K}^\top}{\sqrt{d_{\text{model}}}}\right]\mathbf{V}\]",
    r"Y = \mathrm{softmax}_{\nu}\left(\frac{1}{\sqrt{d_k}} Q \cdot K^\top\right) \cdot V",
    r"$Y \coloneqq \mathrm{softmax}(Q K^\intercal / \sqrt{D}) \, V$",
    r"S = Q K^T / \sqrt{d_k} \\ Y = \mathrm{softmax}(S) V",
    "S = Q K^T; Y = softmax(S / sqrt(|i|)) V",
    "Y = softmax(d_k**-0.5 Q K^T) V",
    r"Y = \mathrm{softmax}(d_k^{-1/2} QK^T) V",
]


@pytest.mark.parametrize("text", WAYS)
def test_ways_to_write_attention(text):
    program = ta.parse(text, axes=QKV)
    Q, K, V = arrays(QKV, SIZES).values()
    np.testing.assert_allclose(ta.compile(program)(Q=Q, K=K, V=V), attention(Q, K, V), atol=1e-10)
    assert ta.parse(str(program)) == program


INDEX_FORMS = {
    "X W + b": ({"X": "t m", "W": "m n", "b": "n"}, "out_<t n> = X_<t m> W_<m n> + b_n"),
    "H = relu(X W_1 + b_1)\nY = H W_2 + b_2": (
        {"X": "t m", "W_1": "m f", "b_1": "f", "W_2": "f m", "b_2": "m"},
        "H_<t f> = relu(X_<t m> W1_<m f> + b1_f)\nY_<t m> = H_<t f> W2_<f m> + b2_m",
    ),
    "A^T": ({"A": "i j"}, "out_<j i> = A_<i j>"),
    "(A B)^T": ({"A": "i j", "B": "j k"}, "out_<k i> = A_<i j> B_<j k>"),
    "A x": ({"A": "i j", "x": "j"}, "out_i = A_<i j> x_j"),
    "x A": ({"A": "i j", "x": "i"}, "out_j = x_i A_<i j>"),
    "x^T A y": ({"x": "m", "A": "m n", "y": "n"}, "out = x_m A_<m n> y_n"),
    "x y^T": ({"x": "m", "y": "n"}, "out_<m n> = x_m y_n"),
    r"x \cdot y": ({"x": "n", "y": "n"}, "out = x_n y_n"),
    "softmax(A x)": ({"A": "i j", "x": "j"}, "out_i = softmax[i](A_<i j> x_j)"),
    "A B C": (
        {"A": "n n", "B": "n n", "C": "n n"},
        "out_<n n'> = A_<n n''> B_<n'' n1> C_<n1 n'>",
    ),
    "A + A^T": ({"A": "n n"}, "out_<n n'> = A_<n n'> + A_<n' n>"),
    "(A ⊙ B) V": ({"A": "i j", "B": "i j", "V": "j n"}, "out_<i n> = A_<i j> B_<i j> V_<j n>"),
    r"\exp(A \odot B) V": ({"A": "i j", "B": "i j", "V": "j n"}, "out_<i n> = sum[j](exp(A_<i j> B_<i j>) V_<j n>)"),
    "QK^T ⊙ M": ({"Q": "i d", "K": "j d", "M": "i j"}, "out_<i j> = Q_<i d> K_<j d> M_<i j>"),
    "1/2 * (A + A^T)": ({"A": "n n"}, "out_<n n'> = 1 / 2 * (A_<n n'> + A_<n' n>)"),
    r"\frac12 \beta A": ({"beta": "", "A": "i j"}, "out_<i j> = 1 / 2 * beta A_<i j>"),
    "β A - 2 c": ({"beta": "", "A": "i j", "c": ""}, "out_<i j> = beta A_<i j> - 2 c"),
    "s^2 + s**3": ({"s": ""}, "out = s**2 + s**3"),
    "A / (x^T x)": ({"A": "i j", "x": "n"}, "out_<i j> = A_<i j> / (x_n x_n)"),
    "softmax(QK^T/√d)V": (
        {"Q": "... h mu i", "K": "... h nu i", "V": "... h nu n"},
        "out_<... h mu n> = softmax[nu](Q_<... h mu i> K_<... h nu i> / sqrt(|i|)) V_<... h nu n>",
    ),
    "X W": ({"X": "... t m", "W": "m n"}, "out_<... t n> = X_<... t m> W_<m n>"),
    r"\tilde{W} \hat x + \bar{b}": (
        {"Wtilde": "i j", "xhat": "j", "bbar": "i"},
        "out_i = Wtilde_<i j> xhat_j + bbar_i",
    ),
    "μ' Σ": ({"mu'": "", "Sigma": "i j"}, "out_<i j> = mu' Sigma_<i j>"),
    "f(X) = X^T X\nY = f(X) / d": ({"X": "n d"}, None),
    r"f(X) = X^\top X, \quad Y = \tanh(f(X))": (
        {"X": "n d"},
        "f_<d d'> = X_<n d> X_<n d'>\nY_<d d'> = tanh(f_<d d'>)",
    ),
    "sparsemax(A) + l2norm(A)": ({"A": "i j"}, "out_<i j> = sparsemax[j](A_<i j>) + l2norm[j](A_<i j>)"),
}


@pytest.mark.parametrize("text", [text for text, (_, form) in INDEX_FORMS.items() if form])
def test_the_index_form(text):
    axes, form = INDEX_FORMS[text]
    program = ta.parse(text, axes=axes)
    assert str(program) == form
    assert program == ta.parse(form)


def test_axes_may_be_sequences_and_greek():
    program = ta.parse("A x", axes={"A": ("μ", "i"), "x": ["i"]})
    assert str(program) == "out_mu = A_<mu i> x_i"
    assert ta.parse("A x", axes={"A": (..., "μ", "i"), "x": ["i"]}) == ta.parse("out_<... mu> = A_<... mu i> x_i")


def test_spans_point_into_the_pasted_text():
    text = r"$$ Y = \text{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V $$"
    program = ta.parse(text, axes=QKV)
    assert [text[x.span.start : x.span.end] for x in program.tensors] == ["Q", "K", "V"]
    with pytest.raises(ta.ShapeError) as caught:
        ta.check(program, Q=(3, 4), K=(5, 6), V=(5, 2))
    assert text in str(caught.value)
    assert caught.value.source is not None
    marked = {text[s.start : s.end] for s in caught.value.spans}
    assert marked <= {"Q", "K"}


def test_what_the_error_without_axes_shows_is_the_program():
    text = r"Y = \mathrm{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V"
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(text)
    assert caught.value.code == "E-MATRIX"
    copied = "\n".join(caught.value.facts[1:])
    axes = eval(caught.value.hint.split("axes=")[1].rstrip(")"))
    assert ta.parse(copied) == ta.parse(text, axes=axes)


# random formulas ------------------------------------------------------------------------------------------------------


@dataclass
class Made:
    """A formula in plain text and in LaTeX with its value; `bare`: whether it can stand in a product as it is."""

    plain: str
    latex: str
    value: np.ndarray
    bare: bool = True

    def wrapped(self, opening="(", closing=")"):
        if self.bare:
            return self.plain, self.latex
        return f"{opening}{self.plain}{closing}", f"\\left{opening}{self.latex}\\right{closing}"


@dataclass
class Maker:
    """Random formulas of a given shape; their inputs are made on the way."""

    dice: random.Random
    rng: np.random.Generator
    axes: dict = field(default_factory=dict)
    inputs: dict = field(default_factory=dict)
    sizes: dict = field(default_factory=lambda: {"a": 2, "b": 3, "c": 5, "d": 1, "e": 4})

    def leaf(self, *names):
        known = [n for n, of in self.axes.items() if of == " ".join(names)]
        if known and self.dice.random() < 0.5:
            name = self.dice.choice(known)
        else:
            letters = "ABCGHKLMPQ" if len(names) == 2 else "uvwxyz" if names else "pqrst"
            name = f"{self.dice.choice(letters)}{len(self.axes)}"
            self.axes[name] = " ".join(names)
            self.inputs[name] = self.rng.normal(size=[self.sizes[n] for n in names])
        return Made(f"{name[0]}_{name[1:]}", f"{name[0]}_{{{name[1:]}}}", self.inputs[name])

    def other(self, *taken):
        return self.dice.choice([n for n in self.sizes if n not in taken])

    def matrix(self, r, c, depth):
        kinds = ["leaf"] if depth == 0 else ["leaf", "transpose", "product", "product", "sum", "entries", "scaled"]
        kinds += [] if depth == 0 else ["softmax", "tanh", "bias", "outer", "over", "softmax"]
        match self.dice.choice(kinds):
            case "leaf":
                return self.leaf(r, c)
            case "transpose":
                plain, latex = (m := self.matrix(c, r, depth - 1)).wrapped()
                tops = self.dice.choice([("^T", "^T"), ("ᵀ", "^\\top"), (".T", "^{\\top}")])
                if plain.endswith((tops[0], ".T", "ᵀ", "^T")):
                    plain, latex = f"({plain})", f"({latex})"
                return Made(plain + tops[0], latex + tops[1], m.value.T)
            case "product":
                k = self.other()
                m, n = self.matrix(r, k, depth - 1), self.matrix(k, c, depth - 1)
                op = self.dice.choice([(" ", " "), (" @ ", " \\cdot ")])
                return self.joined(m, n, op, m.value @ n.value, True)
            case "sum":
                m, n = self.matrix(r, c, depth - 1), self.matrix(r, c, depth - 1)
                return Made(f"{m.plain} - {n.wrapped()[0]}", f"{m.latex} - {n.wrapped()[1]}", m.value - n.value, False)
            case "entries":
                m, n = self.matrix(r, c, depth - 1), self.matrix(r, c, depth - 1)
                a, b = f"({m.plain})", f"({n.plain})"
                return Made(f"{a} ⊙ {b}", f"({m.latex}) \\odot ({n.latex})", m.value * n.value, False)
            case "scaled":
                s, m = self.scalar(depth - 1), self.matrix(r, c, depth - 1)
                return self.joined(s, m, (" ", " "), s.value * m.value, True)
            case "softmax":
                m = self.matrix(r, c, depth - 1)
                latex = f"\\text{{softmax}}\\left({m.latex}\\right)"
                return Made(f"softmax({m.plain})", latex, softmax(m.value))
            case "tanh":
                m = self.matrix(r, c, depth - 1)
                return Made(f"tanh({m.plain})", f"\\tanh({m.latex})", np.tanh(m.value))
            case "bias" if r != c:
                m, b = self.matrix(r, c, depth - 1), self.leaf(c)
                return Made(f"{m.plain} + {b.plain}", f"{m.latex} + {b.latex}", m.value + b.value, False)
            case "over":
                m, k = self.matrix(r, c, depth - 1), self.dice.choice(list(self.sizes))
                plain, latex = m.wrapped()
                root = np.sqrt(self.sizes[k])
                self.need(k)
                return Made(f"({plain} / sqrt(|{k}|))", f"\\frac{{{latex}}}{{\\sqrt{{|{k}|}}}}", m.value / root)
            case _:
                x, y = self.vector(r, depth - 1), self.vector(c, depth - 1)
                (a, b), (c_, d) = x.wrapped(), y.wrapped()
                return Made(f"({a}) ({c_})^T", f"({b}) ({d})^\\top", np.outer(x.value, y.value), False)

    def need(self, k):
        """A size is that of a declared axis."""
        self.axes.setdefault(f"N{k}", k)
        self.inputs.setdefault(f"N{k}", self.rng.normal(size=self.sizes[k]))

    def joined(self, m, n, op, value, product):
        (a, b), (c, d) = m.wrapped(), n.wrapped()
        return Made(f"({a}{op[0]}{c})", f"({b}{op[1]}{d})", value)

    def vector(self, r, depth):
        if depth <= 0 or self.dice.random() < 0.3:
            return self.leaf(r)
        match self.dice.choice(["apply", "sum", "softmax", "entries"]):
            case "apply":
                k = self.other()
                m, x = self.matrix(r, k, depth - 1), self.vector(k, depth - 1)
                return self.joined(m, x, (" ", " "), m.value @ x.value, True)
            case "sum":
                x, y = self.vector(r, depth - 1), self.vector(r, depth - 1)
                return Made(f"{x.plain} + {y.plain}", f"{x.latex} + {y.latex}", x.value + y.value, False)
            case "softmax":
                x = self.vector(r, depth - 1)
                return Made(f"Softmax[{x.plain}]", f"\\mathrm{{Softmax}}[{x.latex}]", softmax(x.value))
            case _:
                x, y = self.vector(r, depth - 1), self.vector(r, depth - 1)
                plain = f"({x.plain}) ⊙ ({y.plain})"
                return Made(plain, f"({x.latex}) \\odot ({y.latex})", x.value * y.value, False)

    def scalar(self, depth):
        match self.dice.choice(["leaf", "number", "inner"]):
            case "leaf":
                return self.leaf()
            case "number":
                return Made("0.5", "0.5", np.float64(0.5))
            case _:
                k = self.other()
                x, y = self.vector(k, depth - 1), self.vector(k, depth - 1)
                return Made(f"(({x.plain})^T ({y.plain}))", f"(({x.latex})^T ({y.latex}))", x.value @ y.value)


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", range(60))
def test_random_formulas_agree_with_numpy(seed):
    maker = Maker(random.Random(seed), np.random.default_rng(seed))
    made = maker.matrix("a", maker.dice.choice("abc"), 3)
    axes = dict(maker.axes)
    unused = [name for name in axes if name.startswith("N")]
    texts = [made.plain, made.latex]
    for name in unused:  # a size is that of an axis, so one that is only divided by stands in a term of value 0
        texts = [f"{text} + 0 * ((N_{{{name[1:]}}})^T N_{{{name[1:]}}})" for text in texts]
        texts[0] = texts[0].replace("{", "").replace("}", "")
    programs = [ta.parse(text, axes=axes) for text in texts]
    assert programs[0] == programs[1]
    assert ta.parse(str(programs[0])) == programs[0]
    given = {name: maker.inputs[name] for name in programs[0].inputs}
    value = ta.compile(programs[0])(given)
    np.testing.assert_allclose(value, made.value, rtol=1e-9, atol=1e-10, err_msg=made.plain)


# refusals -------------------------------------------------------------------------------------------------------------

REFUSED = {
    "a product of other axes": ("Y = Q K V", {"Q": "mu i", "K": "nu i", "V": "nu n"}),
    "a product of names that differ": ("Y = Q K^T", {"Q": "mu i", "K": "nu j"}),
    "a misspelt name": ("Y = query K^T", {"querry": "mu i", "K": "nu i"}),
    "a name without axes": ("Y = Q K^T", {"Q": "mu i"}),
    "an axis as a scalar": ("Y = X / n", {"X": "n m"}),
    "an input that the formula lacks": ("Y = Q K^T", {**QKV}),
    "two vectors": ("y = a b", {"a": "n", "b": "n"}),
    "a vector on the wrong side": ("y = (A x) A", {"A": "n n", "x": "n"}),
    "a row on the right": ("y = A x^T", {"A": "m n", "x": "n"}),
    "a star between matrices": ("Y = A * B", {"A": "n n", "B": "n n"}),
    "a circle": (r"Y = A \circ B", {"A": "i j", "B": "i j"}),
    "a circled times": ("Y = A ⊗ B", {"A": "i j", "B": "i j"}),
    "two readings of an entrywise product": ("Y = A ⊙ B C", {"A": "n n", "B": "n n", "C": "n n"}),
    "a vector that fits both axes": ("Y = A + b", {"A": "n n", "b": "n"}),
    "a vector that fits no axis": ("Y = A + b", {"A": "m n", "b": "k"}),
    "a sum of a matrix and its transpose": ("Y = A + A^T", {"A": "m n"}),
    "a column and a row": ("y = x + x^T", {"x": "n"}),
    "a division by a matrix": ("Y = A / B", {"A": "i j", "B": "i j"}),
    "a division with two readings": ("Y = A / s B", {"A": "i j", "B": "j k", "s": ""}),
    "a square of a matrix": ("Y = A^2", {"A": "n n"}),
    "an inverse": ("Y = A^{-1}", {"A": "n n"}),
    "a size that two products sum": ("Y = X W (X W)^T / sqrt(d_k)", {"X": "t m", "W": "m i"}),
    "a size by name and by product": ("Y = Q K^T / sqrt(d_k)", {"Q": "q d", "K": "k d"}),
    "a size without a product": ("s = 1 / sqrt(d_k)\nY = s Q", {"Q": "mu i"}),
    "a size outside the softmax": (r"Y = \frac{1}{\sqrt{d_k}} \mathrm{softmax}(QK^T) V", QKV),
    "a size of a product in another statement": ("S = Q K^T\nY = softmax(S / sqrt(d_k)) V", QKV),
    "a size of no axis": ("Y = Q / |z|", {"Q": "mu i"}),
    "a softmax of a scalar": ("y = softmax(s)", {"s": ""}),
    "a softmax over an axis it lacks": (r"Y = \mathrm{softmax}_{k}(Q)", {"Q": "mu i"}),
    "a softmax over rows": (r"Y = \softmax_{row}(Q K^\top) V", QKV),
    "a softmax with options": ("Y = softmax(Q, dim)", {"Q": "mu i"}),
    "a sum over an axis without a name": ("y = sum(A)", {"A": "i j"}),
    "a sum sign": (r"y = \sum_i A", {"A": "i j"}),
    "a concatenation": (r"Y = \text{Concat}(A, B) W", {"A": "i j", "B": "i k", "W": "m n"}),
    "a function that is none": (r"Y = \mathrm{Attend}(A)", {"A": "i j"}),
    "sigma as a function": (r"Y = \sigma(A)", {"A": "i j"}),
    "a function without brackets": (r"Y = \tanh A", {"A": "i j"}),
    "a function of other arguments": ("f(X) = X^T X\nY = f(Z)", {"X": "n d", "Z": "n d"}),
    "a parameter that is not used": ("f(X, Z) = X^T X", {"X": "n d"}),
    "a recurrence": ("X = X W", {"W": "i j"}),
    "an input defined": ("Q = X W", {"Q": "t i", "X": "t m", "W": "m i"}),
    "a second definition": ("Y = A x\nY = A x", {"A": "i j", "x": "j"}),
    "a definition below its use": ("Y = Z x\nZ = A", {"A": "i j", "x": "j"}),
    "a reserved name": ("softmax = A", {"A": "i j"}),
    "two statements without names": ("A x; x", {"A": "i j", "x": "j"}),
    "an expression on the left": ("Y + Z = A", {"A": "i j"}),
    "nothing on the left": ("= A", {"A": "i j"}),
    "nothing on the right": ("Y =", {"A": "i j"}),
    "nothing at all": ("  \n", {"A": "i j"}),
    "two names that become one": ("Y = W_q W^q", {"W_q": "i j"}),
    "a run that is a name and a product": ("Y = AB", {"A": "n n", "B": "n n", "AB": "n n"}),
    "an open bracket": ("Y = (A + A", {"A": "i j"}),
    "a bracket too many": ("Y = A) A", {"A": "i j"}),
    "a trailing operator": ("Y = A +", {"A": "i j"}),
    "an index group": ("Y = A_<i j>", {"A": "i j"}),
    "a label of indices": (r"Y = A_{i,j}", {"A": "i j"}),
    "a label on a bracket": ("Y = (A A)_q", {"A": "n n"}),
    "a lone caret": ("Y = A^", {"A": "i j"}),
    "an unknown macro": (r"Y = A \heartsuit A", {"A": "n n"}),
    "a script letter": (r"Y = \mathcal{A}", {"A": "n n"}),
    "a cube root": (r"y = \sqrt[3]{s}", {"s": ""}),
    "an unknown character": ("Y = A ☃", {"A": "i j"}),
    "a dot": ("y = a.b", {"a": "n", "b": "n"}),
    "text between displays": (r"We get $Y = A x$", {"A": "i j", "x": "j"}),
    "a number too large": ("Y = 12345678901234567890 A", {"A": "i j"}),
    "deep brackets": ("Y = " + "(" * 60 + "A" + ")" * 60, {"A": "i j"}),
    "axes that are no names": ("A", {"A": "i 2"}),
    "axes that are no text": ("A", {"A": 3}),
    "axes that are no mapping": ("A", ["i j"]),
    "a reserved axis": ("A", {"A": "i max"}),
    "an input that is no name": ("A", {"A b": "i"}),
    "a reserved input": ("A", {"sum": "i"}),
    "an input declared twice": ("W_q", {"W_q": "i j", "Wq": "i j"}),
    "a scalar named like an axis": ("n X", {"n": "", "X": "n m"}),
    "batch axes behind others": ("A", {"A": "i ... j"}),
    "a constant": ("delta A", {"delta": "i j", "A": "j k"}),
    "a result called out": ("out x", {"out": "i j", "x": "j"}),
}
WITHOUT_AXES = {
    "scaled attention": "Y = softmax(Q K^T / sqrt(d_k)) V",
    "attention in LaTeX": r"\text{Attention}(Q, K, V) = \text{softmax}\left(\frac{QK^\top}{\sqrt{d_k}}\right)V",
    "attention in Unicode": "Attention (Q, K, V) = Softmax( Q Kᵀ ) V",
    "self attention": "{% Y = Softmax[XX^T]X %}",
    "projections": r"{% Q = XW^{q} %}{% K = XW^{k} %}{% V = XW^{v} %}{% Y = Softmax[\frac{QK^T}{\sqrt{D_k}}] V %}",
    "no transpose": "Y = softmax(A) V",
    "an index form with a slip": "y_i = softmax(A_<i j>) x_j",
    "an index form with a transpose": r"a_{ij} = x_i^T x_j",
}


def refusal(call, *arguments, **named):
    with pytest.raises(ta.TensorattnError) as caught:
        call(*arguments, **named)
    assert caught.value.hint
    return str(caught.value)


def test_messages(pytestconfig):
    parts = [f"== {name}\n{refusal(ta.parse, text, axes=axes)}\n" for name, (text, axes) in REFUSED.items()]
    parts += [f"== without axes: {name}\n{refusal(ta.parse, text)}\n" for name, text in WITHOUT_AXES.items()]
    parts.append(f"== the spelling alone\n{refusal(ta.parse, 'Y = A x', spelling='matrix')}\n")
    parts.append(f"== axes and another spelling\n{refusal(ta.parse, 'y_i = x_i', spelling='latex', axes={'x': 'i'})}\n")
    goldens.agree("matrix.txt", "\n".join(parts), pytestconfig)


# mutants --------------------------------------------------------------------------------------------------------------

PIECES = [
    *"()[]{}^_=+-*/|,;.\n T'QKVdi2",
    "^T",
    "^\\top",
    "ᵀ",
    "\\frac{",
    "\\sqrt",
    "√",
    "softmax(",
    "\\text{",
    "⊙",
    "·",
]
PIECES += [
    "\\left(",
    "\\right)",
    "\\\\",
    "$",
    "{%",
    "%}",
    "&",
    "\\mathbf",
    "\\bar",
    "μ",
    "ₖ",
    "²",
    "é",
    "e^",
    "..",
    "#",
]


def sound(text, axes):
    """A text that is read prints and reads back; a refusal is whole."""
    try:
        program = ta.parse(text, axes=axes)
    except ta.TensorattnError as refused:
        error = refused
    else:
        assert ta.parse(str(program)) == program, text
        return True
    assert error.hint, text
    assert str(error).startswith(error.code), text
    assert all(0 <= s.start <= s.end <= len(text) + 1 for s in error.spans), text
    return False


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", range(6))
def test_mutants_give_only_our_errors_soon(seed):
    dice = random.Random(seed)
    texts = [(text, QKV) for text in WAYS] + [(text, axes) for text, (axes, _) in INDEX_FORMS.items()]
    accepted = 0
    for _ in range(250):
        text, axes = dice.choice(texts)
        for _ in range(dice.randint(1, 4)):
            at = dice.randint(0, len(text))
            text = text[:at] + dice.choice(PIECES) * dice.randint(0, 1) + text[at + dice.randint(0, 2) :]
        started = time.process_time()
        accepted += sound(text, axes)
        sound(text, None)
        assert time.process_time() - started < 1, text
    assert 0 < accepted < 250


@pytest.mark.parametrize("text", ["A " * 5000, "A + " * 5000 + "A", "(A" * 5000, "A^T" * 5000, "{A" * 5000, "√" * 5000])
def test_long_texts_are_refused_soon(text):
    started = time.process_time()
    assert not sound(text, {"A": "n n"})
    assert time.process_time() - started < 1


# the command line -----------------------------------------------------------------------------------------------------


def run(*arguments, status=0):
    result = CliRunner().invoke(main, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result


AXES = ("--axes", "Q=mu i", "--axes", "K=nu i", "--axes", "V=nu n")


def test_commands_take_axes(tmp_path):
    text = "Y = softmax(Q K^T / √d_k) V"
    shown = run("show", text, *AXES).stdout
    assert shown == "Y_<mu n> = softmax[nu](Q_<mu i> K_<nu i> / sqrt(|i|)) V_<nu n>\n"
    assert "|mu| = 3" in run("check", text, *AXES, "-d", "mu=3").stdout
    assert run("grad", text, *AXES, "--wrt", "V").stdout.splitlines()[0] == shown.strip()
    Q, K, V = arrays(QKV, SIZES).values()
    for name, array in {"Q": Q, "K": K, "V": V}.items():
        np.save(tmp_path / f"{name}.npy", array)
    inputs = [part for name in "QKV" for part in ("-i", f"{name}={tmp_path / name}.npy")]
    run("run", text, *AXES, *inputs, "-O", str(tmp_path / "y.npy"))
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), attention(Q, K, V), atol=1e-10)
    for command in ("explain", "cost", "emit"):
        assert run(command, text, *AXES).stdout
    for stage in ("tree", "ir", "plan", "kernel", "source"):
        assert run("show", text, *AXES, "--stage", stage).stdout


def test_errors_of_axes_are_status_1_and_of_options_2():
    assert "E-MATRIX" in run("check", "Q K^T", status=1).stderr
    assert "E-MATRIX" in run("check", "Q K", *AXES[:4], status=1).stderr
    assert "given twice" in run("check", "Q", "--axes", "Q=i", "--axes", "Q=j", status=2).stderr
    assert "TENSOR=" in run("check", "Q", "--axes", "Q", status=2).stderr


def test_einsum_strings_on_the_command_line():
    assert run("show", "bhid,bhjd->bhij").stdout == "out_<b h i j> = A_<b h i d> B_<b h j d>\n"
    assert run("show", "ij,jk", "--spelling", "einsum").stdout == "out_<i k> = A_<i j> B_<j k>\n"
    assert "E-UNDETERMINED" in run("check", "ij,jk->iz", status=1).stderr
