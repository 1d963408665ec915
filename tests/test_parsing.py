"""The lexical rules, the grammar file, and precedence."""

from __future__ import annotations

import re
import warnings

import pytest
from lark import Lark

import tensorattn as ta
from tensorattn.parsing import grammar_text
from tensorattn.scanning import GREEK, RESERVED, is_one_index

GRAMMAR = grammar_text()


def code(text: str) -> str:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(text)
    return caught.value.code


def same(*texts: str) -> None:
    first, *others = (ta.parse(text) for text in texts)
    for other in others:
        assert other == first


# 1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", ["i", "Z", "j1", "i'", "j12''", "mu", "Mu", "nu2", "omega'", "epsilon"])
def test_one_index_needs_no_brackets(index: str) -> None:
    assert is_one_index(index)
    same(f"y_{index} = x^{index}", f"y_<{index}> = x^<{index}>")
    assert str(ta.parse(f"y_<{index}> = x^<{index}>")) == f"y_{index} = x^{index}"


@pytest.mark.parametrize("index", ["ij", "munu", "seq", "i1j", "mu2a", "alphabet"])
def test_a_longer_run_is_refused_with_both_fixes(index: str) -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(f"y = M_{index} N_<{index}>")
    assert caught.value.code == "E-RUN"
    assert f"M_<{index}> (one index named {index})" in str(caught.value.hint)
    assert re.search(r"M_<\w+ [\w ]+>", str(caught.value.hint))
    assert ta.parse(f"y_<{index}> = M_<{index}>").indices == (index,)


def test_all_greek_names_are_one_index() -> None:
    assert len(GREEK) == 24
    assert all(is_one_index(name) for name in GREEK)


# 2 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["y^ mu = x^mu", "y_i = x_ i", "y_i = x_\ti", "y_i = x_ <i>", "y_i = x^\n<i>"])
def test_no_space_follows_a_caret_or_an_underscore(text: str) -> None:
    assert code(text) == "E-SYNTAX"


def test_words_are_read_whole() -> None:
    program = ta.parse("y_i = organ_i andy_i nota_i export_i barred_i + or1_i")
    assert program.inputs == ("organ", "andy", "nota", "export", "barred", "or1")
    assert code("y_i = a_b_i") == "E-DOUBLE"


def test_white_space_is_free_elsewhere() -> None:
    same("y_i=a_i*(b_i+1)/c_<i>", "  y_i =\ta_i  * ( b_i + 1 ) / c_< i >", "y_< i > =\na_i *\n(\nb_i\n+ 1) /\nc_i")
    same("y_<i j> = x_i z_j", "y_<i,j>=x_i z_j", "y_<i , j> = x_i  z_j")


# 3 ---------------------------------------------------------------------------------------------------------------


def test_groups_with_arithmetic_need_commas() -> None:
    assert code("A_<h i j> = R_<h i-j+|j|-1>") == "E-SEP"
    assert code("A_<h i> = R_<h 2*i>") == "E-SEP"
    assert code("A_<h i> = R_<-1 h i>") == "E-SEP"
    assert code("A_<h i> = R_<h, i i+1>") == "E-SEP"
    assert code("A_<h i> = R_<h 2i>") == "E-SEP"
    assert str(ta.parse("A_<h i j> = R_<h, i-j+|j|-1>")) == "A_<h i j> = R_<h, i-j+|j|-1>"
    same("A_<h i> = R_<h 0 i>", "A_<h i> = R_<h, 0, i>")
    same("A_<h i> = R_<h t_i>", "A_<h i> = R_<h, t_i>")


def test_a_slot_that_begins_with_a_sign_comes_first_or_after_a_comma() -> None:
    (one,) = (t for t in ta.parse("A_h = R_<h -1>").tensors)
    (two,) = (t for t in ta.parse("A_h = R_<h, -1>").tensors)
    assert (len(one.slots), len(two.slots)) == (1, 2)
    same("A_h = R_<h -1>", "A_h = R_<h-1>")
    same("A_i = R_<-i+3>", "A_i = R_<3-i>")


# 4 ---------------------------------------------------------------------------------------------------------------


def test_where_the_innermost_bracket_is_a_group_a_greater_sign_closes_it() -> None:
    same("y_<i>=x_<i>", "y_i = x_i")
    same("y_i = x_<i>>=0", "y_i = x_i >= 0")
    same("y_i = x_<i>>0", "y_i = x_i > 0")
    same("y_i = S_<i bar(j : j>i)> v_j", "y_i = S_<i bar(j:(j > i))> v_j")
    same("y_i = sum[j : a_<i j>>b_<i>](x_j)", "y_i = sum[j : a_<i j> > b_i](x_j)")
    same("y_i = S_<i bar(j : a_<i j> >= 2)> v_j", "y_i = S_<i bar(j : a_<i j>>=2)> v_j")


