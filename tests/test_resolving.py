"""Scopes, the summation convention, bars, positions, constants, statements: what a text means and what is refused."""

from __future__ import annotations

import pytest

import tensorattn as ta


def code(text: str) -> str:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(text)
    return caught.value.code


def carets(text: str) -> list[str]:
    """What stands above the carets."""
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(text)
    return [text[span.start : span.end] for span in caught.value.spans]


def same(*texts: str) -> None:
    first, *others = (ta.parse(text) for text in texts)
    for other in others:
        assert other == first


def axes(text: str) -> str:
    """The indices of the last result in order, and how many of them are upper."""
    last = ta.parse(text).statements[-1]
    return (
        " ".join("(" + " ".join(i.name for i in a) + ")" if len(a) > 1 else a[0].name for a in last.axes)
        + f" | {last.upper}"
    )


ACCEPTED = [
    # an index counts once a factor, in one tensor as often as written
    "y = A_<i i>",
    "y_i = A_<i i>",
    "y = A_<i i> x_i",
    "y_i = A_<i j> x_j z_j",
    "y_i = exp(A_<i j>) x_j",
    "y_i = x_j**2 A_<i j>",
    "y_i = (x_j + z_j) A_<i j>",
    "y_i = maximum(x_j, z_j) A_<i j>",
    "y_i = a_i |j| x_j z_j",
    "y_i = A_<i j> B_j + C_<i j> D_j",
    "y_i = A_<i j> B_j + c_i",
    "y_i = A_i + 1",
    "y_<i j> = A_i + B_j",
    # scopes
    "y_i = exp(A_<i j> x_j)",
    "y_i = (A_<i j> x_j) (B_<i j> x_j)",
    "y_i = (A_<i j> x_j) / (B_<i j> x_j)",
    "y_i = (A_<i j> x_j)**2 a_i",
    "y_i = maximum(a_i, b_j b_j)",
    "y_i = sum[j](A_<i j>)",
    "y_i = sum[j](A_<i j> x_j)",
    "y_i = sum[j](A_<i j>) sum[j](B_<i j>)",
    "y_i = sum[j](A_<i j>) + B_<i j> x_j",
    "y_i = a_i sum[j](1)",
    "y_i = sum[j k](A_<i j k>)",
    "y_i = (A_<i j> x_j > 0) * a_i",
    "y_i = sum[j](A_<i j> sum[k](B_<j k>))",
    "y_<i j> = exp(A_<i j> B_<i j>) C_<i j>",
    # positions
    "y_i = i x_i",
    "y_<i j> = 2**(i - j)",
    "y_i = sum[j](j x_j) a_i",
    "y_i = sum[j : j <= i](x_j)",
    "y_i = sum[j : x_j > i and k_<i j>](x_j)",
    "y_i = x_i sum[j : j < |i|](z_j)",
    "y_i = max[j](A_<i j> - j)",
    "y_i = S_<i bar(j : j <= i)> v_j",
    "y_i = softmax[j](S_<i j> - j) v_j",
    # slots
    "y_i = x_<i+1>",
    "y_i = x_<i-j+3> w_j",
    "y_i = x_<2*i+j> w_j",
    "y_i = x_<t_i>",
    "y_i = x_<i+t>",
    "y_i = x_<t_<u_i>>",
    "y_<h i j> = b_<h, D_<i j>>",
    "y_i = x_<0 i>",
    "y_i = x_<|i|-1-i>",
    "y_i = t_i x_<t_i>",
    "y_i = t x_<i+t>",
    "y_<(h d)> = x_<h d>",
    "y_<h d> = x_<(h d)>",
    "y_<d> = x_<(h d)> a_h",
    # constants
    "y_i = delta_<i j> x_j",
    "y = delta_<i i>",
    "y_i = eps_<i j k> a_j b_k",
    "y_<i j> = x_i ones_j",
    "y = delta_i x_i",
    "y_i = delta x_i",
    "y_i = eps x_i",
    "y = ones",
    "delta_<i j> = a_i b_j; y = delta_<i j> c_i d_j",
    # bars
    "P^<mu nu> = W^<mu bar(nu)>",
    "y^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n",
    "y^mu_n = W^<mu bar(nu)> v^nu_n",
    "y^n = g^<n bar(i)> T^<n bar(i) bar(j)> e^<n j>",
    "y^n = g^<n bar(i)> T^<n i bar(j)> e^<n bar(j)>",
    "y^n = S^<n bar(i j)> T^<bar(j i) n>",
    "y^<n m> = S^<n bar(i)> T^<bar(i) m>",
    "y^mu_n = v^nu_n W^<mu bar(nu)>",
    "y_<i e> = (A_<i bar(j)> - lam * B_<i bar(j)>) v_<j e>",
    "y_i = exp(S_<i bar(j)>) v_j",
    "y_<i e> = A_<i bar(j)> v_<j e> - B_<i bar(j)> v_<bar(j) e>",
    "y_i = (S_<i bar(j)> a_i) v_<bar(j)>",
    "y_i = softmax[i](softmax[j](A_<i j>) v_j)",
    "y^mu_n = sum[rho](W^<mu bar(nu rho)> v^nu_n)",
    "y_i = S_<i bar(j : T_<i j bar(k)> u_k > 0)> v_j",
    "W^<mu bar(nu)> W^<bar(nu) rho>",
    # a scorer still to be contracted: the ways out
    "y^mu_n = softmax[nu](k^mu_i q^nu_i) v^nu_n",
    "W^<mu nu> = k^mu_i q^nu_i; y^mu_n = W^<mu bar(nu)> v^nu_n",
    "y^mu_n = (q^<bar(nu)>_i v^<bar(nu)>_n) k^mu_i",
    "y^mu_n = sum[i](k^mu_i q^<bar(nu)>_i v^nu_n)",
    "y^mu_n = q^<bar(nu)>_i v^nu_n k^<mu nu>_i",
    "y^mu_n = W^<mu h bar(nu)> v^<bar(nu) h>_n",
    "y_<... n> = W_<... bar(j)> v_<... j n>",
    "y_n = W_<bar(i) j> V_<bar(j)> u_<i n>",
    # batch axes
    "y_<... i> = x_<... i j> w_j",
    "y^<... mu>_i = x^<... mu>_i",
    "y_<...> = x_<... i> x_<... i>",
    "y_<... i> = x_i ones_<...>",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_accepted(text: str) -> None:
    program = ta.parse(text)
    assert ta.parse(str(program)) == program


REFUSED = [
    ("y_i = A_<i j>", "E-DANGLING", ["j"]),
    ("y_i = x_j**2 a_i", "E-DANGLING", ["j"]),
    ("y_i = x_j**x_j a_i", "E-DANGLING", ["j", "j"]),
    ("y_i = (x_j + z_j) a_i", "E-DANGLING", ["j", "j"]),
    ("y_i = maximum(x_j, z_j) + a_i", "E-DANGLING", ["j", "j"]),
    ("y_i = A_<i j> x_k", "E-DANGLING", ["j", "k"]),
    ("y_i = |j| x_j a_i", "E-DANGLING", ["j"]),
    ("y_<i j> = a_i", "E-UNDETERMINED", ["j"]),
    ("y_<i j> = a_i |j|", "E-UNDETERMINED", ["j"]),
    ("y_<... i> = a_i", "E-UNDETERMINED", ["..."]),
    ("y_i = (A_<i j> x_j) x_j", "E-SCOPE", ["j", "j", "j"]),
    ("y_i = exp(A_<i j> x_j) x_j", "E-SCOPE", ["j", "j", "j"]),
    ("y_i = exp(A_<i j>) (x_j x_j)", "E-SCOPE", ["j", "j", "j"]),
    ("y_i = a_i + x_j x_j + z_j", "E-SCOPE", ["j", "j", "j"]),
    ("y_i = maximum(A_<i j>, x_j x_j) z_j", "E-SCOPE", ["j", "j", "j"]),
    ("y_i = (A_<i j> x_j > B_j) * a_i", "E-SCOPE", ["j", "j", "j"]),
    ("y_i = sum[j](A_<i j>) x_j", "E-SHADOW", ["j", "j"]),
    ("y_i = a_i sum[i](x_i)", "E-SHADOW", ["i"]),
    ("y_i = sum[j](sum[j](A_<i j>))", "E-SHADOW", ["j"]),
    ("y_i = softmax[j](A_<i j> + sum[j](A_<i j>)) v_j", "E-SHADOW", ["j"]),
    ("y_i = sum[k](A_<i k> B_k) + sum[j](sum[k](A_<j k>) B_k) a_i", "E-SHADOW", ["k", "k"]),
    ("y_<a m> = cat[a = m + j](A_m, B_j) z_m", "E-SHADOW", ["m"]),
    ("y_a = cat[a = m + j](A_<m a>, B_j)", "E-SHADOW", ["a", "a"]),
    ("y_i = softmax[k](A_<i j>) x_j", "E-NORMIDX", ["k"]),
    ("y_i = top[k; 2](A_<i j>) x_j", "E-NORMIDX", ["k"]),
    ("y_i = softmax[j; sink=s_j](A_<i j>) x_j", "E-NORMIDX", ["s_j"]),
    ("y_a = cat[a = m + j](A_m, 3)", "E-NORMIDX", ["j", "3"]),
    ("y_i = softmax[j j](A_<i j>) x_j", "E-LHSDUP", ["j", "j"]),
    ("y_i = W_<i bar(j j)> x_j", "E-LHSDUP", ["j", "j"]),
    ("y_<i i> = x_i", "E-LHSDUP", ["i", "i"]),
    ("y^i_i = x_i", "E-LHSDUP", ["i", "i"]),
    ("y_<(h h)> = x_h", "E-LHSDUP", ["h", "h"]),
    ("y_<(h d) h> = x_<h d>", "E-LHSDUP", ["h", "h"]),
    ("y_a = cat[a = j + j](A_j, B_j)", "E-LHSDUP", ["j", "j"]),
    ("P^<mu bar(nu)> = W^<mu nu>", "E-LHSBAR", ["bar(nu)"]),
    ("y = W^<mu bar(nu) bar(rho)> v^<mu nu rho>", "E-2BARS", ["bar(nu)", "bar(rho)"]),
    ("y = W^<bar(nu)>_<bar(mu)> v^<mu nu>", "E-2BARS", ["bar(nu)", "bar(mu)"]),
    ("y^mu_n = v^<bar(nu)>_n W^<mu bar(nu)>", "E-ECHO", ["bar(nu)"]),
    ("y^mu = W^<mu bar(nu)> W^<mu bar(nu)>", "E-ECHO", ["bar(nu)"]),
    ("y^mu = W^<mu bar(nu)> v^nu W^<mu bar(nu)>", "E-ECHO", ["bar(nu)"]),
    ("y^n = S^<n bar(i)> exp(T^<n bar(i)>)", "E-ECHO", ["bar(i)"]),
    ("y^n = S^<n bar(i)> T^<n bar(i)>**2", "E-ECHO", ["bar(i)"]),
    ("y^n = S^<n bar(i)> sum[k](T^<n k bar(i)>)", "E-ECHO", ["bar(i)"]),
    ("y^n = S^<n bar(i)> softmax[i](T^<n i>)", "E-ECHO", ["softmax[i](T^<n i>)"]),
    ("y^<n i> = softmax[i](S^<n bar(i)>)", "E-ECHO", ["bar(i)"]),
    ("y^<n i> = softmax[i : T^<n bar(i)> > 0](S^<n i>)", "E-ECHO", ["bar(i)"]),
    ("y^n = S^<n bar(i j)> T^<n bar(i)> e^<n j>", "E-ECHO", ["bar(i)"]),
    ("y^n = S^<n bar(i)> T^<n bar(i j)> e^<n j>", "E-ECHO", ["bar(i j)"]),
    ("y^n = S^<n bar(i : i <= n)> T^<bar(i : i <= n) n>", "E-ECHO", ["bar(i : i <= n)"]),
    ("y^n = (S^<n bar(i)> + T^<n bar(i)>) v_<bar(i)>", "E-ECHO", ["bar(i)"]),
    ("y_i = S_<i bar(j : T_<i bar(j)> > 0)> v_j", "E-ECHO", ["bar(j)"]),
    ("y^mu_n = k^mu_i q^<bar(nu)>_i v^<bar(nu)>_n", "E-PRECONTRACT", ["i", "i"]),
    ("y^mu_n = (k^mu_i q^<bar(nu)>_i) v^<bar(nu)>_n", "E-PRECONTRACT", ["i", "i"]),
    ("y^mu_n = W^<mu h bar(nu)> v^<bar(nu)>_n a_h", "E-PRECONTRACT", ["h", "h"]),
    ("y^mu_n = W^<mu bar(nu rho)> v^nu_n", "E-DANGLING", ["rho"]),
    ("y^mu = W^<mu bar(nu)>", "E-DANGLING", ["nu"]),
    ("y_i = q_<i d> k_d / sqrt(d)", "E-NAME", ["d"]),
    ("y_i = i i_i", "E-NAME", ["i"]),
    ("y_i = x_i + d z_<d d>", "E-NAME", ["d"]),
    ("y_i = A_<i j> A_j", "E-RANK", ["A_<i j>", "A_j"]),
    ("y_i = x_i x", "E-RANK", ["x_i", "x"]),
    ("y_<i j> = a_i b_j; z_i = y_i", "E-RANK", ["y_<i j>", "y_i"]),
    ("y_i = x_<i+t> t_i", "E-RANK", ["t", "t_i"]),
    ("y_i = x_<t_i> t_<i i>", "E-RANK", ["t_i", "t_<i i>"]),
    ("y_i = sum[j : A_<i j> + 1](A_<i j>)", "E-DTYPE", ["A_<i j> + 1"]),
    ("y_i = sum[j : j](A_<i j>)", "E-DTYPE", ["j"]),
    ("y_i = where(x_i + 1, x_i, 0)", "E-DTYPE", ["x_i + 1"]),
    ("y_i = not 2 x_i", "E-DTYPE", ["2 x_i"]),
    ("y_i = delta_<i, i+1>", "E-SYNTAX", ["delta_<i, i+1>"]),
    ("y_i = entmax[j](A_<i j>) x_j", "E-SYNTAX", ["entmax[j](A_<i j>)"]),
    ("y_i = sum[j; 2](A_<i j>)", "E-SYNTAX", ["2"]),
    ("y_i = top[j; 2.5](A_<i j>) x_j", "E-SYNTAX", ["2.5"]),
    ("y_i = top[j; -1](A_<i j>) x_j", "E-SYNTAX", ["-1"]),
    ("y_i = entmax[j; 0.5](A_<i j>) x_j", "E-SYNTAX", ["0.5"]),
    ("y_i = softmax[j; eps=2](A_<i j>) x_j", "E-SYNTAX", ["2"]),
    ("y_<0> = x_<0>", "E-SYNTAX", ["0"]),
    ("y_<... i> = x_<i ...>", "E-BATCH", ["..."]),
    ("y^mu_<... i> = x^<... mu>_i", "E-BATCH", ["..."]),
    ("y_i = x_<... i>", "E-BATCH", ["..."]),
    ("y_<... i> = x_<... i> x_i", "E-BATCH", ["x_<... i>", "x_i"]),
    ("y_i = y_i + x_i", "E-RECUR", ["y", "y"]),
    ("y_i = x_i; y_i = y_i + 1", "E-RECUR", ["y", "y"]),
    ("y_i = x_<y_i>", "E-RECUR", ["y", "y"]),
    ("z_i = y_i; y_i = x_i", "E-REDEF", ["y"]),
    ("y_i = x_i; y_i = z_i", "E-REDEF", ["y", "y"]),
    ("y = delta_<i j> c_i d_j; delta_<i j> = a_i b_j", "E-REDEF", ["delta"]),
    ("out_i x_i", "E-NAME", ["out"]),
    ("a_i; b_i", "E-SYNTAX", ["a_i"]),
]


@pytest.mark.parametrize(("text", "expected", "places"), REFUSED)
def test_refused(text: str, expected: str, places: list[str]) -> None:
    assert code(text) == expected
    assert carets(text) == places


def test_upper_and_lower_mean_the_same() -> None:
    same("y_i = A^i_j x^j", "y_i = A_j^i x^j")
    one, other = ta.parse("y_i = A_<i j> x_j"), ta.parse("y^i = A^i_j x^j")
    assert one != other  # they print differently
    assert one.statements[0].axes == other.statements[0].axes
    assert [t.slots for t in one.tensors] == [t.slots for t in other.tensors]


@pytest.mark.parametrize(
    ("echoed", "plain"),
    [
        ("y^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n", "y^mu_n = W^<mu bar(nu)> v^nu_n"),
        ("y^n = S^<n bar(i j)> T^<bar(j i) n>", "y^n = S^<n bar(i j)> T^<j i n>"),
        ("y^n = g^<n bar(i)> T^<n bar(i) bar(j)> e^<n j>", "y^n = g^<n bar(i)> T^<n i bar(j)> e^<n j>"),
        ("y_i = (S_<i bar(j)> a_i) v_<bar(j)>", "y_i = softmax[j](S_<i j>) a_i v_j"),
        (
            "y_i = S_<i bar(j)> v_<bar(j)> + T_<i bar(j)> u_<bar(j)>",
            "y_i = softmax[j](S_<i j>) v_j + softmax[j](T_<i j>) u_j",
        ),
    ],
)
def test_an_echo_has_no_effect(echoed: str, plain: str) -> None:
    same(echoed, plain)


def test_a_bar_is_a_softmax_over_its_group() -> None:
    same("y^mu = W^<mu bar(nu rho)> v^<nu rho>", "y^mu = softmax[nu rho](W^<mu nu rho>) v^<nu rho>")
    same("y_i = S_<i bar(j : j <= i)> v_j", "y_i = softmax[j : j <= i](S_<i j>) v_j")
    assert ta.parse("y_i = W_<i bar(j k)> v_<j k>") != ta.parse("y_i = softmax[j](softmax[k](W_<i j k>)) v_<j k>")


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("W^<mu bar(nu rho)> v^<bar(nu rho)>_n", "mu n | 1"),
        ("W^<mu bar(nu)>", "mu nu | 2"),
        ("(W^<mu bar(nu)>)", "mu nu | 2"),
        ("softmax[nu](W^<mu nu>)", "mu nu | 2"),
        ("softmax[mu](W^<mu nu>)", "mu nu | 2"),
        ("x_j y^i", "i j | 1"),
        ("x_j^i y^k", "i k j | 2"),
        ("x_i + y_j", "i j | 0"),
        ("a_i b_j + b_j c_i", "i j | 0"),
        ("a_<i j> b_j + c_i", "i | 0"),
        ("v^nu_n W^<mu bar(nu)>", "mu n | 1"),
        ("x_<... i> w_<i j>", "... j | 0"),
        ("x^<... i> w_<i j>", "... j | 0"),
        ("x_<(h d)>", "h d | 0"),
        ("x_<i+j> + w_j", "j | 0"),
        ("A_<i i>", " | 0"),
        ("x_<t_i> z_j", "i j | 0"),
        ("exp(x_i)", "i | 0"),
        ("sum[j : j <= k](x^j) y^k", " | 0"),
        ("3", " | 0"),
    ],
)
def test_the_outputs_of_a_bare_expression(text: str, wanted: str) -> None:
    assert axes(text) == wanted
    assert ta.parse(text).defined == ("out",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a_i b_i + c_i", "E-SCOPE"),
        ("W^<mu bar(nu)> + a", "E-DANGLING"),
        ("exp(W^<mu bar(nu)>) a", "E-DANGLING"),
        ("x_i + i", "E-NAME"),
        ("sum[i](x_i) y_i", "E-SHADOW"),
    ],
)
def test_bare_expressions_that_are_refused(text: str, expected: str) -> None:
    assert code(text) == expected


def test_scalars_and_positions() -> None:
    assert ta.parse("y_i = j x_i").inputs == ("j", "x")
    assert ta.parse("y_i = j x_<i+j>").inputs == ("j", "x")
    assert ta.parse("y_i = i x_i").inputs == ("x",)
    assert code("y_i = x_i j; w = x_j u_j") == "E-NAME"


def test_index_names_are_local_for_binding() -> None:
    program = ta.parse("y_i = A_<i j> x_j\nz_j = A_<j i> x_i\nw = y_i z_i")
    assert program.inputs == ("A", "x")
    assert program.defined == ("y", "z", "w")
    assert program.indices == ("i", "j")


def test_a_constant_that_a_statement_takes_over_is_a_tensor() -> None:
    assert ta.parse("delta_<i j> = a_i b_j; y_j = delta_<i j> c_i").inputs == ("a", "b", "c")
    assert [t.name for t in ta.parse("y_j = delta_<i j> c_i").tensors] == ["c"]
    assert ta.parse("y_i = epsilon_<i j k> a_j b_k") == ta.parse("y_i = eps_<i j k> a_j b_k")
    assert ta.parse("y_i = epsilon x_i").inputs == ("epsilon", "x")
