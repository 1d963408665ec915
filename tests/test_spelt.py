"""Programs written in every spelling read back, and what is written looks as in papers."""

from __future__ import annotations

import html
import re
from html.parser import HTMLParser

import pytest
from pygments.token import Error, Keyword, Name

import tensorattn as ta
from tensorattn.highlighting import TensorattnLexer
from tensorattn.ir import Tensor
from tensorattn.spelling.letters import script
from tensorattn.spelling.marks import unicode as marks
from tests.printing import known_texts, random_texts

WRITERS = {"ascii": str, "unicode": ta.Program.unicode, "latex": ta.Program.latex}
ATTENTION = "y^mu_n = W^<mu bar(nu : nu <= mu)> v^nu_n"


def reads_back(program, spelling):
    written = WRITERS[spelling](program)
    again = ta.parse(written)
    assert again == program, written
    assert again.inputs == program.inputs
    assert WRITERS[spelling](again) == written
    return written


@pytest.mark.parametrize("spelling", ["unicode", "latex"])
@pytest.mark.parametrize("text", known_texts())
def test_every_known_program_reads_back(text, spelling):
    reads_back(ta.parse(text), spelling)


def test_random_programs_read_back():
    """Many more: `make test-spellings`."""
    for text in random_texts(40, start=5000):
        for spelling in WRITERS:
            reads_back(ta.parse(text), spelling)


@pytest.mark.parametrize("spelling", WRITERS)
def test_gradients_read_back(spelling):
    for name in ("scaled_attention", "joint_attention", "multi_head_attention"):
        program = ta.formulas[name].program
        reads_back(ta.grad(program, program.inputs), spelling)


