"""TeX's numbers, fractions, roots and sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorattn.source import Span
from tensorattn.spelling import macros, tex
from tensorattn.spelling.naming import starts_name, take_name
from tensorattn.spelling.tex import Cursor, Node

if TYPE_CHECKING:
    from tensorattn.spelling.latex import Formula


def starts_number(cursor: Cursor) -> bool:
    """Whether a number begins here."""
    node, after = cursor.peek(), cursor.peek(1)
    return is_digit(node) or (node is not None and node.text == "." and is_digit(after))


def number(formula: Formula, cursor: Cursor) -> None:
    """`2`, `0.5`, `1e-6`."""
    start, text = cursor.place, cursor.take().text
    while _goes_on(cursor, text):
        text += cursor.take().text
    exponent = tex.exponent(cursor)
    cursor.at += len(exponent)
    formula.operand(text + exponent, Span(start, cursor.behind))
    if cursor.sees("^", "_"):
        power = cursor.sees("^")
        what, hint = f"a script at the number {text}", rf"write the index at a name, \mathrm{{x{text}}}_{{i}}"
        if power:
            hint = rf"a power stands at a bracket: \left({text}\right)^{{…}}"
        formula.drop_script(cursor, "E-POWER" if power else "E-SYNTAX", what, hint)


def _goes_on(cursor: Cursor, text: str) -> bool:
    node = cursor.peek()
    if node is None or node.spaced:
        return False
    return is_digit(node) or (node.text == "." and "." not in text and is_digit(cursor.peek(1)))


def fraction(formula: Formula, cursor: Cursor) -> None:
    r"""`\frac{a}{b}`, `\frac12`."""
    macro = cursor.take()
    above, below = cursor.argument(), cursor.argument()
    if above is None or below is None:
        what = f"`{macro.text}` takes two arguments"
        formula.writer.complain("E-SYNTAX", what, macro.span, rf"write {macro.text}{{a}}{{b}}")
        return
    formula.writer.apart("(", macro.span)
    formula.argument(above)
    formula.writer.put(" / ", Span(below.span.start, below.span.start))
    formula.argument(below)
    formula.writer.put(")", Span(below.span.end, below.span.end))
    formula.after_operand = True
    formula.power(cursor)


def root(formula: Formula, cursor: Cursor) -> None:
    r"""`\sqrt{x}`."""
    macro = cursor.take()
    if cursor.sees("["):
        hint = r"write a power: \left(x\right)^{1/3}"
        formula.writer.complain("E-POWER", "a root other than the square root", cursor.take().span, hint)
        while cursor.peek() is not None and not cursor.sees("]"):
            cursor.take()
        cursor.argument()
    argument = cursor.argument()
    if argument is None:
        formula.writer.complain("E-SYNTAX", f"nothing follows `{macro.text}`", macro.span, r"write \sqrt{x}")
        return
    formula.operand("sqrt", macro.span)
    formula.argument(argument)
    formula.power(cursor)


def extent(formula: Formula, cursor: Cursor) -> None:
    """`|d|`."""
    line = cursor.take()
    named = take_name(cursor, formula.writer) if starts_name(cursor.peek()) else None
    if named is None or not cursor.sees(*macros.LINES):
        what = "`|…|` is the size of one index"
        formula.writer.put("1", line.span)  # the rest can be read on
        formula.writer.complain(
            "E-SYNTAX", what, line.span, r"write |d|; the absolute value is \mathrm{abs}\left(…\right)"
        )
        return
    formula.writer.put("|", line.span)
    formula.writer.put(named.text, named.span)
    formula.writer.put("|", cursor.take().span)


def is_digit(node: Node | None) -> bool:
    """Whether it is one of the ten digits."""
    return node is not None and node.kind == "char" and node.text.isascii() and node.text.isdigit()
