"""`rename`, `bind`, `then`: programs as values, free of capture."""

from __future__ import annotations

import numpy as np
import pytest

import tensorattn as ta
from tensorattn import reference as oracle

ATTEND = "y^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n"
SCORES = "W^<mu nu> = k^mu_i q^nu_i / sqrt(|i|)"


def reads_back(program: ta.Program) -> None:
    assert ta.parse(str(program)) == program


def refused(call: object, *programs: object, **names: object) -> str:
    with pytest.raises(ta.TensorattnError) as caught:
        call(*programs, **names)  # type: ignore[operator]
    return caught.value.code


@pytest.mark.parametrize(
    ("text", "names", "wanted"),
    [
        (ATTEND, {"mu": "a", "nu": "b"}, "y^a_n = W^<a bar(b)> v^b_n"),
        (ATTEND, {"mu": "nu", "nu": "mu"}, "y^nu_n = W^<nu bar(mu)> v^mu_n"),
        (ATTEND, {"W": "v", "v": "W"}, "y^mu_n = v^<mu bar(nu)> W^nu_n"),
        (ATTEND, {"y": "out", "n": "seq"}, "out^mu_<seq> = W^<mu bar(nu)> v^nu_<seq>"),
        (ATTEND, {}, ATTEND),
        ("y_k = x_k |k| sum[j : j < k](z_j)", {"k": "i"}, "y_i = x_i |i| sum[j : j < i](z_j)"),
        ("a_i = x_i; y_i = a_i", {"a": "b"}, "b_i = x_i; y_i = b_i"),
        ("a_i = x_i; y_i = a_i", {"y": "a", "a": "y"}, "y_i = x_i; a_i = y_i"),
        ("y_i = x_<t_i+s>", {"t": "u", "s": "r"}, "y_i = x_<u_i+r>"),
        ("y_<(h d)> = x_<h d>", {"h": "g"}, "y_<(g d)> = x_<g d>"),
        ("y_a = cat[a = m + j](A_m, B_j)", {"m": "n", "a": "c"}, "y_c = cat[c = n + j](A_n, B_j)"),
        ("y_<... i> = x_<... i>", {"i": "k"}, "y_<... k> = x_<... k>"),
    ],
)
def test_rename(text: str, names: dict[str, str], wanted: str) -> None:
    renamed = ta.parse(text).rename(**names)
    assert renamed == ta.parse(wanted)
    reads_back(renamed)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        (ATTEND, {"mu": "nu"}),
        (ATTEND, {"W": "v"}),
        (ATTEND, {"y": "v"}),
        (ATTEND, {"mu": "a", "nu": "a"}),
        (ATTEND, {"lost": "found"}),
        (ATTEND, {"W": "sum"}),
        (ATTEND, {"W": "1x"}),
        (ATTEND, {"W": "a_b"}),
        ("y_i = i_i", {"i": "j"}),
        ("y_i = D_<i j> x_j", {"D": "delta"}),
        ("d_<i j> = a_i b_j; y_i = d_<i j> delta_<j k> c_k", {"d": "delta"}),
        ("y_i = d i x_i", {"d": "i"}),
        ("y_i = d i x_i", {"i": "d"}),
        ("y_i = x_<i+t> z_i", {"t": "i"}),
        ("y_i = i x_i", {"x": "i"}),
    ],
)
def test_a_renaming_that_would_change_the_meaning_is_refused(text: str, names: dict[str, str]) -> None:
    assert refused(ta.parse(text).rename, **names) == "E-NAME"


def test_bind_and_then_join_at_an_input() -> None:
    wanted = ta.parse(f"{SCORES}\n{ATTEND}")
    assert ta.parse(ATTEND).bind(W=ta.parse(SCORES)) == wanted
    assert ta.parse(SCORES).then(ta.parse(ATTEND)) == wanted
    assert ta.parse(ATTEND).bind(W=ta.parse("k^a_i q^b_i / sqrt(|i|)")).inputs == ("k", "q", "v")


