"""Formulas and inputs that must be refused; see `field_cases`."""

from __future__ import annotations

from tests.field_cases import ATTEND, Refusal, full, given, normal

REFUSALS = (
    Refusal(
        "echoes-of-a-part-of-the-group",
        "y^k_d = S^<k bar(l m)> u^<bar(l)>_d w^<bar(m)>_d",
        {"S": normal(3, 4, 4), "u": normal(4, 2), "w": normal(4, 2)},
        "E-ECHO",
        ("l", "S"),
    ),
    Refusal(
        "the-value-before-the-weights",
        "y^mu_n = v^<bar(nu)>_n W^<mu bar(nu)>",
        {"W": normal(3, 4), "v": normal(4, 2)},
        "E-ECHO",
        ("nu", "W"),
    ),
    Refusal("output-repeats-an-index", "y^<mu nu mu> = x^<mu nu>", {"x": normal(2, 3)}, "E-LHSDUP", ("mu",)),
    Refusal("output-repeats-in-both-groups", "y^i_i = x^i", {"x": normal(2)}, "E-LHSDUP", ("i",)),
    Refusal(
        "a-misspelt-index", "y^o = W^<o inp> x^<inpp>", {"W": full(3, 2), "x": full(2)}, "E-DANGLING", ("inp", "inpp")
    ),
    Refusal(
        "a-misspelt-greek-index", "y_i = A_<i nu> x_mu", {"A": full(3, 2), "x": full(2)}, "E-DANGLING", ("nu", "mu")
    ),
    Refusal("an-index-of-the-result-only", "y^<mu nu> = x^mu", {"x": normal(3)}, "E-UNDETERMINED", ("nu", "y")),
    Refusal("a-reserved-result", "bar^mu = W^<mu nu> x^nu", {}, "E-RESERVED", ("bar",)),
    Refusal("a-reserved-input", "y^mu = sqrt^<mu nu> x^nu", {}, "E-RESERVED", ("sqrt",)),
    Refusal("a-reserved-index", "y = x_<max> x_<max>", {}, "E-RESERVED", ("max",)),
    Refusal(
        "sizes-of-a-repeated-index",
        "s = P^<a a b c b> Q^<a b c>",
        {"P": full(3, 3, 4, 5, 6), "Q": full(3, 4, 5)},
        "E-EXTENT",
        ("b", "P", "4", "6"),
    ),
    Refusal("one-name-two-sizes", "y^<b c> = x^<b b c>", {"x": full(10, 20, 30)}, "E-EXTENT", ("b", "10", "20")),
    Refusal(
        "a-stretched-axis",
        "y^mu_n = W^<mu nu> v^nu_n",
        {"W": normal(3, 4), "v": normal(1, 2)},
        "E-EXTENT",
        ("nu", "4", "1"),
    ),
    Refusal(
        "keys-and-values-of-other-lengths",
        ATTEND,
        {"q": normal(3, 8), "k": normal(5, 8), "v": normal(6, 4)},
        "E-EXTENT",
        ("nu", "k", "v", "5", "6"),
    ),
    Refusal(
        "batch-axes-that-disagree",
        "z^<... n> = x^<... n> y^<... n>",
        {"x": normal(3, 4, 2), "y": normal(5, 2)},
        "E-BATCH",
        ("x", "y"),
    ),
    Refusal("too-many-axes", "y = a^i b^i", {"a": normal(2, 4), "b": normal(4)}, "E-RANK", ("a", "1", "2")),
    Refusal(
        "a-weighted-adjacency-as-a-mask",
        "y^i_n = S^<i bar(j : a^<i j>)> v^<bar(j)>_n",
        {"S": normal(3, 3), "v": normal(3, 2), "a": given([[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]])},
        "E-DTYPE",
        ("a", "bool"),
    ),
    Refusal(
        "an-integer-mask",
        "y_i = sum[j : m_<i j>](x_j)",
        {"m": given([[1, 0]], "int64"), "x": normal(2)},
        "E-DTYPE",
        ("m", "bool"),
    ),
    Refusal(
        "a-floating-index-tensor",
        "y_i = x_<a_i>",
        {"x": normal(3), "a": given([0.0, 1.0])},
        "E-DTYPE",
        ("a", "float64"),
    ),
    Refusal("a-complex-input", "y = x_i x_i", {"x": given([1j, 2], "complex128")}, "E-DTYPE", ("x", "complex")),
    Refusal(
        "a-position-past-the-end", "y_i = x_<a_i>", {"x": normal(3), "a": given([0, 3], "int64")}, "E-RANGE", ("x", "3")
    ),
    Refusal(
        "a-negative-position", "y_i = x_<a_i>", {"x": normal(3), "a": given([0, -1], "int64")}, "E-RANGE", ("x", "-1")
    ),
    Refusal("a-missing-input", "y_i = A_<i j> x_j", {"A": normal(2, 3)}, "E-INPUT", ("x",)),
    Refusal("a-width-that-does-not-divide", "y_<h d> = x_<(h d)>", {"x": normal(7)}, "E-EXTENT", ("sizes",)),
)

