"""Einsum strings in and out, against numpy.einsum, torch.einsum and opt_einsum."""

from __future__ import annotations

import random
import string
import time

import numpy as np
import opt_einsum
import pytest
import torch

import tensorattn as ta
from tests import goldens

PRIMES = (2, 3, 5, 7, 1)
LETTERS = "abcdeABij"


def value(program, arrays):
    return ta.compile(program)(arrays)


def called(number):
    return [f"x{n}" for n in range(number)]


def random_case(dice):
    """A string of letters with arrays: diagonals, traces, lone sums, outer products, scalars, batch axes, spaces."""
    letters = dice.sample(LETTERS, dice.randint(1, 5))
    sizes = {letter: dice.choice(PRIMES) for letter in letters}
    batch = tuple(dice.choice((2, 3)) for _ in range(dice.randint(1, 2))) if dice.random() < 0.3 else None
    terms, shapes = [], []
    for _ in range(dice.randint(1, 4)):
        term = "".join(dice.choice(letters) for _ in range(dice.randint(0, 3)))
        batched = batch is not None and dice.random() < 0.8
        shapes.append((batch if batched and batch else ()) + tuple(sizes[c] for c in term))
        terms.append(("..." if batched else "") + term)
    present = sorted({c for term in terms for c in term if c != "."})
    text = ",".join(terms)
    if dice.random() < 0.75:
        left = "".join(dice.sample(present, dice.randint(0, len(present))))
        text += "->" + ("..." if "..." in text else "") + left
    if dice.random() < 0.3:
        text = "".join(c + " " if c in ",>" else c for c in text).strip()
    rng = np.random.default_rng(dice.randrange(1 << 30))
    text = text or "->"
    return text, [rng.normal(size=shape) for shape in shapes]


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", range(10))
def test_random_strings_agree_with_numpy_torch_and_opt_einsum_and_come_out_again(seed):
    dice = random.Random(seed)
    for _ in range(12):
        text, arrays = random_case(dice)
        names = called(len(arrays))
        program = ta.from_einsum(text, names)
        got = value(program, dict(zip(names, arrays, strict=True)))
        expected = np.einsum(text, *arrays)
        np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10, err_msg=text)
        np.testing.assert_allclose(torch.einsum(text, *map(torch.from_numpy, arrays)).numpy(), expected, atol=1e-10)
        np.testing.assert_allclose(opt_einsum.contract(text, *arrays), expected, atol=1e-10)
        assert ta.parse(str(program)) == program
        out = program.einsum()
        assert list(out.operands) == names
        np.testing.assert_allclose(np.einsum(str(out), *arrays), expected, rtol=1e-10, atol=1e-10, err_msg=str(out))
        for style in ("letters", "words"):
            again = program.einsum(style)
            assert ta.from_einsum(str(again), again.operands, result=again.result, style=style) == program


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", range(4))
def test_words_are_what_the_letters_are(seed):
    dice, words = (
        random.Random(seed),
        dict(zip(LETTERS, "batch row column key head left right i j".split(), strict=True)),
    )
    for _ in range(12):
        text, arrays = random_case(dice)
        if "->" not in text:
            continue
        spelt = "".join(f" {words[c]} " if c in words else " ... " if c == "…" else c for c in text.replace("...", "…"))
        program = ta.from_einsum(spelt, called(len(arrays)), style="words")
        got = value(program, dict(zip(called(len(arrays)), arrays, strict=True)))
        np.testing.assert_allclose(got, np.einsum(text, *arrays), rtol=1e-10, atol=1e-10, err_msg=spelt)
        out = program.einsum("words")
        assert ta.from_einsum(str(out), out.operands, result=out.result, style="words") == program


# the string -----------------------------------------------------------------------------------------------------------

PROGRAMS = {
    "bhid,bhjd->bhij": "out_<b h i j> = A_<b h i d> B_<b h j d>",
    "ij,jk": "out_<i k> = A_<i j> B_<j k>",
    "ba": "out_<a b> = A_<b a>",
    "ba,Bb": "out_<B a> = A_<b a> C_<B b>",
    "ii": "out = A_<i i>",
    "ii->i": "out_i = A_<i i>",
    "ij->": "out = sum[i j](A_<i j>)",
    "ij,kl->k": "out_k = sum[i j l](A_<i j> B_<k l>)",
    ",ij->ij": "out_<i j> = A B_<i j>",
    "...ij,...jk": "out_<... i k> = A_<... i j> B_<... j k>",
    "...ij , ...jk → ...ik": "out_<... i k> = A_<... i j> B_<... j k>",
    "i j , j k -> i k": "out_<i k> = A_<i j> B_<j k>",
    "A B, B C -> A C": "out_<A C> = D_<A B> E_<B C>",
    "batch row, row column -> batch column": "out_<batch column> = A_<batch row> B_<row column>",
    "b t (h d), h d e -> b t e": "out_<b t e> = A_<b t (h d)> B_<h d e>",
    "b h t d -> b t (h d)": "out_<b t (h d)> = A_<b h t d>",
    "bt(hd)->bhtd": "out_<b h t d> = A_<b t (h d)>",
    "μi,νi->μν": "out_<mu nu> = A_<mu i> B_<nu i>",
    "μ row, nu row -> mu ν": "out_<mu nu> = A_<mu row> B_<nu row>",
    "x1 y, y x2 -> x1 x2": "out_<x1 x2> = A_<x1 y> B_<y x2>",
}