@pytest.mark.parametrize(
    ("first", "second", "inputs"),
    [
        ("x_i = a_<i j> b_j", "y_j = x_j sum[i](c_i)", {"a", "b", "c"}),  # an index of the second in the first
        ("x_i = sum[j](a_<i j>)", "y_i = x_i j", {"a", "j"}),  # an index, a scalar
        ("x_i = k a_i", "y_i = x_i w_<i k> w_<i k>", {"k", "a", "w"}),  # a scalar, an index
        ("x_i = W_<i j> u_j", "y_i = x_i u_i", {"W", "u"}),  # one input of both
        ("h_i = x_i + 1; x2_i = h_i", "y_i = h_i x2_i", {"x"}),  # two wires
        ("h_i = x_i + 1; g_i = 2 h_i", "y_i = h_i + g0_i", {"x", "g0"}),
        ("h_i = x_i", "x_i = 2 h_i", {"x"}),  # the result bears the name of an input
        ("t_i = x_i; h_i = 2 t_i", "y_i = t_i + h_i", {"x"}),
        ("h_i = i x_i", "y_j = h_j i_j", {"x", "i"}),  # an index of one, a tensor of the other
        ("h_i = i_i", "y_i = i h_i", {"i"}),
        ("h_<... i> = x_<... i>", "y_<... j> = 2 h_<... j>", {"x"}),
        ("h_<(a b)> = x_<a b>", "y_<a b> = h_<(a b)> z_a", {"x", "z"}),
    ],
)
def test_then_captures_nothing(first: str, second: str, inputs: set[str]) -> None:
    one, two = ta.parse(first), ta.parse(second)
    joined = one.then(two)
    reads_back(joined)
    assert set(joined.inputs) == inputs
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for tensor in (*one.tensors, *two.tensors):
        if tensor.name in inputs:
            arrays.setdefault(tensor.name, rng.normal(size=(3,) * len(tensor.slots)))
    sizes = {n: 3 for n in ("a", "b") if "(a b)" in first}
    early = oracle.evaluate(one, arrays, sizes or None, one.defined)
    given = {**arrays, **{n: v for n, v in early.items() if n in two.inputs}}
    wanted = oracle.evaluate(two, given, sizes or None)
    found = oracle.evaluate(joined, arrays, dict.fromkeys(joined.indices, 3) if sizes else None)
    np.testing.assert_allclose(found[joined.defined[-1]], wanted[two.defined[-1]])
    np.testing.assert_allclose(ta.compile(joined, sizes=sizes or None)(arrays), wanted[two.defined[-1]])


def test_bind_names_inputs_of_the_outer_program() -> None:
    outer = ta.parse("y_i = a_i - b_i")
    one, two = ta.parse("2 b_i"), ta.parse("3 a_i")
    for bound in (outer.bind(a=one, b=two), outer.bind(b=two, a=one)):
        reads_back(bound)
        assert set(bound.inputs) == {"a", "b"}
        assert ta.compile(bound)(a=np.array([1.0]), b=np.array([10.0])).tolist() == [2 * 10.0 - 3 * 1.0]


def test_what_cannot_be_joined() -> None:
    attend, scores = ta.parse(ATTEND), ta.parse(SCORES)
    assert refused(attend.bind, z=scores) == "E-UNDEF"
    assert refused(attend.bind, W=ta.parse("a_i b_i")) == "E-RANK"
    assert refused(scores.then, ta.parse("z = s_i s_i")) == "E-INPUT"
    assert refused(ta.parse("W_i = a_i").then, attend) == "E-RANK"


LAYER = "A_<i j> = x_<i e> Q_<e f> x_<j f> / sqrt(|e|)\nh_<i e> = x_<i e> + A_<i bar(j)> x_<j g> V_<g e>"


def unrolled(layers: int) -> str:
    lines, before = [], "x"
    for number in range(layers):
        after = f"r{number}"
        lines.append(f"B{number}_<i j> = {before}_<i e> Q{number}_<e f> {before}_<j f> / sqrt(|e|)")
        lines.append(f"{after}_<i e> = {before}_<i e> + B{number}_<i bar(j)> {before}_<j g> V{number}_<g e>")
        before = after
    return "\n".join(lines)


def chained(layers: int) -> ta.Program:
    layer = ta.parse(LAYER)
    chain = layer.rename(Q="Q0", V="V0")
    for number in range(1, layers):
        chain = chain.then(layer.rename(x="h", h="x", Q=f"Q{number}", V=f"V{number}"))
        *inner, result = chain.defined
        chain = chain.rename(**{n: f"p{number}{n}" for n in inner}, **{result: "h"})
    return chain


def test_a_chain_of_five_layers_is_the_unrolled_program() -> None:
    chain = chained(5)
    reads_back(chain)
    rng = np.random.default_rng(1)
    arrays = {"x": rng.normal(size=(3, 2))}
    for number in range(5):
        arrays |= {f"Q{number}": rng.normal(size=(2, 2)), f"V{number}": rng.normal(size=(2, 2))}
    assert set(chain.inputs) == arrays.keys()
    wanted = oracle.evaluate(ta.parse(unrolled(5)), arrays)["r4"]
    np.testing.assert_allclose(oracle.evaluate(chain, arrays)["h"], wanted)
    np.testing.assert_allclose(ta.compile(chain)(arrays), wanted)
    x = arrays["x"]
    for number in range(5):
        scores = x @ arrays[f"Q{number}"] @ x.T / np.sqrt(2)
        weights = np.exp(scores - scores.max(1, keepdims=True))
        x = x + weights / weights.sum(1, keepdims=True) @ x @ arrays[f"V{number}"]
    np.testing.assert_allclose(wanted, x)


def test_a_layer_bound_to_itself_shares_its_weights() -> None:
    layer = ta.parse("h_<i e> = x_<i e> + softmax[j](x_<i g> x_<j g>) x_<j f> M_<f e>")
    deep = layer
    for _ in range(4):
        deep = layer.bind(x=deep)
    reads_back(deep)
    assert deep.inputs == ("x", "M")
    assert len(deep.statements) == 5
    x, M = np.random.default_rng(2).normal(size=(2, 3, 3))
    value = x
    for _ in range(5):
        value = oracle.evaluate(layer, {"x": value, "M": M})["h"]
    np.testing.assert_allclose(ta.compile(deep)(x=x, M=M), value)
