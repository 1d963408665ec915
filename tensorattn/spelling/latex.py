"""LaTeX → canonical: statements and expressions. Scripts are read in `scripts.py`, names in `naming.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensorattn.scanning import DEEPEST_BRACKETS
from tensorattn.source import Source, Span
from tensorattn.spelling import calls, letters, macros, operands, tex
from tensorattn.spelling.displays import displays
from tensorattn.spelling.doubts import Doubts
from tensorattn.spelling.naming import Named, starts_name, take_name
from tensorattn.spelling.origins import Reading, Writer
from tensorattn.spelling.scripts import Scripts
from tensorattn.spelling.sums import Sums
from tensorattn.spelling.tex import Cursor, Group, Node, contents
from tensorattn.spelling.unicode import refused_sign

SHORTEST_WORD = 4  # that many letters in a row, no known word among them, are no product


def read_latex(source: Source) -> Reading:
    """The canonical pieces of a LaTeX text."""
    writer = Writer(source)
    nodes = tex.groups(tex.tokens(source.text, writer.complain), writer.complain)
    formula = Formula(writer)
    for stretch in displays(nodes, writer, len(source.text)):
        formula.statements(stretch)
    formula.sums.settle()
    formula.doubts.settle()
    return writer.reading()


@dataclass(slots=True)
class _Level:
    """An open bracket (the outermost has none), and the sums that reach to the end of its present term."""

    opener: Node | None = None
    sums: int = 0


class Formula:
    """Reads nodes into the pieces of `writer`."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.levels = [_Level()]
        self.after_operand = False
        self.in_statement = False
        self.scripts = Scripts(self)
        self.sums = Sums(self)
        self.doubts = Doubts(self)

    def statements(self, cursor: Cursor) -> None:
        """All statements of a display."""
        self.in_statement = True
        self._read(cursor, ())
        self.writer.put("\n", Span(cursor.end, cursor.end))
        self.after_operand = False

    def expression(self, cursor: Cursor, stops: tuple[str, ...] = ()) -> None:
        """An expression inside something else: up to one of `stops`, or to the end."""
        outer = self.levels, self.in_statement
        self.levels, self.in_statement, self.after_operand = [_Level()], False, False
        self._read(cursor, stops)
        self.levels, self.in_statement = outer

    def _read(self, cursor: Cursor, stops: tuple[str, ...]) -> None:
        while (node := cursor.peek()) is not None:
            if (len(self.levels) == 1 and node.text in stops) or self.writer.is_full:
                break
            self._factor(cursor, node)
        self._close_all(cursor)

    def _close_all(self, cursor: Cursor) -> None:
        """What is still open at the end; a bracket should not be."""
        for level in reversed(self.levels):
            self.end_sums(level, cursor.behind)
            if level.opener is not None:
                what = f"`{level.opener.text}` is never closed"
                self.writer.complain(
                    "E-SYNTAX", what, level.opener.span, "close the bracket in the same group and line"
                )
                self.writer.put(")", Span(cursor.behind, cursor.behind))
        self.levels = [_Level()]

    # Dispatch

    def _factor(self, cursor: Cursor, node: Node) -> None:
        if isinstance(node, Group):
            self._group(cursor, node)
        elif node.kind == "row" or (node.text == ";" and self.in_statement and len(self.levels) == 1):
            self._row(cursor)
        elif node.kind == "display":
            what = f"`{node.text}` stands inside a formula"
            self.writer.complain("E-SYNTAX", what, cursor.take().span, "close one display before the next")
        elif node.text in _READERS:
            _READERS[node.text](self, cursor)
        elif node.text in macros.SIGNS or node.text in ("=", "!"):
            self._sign(cursor)
        elif operands.starts_number(cursor):
            operands.number(self, cursor)
        elif calls.is_known(cursor):
            calls.known(self, cursor)
        elif starts_name(node):
            self._reference(cursor)
        else:
            self._refuse(cursor)

    def operand(self, text: str, span: Span) -> None:
        self.writer.apart(text, span)
        self.after_operand = True

    def operator(self, text: str, span: Span) -> None:
        self.writer.apart(text, span)
        self.writer.put(" ", Span(span.end, span.end))
        self.after_operand = False

    # Statements and terms

    def _row(self, cursor: Cursor) -> None:
        """A statement ends, unless a bracket is open: then the line only goes on."""
        node = cursor.take()
        if len(self.levels) > 1:
            return
        if self.after_operand:
            self.end_sums(self.levels[0], node.span.start)
        self.writer.put("\n", node.span)
        self.after_operand = False

    def end_sums(self, level: _Level, at: int) -> None:
        if level.sums:
            self.writer.put(")" * level.sums, Span(at, at))
            level.sums = 0
            self.after_operand = True

    def _is_final(self, cursor: Cursor) -> bool:
        """Whether punctuation here only ends the sentence."""
        after = cursor.peek(1)
        ends = after is None or after.kind in ("row", "display") or after.text in (";", ".", ",")
        return self.in_statement and len(self.levels) == 1 and ends

    def _sign(self, cursor: Cursor) -> None:
        start, node = cursor.place, cursor.take()
        sign = macros.SIGNS.get(node.text, node.text)
        if sign == "," and self._is_final_comma(cursor):
            return
        if sign in ("<", ">", "!", "=") and cursor.sees("=") and not cursor.peek().spaced:  # type: ignore[union-attr]
            cursor.take()
            sign += "="
        if sign == "*" and cursor.sees("*") and not cursor.peek().spaced:  # type: ignore[union-attr]
            cursor.take()
            sign = "**"
        if sign == "=" and not (self.in_statement and len(self.levels) == 1):
            sign = "=="
        if sign == "...":
            self.operand("...", node.span)
            return
        if sign in (",", ":") and self.in_statement and len(self.levels) == 1:
            what, hint = f"`{sign}` ends no statement", r"statements end at \\ or ; and define with ="
            self.writer.complain("E-SYNTAX", what, node.span, hint)
            return
        if sign not in ("*", "/", "**", "not") and (self.after_operand or sign not in "+-"):
            self.end_sums(self.levels[-1], start)
        self.operator(sign, Span(start, cursor.behind))

    def _is_final_comma(self, cursor: Cursor) -> bool:
        cursor.at -= 1
        final = self._is_final(cursor)
        cursor.at += 1
        return final

    # Brackets

    def open_bracket(self, cursor: Cursor) -> None:
        node = cursor.take()
        self._nest(node)
        self.levels.append(_Level(node))
        if self.after_operand and not node.spaced:  # `x_{i}(t)` looks like a call
            self.writer.put("(", node.span)
        else:
            self.writer.apart("(", node.span)
        self.after_operand = False

    def _nest(self, node: Node) -> None:
        """One bracket or sum more is open."""
        if sum(1 + level.sums for level in self.levels) > DEEPEST_BRACKETS:
            what = f"brackets and sums are nested more than {DEEPEST_BRACKETS} deep"
            self.writer.complain("E-LIMIT", what, node.span, "use a statement for an inner part")
            self.writer.is_full = True

    def close_bracket(self, cursor: Cursor) -> None:
        node = cursor.take()
        opener = self.levels[-1].opener
        if opener is None or macros.OPENING[opener.text] != macros.CLOSING[node.text]:
            what = (
                f"`{node.text}` closes nothing" if opener is None else f"`{node.text}` does not close `{opener.text}`"
            )
            self.writer.complain("E-SYNTAX", what, node.span, "brackets close in the group and the line that open them")
            return
        if self._is_equation_number(cursor, opener):
            shown = self.writer.text(Span(opener.span.start, node.span.end))
            what, hint = f"`{shown}` may be the number of the equation or a factor", r"write \tag{1}, or \cdot 1"
            self.writer.complain("E-LABEL", what, Span(opener.span.start, node.span.end), hint)
        self.end_sums(self.levels.pop(), node.span.start)
        self.writer.put(")", node.span)
        self.after_operand = True
        self.power(cursor)

    def _is_equation_number(self, cursor: Cursor, opener: Node) -> bool:
        """Whether the bracket that closes holds only an integer, after a wide space at the end of a statement."""
        inside = self.writer.text(Span(opener.span.end, cursor.behind - 1)).strip()
        after = cursor.peek()
        ends = after is None or after.kind == "row" or after.text in (";", ".", ",")
        before = self.writer.text(Span(max(opener.span.start - 12, 0), opener.span.start))
        return inside.isdecimal() and ends and self.in_statement and "quad" in before

    def _group(self, cursor: Cursor, node: Group) -> None:
        """A name in braces is a name; other braces do not show, so they say nothing."""
        if starts_name(node):
            self._reference(cursor)
            return
        cursor.take()
        inside = contents(node)
        level = _Level()
        self.levels.append(level)
        while (part := inside.peek()) is not None:
            self._factor(inside, part)
        while self.levels[-1] is not level and len(self.levels) > 1:
            unclosed = self.levels.pop().opener
            if unclosed is not None:
                what = f"`{unclosed.text}` is never closed"
                self.writer.complain("E-SYNTAX", what, unclosed.span, "close the bracket in the same group")
                self.writer.put(")", Span(inside.end, inside.end))
        self.end_sums(level, inside.end)
        if self.levels[-1] is level:
            self.levels.pop()
        if cursor.sees("^", "_"):
            what = "braces do not show, so a script behind them belongs to nothing"
            hint = r"write the indices at the name; a power stands at a bracket, \left(x_{i}\right)^{2}"
            self.drop_script(cursor, "E-POWER" if cursor.sees("^") else "E-SYNTAX", what, hint)

    def power(self, cursor: Cursor) -> None:
        r"""`^{2}` behind a bracket."""
        if cursor.sees("_"):
            hint = "write the indices at each name in the bracket"
            self.drop_script(cursor, "E-SYNTAX", "a bracket takes no index", hint)
        if not cursor.sees("^"):
            return
        mark = cursor.peek()
        following = cursor.peek(1)
        assert mark is not None
        shown = (
            self.writer.text(following.inside if isinstance(following, Group) else following.span) if following else ""
        )
        if "".join(shown.split()) in macros.TRANSPOSES:
            what = "a transpose of a bracket: index notation has none, the order of indices says it"
            self.drop_script(cursor, "E-MATRIX", what, "write the indices, e.g. Q_{id} K_{jd}")
            return
        cursor.take()
        argument = cursor.argument()
        if argument is None:
            self.writer.complain("E-SYNTAX", "nothing follows `^`", mark.span, "write ^{2}")
            return
        self.doubts.power(argument, mark)
        self.writer.put("**", mark.span)
        number = shown.strip()
        if number.lstrip("-").isdecimal() and number.isascii():
            self.writer.put(number, _within(argument))
        else:
            self.argument(argument)
        self.after_operand = True

    def drop_script(self, cursor: Cursor, code: str, what: str, hint: str) -> None:
        start = cursor.take().span.start
        cursor.argument()
        self.writer.complain(code, what, Span(start, cursor.behind), hint)

    def argument(self, node: Node) -> None:
        """A macro's argument, in brackets."""
        inside, start = contents(node), node.span.start
        self.writer.put(
            "(", Span(start, inside.nodes[0].span.start if isinstance(node, Group) and inside.nodes else start)
        )
        self.expression(inside)
        self.writer.put(")", Span(inside.end, node.span.end))
        self.after_operand = True

    # Names, functions, binders

    def _reference(self, cursor: Cursor) -> None:
        run = calls.letters_here(cursor)
        if len(run) >= SHORTEST_WORD:
            span = Span(cursor.place, cursor.place + len(run))
            hint = rf"\mathrm{{{run}}} for one name, {' '.join(run)} for a product"
            self.writer.complain("E-RUN", f"`{run}` may be one name or a product of letters", span, hint)
            cursor.at += len(run) - 1
        named = take_name(cursor, self.writer)
        if named is None:
            named = Named("x", Span(cursor.behind, cursor.behind))
        if named.text in macros.KNOWN and not named.plain:
            calls.call(self, cursor, macros.KNOWN[named.text], named.span)
            return
        self.operand(named.text, named.span)
        self.scripts.attach(cursor, named)

    # Sums and sizes

    def sum(self, cursor: Cursor) -> None:
        self._nest(self.sums.read(cursor))
        self.levels[-1].sums += 1
        self.after_operand = False

    def size(self, cursor: Cursor) -> None:
        self.writer.put(" ", Span(cursor.place, cursor.place))
        operands.extent(self, cursor)
        self.after_operand = True
        self.power(cursor)

    # Refusals

    def refuse_macro(self, node: Node) -> None:
        """A macro that no spelling knows."""
        hint = macros.REPAIRS.get(node.text, rf"a name is written \mathrm{{{node.text[1:] or 'seq'}}}")
        self.writer.complain("E-SYMBOL", f"`{node.text}` has no meaning here", node.span, hint)

    def _refuse(self, cursor: Cursor) -> None:
        if cursor.sees(".") and self._is_final(cursor):
            cursor.take()
            return
        node = cursor.take()
        if node.text not in ("^", "_"):
            self.operand("x", node.span)  # the rest can be read on
        if node.kind == "macro":
            self.refuse_macro(node)
        elif node.text in ("^", "_"):
            cursor.argument()
            what, hint = f"`{node.text}` belongs to nothing", "write it behind a name or a bracket"
            self.writer.complain("E-SYNTAX", what, Span(node.span.start, cursor.behind), hint)
        elif node.text in letters.PRIMES:
            what, hint = "a prime belongs to no name", r"write x'_{i} or x_{i'}"
            self.writer.complain("E-SYNTAX", what, node.span, hint)
        else:
            code, what, hint = refused_sign(node.text)
            self.writer.complain(code, what, node.span, hint)


_READERS: dict[str, Callable[[Formula, Cursor], None]] = {
    **dict.fromkeys(macros.OPENING, Formula.open_bracket),
    **dict.fromkeys(macros.CLOSING, Formula.close_bracket),
    **dict.fromkeys(macros.LINES, Formula.size),
    **dict.fromkeys(macros.FRACTIONS, operands.fraction),
    **dict.fromkeys((r"\sqrt", "√"), operands.root),
    **dict.fromkeys((r"\sum", r"\prod", "∑", "∏"), Formula.sum),
}


def _within(node: Node) -> Span:
    return node.inside if isinstance(node, Group) else node.span