@pytest.mark.parametrize("sign", ["<", "<=", ">", ">=", "==", "!="])
def test_elsewhere_the_signs_compare(sign: str) -> None:
    same(f"y_i = a_i {sign} b_i", f"y_i = a_<i>{sign}b_<i>", f"y_i = (a_i {sign} b_i)")


# 5 ---------------------------------------------------------------------------------------------------------------


def test_numbers() -> None:
    same("y_i = 2x_i", "y_i = 2 x_i", "y_i = 2 * x_i", "y_i = 2*x_i")
    same("y_i = 0.5x_i", "y_i = .5 x_i", "y_i = 5e-1 x_i")
    same("y_i = 1e-06 x_i", "y_i = 0.000001 x_i", "y_i = 1E-6x_i")
    assert ta.parse("y_i = 2 x_i") != ta.parse("y_i = 2.0 x_i")
    for text in ("x_<i>2", "x_i 2", "x_i**2 3", "1 000 x_i", "(x_i) 3", "|i| 3", "2 3 x_i", "1.2.3 x_i"):
        assert code(f"y_i = {text}") == "E-SYNTAX"
    assert code("y_i = 1234567890123456 x_i") == "E-LIMIT"
    assert code("y_i = 1e400 x_i") == "E-LIMIT"
    assert str(ta.parse("y_i = 123456789012345 x_i")) == "y_i = 123456789012345 x_i"


def test_a_name_before_a_bracket_is_a_call() -> None:
    assert code("y_i = beta(a_i + b_i)") == "E-CALL"
    assert code("y_i = beta (a_i + b_i)") == "E-CALL"
    assert code("y_i = foo[i](a_i)") == "E-CALL"
    same("y_h = u_h (x_h + a)", "y_h = u_h * (x_h + a)", "y_h = u_<h>(x_h + a)")
    same("y_i = beta * (a_i + b_i)", "y_i = beta*(a_i + b_i)")
    same("y_i = (a_i)(b_i)", "y_i = a_i b_i")
    same("y_i = exp (a_i)", "y_i = exp(a_i)")


@pytest.mark.parametrize(
    "call", ["exp()", "exp(a_i, b_i)", "maximum(a_i)", "where(a_i > 0, b_i)", "leaky_relu(a_i, 1, 2)"]
)
def test_the_number_of_arguments(call: str) -> None:
    assert code(f"y_i = {call}") in ("E-CALL", "E-SYNTAX")


# 6, 7 ------------------------------------------------------------------------------------------------------------


def test_names_may_be_keywords_of_python() -> None:
    program = ta.parse("y_i = lambda_i as_i class * None")
    assert program.inputs == ("lambda", "as", "class", "None")
    assert ta.compile(program)({"lambda": [1.0], "as": [2.0], "class": 3.0, "None": 4.0}).tolist() == [24.0]


@pytest.mark.parametrize("word", sorted(RESERVED))
def test_reserved_words_name_nothing(word: str) -> None:
    assert code(f"y_i = {word}_i") == "E-RESERVED"
    assert code(f"{word}_i = x_i") == "E-RESERVED"
    assert code(f"y_<{word}> = x_<{word}>") == "E-RESERVED"
    if "_" not in word:  # else the grammar sees two words
        assert code(f"y^{word} = x^{word}") == "E-RESERVED"
        assert code(f"y = sum[{word}](x)") == "E-RESERVED"
        assert code(f"y = |{word}|") == "E-RESERVED"


@pytest.mark.parametrize("word", ["bar", "and", "or"])
def test_reserved_words_are_no_values(word: str) -> None:
    assert code(f"y = {word}") == "E-RESERVED"


# 8 ---------------------------------------------------------------------------------------------------------------


def test_statements_end_at_a_newline_or_a_semicolon() -> None:
    wanted = "a_i = b_i\nc_i = a_i"
    same(wanted, "a_i = b_i; c_i = a_i", "\n\n a_i = b_i ;;\n;\n c_i = a_i;\n", "a_i = b_i\r\nc_i = a_i\r\n")
    same(wanted, "# one\na_i = b_i # two; z = 3\n# { three }\nc_i = a_i #")


def test_newlines_within_brackets_end_nothing() -> None:
    same("y_i = sum[j : j < i](x_j) + (a_i + b_i)", "y_<\ni\n> = sum[j\n:\nj < i\n](\nx_j) + (a_i\n + b_i)")
    assert code("y_i = (a_i; b_i)") == "E-SYNTAX"


@pytest.mark.parametrize("end", ["+", "-", "*", "/", "**", "<", "==", "and", "or", "and not"])
def test_a_line_goes_on_after_an_operator(end: str) -> None:
    same(f"y_i = a_i {end}\n  b_i", f"y_i = a_i {end} b_i", f"y_i = a_i {end} # why\n\n b_i")


