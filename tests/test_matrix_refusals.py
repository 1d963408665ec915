"""What matrix formulas are refused for, word by word, and mutants of those that are read."""

from __future__ import annotations

import random
import time

import pytest

import tensorattn as ta
from tests import goldens
from tests.test_matrix import INDEX_FORMS, QKV, WAYS

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
    "a softmax over a name of two axes": ("Y = softmax_n(A)", {"A": "n n"}),
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
    "two statements without an end": ("$$ Y = A x\nZ = A x $$", {"A": "i j", "x": "j"}),
    "a number behind a name": (r"Y = \mathbf{A}1 x", {"A": "i j", "x": "j"}),
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
