"""Unicode and LaTeX read to the program of the plain text, with spans in the text that was pasted."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.scanning import GREEK
from tensorattn.spelling import letters
from tests import corpus, goldens, seeds, spelled

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
ACCEPTED = [pytest.param(corpus.formula(entry), id=entry["id"]) for entry in corpus.load("accept")]
# three of them are wrong in the plain spelling alone
REFUSED = [pytest.param(entry, id=entry["id"]) for entry in corpus.load("refuse")]
SPELLINGS = {"unicode": spelled.unicode, "latex": spelled.latex}


def same(plain: str, *others: str) -> None:
    program = ta.parse(plain)
    for other in others:
        read = ta.parse(other)
        assert read == program, f"{other}\n{read}"


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("plain", ACCEPTED)
def test_the_corpus_is_one_program_in_every_spelling(plain: str, spelling: str) -> None:
    text = SPELLINGS[spelling](plain)
    assert ta.parse(text, spelling=spelling) == ta.parse(plain)
    if not text.isascii() or "{" in text:
        assert ta.parse(text) == ta.parse(plain)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("plain", ACCEPTED)
def test_spans_point_into_the_pasted_text(plain: str, spelling: str) -> None:
    text = SPELLINGS[spelling](plain)
    found, known = ta.parse(text, spelling=spelling).tensors, ta.parse(plain).tensors
    pieces = [text[t.span.start : t.span.end].split() for t in found]
    assert pieces == [SPELLINGS[spelling](plain[t.span.start : t.span.end]).split() for t in known]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("entry", [p for p in REFUSED if p.id not in ("R-run", "R-power-digit", "R-separator")])
def test_a_refused_formula_has_its_code_in_every_spelling(entry: corpus.Entry, spelling: str) -> None:
    text = SPELLINGS[spelling](corpus.formula(entry))
    shapes = {name: " ".join(axes) for name, axes in entry["inputs"].items()}
    with pytest.raises(ta.TensorattnError) as caught:
        ta.check(ta.parse(text, spelling=spelling), shapes)
    assert caught.value.code in entry["error"].split("|"), text
    assert caught.value.source.text == text


# The table of the notation ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "raised", "tex"),
    [
        (
            "W^<mu nu> = k^mu_i q^nu_j M_<i j>",
            "W^⟨μ ν⟩ = k^μᵢ q^νⱼ Mᵢⱼ",
            r"W^{\mu\nu} = k^{\mu}_{i} q^{\nu}_{j} M_{ij}",
        ),
        (
            "y^mu_n = W^<mu bar(nu rho)> v^<bar(nu rho)>_n",
            "y^μₙ = W^⟨μ bar(ν ρ)⟩ v^⟨bar(ν ρ)⟩ₙ",
            r"y^{\mu}_{n} = W^{\mu\bar{\nu\rho}} v^{\bar{\nu\rho}}_{n}",
        ),
        (
            "a^<mu rho>_m = W^<mu bar(nu) rho> t^<bar(nu)>_m",
            "a^⟨μ ρ⟩ₘ = W^⟨μ ν̅ ρ⟩ t^⟨ν̅⟩ₘ",
            r"a^{\mu\rho}_{m} = W^{\mu\bar\nu\rho} t^{\bar\nu}_{m}",
        ),
        (
            "y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>",
            "y_⟨i e⟩ = softmax[j](Q_⟨i d⟩ K_⟨j d⟩ / √(|d|)) V_⟨j e⟩",
            r"y_{ie} = \mathrm{softmax}_j\left(\frac{Q_{id}K_{jd}}{\sqrt{|d|}}\right)V_{je}",
        ),
    ],
)
def test_three_spellings(plain: str, raised: str, tex: str) -> None:
    same(plain, raised, tex)


# Unicode ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", GREEK)
def test_every_greek_letter(name: str) -> None:
    letter = spelled.greek(name)
    assert letter is not None
    same(f"y_{name} = x_{name}", f"y_{letter} = x_⟨{letter}⟩", f"y_{{\\{name}}} = x_{{{letter}}}")
    capital, word = letter.upper(), name.capitalize()
    same(f"y_{word} = x_{word}", f"y_{capital} = x_⟨{capital}⟩", rf"y_{{\{word}}} = x_{{{capital}}}")


def test_variants_of_greek_letters() -> None:
    same("y_epsilon = x_epsilon", "y_ε = x_ϵ", r"y_\epsilon = x_\varepsilon")
    same("y_theta = x_phi z_<theta phi>", "y_ϑ = x_ϕ z_⟨θ φ⟩", r"y_{\vartheta} = x_{\varphi} z_{\theta\phi}")
    same("y_mu = x_mu", "y_µ = x_μ")  # the micro sign
    same("y_i = eps_<i j k> x_<j k>", "yᵢ = ε_⟨i j k⟩ xⱼₖ", r"y_i = \varepsilon_{ijk} x_{jk}")
    same("y_i = epsilon_i", "yᵢ = εᵢ", r"y_{i} = \epsilon_i")


def test_unicode_and_plain_signs_mix() -> None:
    same("y_i = sum[j : j <= i and not j >= 3](A_<i j> x_j - z_j)", "yᵢ = ∑[j : j ≤ i ∧ ¬(j >= 3)](A_<i j> · xⱼ − z_j)")
    same("y_i' = 2 x_i'", "yᵢ′ = 2xᵢ′", "y_i′ = 2 × x_⟨i'⟩")
    same("y_<... i> = x_<... i>", "y_⟨… i⟩ = x_⟨… i⟩")
    same("y_j = x_j != 2 or x_j < 1", "yⱼ = xⱼ ≠ 2 ∨ xⱼ < 1")


def test_marks_over_letters() -> None:
    same("yhat_i = xtilde_i Wbar", "ŷᵢ = x̃ᵢ W̄", r"\hat y_i = \tilde{x}_i \bar{W}")
    same(
        "y_i = W_<i bar(j)> v_j",
        "y_i = W_⟨i j̅⟩ v_j",
        "yᵢ = Wᵢⱼ̄ vⱼ",
        r"y_i = W_{i\bar j} v_j",
        r"y_i = W_{i\overline{j}} v_j",
    )
    same("y^mu = W^<mu bar(nu2)> v^nu2", "y^μ = W^⟨μ ν̅2⟩ v^ν2", r"y^\mu = W^{\mu\bar{\mathrm{nu2}}} v^{\mathrm{nu2}}")


def test_letters_are_decomposed_but_never_taken_for_others() -> None:
    same("y_i = Mtilde_i", "yᵢ = M̃ᵢ")
    for text in ("yᵢ = 𝓰ᵢ", "yᵢ = 𝐱ᵢ", "yᵢ = ℝᵢ", "yᵢ = ªᵢ", "yᵢ = éᵢ", "yᵢ = ｘᵢ"):
        with pytest.raises(ta.NotationError) as caught:
            ta.parse(text)
        assert caught.value.code == "E-CHAR", text


# LaTeX ------------------------------------------------------------------------------------------------------------


def test_arguments_bind_as_in_tex() -> None:
    same("y_i = (1/2) x_i", r"y_i = \frac12 x_i", r"y_i = \frac{1}2 x_{i}", r"y_i = \tfrac 1 2 x_i")
    same("W^<mu bar(nu) rho> t^nu", r"W^{\mu\bar\nu\rho} t^{\nu}", r"W^{\mu\bar{\nu}\rho} t^\nu")
    same("y_i = k_i q_j z_j", r"y_i = k_iq_jz_{j}")
    same("y = (x_i z_i)**2 c", r"y = \left(x_iz_i\right)^2c")


def test_sums_reach_to_the_end_of_their_term() -> None:
    same("y_i = sum[j](A_<i j> x_j) + b_i", r"y_i = \sum_j A_{ij} x_j + b_i", r"y_i = \sum_{j} A_{ij} \cdot x_j + b_i")
    same("y_i = sum[j](A_<i j> x_j / 2) - b_i", r"y_i = \sum_{j=1}^{N} A_{ij} x_j / 2 - b_i")
    same("y_i = sum[j](sum[k](A_<i j> B_<j k>))", r"y_i = \sum_j \sum\limits_k A_{ij} B_{jk}")
    same("y = sum[i j](A_<i j>)", r"y = \sum_{ij} A_{ij}", r"y = \sum_{i,j} A_{ij}")
    same("y_i = (sum[j](A_<i j>)) x_i", r"y_i = \left(\sum_j A_{ij}\right) x_i")
    same("y_i = sum[j](-x_j) z_i", r"y_i = (\sum_j -x_j) z_i")
    same("y_i = prod[j](A_<i j>)", r"y_i = \prod_j A_{ij}")


@pytest.mark.parametrize("limits", [r"_{j\le i}", r"_{j=1}^{i}", r"_{j=1}^i", r"_{j \leq i}", r"_{j:j\le i}"])
def test_sums_up_to_an_index(limits: str) -> None:
    same("y_i = sum[j : j <= i](x_j)", rf"y_i = \sum{limits} x_j")


@pytest.mark.parametrize(
    "limits", ["", "_{j=0}^{N}", "_{j=1}^{3}", r"_{j\in J}", r"_{j<i}", "^{N}", "_{j=1}", "_{j}^{N}", r"_{j=1}^{N-1}"]
)
def test_other_limits_are_refused(limits: str) -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(rf"y = \sum{limits} x_j")
    assert caught.value.code == "E-AXIS"
    assert r"\sum_{j}" in str(caught.value.hint)


def test_slots() -> None:
    same("y_i = x_<0 i> A_<i, i-1>", r"y_i = x_{0,i} A_{i,i-1}")
    same("y = x_<0>", r"y = x_{0,}")
    same("y_<t (h d)> = x_<h t d>", r"y_{t,(h,d)} = x_{htd}", r"y_{t(h,d)} = x_{htd}")
    same("y_<i j h> = b_<h, D_<i j>>", r"y_{ijh} = b_{h,D_{ij}}")
    same("y_<i j> = R_<i-j+|j|-1> ones_j", r"y_{ij} = R_{i-j+|j|-1} \mathrm{ones}_j")
    same("y_<seq j1> = x_<j1 seq>", r"y_{\mathrm{seq}\,\mathrm{j1}} = x_{\text{j1}\mathrm{seq}}")
    same("y_i' = k'_i'", r"y_{i'} = k'_{i'}", r"y_{i^\prime} = k^{\prime}_{i'}")
    same("y_i = x_<2*i> ones_<i>", r"y_{i} = x_{2\cdot i} \mathrm{ones}_{i}")
    same("y_<... i> = x_<... i>", r"y_{\ldots i} = x_{\dots,i}")
    same("y_i = x^<T>_i z_T", r"y_i = x^{T,}_i z_T")


def test_conditions_and_options() -> None:
    same(
        "y_i = S_<i bar(j : j <= i)> v_j",
        r"y_i = S_{i\bar{j:j\le i}} v_j",
        r"y_i = S_{i\overline{j\colon j\leq i}} v_j",
    )
    same("y_i = S_<i bar(j : d_i == d_j and j != i)> v_j", r"y_i = S_{i\bar{j:d_i=d_j\land j\ne i}} v_j")
    same(
        "y_i = softmax[j : j <= i; sink=s_i](S_<i j>) v_j",
        r"y_i = \mathrm{softmax}_{j:j\le i;\mathrm{sink}=s_i}\left(S_{ij}\right) v_j",
        r"y_i = \operatorname*{softmax}_{j:j\le i;\mathrm{sink}=s_i} \bigl( S_{ij} \bigr) v_j",
    )
    same("y_i = entmax[j; 1.5](S_<i j>) v_j", r"y_i = \mathrm{entmax}_{j;1.5}(S_{ij}) v_j")
    same("z_<i f> = cat[f = c + m](x_<i c>, w_<i m>)", r"z_{if} = \mathrm{cat}_{f=c+m}\left(x_{ic}, w_{im}\right)")
    same("y_i = x_i and not z_i or w_i", r"y_i = x_i \land \lnot z_i \text{ or } w_i")
    same("y_i = sum[j](A_<i j>)", r"y_{i} = sum[j](A_{ij})", r"y_{i} = \mathrm{sum}[j]\left(A_{ij}\right)")
    same("y = sum[sigma j : j <= 2](A_<sigma j>)", r"y = sum[sigma j : j \le 2](A_{\sigma j})")
    same("y_i = sum[j](A_<i j>)", r"y_{i} = \mathrm{sum}[j]\left(A_{ij}\right)")


def test_names() -> None:
    same("y_i = Wq_<i j> x_j", r"y_i = \mathrm{Wq}_{ij} \mathbf{x}_j", r"y_i = {\text{Wq}}_{ij} {\bf x}_j")
    same(
        "y_i = leaky_relu(x_i) relu(z_i) exp(-w_i)", r"y_i = \mathrm{leaky\_relu}(x_i) \mathrm{ReLU}(z_i) \exp{(-w_i)}"
    )
    same("y_i = exp(x_i) + tanh(x_i)", r"y_{i} = exp(x_i) + \tanh\left[x_i\right]")
    same("y_i = xtilde'_i Whatbar_i", r"y_i = \tilde{x'}_i \bar{\hat W}_i", r"y_i = \tilde x'_i \bar{\hat{W}}_i")
    same("y_i = Gamma_i + alpha * 1e-6", r"y_i = \Gamma_i + \alpha \cdot 1e-6")


def test_the_bar_moves_from_the_name_to_the_index() -> None:
    same(
        "Wbar^<mu nu> = k^mu_i q^nu_i\ny^mu = Wbar^<mu bar(nu)> v^nu",
        r"\bar W^{\mu\nu} = k^\mu_i q^\nu_i; y^\mu = W^{\mu\bar\nu} v^\nu",
        "W̄^⟨μ ν⟩ = k^μᵢ q^νᵢ; y^μ = W^⟨μ ν̅⟩ v^ν",
    )
    same("y^mu = W^<mu bar(nu)> v^nu", r"y^\mu = W^{\mu\bar\nu} v^\nu")
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(r"W^{\mu\nu} = x^{\mu\nu}; \bar W^{\mu\nu} = x^{\mu\nu}; y_\mu = W^{\mu\bar\nu} v_\nu")
    assert caught.value.code == "E-NAME"
    plain = "Wbar^<mu nu> = k^mu_i q^nu_i\ny^mu = W^<mu bar(nu)> v^nu"
    assert ta.parse(plain).inputs == ("k", "q", "W", "v")  # plain names are what they say


def test_displays_and_lines() -> None:
    plain = "y_i = A_<i j> x_j\nz_i = y_i"
    rows = [r"y_{i} &= A_{ij} x_{j}, ", r" z_{i} &= y_{i}."]
    for begin, end in [
        ("", ""),
        ("$$", "$$"),
        (r"\[", r"\]"),
        (r"\(", r"\)"),
        ("{%", "%}"),
        (r"\begin{align}", r"\end{align}"),
        (r"\begin{align*}\label{eq:a}", r"\nonumber\end{align*}"),
        (r"\begin{equation}\begin{aligned}", r"\end{aligned}\end{equation}"),
        (r"$\begin{array}{rl}", r"\end{array}$"),
    ]:
        same(plain, f"{begin}{rows[0]} \\\\ {rows[1]} {end}", f"{begin}\n{rows[0]} \\\\[2pt]\n{rows[1]} {end}\n")
    same(plain, f"{rows[0].replace('&', '')}; {rows[1].replace('&', '')}", r"$y_i = A_{ij}x_j$, $$z_i = y_i$$.")
    same(plain, "# a comment {\n% another $\n$y_i = A_{ij} x_j$ % and } one\n\n$z_i = y_i$")
    same("y_i = (x_i + z_i)", "y_i = \\left( x_i \\\\ + z_i \\right)")


# Refusals ---------------------------------------------------------------------------------------------------------

REFUSALS = {
    "a label": (r"Q = X W^{(q)}", "E-LABEL", "^{(q)}"),
    "a digit above": (r"y_i = K^1_{ni} x_n", "E-POWER", "^1"),
    "an arrow": (r"\vec{x}_i", "E-VEC", r"\vec{x}"),
    "a circle": (r"y_{i} = x_i \circ z_i", "E-SYMBOL", r"\circ"),
    "softmax without an axis": (r"y_i = \mathrm{softmax}\left(A_{ij}\right) x_j", "E-AXIS", r"\mathrm{softmax}"),
    "two bars": (r"W^{\mu\bar\nu\bar\rho} v^{\nu\rho}_n", "E-2BARS", r"\bar\nu"),
    "a bar over two tensors": (r"y_{i} = \overline{AB}_i", "E-OVERLINE", "{AB}"),
    "a transpose": (r"y_{i} = A_{ij}^\top x_j", "E-MATRIX", r"^\top"),
    "a transpose of a bracket": (r"y_{i} = (A_{ij})^{T} x_j", "E-MATRIX", "^{T}"),
    "a power of e": (r"y_i = e^{-x_i}", "E-POWER", "^{-x_i}"),
    "a power of a tensor": (r"y_i = x_i^{2}", "E-POWER", "^{2}"),
    "a prime after a script": (r"y_{i} = k_{i}'", "E-SYNTAX", "'"),
    "a script letter": (r"y_{i} = \mathcal{N}_i", "E-CHAR", r"\mathcal{N}"),
    "a dangling index": (r"y_{i} = A_{ij}", "E-DANGLING", "j"),
    "a script letter of Unicode": ("yᵢ = 𝓰ᵢ", "E-CHAR", "𝓰"),
    "a word below": ("eₘₒₙₑᵧ = xₘ", "E-LABEL", "ₘₒₙₑᵧ"),
    "a word in script letters": ("yᵢ = eᵣᵢᵥₑᵣ", "E-LABEL", "ᵣᵢᵥₑᵣ"),
    "an overline over two letters": ("y^μ = W^⟨μ ν̅ρ̅⟩ v^⟨ν ρ⟩", "E-OVERLINE", "ν̅ρ̅"),
    "two letters in one": ("W^⟨μν⟩ = x^⟨μ ν⟩", "E-RUN", "μν"),
    "a raised T": ("Y = Q Kᵀ", "E-MATRIX", "ᵀ"),
    "a raised digit": ("y = x² + 1", "E-POWER", "²"),
    "a circle of Unicode": ("yᵢ = xᵢ ∘ zᵢ", "E-SYMBOL", "∘"),
    "an arrow of Unicode": ("yᵢ = x⃗ᵢ", "E-VEC", "x⃗"),
    "a sum without an axis": ("y = ∑ xᵢ", "E-AXIS", "∑"),
    "a root without brackets": ("y = √ x", "E-SYMBOL", "√"),
    "an open brace": (r"y_i = x_{i", "E-BRACE", "{"),
    "a brace too many": (r"y_i = x_{i}}", "E-BRACE", "}"),
    "a plain group in LaTeX": (r"y_{i} = x_<i>", "E-BRACE", "<"),
    "an open bracket": (r"y_i = \left(x_i + z_i", "E-SYNTAX", "("),
    "words between displays": (r"$x_i$ and $y_i$", "E-SYNTAX", "and"),
    "an open display": (r"$ x_i", "E-SYNTAX", "$"),
    "a word without mathrm": (r"token_{i}", "E-RUN", "token"),
    "an unknown macro": (r"y_i = \foo x_i", "E-SYMBOL", r"\foo"),
    "an equation number": (r"y_{i} = x_i \quad (2)", "E-LABEL", "(2)"),
    "juxtaposition beside arithmetic": (r"y_{ij} = A_{ij-1}", "E-SEP", "ij-1"),
    "a factor in a slot": (r"y_{i} = x_{2i}", "E-SEP", "2i"),
    "a digit below": (r"y = \alpha_0", "E-LABEL", "_0"),
    "a function without brackets": (r"y_i = \exp x_i", "E-CALL", r"\exp"),
    "a cubic root": (r"y = \sqrt[3]{x}", "E-POWER", "["),
    "cases": (r"y = \begin{cases} 1 \end{cases}", "E-SYMBOL", r"\begin{cases}"),
    "two readings of a quotient": (r"y_{i} = a_i / b_i c_i", "E-DIV", "b_i c_i"),
    "a bold product": (r"y = \mathbf{QK}", "E-RUN", r"\mathbf{QK}"),
    "a comma between statements": (r"y_{i} = x_i, \quad z_i = y_i", "E-SYNTAX", ","),
    "a definition with a colon": (r"y_{i} := x_i", "E-SYNTAX", ":"),
    "a star": (r"y_{i} = x_i^*", "E-SYMBOL", "^*"),
    "a matrix softmax": (r"Y = Softmax[X^{}X]X", "E-AXIS", "Softmax"),
    "the second line": ("y_{i} = x_i \\\\\nz_i = A_{ij}", "E-DANGLING", "j"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_a_refusal_shows_the_pasted_text(case: str) -> None:
    text, code, shown = REFUSALS[case]
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(text)
    error = caught.value
    assert error.code == code, str(error)
    assert error.source.text == text
    assert text[error.span.start : error.span.end] == shown
    assert error.hint
    assert error.lineno == text.count("\n", 0, error.span.start) + 1


def test_messages_of_pasted_texts(request: pytest.FixtureRequest) -> None:
    found = []
    for case, (text, _, _) in REFUSALS.items():
        with pytest.raises(ta.NotationError) as caught:
            ta.parse(text)
        found.append(f"# {case}\n{caught.value}\n")
    goldens.agree("messages_of_spellings.txt", "\n".join(found), request.config)


@pytest.mark.parametrize(
    "text",
    [
        "{" * 40_000,
        "x_{" * 60,
        r"\left(" * 60 + "x",
        r"\sum_{j}" * 60 + "x_j",
        r"\frac" * 10_000,
        r"\bar" * 10_000 + "W",
        r"\hat{" * 60 + "x" + "}" * 60,
        "ν̅" * 20_000,
        "x_⟨" * 60,
        "√(" * 60 + "x",
        r"\vec{x}" * 5_000,
        "\\" * 50_001,
        "$" * 10_001,
    ],
    ids=range(13),
)
def test_deep_and_long_texts_are_refused(text: str) -> None:
    with pytest.raises(ta.NotationError):
        ta.parse(text)


def test_a_long_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse("α" * 100_001)
    assert caught.value.code == "E-LIMIT"


def test_the_spelling_can_be_given() -> None:
    assert ta.parse("y_i = x_i", spelling="latex") == ta.parse("y_i = x_i", spelling="unicode") == ta.parse("y_i = x_i")
    for text, spelling, code in [(r"y_{i} = x_i", "ascii", "E-BRACE"), ("y_μ = x_μ", "ascii", "E-CHAR")]:
        with pytest.raises(ta.NotationError) as caught:
            ta.parse(text, spelling=spelling)
        assert caught.value.code == code
    with pytest.raises(ta.BindingError) as unknown:
        ta.parse("y_i = x_i", spelling="latx")
    assert (unknown.value.code, unknown.value.hint) == ("E-UNDEF", "did you mean `latex`?")


def test_a_run_of_raised_letters_reads_as_a_word() -> None:
    assert letters.reads_as_word(["m", "o", "n", "e", "gamma"])
    assert letters.reads_as_word(["beta", "a", "n", "k"])
    assert not letters.reads_as_word(["i", "j", "k", "l"])
    assert not letters.reads_as_word(["i", "rho"])


# Formulas as they were printed ------------------------------------------------------------------------------------

PRINTED = [pytest.param(entry, id=str(number)) for number, entry in enumerate(seeds.load())]
SIZES = dict(zip("mu nu rho kappa i j m n".split(), (3, 4, 5, 7, 2, 6, 8, 9), strict=True))


@pytest.mark.parametrize("entry", PRINTED)
def test_printed_formulas(entry: seeds.Entry) -> None:
    text = entry["text"]
    if "value" in entry:
        rng = np.random.default_rng(1)
        arrays = {name: rng.normal(size=[SIZES[a] for a in axes.split()]) for name, axes in entry["inputs"].items()}
        expected = eval(entry["value"], {"np": np, "sm": corpus.softmax, **arrays})
        found = ta.compile(text)(arrays)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        assert found.shape == tuple(SIZES[a] for a in entry["axes"].split())
    elif "reads" in entry:
        assert str(ta.parse(text)) == entry["reads"]
    elif "error" in entry:
        with pytest.raises(ta.TensorattnError) as caught:
            ta.parse(text)
        error = caught.value
        assert (error.code, text[error.span.start : error.span.end]) == (entry["error"], entry["caret"]), str(error)
        assert entry["repair"] in str(error.hint)
        assert ta.parse(entry["repaired"]).statements
    else:  # a formula of matrices
        with pytest.raises(ta.TensorattnError) as caught:
            ta.parse(text)
        assert caught.value.hint


def attempt(text: str) -> ta.Program | ta.TensorattnError:
    try:
        return ta.parse(text)
    except ta.TensorattnError as error:
        return error


def test_formulas_found_in_the_field() -> None:
    """What people print: read, or refused with a repair; nothing else comes out."""
    found = corpus.printed()
    results = {name: attempt(text) for name, text in found.items()}
    for name, result in results.items():
        if isinstance(result, ta.TensorattnError):
            assert result.hint, name
            assert all(0 <= span.start <= span.end <= len(found[name]) + 1 for span in result.spans), name
    formulas = {entry["id"]: corpus.formula(entry) for entry in corpus.load("accept")}
    assert [name for name, result in results.items() if result == ta.parse(formulas[name])] == [
        "S03-output",
        "S07-joint-output",
        "S08-a",
        "S09-b",
    ]
    renamed = {  # the notes write a bar or a tilde over the name
        "S00-logits": {"Wbar": "W"},
        "S05-trilinear-logits": {"Wbar": "W"},
        "S04-mhdpa-program": {"Wbar": "W"},
        "S11-final-repaired": {"Mtilde": "N"},
        "S02-weights": {"out": "P"},
    }
    for name, names in renamed.items():
        assert results[name].rename(**names) == ta.parse(formulas[name]), name


def test_the_page_lists_every_printed_formula() -> None:
    page = (Path(__file__).parent.parent / "docs" / "spellings.md").read_text(encoding="utf-8")
    assert page.endswith(f"{seeds.table()}\n"), "the table of the page is seeds.table()"


def test_the_page_tells_the_truth() -> None:
    """Every row of its tables whose plain side is a formula, and every refusal."""
    page = (Path(__file__).parent.parent / "docs" / "spellings.md").read_text(encoding="utf-8")
    checked = 0
    for left, right in re.findall(r"^\| (`.*) \| (`.*) \|$", page.split("## What is refused")[0], re.MULTILINE):
        written, plain = re.findall(r"`([^`]+)`", left), re.findall(r"`([^`]+)`", right)
        for text, meant in zip(written, plain * (len(written) // len(plain)), strict=False):
            if isinstance(attempt(meant), ta.Program):
                assert attempt(text) == ta.parse(meant), text
                checked += 1
    assert checked > 25
    refused = page.split("## What is refused")[1].split("## Formulas")[0]
    for examples, code in re.findall(r"^\| (.*?) \| `(E-\w+)` \|", refused, re.MULTILINE):
        for text in re.findall(r"`([^`]+)`", examples):
            error = attempt(text)
            assert isinstance(error, ta.TensorattnError), text
            assert error.code == code, text
