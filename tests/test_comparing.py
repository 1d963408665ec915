"""`equivalent`: rewrites that are true, near-misses that are false, and random programs against their mutations."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import reference
from tensorattn.comparing import _interfaces, equivalent
from tests import corpus
from tests.strategies import examples as programs

FORM = "both have the same normal form"
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

SCORE = "q_<i d> k_<j d> / sqrt(|d|)"
SAME_FORM = {
    "softmax of log of softmax": ("p_j = softmax[j](x_j)", "p_j = softmax[j](log(softmax[j](x_j)))"),
    "renamed sum": ("y_i = A_<i j> x_j", "y_i = A_<i k> x_k"),
    "order of factors": ("y_<i k> = A_<i j> B_<j k>", "y_<i k> = B_<j k> A_<i j>"),
    "distributed": ("y_i = A_<i j> (x_j + z_j)", "y_i = A_<i k> x_k + A_<i l> z_l"),
    "square": ("y_i = (x_i + z_i)**2", "y_i = x_i**2 + 2 x_i z_i + z_i x_i * 0 + z_i**2"),
    "square of a sum": ("y = (sum[i](x_i))**2", "y = x_i x_j ones_<i j>"),
    "cancelled": ("y_i = x_i + a - a", "y_i = x_i + 0 * a"),
    "fractions": ("y_i = 0.1 * x_i + 0.2 * x_i", "y_i = 3 x_i / 10"),
    "scale": (f"y_<i j> = {SCORE}", "y_<i j> = q_<i d> k_<j d> |d|**(-0.5)"),
    "definition": ("y_i = A_<i j> B_<j k> x_k", "h_j = B_<j k> x_k; y_i = A_<i j> h_j"),
    "delta": ("y_<i j> = A_<i k> delta_<k l> B_<l j>", "y_<i j> = A_<i k> B_<k j>"),
    "pulled out": ("y_i = sum[j](u_i x_j)", "y_i = u_i * sum[k](x_k)"),
    "ones": ("y_i = x_i ones_<j> z_j", "y_i = x_i * sum[j](z_j)"),
    "exp ratio": (
        f"y_<i e> = softmax[j]({SCORE}) v_<j e>",
        f"s_<i j> = {SCORE}; y_<i e> = exp(s_<i j>) v_<j e> / sum[p](exp(s_<i p>))",
    ),
    "softmax1": ("p_j = softmax1[j](x_j)", "p_j = exp(x_j) / (1 + sum[k](exp(x_k)))"),
    "l1norm of exp": ("p_<i j> = softmax[j](s_<i j>)", "p_<i j> = l1norm[j](exp(s_<i j>))"),
    "shift": ("p_<i j> = softmax[j](s_<i j> + b_i - 3)", "p_<i j> = softmax[j](s_<i j> + 0 * b_i)"),
    "joint bar": ("y_<i n> = W_<i bar(j k)> v_<bar(j k) n>", "y_<i n> = softmax[k j](W_<i j k>) v_<j k n>"),
    "echo": ("y_<i n> = W_<i bar(j)> v_<bar(j) n>", "y_<i n> = W_<i bar(j)> v_<j n>"),
    "cat then dot": (
        "y_i = cat[a = m + j](A_<i m>, B_<i j>) cat[a = m + j](p_m, q_j)",
        "y_i = B_<i j> q_j + A_<i m> p_m",
    ),
    "predicates": ("p_<i j> = softmax[j : j <= i](s_<i j>)", "p_<i j> = softmax[j : not not i + 1 > j](s_<i j>)"),
    "conjunction": ("y_i = sum[j : j <= i and m_j](x_j)", "y_i = sum[k : m_k and k - i <= 0](x_k)"),
    "prefix sum": ("y_i = sum[j : j <= i](2 x_j)", "y_i = 2 * sum[j : i >= j](x_j)"),
    "log of exp": ("y_i = log(exp(x_i))", "y_i = x_i"),
    "batch": ("y_<... i> = A_<... i j> x_j", "y_<... m> = A_<... m k> x_k"),
    "gather": ("y_<i j> = b_<h, D_<i j>> u_h", "y_<i j> = u_k b_<k, D_<i j>>"),
    "symmetric dummies": ("y = A_<i j> A_<j k> A_<k i>", "y = A_<c a> A_<a b> A_<b c>"),
    "positions": ("y_i = x_i * i * i", "y_i = x_i * i**2"),
    "mean": ("y_i = mean[j](A_<i j>)", "y_i = sum[j](A_<i j>) / |j|"),
}  # fmt: skip
SAME_VALUES = {
    "rational": ("y_i = x_i / (x_i + z_i)", "y_i = 1 / (1 + z_i / x_i)"),
    "product of exps": ("y_<i j> = exp(a_i) exp(b_j)", "y_<i j> = exp(a_i + b_j)"),
    "two bars": ("y = A_<bar(j)> B_<bar(k)> v_<j k>", "y = softmax[j k](A_j + B_k) v_<j k>"),
    "sigmoid": ("p_j = sigmoid(x_j)", "p_j = 1 / (1 + exp(0 - x_j))"),
    "tanh": ("p_j = tanh(x_j)", "p_j = 2 * sigmoid(2 x_j) - 1"),
    "mask as a factor": ("y = sum[j : j < 2](x_j)", "y = where(0 == 0, 1, 0) * sum[j : not j >= 2](x_j)"),
    "l2norm": ("p_j = l2norm[j](x_j)", "p_j = x_j / sqrt(sum[k](x_k**2))"),
    "max": ("y = max[j](x_j)", "y = 0 - min[j](0 - x_j)"),
    "relu": ("y_j = relu(x_j)", "y_j = (x_j + abs(x_j)) / 2"),
    "determinant": ("y = eps_<i j> A_<0 i> A_<1 j>", "y = A_<0 0> A_<1 1> - A_<0 1> A_<1 0>"),
}  # fmt: skip
DIFFERENT = {
    "missing scale": (f"y_<i e> = softmax[j]({SCORE}) v_<j e>", "y_<i e> = softmax[j](q_<i d> k_<j d>) v_<j e>"),
    "wrong scale": (f"y_<i e> = softmax[j]({SCORE}) v_<j e>", "y_<i e> = softmax[j](q_<i d> k_<j d> / |d|) v_<j e>"),
    "softmax over the wrong index": ("p_<i j> = softmax[j](s_<i j>)", "p_<i j> = softmax[i](s_<i j>)"),
    "mask off by one": ("p_<i j> = softmax[j : j <= i](s_<i j>)", "p_<i j> = softmax[j : j < i](s_<i j>)"),
    "mask the other way": ("p_<i j> = softmax[j : j <= i](s_<i j>)", "p_<i j> = softmax[j : j >= i](s_<i j>)"),
    "sum and mean": ("y_i = sum[j](A_<i j>)", "y_i = mean[j](A_<i j>)"),
    "joint and separate bars": ("y = W_<bar(j k)> v_<bar(j k)>", "y = softmax[j](W_<j k>) softmax[k](W_<j k>) v_<j k>"),
    "softmax1": ("p_j = softmax[j](x_j)", "p_j = softmax1[j](x_j)"),
    "a sink is no shift": ("p_j = softmax1[j](x_j + c)", "p_j = softmax1[j](x_j) + 0 * c"),
    "sparsemax": ("p_j = softmax[j](x_j)", "p_j = sparsemax[j](x_j)"),
    "sign": ("y_i = x_i - z_i", "y_i = z_i - x_i"),
    "tiny": ("y_i = x_i + 0.0000000000001 * z_i", "y_i = x_i + 0 * z_i"),
    "transposed in a square": ("y_<i j> = A_<i j> + delta_<i j>", "y_<i j> = A_<j i> + delta_<i j>"),
    "trace": ("y = A_<i i> B_<j j>", "y = A_<i j> B_<j i>"),
    "a broadcast index counts": ("y_i = sum[j](x_i ones_<j>) + 0 * sum[j](z_j)", "y_i = x_i + 0 * sum[j](z_j)"),
    "gathered": ("y_<i j> = b_<D_<i j>> + delta_<i j>", "y_<i j> = b_<D_<j i>> + delta_<i j>"),
    "empty": ("y = mean[i](ones_<i>) + 0 * sum[i](x_i)", "y = 1 + 0 * sum[i](x_i)"),
    "relu": ("y_i = relu(x_i)", "y_i = silu(x_i)"),
    "convolution": ("y_i = sum[j : j <= i](x_<i - j> w_j)", "y_i = sum[j : j <= i](x_<j> w_j) + 0 * x_i"),
}  # fmt: skip


@pytest.mark.parametrize("name", SAME_FORM)
def test_the_same_normal_form(name):
    for pair in (SAME_FORM[name], SAME_FORM[name][::-1]):
        verdict = ta.equivalent(*pair)
        assert verdict, str(verdict)
        assert verdict.reason == FORM


@pytest.mark.parametrize("name", SAME_VALUES)
def test_the_same_values(name):
    verdict = ta.equivalent(*SAME_VALUES[name])
    assert verdict, str(verdict)
    assert "equal values in a finite field" in verdict.reason or "no difference" in verdict.reason


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_difference_comes_with_a_counterexample(name):
    first, second = DIFFERENT[name]
    verdict = ta.equivalent(first, second)
    assert not verdict
    shown = verdict.counterexample
    assert shown is not None
    assert all(size <= 3 for size in shown.sizes.values()), str(verdict)
    if name == "tiny":
        assert "exact" in verdict.reason
        return
    values = [
        float(
            next(iter(reference.evaluate(p, shown.inputs, {n: shown.sizes[n] for n in p.indices}).values()))[
                shown.entry
            ]
        )
        for p in map(ta.parse, (first, second))
    ]
    assert values == [shown.first, shown.second]
    assert values[0] != pytest.approx(values[1], rel=1e-9)


def test_a_counterexample_is_small_and_prints():
    verdict = ta.equivalent("y_i = sum[j](A_<i j>)", "y_i = mean[j](A_<i j>)")
    assert verdict.counterexample.sizes == {"i": 1, "j": 2}
    assert (
        str(verdict)
        == "different: the values differ\n  sizes   |i| = 1, |j| = 2\n  A       = [[1, 0]]\n  y at i = 0: 1.0 and 0.5"
    )


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ("y_i = x_i", "y_i = z_i", "only the first program reads `x`"),
        ("y = x_i z_i", "y = x_<i i> z_i", "`x` has 1 axes in the first program and 2"),
        ("y_<... i> = x_<... i>", "y_i = x_i", "`x` has 1 axes and batch axes in the first"),
        ("y_<i j> = x_i z_j", "y_i = x_i z_j ones_<j>", "the output has 2 axes in the first"),
        ("y_i = A_<i j> x_j", "y_i = A_<j i> x_j", "in the second program axis 0 of `A` and axis 0 of `x`"),
        ("y_<i j> = x_i z_j", "y_<j i> = x_i z_j", "in the first program axis 0 of `x` and axis 0 of"),
    ],
)  # fmt: skip
def test_programs_of_another_interface_are_different(first, second, reason):
    verdict = ta.equivalent(first, second)
    assert not verdict
    assert verdict.reason.startswith(reason)


def test_merged_axis_and_joint_bar():
    joint, merged = "y_<m e> = softmax[n r](W_<m (n r)>) v_<(n r) e>", "y_<m e> = softmax[c](W_<m c>) v_<c e>"
    assert ta.equivalent(joint, merged, sizes={"r": 2})
    separate = "y_<m e> = softmax[n](W_<m (n r)>) v_<(n r) e>"
    assert ta.equivalent(separate, merged, sizes={"r": 2}).counterexample is not None


def test_several_outputs():
    first, second = "a_i = 2 x_i; b_i = tanh(x_i)", "b_i = tanh(x_i); a_i = x_i + x_i"
    assert ta.equivalent(first, second, outputs=["a", "b"]).reason == FORM
    verdict = ta.equivalent(first, second.replace("tanh", "sin"), outputs=["a", "b"])
    assert not verdict
    assert verdict.reason.startswith("output `b`")
    with pytest.raises(ta.BindingError) as caught:
        ta.equivalent(first, second, outputs=["c"])
    assert caught.value.code == "E-UNDEF"


def test_the_bound_on_the_error_is_stated():
    verdict = ta.equivalent(*SAME_VALUES["rational"])
    assert int(re.search(r"below 2\^-(\d+)", verdict.reason).group(1)) > 100


def test_the_library_against_itself_and_each_other():
    parsed = {name: entry.program for name, entry in ta.formulas.items()}
    for name, program in parsed.items():
        verdict = ta.equivalent(program, str(program))
        assert verdict.reason == FORM, (name, str(verdict))
    alike = [
        (a, b)
        for a, b in itertools.combinations(parsed, 2)
        if _interfaces(parsed[a], parsed[b]) is None and equivalent(parsed[a], parsed[b])
    ]
    assert ("self_attention", "self_attention_ratio") in alike


def test_the_corpus_against_its_print():
    for entry in corpus.load("accept")[::4]:
        program = ta.parse(corpus.formula(entry))
        verdict = ta.equivalent(program, str(program), sizes=entry.get("sizes"))
        assert verdict.reason == FORM, (entry["id"], str(verdict))


@settings(max_examples=8, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_random_programs_and_their_other_writings(example, seed):
    program = ta.parse(example.text)
    sizes = {n: s for n, s in example.sizes.items() if n in program.indices}
    for other in (str(program), example.reordered(random.Random(seed)).text):
        verdict = equivalent(program, other, sizes=sizes)
        assert verdict, f"{other}\n{verdict}"


@settings(max_examples=8, deadline=None)
@given(programs(), st.integers(0, 2**32))
def test_a_mutated_random_program_that_counts_as_equal_has_equal_values(example, seed):
    text = mutated(example.text, random.Random(seed))
    try:
        program, other = ta.parse(example.text), ta.parse(text)
    except ta.NotationError:
        return  # a mutation may leave the language
    sizes = {n: s for n, s in example.sizes.items() if n in program.indices}
    verdict = equivalent(program, other, sizes=sizes)
    try:
        values = [
            next(iter(reference.evaluate(p, example.inputs, sizes).values())).astype(float) for p in (program, other)
        ]
    except ta.ShapeError:
        return
    if verdict and values[0].shape == values[1].shape:
        scale = max(float(np.nanmax(np.abs(v), initial=1.0, where=np.isfinite(v))) for v in values)
        finite = np.isfinite(values[0]) & np.isfinite(values[1])
        np.testing.assert_allclose(values[0][finite], values[1][finite], rtol=1e-8, atol=1e-8 * scale)


MUTATIONS = (("+", "-"), ("softmax[", "l1norm["), ("<=", "<"), ("tanh", "sin"), ("sum[", "mean["), ("-", "+"))


def mutated(text: str, rnd: random.Random) -> str:
    """The text with one sign, function or comparison changed, or with the last statement doubled."""
    fitting = [m for m in MUTATIONS if m[0] in text]
    if not fitting:
        return doubled(text)
    old, new = rnd.choice(fitting)
    places = [m.start() for m in re.finditer(re.escape(old), text)]
    place = rnd.choice(places)
    return text[:place] + new + text[place + len(old) :]


def doubled(text: str) -> str:
    *before, last = text.splitlines()
    left = last.split(" = ", 1)[0]
    slots = left.removeprefix(re.match(r"[A-Za-z0-9]+", left).group())
    return "\n".join([*before, last, f"twice{slots} = 2 {left}"])


@settings(max_examples=8, deadline=None)
@given(programs())
def test_a_doubled_random_program_is_different(example):
    program = ta.parse(example.text)
    sizes = {n: s for n, s in example.sizes.items() if n in program.indices}
    value = next(iter(reference.evaluate(program, example.inputs, sizes).values()))
    if not np.any(np.isfinite(value.astype(float)) & (value.astype(float) != 0)):
        return  # zero twice is zero
    verdict = equivalent(program, doubled(example.text), sizes=sizes)
    assert not verdict, f"{example.text}\n{verdict}"