TEXTS = (
    ("the-same-weights-twice", "y_i = W_<i bar(j)> W_<i bar(j)> v_j", "E-ECHO"),
    ("an-echo-in-a-call", "y_i = W_<i bar(j)> exp(v_<bar(j)>)", "E-ECHO"),
    ("an-echo-in-a-power", "y_i = W_<i bar(j)> v_<bar(j)>**2", "E-ECHO"),
    ("a-bar-inside-a-normaliser", "y_i = softmax[j](W_<i bar(j)>) v_j", "E-ECHO"),
    ("a-bar-beside-a-normaliser", "y_i = W_<i bar(j)> softmax[j](v_j)", "E-ECHO"),
    ("a-repeated-condition", "y_i = W_<i bar(j : j <= i)> v_<bar(j : j <= i)>", "E-ECHO"),
    ("two-bars-on-one-tensor", "y_i = W_<i bar(j) bar(k)> v_<j k>", "E-2BARS"),
    ("a-bar-that-nothing-meets", "y_i = W_<i bar(j)>", "E-DANGLING"),
    ("an-index-twice-under-a-bar", "y_i = W_<i bar(j j)> v_j", "E-LHSDUP"),
    ("an-index-twice-in-a-binder", "y_i = sum[j j](W_<i j>)", "E-LHSDUP"),
    ("a-bar-on-the-left", "y_<bar(i)> = x_i", "E-LHSBAR"),
    ("a-product-after-a-division", "y_i = a_i / b_i c_i", "E-DIV"),
    ("a-digit-above", "y_i = K^2_i", "E-POWER"),
    ("two-upper-groups", "y_<i j> = K^i^j", "E-DOUBLE"),
    ("an-unknown-function", "y_i = f(x_i)", "E-CALL"),
    ("braces", "y_{i = x_i", "E-BRACE"),
    ("defined-twice", "y_i = x_i\ny_i = x_i", "E-REDEF"),
    ("defined-by-itself", "y_i = y_i", "E-RECUR"),
    ("arithmetic-without-commas", "y_<h i j> = x_<h i-j+1>", "E-SEP"),
    ("a-rebound-index", "y_i = sum[j](sum[j](x_<i j>))", "E-SHADOW"),
    ("a-score-without-its-index", "y_i = softmax[j](x_i) v_j", "E-NORMIDX"),
    ("a-size-written-as-a-name", "y = q_d k_d / sqrt(d)", "E-NAME"),
    ("two-letters-below", "y_i = M_ij x_j", "E-RUN"),
    ("a-sum-reused-outside", "y_i = (A_<i j> x_j) z_j", "E-SCOPE"),
    ("early-contraction", "y_i = k_<i d> q_<bar(j) d> v_j", "E-PRECONTRACT"),
    ("an-operator-at-a-line's-start", "y_i = 2 x_i\n + z_i", "E-SYNTAX"),
    ("an-open-bracket", "y_i = (x_i", "E-SYNTAX"),
    ("a-merged-index-twice", "y_<t (h h)> = x_<h t>", "E-LHSDUP"),
)
