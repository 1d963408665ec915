"""Unicode and LaTeX read to the program of the plain text, with spans in the text that was pasted."""

from __future__ import annotations

import pytest

import tensorattn as ta
from tensorattn.scanning import GREEK
from tensorattn.spelling import letters
from tests import corpus, spelled

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


@pytest.mark.parametrize(
    "barred",
    [r"{\bar\nu}", r"{\bar{\nu}}", r"\boldsymbol{\bar\nu}", r"\mathbf{\bar\nu}", "ν̅", "ν̄", r"{{\overline\nu}}"],
)
def test_however_a_bar_is_set_over_an_index_it_is_a_softmax(barred: str) -> None:
    same(
        "y^mu_n = W^<mu bar(nu) rho> v^<bar(nu) rho>_n",
        rf"y^{{\mu}}_n = W^{{\mu {barred}\rho}} v^{{{barred}\rho}}_n",
    )


def test_a_brace_before_a_comment_opens_no_display() -> None:
    same(
        "y_i = x_i / 2",
        "y_{i} = \\frac{% the mean\n  x_{i}}{%\n  2}",
        "$$y_{i} = {% \n x_i / 2}$$",
        "{% y_i = x_i / 2 %}",
    )


def test_a_row_may_be_followed_by_any_space() -> None:
    same(
        "y_i = x_i; z_i = y_i",
        r"y_{i} = x_i \\[2pt] z_i = y_i",
        r"y_{i} = x_i \\[-0.5 em] z_i = y_i",
        r"y_i=x_i \\* z_i=y_i",
    )


def test_powers_of_positions_have_a_sign() -> None:
    same("y_i = x_i**i", r"y_{i} = \left(x_{i}\right)^{+i}")
    same("y_i = x_i**-i", r"y_{i} = \left(x_{i}\right)^{-i}")
    same("y_i = x_i**p", r"y_{i} = \left(x_{i}\right)^{p}")
    same("y_<i j> = x_i j", r"y_{ij} = x_{i} j", r"y_{ij} = x_i\, j")
    same("y_i = x_i z_j k_j", "$y_i=x_iz_jk_j$")


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