def test_a_line_goes_on_after_an_equals_sign() -> None:
    same("y_i =\n a_i", "y_i = a_i")


@pytest.mark.parametrize("begin", ["+", "-", "*", "/", "**", "<", "and", "or"])
def test_a_line_that_begins_with_an_operator_is_refused(begin: str) -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(f"y_i = a_i\n  {begin} b_i")
    assert caught.value.code == "E-SYNTAX"
    assert "begins with" in caught.value.what


# the grammar -----------------------------------------------------------------------------------------------------


def test_the_grammar_is_lalr_without_a_conflict(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(), caplog.at_level("DEBUG", logger="lark"):
        warnings.simplefilter("error")
        parser = Lark(GRAMMAR, parser="lalr", lexer="contextual", postlex=_Keep(), debug=True, maybe_placeholders=False)
    assert not [r.message for r in caplog.records if "onflict" in r.getMessage()]
    assert parser.terminals


def test_a_conflict_would_be_noticed() -> None:
    from lark.exceptions import GrammarError

    with pytest.raises(GrammarError):
        Lark('start: a | b\na: "x"\nb: "x"', parser="lalr")


class _Keep:
    always_accept = ("NEWLINE",)

    def process(self, stream: object) -> object:
        return stream


def examples() -> dict[str, list[str]]:
    """Each rule with the comment lines above it, pieces of formulas that it reads, two spaces apart."""
    found: dict[str, list[str]] = {}
    above: list[str] = []
    for line in GRAMMAR.splitlines():
        if line.startswith("// "):
            above.append(line[3:])
        elif match := re.match(r"\??([a-z_]+):", line):
            found[match.group(1)] = above
            above = []
        elif not line:
            above = []
    return found


def test_every_rule_stands_under_an_example_that_it_reads() -> None:
    shown = examples()
    rules = set(re.findall(r"^\??([a-z][a-z_]*):", GRAMMAR, re.MULTILINE))
    assert rules <= shown.keys()
    for rule in rules:
        (line,) = shown[rule][-1:]
        parser = Lark(GRAMMAR, start=rule, parser="lalr", lexer="contextual", postlex=_Keep(), maybe_placeholders=False)
        for example in re.split(r" {4,}", line):
            parser.parse(example)


# precedence ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "bracketed"),
    [
        ("-x_i**2", "-(x_i**2)"),
        ("2 x_i**2", "2 (x_i**2)"),
        ("a_i b_i / c_i * d_i", "((a_i b_i) / c_i) * d_i"),
        ("a_i / b_i / c_i", "(a_i / b_i) / c_i"),
        ("a_i * b_i + c_i", "(a_i * b_i) + c_i"),
        ("a_i - b_i - c_i", "(a_i - b_i) - c_i"),
        ("-a_i b_i", "-(a_i b_i)"),
        ("a_i + b_i < c_i d_i", "(a_i + b_i) < (c_i d_i)"),
        ("not a_i < b_i", "not (a_i < b_i)"),
        ("not a_i and b_i", "(not a_i) and b_i"),
        ("a_i or b_i and c_i", "a_i or (b_i and c_i)"),
        ("a_i < b_i <= c_i", "(a_i < b_i) and (b_i <= c_i)"),
        ("a_i < b_i == c_i > d_i", "a_i < b_i and b_i == c_i and c_i > d_i"),
        ("x_i**-2", "x_i**(-2)"),
        ("x_i**-a_i", "x_i**(-a_i)"),
        ("|i|**2 x_i", "(|i|**2) x_i"),
        ("exp(a_i)**2", "(exp(a_i))**2"),
    ],
)
def test_precedence(text: str, bracketed: str) -> None:
    same(f"y_i = {text}", f"y_i = {bracketed}")


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("-x_i**2", "(-x_i)**2"),
        ("a_i - b_i - c_i", "a_i - (b_i - c_i)"),
        ("a_i / b_i / c_i", "a_i / (b_i / c_i)"),
        ("a_i / b_i * c_i", "a_i / (b_i c_i)"),
        ("not a_i and b_i", "not (a_i and b_i)"),
        ("a_i or b_i and c_i", "(a_i or b_i) and c_i"),
        ("(a_i < b_i) < c_i", "a_i < b_i < c_i"),
    ],
)
def test_brackets_that_matter(text: str, other: str) -> None:
    assert ta.parse(f"y_i = {text}") != ta.parse(f"y_i = {other}")


def test_what_has_two_readings_is_refused() -> None:
    assert code("y_i = a_i / b_i c_i") == "E-DIV"
    assert code("y_i = a_i * b_i / c_i d_i") == "E-DIV"
    assert code("y_i = a_i**b_i**c_i") == "E-SYNTAX"
    assert code("y_i = a_i * -b_i") == "E-SYNTAX"
    assert code("y_i = - -a_i") == "E-SYNTAX"
