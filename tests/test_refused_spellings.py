"""What the readers refuse: the code, the caret in the pasted text, the repair."""

from __future__ import annotations

import pytest

import tensorattn as ta
from tests import goldens

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
    "a condition in words": (r"y_{i} = x_i \text{ if } z_i", "E-SYMBOL", r"\text{ if }"),
    "a digit in a name": (r"y_{i} = k1_{i}", "E-SYNTAX", "1"),
    "a script without braces": (r"y_{ij} = \exp\left(x_ij\right)", "E-RUN", "ij"),
    "a Greek script without braces": (r"y^{\mu\nu} = W^\mu\nu", "E-RUN", r"\mu\nu"),
    "an index of a bracket": (r"y^{\mu} = \left(W_{i} v_{i}\right)^{\mu}", "E-POWER", r"^{\mu}"),
    "indices of a bracket": (r"y_{ij} = \left(A B\right)^{ij}", "E-POWER", "^{ij}"),
    "a word as index of a bracket": (r"y_{\mathrm{ab}} = \left(A B\right)^{\mathrm{ab}}", "E-POWER", r"^{\mathrm{ab}}"),
    "a label of a bracket": (r"y_{i} = \left(x_{i}\right)^{(l)}", "E-LABEL", "^{(l)}"),
    "a function of time": (r"y_{it} = x_i(t)", "E-CALL", "(t)"),
    "a function of the time before": (r"y_{it} = x_{i}\left(t - 1\right)", "E-CALL", r"(t - 1\right)"),
    "a function of time in Unicode": ("y_⟨i t⟩ = xᵢ(t)", "E-CALL", "(t)"),
    "words beside a formula": (r"y_{i} = x_{i} \quad \text{over } i", "E-SYNTAX", r"\text{over }"),
    "a bar in a binder": (r"y_{i} = \mathrm{softmax}_{\bar j}\left(A_{ij}\right) x_j", "E-OVERLINE", r"\bar j"),
    "a bar in a sum of indices": (r"y_{i} = A_{i,\bar j+1}", "E-SYNTAX", "+"),
    "a sign between two factors": ("y_i = x_i･z_i", "E-CHAR", "･"),
    "a lowered sum": ("yᵢ = xᵢⱼ₊₁", "E-LABEL", "ᵢⱼ₊₁"),
    "a raised minus one": ("y_i = x_i⁻¹", "E-POWER", "⁻¹"),
    "an inner product in angles": (r"y_i = w_i \left< q_d, k_d \right> z_i", "E-SYMBOL", r"\left<"),
    "angles are no comparisons": (r"y_i = w_i \left< q \right> z_i", "E-SYMBOL", r"\left<"),
    "arithmetic in a merged axis": (r"y_{t} = x_{t,(h,d+1)} z_{hd}", "E-SYNTAX", "+1"),
    "a factor in a merged axis": (r"y_{t} = x_{t,(h,2d)} z_{hd}", "E-SYNTAX", "2d"),
    "a derivative by a comma": (r"y_{i} = \phi_{,i}", "E-SYNTAX", ","),
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
        "${x" + "\u0304" * 90_000 + "}$",
        "y_i = " + "x_i(t)" * 2_000,
        "_" * 99_000,
        "x_⟨" * 60,
        "√(" * 60 + "x",
        r"\vec{x}" * 5_000,
        "\\" * 50_001,
        "$" * 10_001,
    ],
    ids=range(16),
)
def test_deep_and_long_texts_are_refused(text: str) -> None:
    with pytest.raises(ta.NotationError):
        ta.parse(text)


def test_a_long_text_is_refused_before_it_is_read() -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse("α" * 100_001)
    assert caught.value.code == "E-LIMIT"
