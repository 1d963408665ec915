"""Matrix formulas with declared axes: against NumPy, in three spellings, and what is refused."""

from __future__ import annotations

import random

import numpy as np
import pytest
from click.testing import CliRunner

import tensorattn as ta
from tensorattn.cli import main
from tests.matrix_formulas import Maker, softmax


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
    r"f(X) = X^\top X, \quad Y = \tanh(f(X))": (
        {"X": "n d"},
        "f_<d d'> = X_<n d> X_<n d'>\nY_<d d'> = tanh(f_<d d'>)",
    ),
    "sparsemax(A) + l2norm(A)": ({"A": "i j"}, "out_<i j> = sparsemax[j](A_<i j>) + l2norm[j](A_<i j>)"),
}


@pytest.mark.parametrize("text", INDEX_FORMS)
def test_the_index_form(text):
    axes, form = INDEX_FORMS[text]
    program = ta.parse(text, axes=axes)
    assert str(program) == form
    assert program == ta.parse(form) == ta.parse(program.latex()) == ta.parse(program.unicode())


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
