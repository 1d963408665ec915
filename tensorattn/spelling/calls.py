"""Functions and binders in LaTeX, and the bracket that they are called with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorattn.ir import FUNCTIONS
from tensorattn.source import Span
from tensorattn.spelling import macros
from tensorattn.spelling.letters import GREEK_MACROS
from tensorattn.spelling.tex import Cursor, Group, Node, Token, contents

if TYPE_CHECKING:
    from tensorattn.spelling.latex import Formula

LONGEST_BINDER = 500  # tokens between square brackets


def letters_here(cursor: Cursor) -> str:
    """The letters and digits in a row here, without a space between."""
    run = ""
    while (node := cursor.peek(len(run))) is not None and node.kind == "char" and node.text.isascii():
        if not node.text.isalnum() or (run and node.spaced):
            break
        run += node.text
    return run if run[:1].isalpha() else ""


def is_known(cursor: Cursor) -> bool:
    """Whether a word of the language stands here, as letters or as a macro."""
    node = cursor.peek()
    assert node is not None
    return letters_here(cursor) in macros.KNOWN or node.text in macros.KNOWN_MACROS


def _known_word(cursor: Cursor) -> tuple[str, Span]:
    start, run = cursor.place, letters_here(cursor)
    word = run or cursor.peek().text[1:]  # type: ignore[union-attr]
    cursor.at += len(run) or 1
    return macros.KNOWN[word], Span(start, cursor.behind)


def known(formula: Formula, cursor: Cursor) -> None:
    """A known word and what it is called with."""
    call(formula, cursor, *_known_word(cursor))


def call(formula: Formula, cursor: Cursor, word: str, span: Span) -> None:
    """A function, a binder or a logical word that has just been read."""
    if word in ("and", "or", "not"):
        if word != "not":
            formula.end_sums(formula.levels[-1], span.start)
        formula.operator(word, span)
        return
    formula.operand(word, span)
    if word in FUNCTIONS:
        if cursor.sees("^", "_"):
            what, hint = (
                f"`{word}` takes no script",
                rf"a power of it: \left(\mathrm{{{word}}}\left(…\right)\right)^{{2}}",
            )
            formula.drop_script(cursor, "E-POWER" if cursor.sees("^") else "E-CALL", what, hint)
    elif cursor.sees("_"):
        cursor.take()
        argument = cursor.argument()
        formula.scripts.binder(contents(argument) if argument is not None else Cursor((), cursor.behind))
    elif inside := _plain_binder(cursor):
        formula.scripts.binder(inside)
    else:
        hint = rf"name the indices it runs over: \mathrm{{{word}}}_{{j}}\left(…\right)"
        if word in ("max", "min"):
            hint += rf"; of two values: \mathrm{{{word}imum}}\left(a, b\right)"
        formula.writer.complain("E-AXIS", f"`{word}` names no axis", span, hint)
    _body(formula, cursor, word, span)


def _body(formula: Formula, cursor: Cursor, word: str, span: Span) -> None:
    """The bracket behind a function or a binder."""
    node = cursor.peek()
    if node is not None and node.text in macros.OPENING:
        formula.open_bracket(cursor)
    elif isinstance(node, Group):
        formula.argument(cursor.take())
        formula.power(cursor)
    else:
        what, hint = f"nothing shows how far `{word}` reaches", rf"write brackets: \mathrm{{{word}}}…\left(…\right)"
        formula.writer.complain("E-CALL", what, span, hint)


def _plain_binder(cursor: Cursor) -> Cursor | None:
    """`[j : j <= i]` before a bracket, as the plain notation and our messages write it."""
    if not cursor.sees("["):
        return None
    depth = 0
    for ahead, node in enumerate(cursor.nodes[cursor.at : cursor.at + LONGEST_BINDER]):
        depth += (node.text == "[") - (node.text == "]")
        if depth == 0:
            after = cursor.peek(ahead + 1)
            if after is None or after.text not in macros.OPENING:
                return None
            inside = _plain_words(cursor.nodes[cursor.at + 1 : cursor.at + ahead])
            if inside is None:
                return None
            cursor.at += ahead + 1
            return Cursor(inside, node.span.start)
    return None


def _plain_words(nodes: tuple[Node, ...]) -> tuple[Node, ...] | None:
    """The nodes of a plain binder with the names of Greek letters as macros; None where other words stand there."""
    found: list[Node] = []
    cursor = Cursor(nodes, 0)
    while cursor.peek() is not None:
        run = letters_here(cursor)
        start = cursor.take()
        if len(run) > 1:
            cursor.at += len(run) - 1
            start = Token("macro", f"\\{run}", Span(start.span.start, cursor.behind), start.spaced)
            if start.text not in GREEK_MACROS:
                return None
        found.append(start)
        if start.text in (":", ";"):
            return (*found, *nodes[cursor.at :])
    return tuple(found)