@pytest.mark.parametrize("spelling", WRITERS)
def test_every_spelling_of_a_program_is_translated_to_every_other(spelling):
    for text in known_texts()[::10]:
        program = ta.parse(WRITERS[spelling](ta.parse(text)))
        assert {write(program) for write in WRITERS.values()} == {write(ta.parse(text)) for write in WRITERS.values()}


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("W^<mu nu> = k^mu_i q^nu_j M_<i j>", "W^⟨μ ν⟩ = k^μᵢ q^νⱼ Mᵢⱼ"),
        ("y^mu_n = W^<mu bar(nu rho)> v^<bar(nu rho)>_n", "y^μₙ = W^⟨μ bar(ν ρ)⟩ v^⟨ν ρ⟩ₙ"),
        ("a^<mu rho>_m = W^<mu bar(nu) rho> t^<bar(nu)>_m", "a^⟨μ ρ⟩ₘ = W^⟨μ ν̅ ρ⟩ t^νₘ"),
        ("y_i = softmax[d](Q_<i d> / sqrt(|d|)) V_d", "yᵢ = softmax[d](Q_⟨i d⟩ / √(|d|)) V_d"),
        (ATTENTION, "y^μₙ = W^⟨μ bar(ν : ν ≤ μ)⟩ v^νₙ"),
        ("y_i = sum[j : j != i and not m_j](x_j) * 2", "yᵢ = ∑[j : j ≠ i ∧ ¬mⱼ](xⱼ) · 2"),
        ("y_<h i j k l> = x_<h i j k l>", "y_⟨h i j k l⟩ = x_⟨h i j k l⟩"),  # five letters would read as a word
        ("y_T = x^<T>_T", "y_T = x^⟨T⟩_T"),
        ("y_i = x_i' sigma2 What_<i i'> omicron", "yᵢ = x_i' σ2 What_⟨i i'⟩ omicron"),
        ("S_i = eps_<i j k> a_j b_k Gamma Alpha", "Sᵢ = εᵢⱼₖ aⱼ bₖ Γ Alpha"),
    ],
)
def test_unicode(text, written):
    assert ta.parse(text).unicode() == written


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("W^<mu nu> = k^mu_i q^nu_j M_<i j>", r"W^{\mu\nu} = k^{\mu}_{i} q^{\nu}_{j} M_{ij}"),
        ("y^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n", r"y^{\mu}_{n} = W^{\mu\bar{\nu}} v^{\nu}_{n}"),
        ("y^mu = W^<mu bar(nu rho)> v^<nu rho>", r"y^{\mu} = W^{\mu\overline{\nu\rho}} v^{\nu\rho}"),
        (ATTENTION, r"y^{\mu}_{n} = W^{\mu\overline{\nu:\nu \le \mu}} v^{\nu}_{n}"),
        ("y_j = softmax[j](q_j / sqrt(|d|))", r"y_{j} = \mathrm{softmax}_{j}\left(\frac{q_{j}}{\sqrt{|d|}}\right)"),
        (
            "y_i = softmax[j : j < i; sink=s_i](A_<i j>) v_j",
            r"y_{i} = \mathrm{softmax}_{j:j < i;\mathrm{sink}=s_{i}}\left(A_{ij}\right) v_{j}",
        ),
        ("y_i = b_<i, D_<i j>> x_<0> u_j", r"y_{i} = b_{i,D_{ij}} x_{0,} u_{j}"),
        ("y_<t h> = x_<t (h)>", r"y_{th} = x_{t,(h,)}"),
        ("y_<t (h d)> = x_<t, h, -1, d>", r"y_{t,(h,d)} = x_{t,h,-1,d}"),
        ("y_i = x_<2*t_i-|i|> z_<0 i>", r"y_{i} = x_{2 \cdot t_{i}-|i|} z_{0,i}"),
        ("y_i = a_i b_i / c_i * d_i", r"y_{i} = \frac{a_{i} b_{i}}{c_{i}} d_{i}"),
        ("y = a_i / b_i * c_i", r"y = a_{i} / b_{i} \cdot c_{i}"),  # a bracket around a_i / b_i would sum there
        ("y_i = x_i**2 + 2**-i", r"y_{i} = \left(x_{i}\right)^{2} + \left(2\right)^{-i}"),
        ("y_i = sum[j](A_<i j>) b_i", r"y_{i} = \left(\sum_{j} A_{ij}\right) b_{i}"),
        ("y_i = c_i sum[j](A_<i j>) - 1", r"y_{i} = c_{i} \sum_{j} A_{ij} - 1"),
        ("y_i = max[j : j == i](A_<i j>)", r"y_{i} = \max_{j:j = i}\left(A_{ij}\right)"),
        ("y_i = x_i == 1", r"y_{i} = \left(x_{i} = 1\right)"),
        ("z_a = cat[a = m + j](x_m, y_j)", r"z_{a} = \mathrm{cat}_{a=m+j}\left(x_{m}, y_{j}\right)"),
        ("y^<... mu>_<seq> = x^<... mu>_<seq>", r"y^{\ldots\mu}_{\mathrm{seq}} = x^{\ldots\mu}_{\mathrm{seq}}"),
        ("y^<T> = 0.000001 x^<T> scale1 nu2", r"y^{T,} = 0.000001 x^{T,} \, \mathrm{scale1} \, \mathrm{\nu2}"),
        ("y_<seq i'> = Wbar_<seq i'>", r"y_{\mathrm{seq}\,i'} = \bar{W}_{\mathrm{seq}\,i'}"),
        ("y_i = a leaky_relu(z_i)", r"y_{i} = a \, \mathrm{leaky\_relu}\left(z_{i}\right)"),
        ("y_i = ReLU_i (x_i + 1)", r"y_{i} = \mathrm{ReLU{}}_{i} \left(x_{i} + 1\right)"),
        ("y_i = e^<0 i>", r"y_{i} = \mathrm{e{}}^{0,i}"),
        ("y_i = b_<i Dbar_i>", r"y_{i} = b_{i,\bar{D}_{i}}"),
        ("S_i = eps_<i j k> a_j b_k delta_<i j>", r"S_{i} = \epsilon_{ijk} a_{j} b_{k} \delta_{ij}"),
        ("W_i = a_i; y_i = W_i", "\\begin{aligned}\nW_{i} &= a_{i} \\\\\ny_{i} &= W_{i}\n\\end{aligned}"),
    ],
)
def test_latex(text, written):
    assert ta.parse(text).latex() == written


