"""The full text of messages, carets included, for mistakes that people make."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

import tensorattn as ta
from tests import goldens

TEXTS = {
    "empty": "",
    "only comments and blank lines": "# nothing\n\n  ;;\n",
    "a run of letters": "W^munu = k^mu_i q^nu_i",
    "two runs": "S = M_ij N_ij",
    "a run with digits": "S = M_i1j2 N_<i1 j2>",
    "an unknown Greek-like name": "y_nux = a_nux",
    "a brace that is not closed": "y_i = M_{ij x_j",
    "a plain group in LaTeX": r"y_<i> = M_{ij} x_j",
    "a power of a tensor": "y_i = K^2_i",
    "a power of a name": "y = x^(2)",
    "a caret with a sign": "y = x^-1",
    "a digit as an index": "y_i = x_0 a_i",
    "a space after the caret": "y^ mu = x^mu",
    "a caret at the end": "y_i = x_",
    "two lower groups": "y_i = M_i_j x_j",
    "a transpose": "Y = Q K^T",
    "an accent": "y_i = é_i",
    "a letter of another alphabet": "y_i = x_ж",
    "an at sign": "y_i = A_<i j> @ x_j",
    "a no-break space": "y_i =\u00a0x_i",
    "a byte order mark": "\ufeffy_i = x_i",
    "a vertical tab": "y_i =\x0bx_i",
    "a unary plus in a product": "y_i = a_i * -b_i",
    "a number behind a factor": "y_i = x_<i>2",
    "a number in two pieces": "y_i = 1 000 x_i",
    "a number touching an index": "y_i = x_<2i> z_i",
    "a division with two readings": "y_i = a_i / b_i c_i",
    "a power tower": "y_i = a_i ** b_i ** 2",
    "a scalar before a bracket": "y_i = beta (a_i + b_i)",
    "a function without brackets": "y_i = exp x_i",
    "a function with too many arguments": "y_i = exp(x_i, a)",
    "where with one argument": "y_i = where(x_i)",
    "a normaliser without indices": "y_i = softmax(A_<i j>) x_j",
    "a normaliser without a body": "y_i = softmax[j] A_<i j> x_j",
    "a normaliser without an index": "y_i = softmax[](A_<i j>) x_j",
    "a union without its parts": "y_i = cat(a_i, b_i)",
    "the larger of two by a reduction": "y_i = max(x_i, 0)",
    "a function under another name": "y_i = ln(x_i)",
    "a function in capitals": "y_i = ReLU(x_i)",
    "indices in square brackets": "y_i = x[i]",
    "bars around a tensor": "y_i = |x_i|",
    "an unknown binder": "y_i = argmax[j](A_<i j>)",
    "a bracket left open": "y_i = (a_i + b_i",
    "a group left open": "y_i = a_<i + b_i",
    "a bracket too many": "y_i = a_i + b_i)",
    "a wrong bracket": "y_i = (a_i + b_i]",
    "an empty group": "y_i = a_<> b_i",
    "a trailing operator": "y_i = a_i +",
    "a line that begins with an operator": "y_i = a_i\n    + b_i",
    "a line that begins with a star": "y_i = a_i\n    * b_i",
    "two equal signs": "y_i = a_i = b_i",
    "a sum on the left": "y_i + z_i = a_i",
    "arithmetic on the left": "y_<i+1> = a_i",
    "a bar on the left": "P^<mu bar(nu)> = W^<mu nu>",
    "commas in a group with arithmetic": "A_<h i j> = R_<h i-j+3> ones_j",
    "a reserved word as a tensor": "y_i = sum_<i j> x_j",
    "a reserved word as an index": "y_<max> = x_<max>",
    "a reserved word that is defined": "max = x_i x_i",
    "a reserved word as a value": "y = bar",
    "a statement without a left side": "a_i = b_i\na_i c_i",
    "batch axes in the wrong place": "y_<... i> = A_<i ...>",
    "batch axes that are summed": "y = sum[...](x_<...>)",
    "batch axes that are barred": "y^mu = W^<mu bar(...)> x_<...>",
    "batch axes that are split": "y_<... i> = x_<(... i)>",
    "batch axes on the right only": "y_i = A_<... i>",
    "a literal too large": "y_i = 12345678901234567890 x_i",
    "a float too large": "y_i = 1e999 x_i",
    "a dangling index": "y_i = A_<i j>",
    "a misspelt index": "y^mu_n = W^<mu bar(nu)> v^<nuu>_n",
    "two letters for one index": "y_i = A_<i j> x_k",
    "an index of the result only": "y_<i j> = a_i",
    "an index reused outside": "y_<i e> = softmax[j](q_<i d> k_<j d>) v_<j d> W_<d e>",
    "an index bound beside its use": "y_i = sum[j](A_<i j>) x_j",
    "a rebound result": "y_i = a_i sum[i](x_i)",
    "a normaliser over the wrong index": "y_i = softmax[k](A_<i j>) x_j",
    "two bars": "y^mu_n = W^<mu bar(nu) bar(rho)> v^<nu rho>_n",
    "the value before the weights": "y^mu_n = v^<bar(nu)>_n W^<mu bar(nu)>",
    "weights twice": "y^mu = W^<mu bar(nu)> W^<mu bar(nu)>",
    "a repeated condition": "y^n = S^<n bar(i : i <= n)> T^<bar(i : i <= n) n>",
    "a bar that is half of another": "y^n = S^<n bar(i j)> T^<n bar(i)> e^<n j>",
    "a bar before its contraction": "y^mu_n = k^mu_i q^<bar(nu)>_i v^<bar(nu)>_n",
    "a marginal": "y^mu_n = W^<mu bar(nu rho)> v^nu_n",
    "a size without bars": "y_i = q_<i d> k_d / sqrt(d)",
    "an index and a tensor of one name": "y_i = i i_i",
    "a number as a condition": "y_i = sum[j : A_<i j> + 1](A_<i j>)",
    "a tensor with two ranks": "y_i = A_<i j> A_j",
    "a definition below its use": "z_i = y_i\ny_i = x_i",
    "a second definition": "y_i = x_i\ny_i = 2 x_i",
    "a recurrence": "h_<t d> = A_<d e> h_<t-1, e> + x_<t d>",
    "a repeated index on the left": "D_<i i> = a_i",
    "a repeated index in a bar": "y_i = W_<i bar(j j)> v_j",
    "several errors": "W^munu = k^mu_i q^nu_i\ny_i = W_ij\nz_i = (a_i",
    "several errors of meaning": "y_i = A_<i j> x_k\nz_<i j> = a_i\nz_i = b_i\nw_i = sum[j](B_<i j>) c_j",
    "an error on the third line": "# attention\nW_<i j> = q_<i d> k_<j d>\ny_<i e> = W_<i bar(j)> v_<k e>",
    "tabs": "y_i\t=\tA_<i\tj> x_k",
    "lines that end in CR LF": "a_i = b_i\r\ny_i = A_<i j>\r\n",
    "an error over two lines": "y_i = sum[j](A_<i j>\n) * x_j",
    "an error beside a comment": "y_i = A_<i j>  # j, and { nothing [ else",
}

SHAPES: Mapping[str, tuple[str, Mapping[str, object], Mapping[str, object]]] = {
    "a size that differs": ("y_i = A_<i j> x_j", {"A": (2, 4), "x": (5,)}, {}),
    "a size of another symbol": ("y_i = A_<i j> x_j", {"A": "I 2*D", "x": "D"}, {}),
    "an odd size": ("y_i = A_<i j> x_j", {"A": "I 2*D", "x": "3"}, {}),
    "an input too many axes": ("y_i = A_<i j> x_j", {"A": (2, 3, 4), "x": (3,)}, {}),
    "a misspelt input": ("y_i = kernel_<i j> x_j", {"kernal": "I J", "x": "J"}, {}),
    "an input too many": ("y_i = A_<i j> x_j", {"A": "I J", "x": "J", "z": "K"}, {}),
    "a scalar that is an index": ("y_<a> = a x_<a>", {"a": (), "x": "N"}, {}),
    "an open size": ("y_<h d> = x_<(h d)>", {"x": (8,)}, {}),
    "a split that does not divide": ("y_<h d> = x_<(h d)>", {"x": (7,)}, {"h": 2}),
    "a size of no index": ("y_i = x_i", {"x": (7,)}, {"j": 2}),
    "a size that is none": ("y_i = x_i", {"x": (2.5,)}, {}),
    "batch axes that differ": ("y_<... i> = a_<... i> b_<... i>", {"a": (2, 3), "b": (4, 3)}, {}),
    "a slot outside its axis": ("y_i = x_<i-1> z_i", {"x": (4,), "z": (4,)}, {}),
    "a slot outside a symbolic axis": ("y_i = x_<i+1> z_i", {"x": "N", "z": "N"}, {}),
    "parts that do not make the whole": (
        "y_i = cat[a = m + j](A_<i m>, B_<i j>) x_a",
        {"A": (2, 3), "B": (2, 4), "x": (8,)},
        {},
    ),
    "a contradiction between three": ("y = a_i b_i c_i", {"a": "2*E", "b": "3*F", "c": "4"}, {}),
}


def refusal(call: object, *arguments: object, **named: object) -> str:
    try:
        call(*arguments, **named)  # type: ignore[operator]
    except ta.TensorattnError as error:
        return str(error)
    raise AssertionError(f"accepted: {arguments}")


def test_messages_of_texts(pytestconfig: pytest.Config) -> None:
    parts = [f"== {name}\n{refusal(ta.parse, text)}\n" for name, text in TEXTS.items()]
    goldens.agree("messages.txt", "\n".join(parts), pytestconfig)


def test_messages_of_shapes(pytestconfig: pytest.Config) -> None:
    parts = [
        f"== {name}\n{refusal(ta.check, text, shapes, sizes=sizes)}\n" for name, (text, shapes, sizes) in SHAPES.items()
    ]
    goldens.agree("messages_of_shapes.txt", "\n".join(parts), pytestconfig)


def test_a_message_has_four_parts() -> None:
    lines = refusal(ta.parse, "y_i = A_<i j> x_k").splitlines()
    assert lines[0].startswith("E-DANGLING: ")
    assert lines[1] == "   1 | y_i = A_<i j> x_k"
    assert lines[2] == "                  ^    ^"
    assert lines[3].startswith("  indices of the result: i")
    assert lines[4].startswith("  help: ")


def test_the_others_are_errors_with_places_of_their_own() -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(TEXTS["several errors of meaning"])
    codes = [caught.value.code, *(other.code for other in caught.value.others)]
    assert codes == ["E-DANGLING", "E-REDEF", "E-UNDETERMINED", "E-SHADOW", "E-DANGLING"]
    starts = [caught.value.spans[0].start, *(other.spans[0].start for other in caught.value.others)]
    assert starts == sorted(starts)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("y = a" + " + a" * 30_000, "E-LIMIT"),
        ("y = " + "(" * 60 + "a" + ")" * 60, "E-LIMIT"),
        ("y = " + "exp(" * 60 + "a" + ")" * 60, "E-LIMIT"),
        ("y = x_<" + "a_<" * 60 + "i" + ">" * 61, "E-LIMIT"),
        ("y = " + "not " * 20_000 + "a", "E-LIMIT"),
        ("y = " + "(" * 1000, "E-LIMIT"),
        ("y = " + "-" * 1000 + "a", "E-SYNTAX"),
        ("y = " + "9" * 16, "E-LIMIT"),
    ],
    ids=lambda value: value[:12],
)
def test_what_is_too_large_is_refused_and_nothing_overflows(text: str, code: str) -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(text)
    assert caught.value.code == code


def test_what_is_large_is_read() -> None:
    deep = "y = " + "(" * 50 + "a" + ")" * 50
    assert str(ta.parse(deep)) == "y = a"
    long = "y = " + " + ".join(f"a{n}" for n in range(500))
    assert str(ta.parse(long)) == long


def test_a_text_that_is_none() -> None:
    assert refusal(ta.parse, 3).startswith("E-SYNTAX: a formula is a text, not int")
    assert refusal(ta.parse, None).startswith("E-SYNTAX: a formula is a text, not NoneType")


MIX = "y^mu_n = W^<mu bar(nu)> v^nu_n"
MIXED = ta.compile(MIX)
ARGUMENTS = {  # wrong arguments: what is called, the code
    "an output": (lambda: ta.compile(MIX, outputs="z"), "E-UNDEF"),
    "an output of a gradient": (lambda: ta.grad(MIX, "v", output="z"), "E-UNDEF"),
    "the memory": (lambda: ta.compile(MIX, memory="16M"), "E-BUDGET"),
    "a fraction of a byte": (lambda: ta.compile(MIX, memory=0.5), "E-BUDGET"),
    "a truth as memory": (lambda: ta.compile(MIX, memory=True), "E-BUDGET"),
    "a size that is no mapping": (lambda: MIXED.cost(3), "E-EXTENT"),
    "a size of no index": (lambda: MIXED.explain(batch=3), "E-UNDEF"),
    "a size below zero": (lambda: MIXED.cost({"mu": -1}), "E-EXTENT"),
    "a size given twice": (lambda: MIXED.cost({"mu": 3}, mu=4), "E-EXTENT"),
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_wrong_argument_has_a_repair(name: str) -> None:
    call, code = ARGUMENTS[name]
    with pytest.raises(ta.TensorattnError) as caught:
        call()
    assert caught.value.code == code
    assert caught.value.hint


def test_memory_is_any_integer() -> None:
    given = {"W": np.zeros((2, 3)), "v": np.ones((3, 2))}
    np.testing.assert_array_equal(ta.compile(MIX, memory=np.int64(10**6))(given), np.ones((2, 2)))


def test_one_size_may_be_said_twice() -> None:
    assert MIXED.cost({"mu": 3, "nu": 4, "n": 2}, mu=3) == MIXED.cost(mu=3, nu=4, n=2)


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_place_that_does_not_take_the_result_has_a_repair(backend: str) -> None:
    def array(*shape: int, dtype: str = "float64") -> object:
        made = np.ones(shape, dtype)
        return torch.from_numpy(made) if backend == "torch" else made

    for place in (array(3, 2), array(2, 2, dtype="float32"), [1.0]):
        with pytest.raises(ta.TensorattnError) as caught:
            MIXED(W=array(2, 3), v=array(3, 2), out=place)
        assert caught.value.hint
