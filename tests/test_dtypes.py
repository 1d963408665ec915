"""Logical dtypes: what widens a result, what never does, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.dtypes import infer, join, visible


def dtype(text: str, **inputs: str) -> str:
    program = ta.parse(text)
    return infer(program, inputs).names[program.statements[-1].name]


@pytest.mark.parametrize(
    ("text", "inputs", "wanted"),
    [
        ("y_i = x_i + z_i", dict(x="float32", z="float64"), "float64"),
        ("y_i = x_i + z_i", dict(x="float16", z="bfloat16"), "float32"),
        ("y_i = x_i z_i", dict(x="int64", z="float16"), "float16"),
        ("y_i = 0.5 x_i", dict(x="float32"), "float32"),
        ("y_i = 0.5 x_i", dict(x="int64"), "weak"),
        ("y_i = 2 x_i - 1", dict(x="int64"), "int64"),
        ("y_i = x_i + z_i", dict(x="bool", z="bool"), "int64"),
        ("y = sum[i](x_i)", dict(x="bool"), "int64"),
        ("y = mean[i](x_i)", dict(x="int64"), "weak"),
        ("y = max[i](x_i)", dict(x="int64"), "weak"),
        ("y_i = x_i / 2", dict(x="int64"), "weak"),
        ("y_i = x_i ** 2", dict(x="int64"), "weak"),
        ("y_i = exp(x_i)", dict(x="int64"), "weak"),
        ("y_i = 2**(0-i) * x_i", dict(x="float32"), "float32"),
        ("y_i = x_i + i / |i|", dict(x="float32"), "float32"),
        ("y_<i j> = (i <= j) x_i", dict(x="float32"), "float32"),
        ("y_<i j> = (i <= j) and m_i", dict(m="bool"), "bool"),
        ("y_<i j> = softmax[j : m_<i j>](x_<i j>)", dict(m="bool", x="float16"), "float16"),
        ("y_i = E_<t_i>", dict(E="float32", t="int64"), "float32"),
        ("y_i = where(z_i > 0, x_i, 0)", dict(x="float32", z="float64"), "float32"),
        ("y_i = delta_<i j> x_j", dict(x="float32"), "float32"),
        ("y_i = c x_i", dict(c="float", x="float32"), "float32"),
        ("y_i = c x_i", dict(c="float", x="int64"), "weak"),
        ("y_i = c x_i", dict(c="int", x="int64"), "int64"),
        ("y_i = c x_i", dict(c="float64", x="float32"), "float64"),
        ("h_i = n_i / 3\ny_i = h_i x_i", dict(n="int64", x="float32"), "float32"),
        ("y_a = cat[a = i + j](x_i, z_j)", dict(x="float32", z="int64"), "float32"),
        ("y_i = top[i; 2](x_i)", dict(x="float32"), "bool"),
    ],
)
def test_logical_dtype(text: str, inputs: dict[str, str], wanted: str) -> None:
    assert dtype(text, **inputs) == wanted


def test_joins_are_associative_and_commutative() -> None:
    names = ("bool", "int64", "weak", "float16", "bfloat16", "float32", "float64")
    for a in names:
        for b in names:
            assert join((a, b)) == join((b, a))
            for c in names:
                assert join((join((a, b)), c)) == join((a, join((b, c))))
    assert visible("weak") == "float64"


@pytest.mark.parametrize(
    ("text", "inputs", "words"),
    [
        ("y_i = softmax[j : m_<i j>](x_<i j>)", dict(m="float64", x="float64"), ("`m`", "float64", "m_<i j> != 0")),
        ("y_<i j> = softmax[j : m_<i j> and i <= j](x_<i j>)", dict(m="int64", x="float64"), ("`m`", "int64")),
        ("y_i = where(m_i, x_i, 0)", dict(m="int64", x="float64"), ("`m`", "int64")),
        ("h_i = x_i + 1\ny_i = where(h_i, x_i, 0)", dict(x="float64"), ("`h`", "h_<i> != 0")),
        ("y_i = not m_i", dict(m="float32"), ("`m`", "float32")),
        ("y_i = E_<t_i>", dict(E="float32", t="float32"), ("`t`", "index tensor", "`E`")),
        ("y_i = E_<t_i>", dict(E="float32", t="bool"), ("`t`", "bool")),
        ("y_i = E_<i+n>", dict(E="float32", n="float"), ("`n`", "integer scalar")),
        ("y_i = E_<i+n>", dict(E="float32", n="bool"), ("`n`", "bool")),
        ("y_i = x_i", dict(x="complex128"), ("`x`", "complex128")),
        ("y_i = x_i", dict(x="object"), ("`x`", "object")),
    ],
)
def test_refused(text: str, inputs: dict[str, str], words: tuple[str, ...]) -> None:
    text = text.replace("y_i = softmax", "y_<i j> = softmax")
    with pytest.raises(ta.DTypeError) as caught:
        dtype(text, **inputs)
    assert caught.value.code == "E-DTYPE"
    for word in words:
        assert word in str(caught.value)


def test_the_caret_stands_under_the_tensor() -> None:
    with pytest.raises(ta.DTypeError) as caught:
        dtype("y_<i j> = softmax[j : m_<i j>](x_<i j>)", m="float64", x="float64")
    lines = str(caught.value).splitlines()
    assert lines[2].index("^") == lines[1].index("m_<")


FLOATS = {"float16": 2e-3, "float32": 1e-6, "float64": 1e-13}


@pytest.mark.parametrize("name", FLOATS)
def test_halves_accumulate_in_float32_and_return_their_own_dtype(name: str) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(40, 30)).astype(name) for _ in range(3))
    attend = ta.compile("y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>")
    score = q.astype(float) @ k.astype(float).T / np.sqrt(30)
    weights = np.exp(score - score.max(1, keepdims=True))
    wanted = weights / weights.sum(1, keepdims=True) @ v.astype(float)
    got = attend(Q=q, K=k, V=v)
    assert got.dtype == name
    np.testing.assert_allclose(got, wanted, rtol=FLOATS[name], atol=FLOATS[name])
    tensor = attend(Q=torch.tensor(q), K=torch.tensor(k), V=torch.tensor(v))
    assert str(tensor.dtype) == f"torch.{name}"
    np.testing.assert_allclose(tensor.numpy(), wanted, rtol=FLOATS[name], atol=FLOATS[name])


def test_numpy_and_torch_return_one_dtype_for_every_pair() -> None:
    formula = ta.compile("y_i = x_i + 0.5 z_i + i")
    for first in ("bool", "int64", "float16", "float32", "float64"):
        for second in ("bool", "int64", "float16", "float32", "float64"):
            x, z = np.ones(3, first), np.ones(3, second)
            ours = formula(x=x, z=z)
            theirs = formula(x=torch.tensor(x), z=torch.tensor(z))
            assert str(theirs.dtype) == f"torch.{ours.dtype}", (first, second)
            np.testing.assert_array_equal(ours, theirs.numpy())


def test_splitting_a_formula_changes_no_dtype() -> None:
    x, n = np.ones(3, np.float32), np.arange(3)
    whole = ta.compile("y_i = x_i n_i / 3")(x=x, n=n)
    parts = ta.compile("h_i = n_i / 3; y_i = x_i h_i")(x=x, n=n)
    assert whole.dtype == parts.dtype == np.float32
