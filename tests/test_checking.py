"""Sizes: what is found, proved, required and refuted; how shapes are declared; ranges, lints, strict."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import sympy
import torch

import tensorattn as ta

DOT = "y_i = A_<i j> x_j"
D, H, N = sympy.symbols("D H N", integer=True, positive=True)


def check(text: str, shapes: Mapping[str, Any] | None = None, **options: Any) -> ta.Shapes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ta.NotationWarning)
        return ta.check(text, shapes, **options)


def refusal(text: str, shapes: Mapping[str, Any] | None = None, **options: Any) -> ta.TensorattnError:
    with pytest.raises(ta.TensorattnError) as caught:
        check(text, shapes, **options)
    return caught.value


def required(text: str, shapes: Mapping[str, Any], **options: Any) -> list[str]:
    return [str(equation) for equation in check(text, shapes, **options).required]


# declared in any form --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape",
    [
        (2, 3),
        [2, 3],
        "2 3",
        "2, 3",
        ("2", 3),
        (np.int64(2), 3),
        np.zeros((2, 3)),
        torch.zeros(2, 3),
        torch.Size([2, 3]),
        (sympy.Integer(2), 3),
        "2 1+2",
        "4/2 6//2",
    ],
    ids=str,
)
def test_a_shape_in_any_form(shape: Any) -> None:
    found = check(DOT, A=shape, x="3")
    assert found.tensors == {"A": (2, 3), "x": (3,), "y": (2,)}
    assert found.outputs == {"y": (2,)}
    assert found.sizes == {"i": 2, "j": 3}
    assert found.required == ()


@pytest.mark.parametrize(
    "shape", ["N 2*D", ("N", "2*D"), (N, 2 * D), ("N", 2 * D), "N, 2 * D", "N D+D", ("N", D + D)], ids=str
)
def test_symbolic_sizes(shape: Any) -> None:
    found = check(DOT, {"A": shape}, x=("2*D",))
    assert found.sizes == {"i": N, "j": 2 * D}
    assert found.tensors["y"] == (N,)
    assert found.required == ()


@pytest.mark.parametrize("scalar", [3, 2.5, True, "", (), np.float32(1), np.zeros(()), torch.zeros(())], ids=repr)
def test_scalars(scalar: Any) -> None:
    assert check("y_i = a x_i", a=scalar, x="N").tensors["a"] == ()


@pytest.mark.parametrize(
    "shape",
    [
        (2, -1),
        (2, 2.5),
        (2, True),
        "2 -3",
        "2 (J",
        "2 J;",
        "2 3/2",
        None,
        ta,
        ("J**99", 3),
        (2, sympy.Integer(-1)),
        "2 J%2",
    ],
    ids=str,
)
def test_what_is_no_size(shape: Any) -> None:
    error = refusal(DOT, A=shape, x="3")
    assert error.code == "E-EXTENT"
    assert "`A`" in error.what


def test_names_that_do_not_fit() -> None:
    assert refusal(DOT, A="I J").code == "E-UNDEF"
    assert refusal(DOT, A="I J", x="J", z="K").code == "E-UNDEF"
    assert refusal(DOT, A="I J", X="J").hint == "did you mean `X`?"
    assert refusal(DOT, sizes={"k": 2}).code == "E-UNDEF"
    assert refusal("y_a = a x_a", a=(), x="N").code == "E-NAME"
    assert refusal("y_a = a x_a", {"a": (), "x": "N"}).span is not None
    assert refusal(DOT, A="I J K", x="J").code == "E-RANK"
    assert refusal(DOT, A="I", x="J").code == "E-RANK"


def test_inputs_with_the_names_of_options() -> None:
    assert check("y_i = strict_i sizes_i", {"strict": "N", "sizes": "N"}).sizes == {"i": N}


def test_no_shapes_at_all() -> None:
    found = check("y_<(h d)> = x_<h d>")
    h, d = (sympy.Symbol(n, integer=True, positive=True) for n in "hd")
    assert found.tensors == {"x": (h, d), "y": (d * h,)}


def test_the_text_of_a_check() -> None:
    text = str(check(DOT, A="I J", x="K"))
    assert text.splitlines() == [
        "sizes     |i| = I, |j| = J",
        "shape     A: (I, J)",
        "shape     x: (J)",
        "shape     y: (I)",
        "required  J = K  (axis 1 of A (j); axis 0 of x (j))",
    ]


# equations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes", "wanted"),
    [
        (DOT, {"A": "I J", "x": "K"}, ["J = K"]),
        (DOT, {"A": "I 2*D", "x": "4"}, ["2*D = 4"]),
        (DOT, {"A": "I D", "x": "D"}, []),
        (DOT, {"A": "I D+E", "x": "0"}, ["D + E = 0"]),
        ("y = a_i b_i c_i", {"a": "K", "b": "L", "c": "M"}, ["K = L", "K = M"]),
        ("y = a_i b_i c_i", {"a": "2*E", "b": "3*F", "c": "6"}, ["2*E = 3*F", "2*E = 6"]),
        ("W^<nu mu>", {"W": "mu nu"}, ["nu = mu"]),
        ("y = k_i q_j delta_<i j>", {"k": "K", "q": "L"}, ["L = K"]),
        ("y = eps_<i j k> a_i b_j c_k", {"a": "K", "b": "3", "c": "3"}, ["3 = K"]),
        ("y = cat[a = m + j](A_m, B_j) x_a", {"A": "M", "B": "J", "x": "L"}, ["L = J + M"]),
        ("y = cat[a = m + j](A_m, B_j) x_a", {"A": "M", "B": "J", "x": "M+J"}, []),
        ("y_<h d> = x_<(h d)> b_h c_d", {"x": "E", "b": "H", "c": "D"}, ["D*H = E"]),
        ("z_i = x_i; y = z_i w_i", {"x": "K", "w": "L"}, ["K = L"]),
        ("z_<(a b)> = x_<a b>; y = z_c w_c", {"x": "A B", "w": "L"}, ["A*B = L"]),
    ],
)
def test_required(text: str, shapes: dict[str, Any], wanted: list[str]) -> None:
    assert required(text, shapes) == wanted


@pytest.mark.parametrize(
    ("text", "shapes", "only_zero"),
    [
        (DOT, {"A": (2, 4), "x": (5,)}, False),
        (DOT, {"A": (2, 3), "x": (1,)}, False),  # size 1 never stretches
        (DOT, {"A": (2, 0), "x": (1,)}, False),
        (DOT, {"A": "I 2*D", "x": "3"}, False),
        (DOT, {"A": "I 4*D+2*E", "x": "7"}, False),
        (DOT, {"A": "I D+1", "x": "D"}, False),
        (DOT, {"A": "I 2*D", "x": "D"}, True),
        (DOT, {"A": "I D*H", "x": "2*D*H"}, True),
        ("y = a_i b_i c_i", {"a": "D", "b": "E", "c": "E+1"}, False),
        ("y = a_i b_i c_i", {"a": "2*E", "b": "3*F", "c": "4"}, False),
        ("y = a_i b_i c_j d_j", {"a": "K", "b": "L", "c": "K+1", "d": "L"}, False),
        ("y = a_i b_i c_j d_j", {"a": "K", "b": "2", "c": "K", "d": "3"}, False),
        ("y = a_i b_i c_j d_j", {"a": "K+L", "b": "3", "c": "K+L", "d": "4"}, False),
        ("y = a_i b_i c_j d_j", {"a": "K", "b": "2*L", "c": "2*K", "d": "L"}, True),
        ("y = k_i q_j delta_<i j>", {"k": (2,), "q": (3,)}, False),
        ("y = eps_<i j k> a_i b_j c_k", {"a": (4,), "b": (4,), "c": (4,)}, False),
        ("y = cat[a = m + j](A_m, B_j) x_a", {"A": "M", "B": "J", "x": "M"}, True),
        ("y = cat[a = m + j](A_m, ones_j) x_a", {"A": (4,), "x": (3,)}, False),
        ("y = A_<i i>", {"A": (2, 3)}, False),
        ("z_i = x_i; y = z_j w_j", {"x": (3,), "w": (4,)}, False),
        ("y_<h d> = x_<(h d)> b_h c_d", {"x": "6*K", "b": (4,), "c": "K"}, True),
    ],
)
def test_refuted(text: str, shapes: dict[str, Any], only_zero: bool) -> None:
    error = refusal(text, shapes)
    assert error.code == "E-EXTENT"
    assert ("only where the sizes are 0" in error.what) is only_zero
    assert error.spans
    assert len(error.facts) >= 2


def test_the_facts_name_both_origins() -> None:
    error = refusal(DOT, A=(2, 4), x=(5,))
    assert error.facts == ("axis 1 of A (j): 4", "axis 0 of x (j): 5")
    assert [DOT[s.start : s.end] for s in error.spans] == ["j", "j"]


# splits, cat, delta, open sizes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shapes", "sizes", "wanted"),
    [
        ("y_<h d> = x_<(h d)>", {"x": (6,)}, {"h": 2}, {"h": 2, "d": 3}),
        ("y_<h d> = x_<(h d)> b_h", {"x": (6,), "b": (2,)}, {}, {"h": 2, "d": 3}),
        (
            "y_<h d> = x_<(h d)> b_h",
            {"x": "6*K", "b": "2*K"},
            {},
            {"h": 2 * sympy.Symbol("K", integer=True, positive=True), "d": 3},
        ),
        ("y_<h d> = x_<(h d)>", {"x": (0,)}, {"h": 2}, {"h": 2, "d": 0}),
        ("y_<h d> = x_<(h d)>", {"x": (0,)}, {"h": 0, "d": 5}, {"h": 0, "d": 5}),
        ("y_<a b c> = x_<(a b c)>", {"x": (30,)}, {"a": 2, "c": 5}, {"a": 2, "b": 3, "c": 5}),
        ("y = cat[a = m + j](A_m, ones_j) x_a", {"A": (2,), "x": (5,)}, {}, {"a": 5, "m": 2, "j": 3}),
        ("y = cat[a = m + j](A_m, ones_j) x_a", {"A": (5,), "x": (5,)}, {}, {"a": 5, "m": 5, "j": 0}),
        ("y = cat[a = m + j](A_m, ones_j) x_a", {"A": (0,), "x": (5,)}, {}, {"a": 5, "m": 0, "j": 5}),
        ("y = cat[a = m + j](A_m, B_j) x_a", {"A": (0,), "B": (0,), "x": (0,)}, {}, {"a": 0, "m": 0, "j": 0}),
        ("y_a = cat[a = m + j](A_m, B_j)", {"A": (0,), "B": (3,)}, {}, {"a": 3, "m": 0, "j": 3}),
        (
            "y_a = cat[a = m + j + k](A_m, B_j, ones_k)",
            {"A": (1,), "B": (3,)},
            {"a": 9},
            {"a": 9, "m": 1, "j": 3, "k": 5},
        ),
        ("y_<i j> = delta_<i j> x_i", {"x": (3,)}, {}, {"i": 3, "j": 3}),
        ("y_<i j k> = delta_<i j k> x_j", {"x": "N"}, {}, {"i": N, "j": N, "k": N}),
        ("y_i = eps_<i j k> a_j b_k", {"a": (3,), "b": (3,)}, {}, {"i": 3, "j": 3, "k": 3}),
        ("y_<i j> = a_i ones_j", {"a": (2,)}, {"j": 4}, {"i": 2, "j": 4}),
        ("y_i = a_i |k|", {"a": (2,)}, {"k": "K"}, {"i": 2, "k": sympy.Symbol("K", integer=True, positive=True)}),
        ("y_i = sum[j : j <= i](x_<i-j>) a_i", {"a": (2,), "x": (2,)}, {"j": 2}, {"i": 2, "j": 2}),
        (
            "z_<(h d)> = x_<h d>; y_<g e> = z_<(g e)> b_g",
            {"x": (4, 6), "b": (3,)},
            {},
            {"h": 4, "d": 6, "g": 3, "e": 8},
        ),
    ],
)
def test_sizes_found(text: str, shapes: dict[str, Any], sizes: dict[str, Any], wanted: dict[str, Any]) -> None:
    found = check(text, shapes, sizes=sizes).sizes
    assert {n: found[n] for n in wanted} == wanted
    assert found.keys() == wanted.keys()


@pytest.mark.parametrize(
    ("text", "shapes", "name"),
    [
        ("y_<h d> = x_<(h d)>", {"x": (6,)}, "h"),
        ("y_<i j> = a_i ones_j", {"a": (2,)}, "j"),
        ("y_i = a_i |k|", {"a": (2,)}, "k"),
        ("y_i = x_<i+1>", {"x": (4,)}, "i"),
        ("y_i = x_<t_i> sum[k](2)", {"x": (4,), "t": (2,)}, "k"),
        ("y_i = sum[j : j < 3](a_i)", {"a": (2,)}, "j"),
        ("P_<i j> = x_<i - j + |j|>; y_i = P_<i j> v_j", {"x": (9,), "v": (3,)}, "i"),  # a definition gives no size
        ("P_<i j> = x_<i + j>; y = P_<i j> P_<j i>", {"x": (9,)}, "i"),
        ("P_<(i j)> = x_<i + j>; y = sum[i j](P_<(i j)>)", {"x": (9,)}, "i"),
        ("y = delta_<i j> delta_<i j> x_<i + j>", {"x": (9,)}, "i"),
    ],
)
def test_open_sizes(text: str, shapes: dict[str, Any], name: str) -> None:
    error = refusal(text, shapes)
    assert error.code == "E-EXTENT"
    assert f"the size of {name} is open" in error.what
    assert f'sizes={{"{name}": …}}' in str(error.hint)


def test_splits_that_do_not_divide() -> None:
    assert refusal("y_<h d> = x_<(h d)>", x=(7,), sizes={"h": 2}).code == "E-SPLIT"
    assert refusal("y_<h d> = x_<(h d)> b_h", x=(7,), b=(2,)).code == "E-SPLIT"
    assert refusal("y_<h d> = x_<(h d)>", x=(6,), sizes={"h": 0}).code == "E-EXTENT"


# batch axes, ranges ----------------------------------------------------------------------------------------------


def test_batch_axes() -> None:
    text = "y_<... i> = A_<... i j> x_<... j> b_j"
    assert check(text, A=(5, 7, 2, 3), x=(5, 7, 3), b=(3,)).tensors["y"] == (5, 7, 2)
    assert check(text, A=(2, 3), x=(3,), b=(3,)).tensors["y"] == (2,)
    assert check(text, A=("N", 2, 3), x=("N", 3), b=(3,)).tensors["y"] == (N, 2)
    assert refusal(text, A=(5, 2, 3), x=(4, 3), b=(3,)).code == "E-BATCH"
    assert refusal(text, A=(5, 2, 3), x=(3,), b=(3,)).code == "E-BATCH"
    assert refusal(text, A=(1, 2, 3), x=(5, 3), b=(3,)).code == "E-BATCH"
    assert refusal(text, A=(3,), x=(3,), b=(3,)).code == "E-RANK"
    assert refusal(text, A=(5, 2, 3), x=(5, 3), b=(5, 3)).code == "E-RANK"


@pytest.mark.parametrize(
    ("text", "shapes", "inside"),
    [
        ("y_i = x_<i+3> z_i", {"x": (6,), "z": (3,)}, True),
        ("y_i = x_<i+3> z_i", {"x": (5,), "z": (3,)}, False),
        ("y_i = x_<i+3> z_i", {"x": (1,), "z": (0,)}, True),  # nothing is read
        ("y_i = x_<i+3> z_i", {"x": "N+3", "z": "N"}, True),
        ("y_i = x_<i+3> z_i", {"x": "N+2", "z": "N"}, False),
        ("y_i = x_<i-1> z_i", {"x": "N", "z": "N"}, False),
        ("y_i = x_<i+3> z_i", {"x": "M", "z": "N"}, True),  # not known yet
        ("y_i = x_<2*i+1> z_i", {"x": "2*N", "z": "N"}, True),
        ("y_i = x_<2*i+2> z_i", {"x": "2*N", "z": "N"}, False),
        ("y_i = x_<|i|-1-i> z_i", {"x": "N", "z": "N"}, True),
        ("y_i = x_<|i|-i> z_i", {"x": "N", "z": "N"}, False),
        ("y_i = x_<0 i>", {"x": (1, 3)}, True),
        ("y_i = x_<0 i>", {"x": (0, 3)}, False),
        ("y_i = x_<-1, i>", {"x": (3, 3)}, False),
        ("y_<i j> = x_<i-j+|j|-1> a_i b_j", {"x": "N+M-1", "a": "N", "b": "M"}, True),
        ("y_<i j> = x_<i-j> a_i b_j", {"x": (4,), "a": (4,), "b": (1,)}, True),
        ("y_<i j> = x_<i-j> a_i b_j", {"x": (4,), "a": (4,), "b": (2,)}, False),
        ("y_i = sum[j : j <= i](x_<i-j> a_j) z_i", {"x": (4,), "a": (4,), "z": (4,)}, True),  # guarded
        ("y_i = x_<i-t> z_i", {"x": (4,), "z": (4,), "t": ()}, True),  # known at the call
        ("z_i = x_i; y_i = z_<i+1> a_i", {"x": (4,), "a": (4,)}, False),
    ],
)
def test_ranges(text: str, shapes: dict[str, Any], inside: bool) -> None:
    if inside:
        check(text, shapes)
    else:
        assert refusal(text, shapes).code == "E-RANGE"


# lints -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("y_i = softmax[j](a_i b_j) v_j", "contracts nothing"),
        ("y = a_i b_i c_i", "summed over 3 factors"),
        ("y_i = A_<i i>", "on its diagonal"),
        ("y_i = A_<j j> x_i", "on its diagonal"),
        ("y_i = W_<i h bar(j)> v_<j h>", "summed over h too"),
        ("y_<i j> = A_<i bar(j)> + B_<i j>", "not normalised"),
        ("y_<i j> = A_<i bar(j)> + B_<i bar(j)>", "separately normalised"),
        ("y_i = S_<i bar(j : top[j; 3](S_<i j>) and j <= i)> v_j", "beside `top`"),
        ("y_i = x_i / i", "directly under"),
        ("y_i = x_i sqrt(i)", "directly under"),
    ],
)
def test_lints(text: str, words: str) -> None:
    with pytest.warns(ta.NotationWarning, match=words):
        ta.check(text)
    with pytest.warns(ta.NotationWarning, match=words):
        ta.compile(text)
    error = refusal(text, strict=True)
    assert error.code == "E-LINT"
    assert words in error.what
    assert error.spans
    with pytest.raises(ta.NotationError):
        ta.compile(text, strict=True)


@pytest.mark.parametrize(
    "text",
    [
        DOT,
        "y_i = W_<i bar(j)> v_j",
        "y_i = softmax[j](q_<i d> k_<j d> / sqrt(|d|)) v_j",
        "y_i = A_<i bar(j)> u_j + B_<i bar(j)> w_j",
        "y_<i j> = A_<i bar(j)> - B_<i bar(j)>",
        "y_i = x_i / (i + 1)",
        "y_i = x_i / |i|",
        "y_<i n> = W_<i bar(j)> v_<j n> a_i",
    ],
)
def test_no_lints(text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ta.check(text, strict=True).lints == ()