@pytest.mark.parametrize("text", PROGRAMS)
def test_what_a_string_says(text):
    program = ta.from_einsum(text)
    assert str(program) == PROGRAMS[text]
    assert program == ta.parse(PROGRAMS[text])


def test_operands_and_the_result_are_named():
    program = ta.from_einsum("bhid,bhjd->bhij", names=("q", "k"), result="s")
    assert str(program) == "s_<b h i j> = q_<b h i d> k_<b h j d>"
    assert ta.from_einsum("bhid,bhjd->bhij", "q, k", result="s") == program
    gram = ta.from_einsum("ij,kj->ik", "x x")
    assert gram.inputs == ("x",)
    x = np.arange(6.0).reshape(2, 3)
    np.testing.assert_allclose(ta.compile(gram)(x=x), x @ x.T)


def test_spans_point_into_the_string():
    text = "ij, jk -> ik"
    program = ta.from_einsum(text)
    assert [text[t.span.start : t.span.end] for t in program.tensors] == ["ij", "jk"]
    with pytest.raises(ta.ShapeError) as caught:
        ta.check(program, A=(2, 3), B=(4, 5))
    assert "1 | ij, jk -> ik" in str(caught.value)


def test_a_wrong_rank_is_refused_whatever_the_style_was_meant_to_be():
    program = ta.from_einsum("batch, batch -> batch")  # five axes, not one
    with pytest.raises(ta.TensorattnError) as caught:
        ta.compile(program)(A=np.ones(3), B=np.ones(3))
    assert caught.value.code == "E-RANK"
    word = ta.from_einsum("batch, batch -> batch", style="words")
    np.testing.assert_allclose(ta.compile(word)(A=np.ones(3), B=np.full(3, 2.0)), [2, 2, 2])


def test_batch_axes_do_not_stretch():
    program = ta.from_einsum("...i,...i->...")
    with pytest.raises(ta.TensorattnError) as caught:
        ta.compile(program)(A=np.ones((1, 3)), B=np.ones((2, 3)))  # NumPy repeats the one row
    assert caught.value.code in ("E-BATCH", "E-EXTENT")


REFUSED = {
    "an empty string": "",
    "no string": 3,
    "two arrows": "ij->i->j",
    "two results": "ij->i,j",
    "a repeated axis of the result": "ij,jk->ii",
    "an axis from nowhere": "ij,jk->iz",
    "a near miss": "row col -> rwo",
    "batch axes behind others": "ij...,jk...->ik...",
    "batch axes in the middle": "i...j->...ij",
    "batch axes only on the right": "...i->i",
    "batch axes only on the left": "i->...i",
    "batch axes twice": "......i->...i",
    "a size of one": "b 1 h -> b h",
    "words without a result": "batch row, row",
    "a parenthesis left open": "b (h d -> b h d",
    "a parenthesis too many": "b h) -> b h",
    "nested parentheses": "((i j) k) -> i",
    "an empty parenthesis": "i () -> i",
    "a repeated part": "(i i) -> i",
    "brackets of einx": "a [b] -> a",
    "a formula": "y_i = A_<i j> x_j",
    "an equals sign": "ij=ji",
    "a name with an underscore": "batch_size row -> row",
    "a reserved word": "max row -> row",
    "a run of Greek letters in words": "μν row -> row",
    "an accent": "iéj->i",
    "half an arrow": "ij-ji",
    "too many axes": "ab" * 31,
    "too many operands": ",".join(["a"] * 501),
}
MISNAMED = {
    "too few names": ("ij,jk->ik", "A", "y"),
    "too many names": ("ij->ji", ["A", "B"], "y"),
    "a name that is none": ("ij->ji", ["2x"], "y"),
    "a name that is no text": ("ij->ji", [None], "y"),
    "a reserved name": ("ij->ji", "sum", "y"),
    "a constant": ("ij->ji", "delta", "y"),
    "a scalar named like an axis": ("i,->i", "x i", "y"),
    "the result as an operand": ("ij->ji", "y", "y"),
    "a result that is no name": ("ij->ji", "x", "y z"),
    "two ranks": ("ij,j->i", "x x", "y"),
}
NO_EINSUM = {
    "a number": "y_i = 2 x_i",
    "a sum": "y_i = x_i + z_i",
    "a division": "y_i = x_i / s",
    "a softmax": "y_i = softmax[j](A_<i j>) x_j",
    "a function in an earlier statement": "S_<i j> = exp(q_<i d> k_<j d>)\ny_i = S_<i j> x_j",
    "a shifted slot": "y_i = x_<i-1> z_i",
    "a condition": "y_i = sum[j : j <= i](A_<i j>)",
    "ones that broadcast": "y_<i j> = x_i ones_j",
    "a sum that multiplies by a size": "z_j = w_j\ny_i = sum[j](x_i)",
    "a statement read through a split": "y_<(h d)> = x_<h d>\nz_<h d> = y_<(h d)>",
}