NAMES = "e T ln ReLU Softmax lambda omicron Alpha Gamma' nu2 epsilon xbar mubar xbar' what seq' top1".split()
PLACES = [
    "y_k = N_<k q r> u_<q r>", "y^<... k> = N^<... 0 k>", "y^k = N^<k bar(q : q < k)> z_q", "y_k = N * (z_k + 1) N",
    "y_k = N_k (z_k + 1) / N_k", "N_<k r> = z_<k r>; y_k = N_<k r> (1 + z_<k r>)", "y_k = b_<N_k k> + b_<N^k 0>",
    "y_k = N**2 exp(N) z_k", "y_<N r> = x_<r N>", "y^<N> = x_<r bar(N)> ones_r", "y_<(N r)> = x_<r, N+1> z_N",
    "y_r = sum[N : N > r](x_<r N> + N) / |N|", "y_<N r> = cat[N = q + t](x_<q r>, z_<t r>)",
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_names_are_themselves_wherever_they_stand(name):
    read = 0
    for place in PLACES:
        try:
            program = ta.parse(re.sub(r"\bN(?=[\W_])", name, place))
        except ta.NotationError:  # a name of several letters without brackets, an index where a scalar of its name is
            continue
        read += 1
        for spelling in WRITERS:
            reads_back(program, spelling)
    assert read >= 8


def test_no_bar_stands_where_the_defined_name_has_one():
    program = ta.parse("Wbar_i = a_i; y_i = W_<bar(i)>")
    assert r"\mathrm{softmax}_{i}\left(W_{i}\right)" in reads_back(program, "latex")
    assert "softmax[i](Wᵢ)" in reads_back(program, "unicode")
    assert "W_<bar(i)>" in reads_back(program, "ascii")


def test_deep_programs_are_written_in_no_time():
    text = "x_i"
    for _ in range(12):
        text = f"exp(1 + ({text} - 1) a_i / (b_i + 2))"
    for spelling in WRITERS:
        reads_back(ta.parse(f"y_i = {text}"), spelling)  # what is written twice a level would take an hour


def test_the_letters_written_are_those_that_are_read():
    assert all(script(sign) == ("_", letter) for letter, sign in marks.SUBSCRIPTS.items())
    assert all(script(sign) == ("^", letter) for letter, sign in marks.SUPERSCRIPTS.items())


# notebooks -----------------------------------------------------------------------------------------


class Balanced(HTMLParser):
    """The text of a page whose tags all close."""

    def __init__(self, page):
        super().__init__()
        self.stack, self.text = [], ""
        self.feed(page)
        assert not self.stack

    def handle_starttag(self, tag, attrs):
        if tag != "br":
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.mark.parametrize("text", known_texts()[::4])
def test_html_closes_its_tags_and_names_every_tensor(text):
    program = ta.parse(text)
    shown = Balanced(program._repr_html_()).text
    for name in {t.name for t in program.tensors if isinstance(t, Tensor) and t.name.isascii()}:
        assert name in shown or ta.parse(f"y = {name}").unicode().removeprefix("y = ") in shown
    assert re.sub(r"<[^<>]*>", "", program._repr_html_()).count("<") == 0


def test_a_program_displays_as_latex_and_html():
    program = ta.parse(ATTENTION)
    assert program._repr_latex_() == f"$$\n{program.latex()}\n$$"
    assert ta.parse(program._repr_latex_()) == program
    line = '<span style="text-decoration:overline"><i>ν</i> : <i>ν</i> ≤ <i>μ</i></span>'
    assert f"<i>W</i><sup><i>μ</i> {line}</sup>" in program._repr_html_()


def test_a_compiled_formula_displays_its_inputs_and_outputs():
    compiled = ta.compile("y_<i (h d)> = A_<i bar(j)> x_<j h d> scale")
    shown = compiled._repr_html_()
    for row in (("input", "A", "i, j"), ("input", "scale", "a number"), ("output", "y", "i, (h d)")):
        assert "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" in shown
    assert ta.parse(compiled._repr_latex_()) == compiled.program
    Balanced(shown)


# colours -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spelling", ["ascii", "unicode"])
def test_the_lexer_knows_every_sign_that_is_written(spelling):
    for text in known_texts()[::3]:
        written = WRITERS[spelling](ta.parse(text))
        found = list(TensorattnLexer().get_tokens(written))
        assert "".join(value for _, value in found).strip() == written.strip()
        assert not [value for kind, value in found if kind is Error]


def test_the_lexer_tells_tensors_indices_and_functions_apart():
    found = {value: kind for kind, value in TensorattnLexer().get_tokens("y_i = W_<i bar(j : j >= i)> exp(x_<D_j h>)")}
    assert (found["W"], found["x"], found["D"]) == (Name, Name, Name)
    assert (found["_i"], found["_j"], found["h"]) == (Name.Variable,) * 3
    assert (found["exp"], found["bar"]) == (Name.Function, Keyword)
    assert [v for k, v in TensorattnLexer().get_tokens("y = a ? b") if k is Error] == ["?"]
