"""Printing reads back, is a fixed point, and equality, hashes and pickles follow the meaning."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.ir import Product
from tensorattn.planning import plan
from tensorattn.reference import evaluate
from tensorattn.rewriting import CANONICAL, rewrite
from tests import corpus

ROOT = Path(__file__).resolve().parent.parent

NASTY = [
    # summed indices of one name in one flattened product
    "y_i = (A_<i j> B_j) (C_<i j> D_j)",
    "y_i = (A_<i j> B_j) / (C_<i j> D_j)",
    "y_i = (A_<i j> B_j) exp(C_<i j> D_j)",
    "y = ((A_<i j> B_j) C_i) ((A_<i j> D_j) C_i)",
    "y = ((a_i b_j c_i) d_j) (e_i f_i) (g_j h_j)",
    "y = (a_i (b_j c_i d_j)) (e_i f_i) exp(g_j h_j)",
    "y = (a_i b_j c_i d_j) (e_i f_i) exp(g_j h_j)",
    "y_i = (a / b_j * c_j) (C_<i j> D_j)",
    "y_i = 1 / (a_j b_j) * (c_j d_<j i>)",
    "y_i = x_i (z_i (a_j b_j)) (a_j b_j)",
    "y_i = x_i / (a_j b_j) / (c_j d_j) * (e_j e_j)",
    "y = (A_<i i>) (A_<j j> (B_<i i>))",
    "y = (A_<i i>) (2 A_<i i>)",
    "y_i = sum[j](A_<i j>) (C_<i j> D_j)",
    "y_i = (A_<i j> B_j)**(C_<i j> D_j)",
    "y_i = cat[a = m + j](A_<i m>, B_<i j>) b_a (c_m d_m) ((d_j e_<j m>) f_m)",
    "y = 2 (3 x_i (4 z_i)) (x_i x_i)",
    # normalisers in normalisers, beside each other, with conditions and options
    "y_i = softmax[j](softmax[k](A_<i j k>) v_k) w_j",
    "y_<i j> = softmax[i](softmax[i](A_<i j>))",
    "y_<i j> = softmax[i](softmax[j](A_<i j>))",
    "y_<i j> = A_<bar(i) j> A_<i bar(j)>",
    "y_<i j> = softmax[j i](A_<i j>)",
    "z_<i k> = A_<i bar(j) k j> + 0",
    "y_<i+x_<i j c>, j, c>",
    "y_<i+i>",
    "y_<i e> = q_<i bar(d j) d> v_<j e>",
    "S_<b x a y b x bar(a) y h> lv_<b x a h d> rv_<b a y h d>",
    "b u^<bar(rho) r rho>_n",
    "S_<b x a bar(a) y h> lv_k",
    "z_i = (q_<i bar(d j) d> v_j) w_i",
    "y_<i n> = A_<i bar(j)> (B_<j bar(k)> v_<k n>)",
    "y_i = A_<i bar(j)> B_<j l bar(k)> v_<k l>",
    "y_i = softmax[j : softmax[j](T_<i j>) > 0](S_<i j>) v_j",
    "y_i = A_<i k> softmax[j : k <= j](S_j) v_j",  # k, which is summed, in the condition alone
    "y_i = A_<i bar(k)> softmax[j : keep_<k j>](S_j) v_j",
    "y_i = S_<i bar(j : T_<i j bar(k)> u_k > 0)> v_j",
    "y_i = softmax[j; sink=A_<i bar(k)> b_k](S_<i j>) v_j",
    "y_i = softmax[j : j <= i; sink=2](S_<i j> + i) v_j",
    "y_i = softmax1[j](S_<i j>) v_j",
    "y_i = l1norm[j; eps=1e-6](S_<i j>) v_j",
    "y_i = entmax[j; 1.5](S_<i j>) v_j",
    "y_i = A_<i, j-i, bar(j)> B_j",
    "y_i = A_<i (h d) bar(j)> B_<j h d>",
    "y_i = A_<i bar(j) j> B_j",
    "y_i = A^<i h (h d) bar(j)> B_<j h d>",
    "y_i = A_<i h h bar(j : T_<i j bar(k)> u_k > 0)> B_<j h>",
    "y_i = A_<i h h bar(j)> B_<j h>",
    "y_i = A^<bar(j)>_<i> B_j",
    "y_i = (S_<i bar(j)> + T_<i bar(j)>) v_j",
    "y = A^i_<bar(j k)> B_<i j k>",
    "y^mu_n = sum[i](k^mu_i q^<bar(nu)>_i v^nu_n)",
    "y^mu_n = (q^<bar(nu)>_i v^nu_n) k^mu_i",
    "y_i = S_<i bar(j : top[j : j <= i; 3](S_<i j>) and j > 0)> v_j",
    "y_<i j> = top[j; k](x_<i j>) * x_<i j>",
    # division, powers, signs, numbers
    "y_i = a_i b_i / c_i * d_i",
    "y_i = a_i / b_i / c_i",
    "y_i = a_i / (b_i c_i)",
    "y_i = a_i / (b_i / c_i)",
    "y_i = 1 / (1 / x_i)",
    "y_i = a_i * (b_i / c_i)",
    "y_i = a_i / (b_i * 2) / 3",
    "y_i = -(a_i / b_i)",
    "y_i = (-a_i) / b_i",
    "y_i = -x_i**2",
    "y_i = (-x_i)**2",
    "y_i = (-2)**2 x_i",
    "y_i = -2**2 x_i",
    "y_i = 2**-x_i",
    "y_i = x_i**-2",
    "y_i = x_i**(-a_i)",
    "y_i = (x_i**2)**3",
    "y_i = x_i**(2**3)",
    "y_i = (a_i b_i)**2",
    "y_i = a_i**(b_i + 1)",
    "y_i = x_i * (-2)",
    "y_i = (-2) x_i",
    "y_i = -(-x_i)",
    "y_i = a_i - (b_i - c_i)",
    "y_i = a_i - (b_i + c_i)",
    "y_i = -(a_i + b_i)",
    "y_i = -(a_i - b_i) c_i",
    "y_i = 1e-06 x_i",
    "y_i = 1e22 x_i",
    "y_i = 0.1 x_i",
    "y_i = x_i * 5.",
    "y_i = 007 x_i",
    "y_i = 0.0 x_i - 0",
    "y = -2",
    "y = 1/2",
    "y_i = 2 * 3 x_i * 4",
    "y_i = x_i * .5",
    "y_i = |i|**-0.5 * x_i",
    "y_i = u * (x_i + u) * u",
    "y_i = x_i i * (i + 1)",
    # comparisons and logic
    "y_i = 0 <= x_i < 1 <= a",
    "y_i = (a_i < b_i) < c_i",
    "y_i = a_i < (b_i < c_i)",
    "y_i = (a_i < b_i) (b_i < c_i)",
    "y_i = not x_i > 0 and x_i < 1 or x_i == 2",
    "y_i = not (x_i > 0 and (x_i < 1 or x_i == 2))",
    "y_i = not not x_i > 0",
    "y_i = (not a_i) == b_i",
    "y_i = not a_i == b_i",
    "y_i = (a_i and b_i) == c_i",
    "y_i = a_i or (b_i or c_i) and d_i",
    "y_i = (not a_i) + 1",
    "y_i = -(a_i < b_i)",
    "y_i = (a_i < b_i)**2",
    "y_i = where(a_i and not b_i, x_i, -x_i) / 2",
    "y_i = sum[j : not m_<i j> and (m_<i j> or j < 3) and 0 < i - j < 5](x_j)",
    # slots
    "A_<h i j> = R_<h, i-j+|j|-1>",
    "y_i = x_<-i+3>",
    "y_i = x_<|i|-1-i>",
    "y_i = x_<2*t_i-|i|+0>",
    "y_i = x_<t_<u_i> i 0>",
    "y_i = x_<-1, i>",
    "y_<(h d) i> = x_<h (d i)>",
    "y_<h i> = x_<h -1> z_i",
    "y^<... mu>_i = x^<... mu>_i",
    "y_<seq> = x_<seq>",
    "y_<... i> = x_<... t_<... i>>",
    "y_i = x_<|i|-1>  z_i",
    "y_i = x_<3*i-2*t+k>",
    "y_i'' = x_<i''>",
    "y_i = x_<i-i>",
    "y_i = x_<i+0> z_i",
    "y_i = x_<+i, i> z_i",
    "y_i = x_<k+0, i>",
    "y_i = x_<|i|+0, t_i+0>",
    # programs
    "W^<a b> = k^a_i q^b_i\ny^a = W^<a bar(b)> v^b\nz^a = y^a W^<a b> v^b",
    "delta_<i j> = a_i b_j; y_j = delta_<i j> c_i",
    "y^i_j = a^i_j; z_i^j = y_<i j> + y^j_i",
    # names that mean something else where they stand alone
    "y^<T> = x^<T>",
    "y_i = x_i**T + x_i**-T + T**i * x_i",
    "y_i = sum[j1](A_<i j1>) z_i + prod[seq t' : seq > 1](B_<i seq t'>)",
    "Wbar_<i j> = a_i b_j; y_i = W_<i bar(j)> v_j",
    "Wbar_<i j> = a_i b_j; y_i = Wbar_<i bar(j)> v_j",
    "y_i = x_<i nu2 j1' seq'> sigma2 Gamma1' Alpha2 z_<nu2 j1' seq'> What_i xbar",
    "y_i = mean[j](A_<i j>) prod[j](B_<i j>) z_i + prod[j : j == i](B_<i j>) min[j](B_<i j>)",
    "y_i = a_i == (b_i == 1 and c_i == 2)",
    "y_<h i j k l> = x^<h i j k l>",
    "Alpha_omicron = x_omicron Gamma",
    "y_T = x_T z^<T T>",
    "eps_<i j> = a_i b_j; y_i = epsilon_<i j> c_j",
    "epsilon_<i j> = a_i b_j; y_i = eps_<i j> c_j",
]

CORPUS = [pytest.param(corpus.formula(e), id=e["id"]) for e in corpus.load("accept")]


@pytest.mark.parametrize("text", [*NASTY, *CORPUS])
def test_printing_reads_back_and_is_a_fixed_point(text: str) -> None:
    program = ta.parse(text)
    printed = str(program)
    again = ta.parse(printed)
    assert again == program
    assert str(again) == printed
    assert hash(again) == hash(program)
    assert again.inputs == program.inputs
    assert [s.axes for s in again.statements] == [s.axes for s in program.statements]


@pytest.mark.parametrize("text", [*NASTY, *CORPUS])
def test_pickles_hold_the_meaning(text: str) -> None:
    program = ta.parse(text)
    again = pickle.loads(pickle.dumps(program))
    assert again == program
    assert str(again) == str(program)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("y^<mu> = W^<mu bar(nu)>*v^<bar(nu)>", "y^mu = W^<mu bar(nu)> v^nu"),
        ("y_i=softmax[j](S_<i j>)v_j", "y_i = S_<i bar(j)> v_j"),
        ("y_i = softmax[j](2*S_<i j>) v_j", "y_i = softmax[j](2 S_<i j>) v_j"),
        ("y_i = ((a_i)) + ((b_i + c_i))", "y_i = a_i + b_i + c_i"),
        ("y_i = a_i * (b_i * c_i)", "y_i = a_i b_i c_i"),
        ("y_i = (a_i b_i)/c_i*d_i", "y_i = a_i b_i / c_i * d_i"),
        ("y_i = a_i < b_i < c_i", "y_i = a_i < b_i and b_i < c_i"),
        ("M_<i,j> = x_<i,t_j>", "M_<i j> = x_<i t_j>"),
        ("y_i = x_<3 - i>", "y_i = x_<-i+3>"),
        ("x_i x_i", "out = x_i x_i"),
        ("y_i = epsilon_<i j k> a_j b_k", "y_i = eps_<i j k> a_j b_k"),
        ("y^<T>_i = x^<T>_i", "y^<T>_i = x^<T>_i"),
    ],
)
def test_canonical_text(text: str, printed: str) -> None:
    assert str(ta.parse(text)) == printed


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("y_i = A_<i j> x_j", "y_i = A_<i k> x_k"),
        ("y_i = A_<i j> x_j", "y_i = (A_<i j>) * x_j  # a comment"),
        ("y_i = sum[j : j < i](x_j)", "y_i = sum[k : k < i](x_k)"),
        ("y^mu = W^<mu bar(nu)> v^<bar(nu)>", "y^mu = softmax[rho](W^<mu rho>) v^rho"),
        ("y = (x_i z_i) (x_i z_i)", "y = (x_j z_j) (x_j z_j)"),
        ("y_a = cat[a = m + j](A_m, B_j)", "y_a = cat[a = u + v](A_u, B_v)"),
        ("x_i y_i", "x_j y_j"),
        ("y_i = softmax[j k](S_<i j k>) v_<j k>", "y_i = softmax[k j](S_<i j k>) v_<j k>"),
    ],
)
def test_equal(one: str, other: str) -> None:
    assert ta.parse(one) == ta.parse(other)
    assert hash(ta.parse(one)) == hash(ta.parse(other))
    assert len({ta.parse(one), ta.parse(other)}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("y_i = A_<i j> x_j", "y_i = A_<j i> x_j"),
        ("y_i = A_<i j> x_j", "z_i = A_<i j> x_j"),
        ("y_i = A_<i j> x_j", "y_i = A_<i j> z_j"),
        ("y_i = A_<i j> x_j", "y_i = x_j A_<i j>"),
        ("y_<i j> = a_i b_j", "y_<j i> = a_i b_j"),
        ("y_i = a_i", "y_j = a_j"),
        ("y_i = 2 a_i", "y_i = 2.0 a_i"),
        ("y = x_i z_i", "y = sum[i](x_i z_i)"),
        ("y = (x_i z_i) (u_i v_i)", "y = (x_i z_i) (u_j v_j)"),  # one size or two
        ("y_i = S_<i bar(j)> v_j", "y_i = S_<i j> v_j"),
    ],
)
def test_different(one: str, other: str) -> None:
    assert ta.parse(one) != ta.parse(other)


def test_a_program_equals_no_text() -> None:
    assert ta.parse("y_i = a_i") != "y_i = a_i"


def test_hashes_and_texts_are_the_same_in_every_process() -> None:
    code = (
        "import tensorattn as ta, sys\n"
        "programs = [ta.parse(t) for t in sys.stdin.read().split('\\0')]\n"
        "print([(hash(p), str(p), p.key, p.inputs, p.indices) for p in programs])"
    )
    texts = "\0".join(NASTY)
    printed = {
        subprocess.run(
            [sys.executable, "-c", code],
            input=texts,
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("0", "1", "4242")
    }
    assert len(printed) == 1
    assert str(hash(ta.parse(NASTY[0]))) in printed.pop()


def test_spans_point_into_the_text() -> None:
    text = "# c\nW_<i j> = q_<i d> k_<j d>\ny_i = W_<i bar(j)> v_j"
    program = ta.parse(text)
    for tensor in program.tensors:
        assert tensor.span is not None
        assert text[tensor.span.start : tensor.span.end].startswith(tensor.name + "_")
    assert [text[s.span.start] for s in program.statements if s.span] == ["W", "y"]


SHADOWS = [
    "y_j = 2 lse[n](t_<n j>) sum[n](u_<n j>)",
    "y = u_k max[m](t_m) sum[m](v_<m k> |m|)",
    "y_i = prod[m : m <= 2](t_m) sum[m](v_<m i>) / s",
    "y = a sum[m](t_m) sum[m](u_m)",
]


@pytest.mark.parametrize("text", SHADOWS)
def test_a_sum_that_was_merged_does_not_shadow_what_a_factor_binds(text: str) -> None:
    program = ta.parse(text)
    merged = rewrite(program, CANONICAL).program
    again = ta.parse(str(merged))
    assert str(again) == str(merged)
    assert ta.equivalent(again, program)


MERGED = {
    "z_m = sum[j](b_<j m>)\ny = a_j z_j": "y = sum[j](a_j1 b_<j j1>)",
    "z_m = sum[j](b_<j m> c_j)\ny_k = a_<k j> z_j": "y_k = a_<k j1> b_<j j1> c_j",
    "z_m = sum[j](a_<j m>)\ny_<j m> = b_j z_m": "y_<j m> = sum[j1](b_j a_<j1 m>)",
    "z_m = sum[j](a_<j m> c_<j k> d_k)\ny_<j m> = b_j z_m": "y_<j m> = b_j a_<j1 m> c_<j1 k> d_k",
    "z_m = sum[j](a_<j m>)\ny_k = z_m c_<j m> d_j e_k": "y_k = (c_<j m> d_j) * e_k sum[j](a_<j m>)",
    "z_m = max[j](b_<j m>)\ny = c sum[j](z_j)": "y = sum[j1](c max[j](b_<j j1>))",
    "z_m = sum[j](a_<j m m>)\ny_k = z_m c_<j m> d_j e_k": "y_k = sum[j1](a_<j1 m m> c_<j m> d_j e_k)",
}


@pytest.mark.parametrize("text", MERGED)
def test_sums_that_were_merged_keep_their_meaning(text: str) -> None:
    """Where two indices of one name meet; the names of those that are renamed tie no sizes any more."""
    program = ta.parse(text)
    merged = plan(program, ("y",), None).program
    assert str(merged) == MERGED[text]
    sizes = dict.fromkeys("jkm", 3)
    rng = np.random.default_rng(0)
    shapes = {t.name: [sizes[slot.name] for slot in t.slots] for t in program.tensors if t.name in program.inputs}
    x = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    found = evaluate(ta.parse(str(merged)), x)["y"]
    np.testing.assert_allclose(found, evaluate(program, x)["y"], rtol=0, atol=1e-12)


def test_a_bracket_does_not_sum_what_is_summed_around_it() -> None:
    program = ta.parse("y = a_<l r> b_<l r> c_r")
    (statement,) = program.statements
    body = statement.body
    assert isinstance(body, Product)
    (inner,) = (i for i in body.summed if i.name == "r")
    nested = Product(
        (Product(body.factors[:2], tuple(i for i in body.summed if i != inner)), body.factors[2]), (inner,)
    )
    made = replace(program, statements=(replace(statement, body=nested),))
    assert ta.parse(str(made)) == program