def refusal(call, *arguments, **named):
    with pytest.raises(ta.NotationError) as caught:
        call(*arguments, **named)
    assert caught.value.hint
    return str(caught.value)


def test_messages(pytestconfig):
    parts = [f"== {name}\n{refusal(ta.from_einsum, text)}\n" for name, text in REFUSED.items()]
    parts += [
        f"== {name}\n{refusal(ta.from_einsum, text, names, result=result)}\n"
        for name, (text, names, result) in MISNAMED.items()
    ]
    parts += [f"== {name}\n{refusal(ta.parse(text).einsum)}\n" for name, text in NO_EINSUM.items()]
    parts.append(f"== a merged axis as letters\n{refusal(ta.parse('y_<(h d)> = x_<h d>').einsum, 'letters')}\n")
    goldens.agree("einsum.txt", "\n".join(parts), pytestconfig)


# out again ------------------------------------------------------------------------------------------------------------

WRITTEN = {
    "y_i = A_<i j> x_j": ("ij,j->i", "A x"),
    "S^<mu nu> = q^mu_i k^nu_i": ("mu i, nu i -> mu nu", "q k"),
    "y_i = sum[j](A_<i j>)": ("ij->i", "A"),
    "y = A_<i i>": ("ii->", "A"),
    "y = s": ("->", "s"),
    "y_<... i> = A_<... i j> x_<... j>": ("...ij,...j->...i", "A x"),
    "y_<b t (h d)> = x_<b h t d>": ("b h t d -> b t (h d)", "x"),
    "y_<i i'> = x_i z_i'": ("i,j->ij", "x z"),
    "y_<a b> = (A_<a i> B_<i b>) * sum[i](C_<a i>)": ("ai,ib,aj->ab", "A B C"),
    "W^<mu nu> = k^mu_i q^nu_j delta_<i j>": ("mu j, nu j -> mu nu", "k q"),
    "S_<i j> = q_<i d> k_<j d>\ny_<i e> = S_<i j> v_<j e>": ("id,jd,je->ie", "q k v"),
    "y_<i a> = B_<i j> C_<j a>\nz_<i b> = y_<i j> y_<j b>": ("ij,jk,kl,lb->ib", "B C B C"),
    "z_i = x_i\ny_j = w_j": ("j->j", "w"),
}


@pytest.mark.parametrize("text", WRITTEN)
def test_what_a_contraction_is_written_as(text):
    out, (subscripts, operands) = ta.parse(text).einsum(), WRITTEN[text]
    assert (str(out), " ".join(out.operands)) == (subscripts, operands)


def test_statements_are_put_in_place_with_indices_of_their_own():
    program = ta.parse("y_<i a> = B_<i j> C_<j a>\nz_<i b> = y_<i j> y_<j b>")
    rng = np.random.default_rng(0)
    B, C = rng.normal(size=(3, 2)), rng.normal(size=(2, 3))
    out = program.einsum()
    arrays = {"B": B, "C": C}
    np.testing.assert_allclose(np.einsum(str(out), *(arrays[n] for n in out.operands)), B @ C @ B @ C)


def test_long_names_as_letters():
    out = ta.parse("S^<mu nu> = q^<mu head>_i k^<nu head>_i").einsum("letters")
    assert str(out) == "mhi,nhi->mn"


def test_statements_that_double_do_not_run_away():
    lines = ["a1_i = a0_i a0_i", *(f"a{n + 1}_i = a{n}_i a{n}_i" for n in range(1, 40))]
    started = time.process_time()
    assert "more than 500 operands" in refusal(ta.parse("\n".join(lines)).einsum)
    assert time.process_time() - started < 1


# mutants --------------------------------------------------------------------------------------------------------------


def read_and_write(text):
    """A string that is read comes out again; a refusal is whole."""
    try:
        program = ta.from_einsum(text)
    except ta.TensorattnError as refused:
        error = refused
    else:
        assert ta.parse(str(program)) == program
        out = program.einsum("words")
        assert ta.from_einsum(str(out), out.operands, style="words") == program, text
        return
    assert error.hint, text
    assert str(error).startswith(error.code), text
    assert all(0 <= s.start <= s.end <= len(text) + 1 for s in error.spans), text


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", range(4))
def test_mutants_give_only_our_errors_soon(seed):
    dice, pieces = random.Random(seed), [*string.printable, "...", "->", "→", "(h d)", "é", "μ", "\u00a0", "1"]
    for _ in range(300):
        text = dice.choice([*PROGRAMS, *(t for t in REFUSED.values() if isinstance(t, str) and len(t) < 60)])
        for _ in range(dice.randint(1, 4)):
            at = dice.randint(0, len(text))
            text = text[:at] + dice.choice(pieces) + text[at + dice.randint(0, 1) :]
        started = time.process_time()
        read_and_write(text)
        assert time.process_time() - started < 1, text
