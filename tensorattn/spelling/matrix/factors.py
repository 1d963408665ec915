"""The factors of a matrix formula: names, brackets, fractions, functions, with transposes and powers behind them."""

from __future__ import annotations

import re
from collections.abc import Collection
from math import inf
from typing import NoReturn

from tensorattn.scanning import DEEPEST_BRACKETS, MOST_DIGITS
from tensorattn.source import Source, Span
from tensorattn.spelling import macros, tex
from tensorattn.spelling.letters import script
from tensorattn.spelling.matrix import nodes as n
from tensorattn.spelling.matrix import words
from tensorattn.spelling.matrix.naming import TRANSPOSES, WordReader, plain

CLOSING = {"(": ")", "[": "]"}
_GOES_ON = frozenset({*words.OPERATORS, "+", "-", "−", "=", "(", "[", "^", "_"})
_CONVENTION = "axes are declared, so a matrix formula has names, products, sums, ^T and functions"


class FactorReader(WordReader):
    """Factors; the sums in their brackets are read by the class below."""

    def __init__(self, source: Source, known: Collection[str] | None) -> None:
        super().__init__(source, known)
        self.functions: set[str] = set()  # names that a statement before defines as functions of others
        self.depth = 0

    def expression(self) -> n.Formula:
        """A sum."""
        raise NotImplementedError

    def ends(self) -> bool:
        """Whether a statement ends before the next node."""
        node = self.cursor.peek()
        if node is None or self.depth:
            return node is None
        if node.kind in ("row", "display") or node.text in (";", ","):
            return True
        if node.text == ".":
            after = self.cursor.peek(1)
            return after is None or after.kind in ("row", "display") or after.spaced
        return self._new_line()

    def _new_line(self) -> bool:
        """Whether a newline that ends a statement stands before the next node; in LaTeX none does."""
        if self.is_tex or not self.cursor.at:
            return False
        before = self.cursor.nodes[self.cursor.at - 1]
        gap = self.source.text[before.span.end : self.cursor.place]
        return "\n" in gap and before.text not in _GOES_ON

    def factor(self) -> n.Formula:
        """An atom with transposes and powers behind it."""
        start = self.cursor.place
        found = self.atom()
        while (node := self.cursor.peek()) is not None and node.kind != "group":
            span = Span(start, node.span.end)
            if node.text in ("ᵀ", "⊤", "⊺"):
                self.cursor.take()
                found = n.Transpose(found, span)
            elif node.text == "." and self._transposed_by_attribute():
                self.cursor.take()
                found = n.Transpose(found, Span(start, self.cursor.take().span.end))
            elif node.text == "^":
                self.cursor.take()
                found = self.raised(found, start)
            elif node.text == "*" and self._doubled_star():
                self.cursor.take()
                self.cursor.take()
                found = n.Power(found, self.signed(), Span(start, self.cursor.behind))
            elif node.text == "_" or (len(node.text) == 1 and script(node.text) is not None):
                hint = "a label belongs to a name: give the bracket a name of its own; a power is written x**2"
                self.refuse("E-LABEL", "a script stands behind what is no name", node.span, hint)
            else:
                break
        return found

    def signed(self) -> n.Formula:
        """The exponent behind `**`."""
        start = self.cursor.place
        if not self.cursor.sees("-", "−"):
            return self.atom()
        self.cursor.take()
        return n.Sum(((-1, self.atom()),), Span(start, self.cursor.behind))

    def _transposed_by_attribute(self) -> bool:
        after, behind = self.cursor.peek(1), self.cursor.peek(2)
        if after is None or after.spaced or after.text != "T":
            return False
        return behind is None or behind.spaced or behind.kind == "group" or not behind.text.isalnum()

    def _doubled_star(self) -> bool:
        after = self.cursor.peek(1)
        return after is not None and after.text == "*" and not after.spaced

    def raised(self, base: n.Formula, start: int) -> n.Formula:
        """What `^` says: a transpose or a power. Labels were taken with the name."""
        node = self.cursor.argument()
        if node is None:
            hint = "write A^T for a transpose, x^2 for a power of a scalar"
            self.refuse("E-SYNTAX", "`^` stands before nothing", Span(self.cursor.behind - 1, self.cursor.behind), hint)
        if plain(node) in TRANSPOSES:
            return n.Transpose(base, Span(start, node.span.end))
        if node.kind != "group" and not _is_digits(node.text):
            if node.text == "(":
                self.cursor.at -= 1
                exponent = self.atom()
                return n.Power(base, exponent, Span(start, self.cursor.behind))
            hint = "write A^T for a transpose; the script of a name stands directly behind it"
            self.refuse("E-LABEL", f"`^{node.text}` is neither a transpose nor a power here", node.span, hint)
        if node.kind == "group":
            return n.Power(base, self.inside(node), Span(start, node.span.end))
        digits = self._digits(node)
        return n.Power(base, n.Literal(int(digits), node.span), Span(start, self.cursor.behind))

    def _digits(self, first: tex.Node) -> str:
        """In plain text an exponent is all digits, in LaTeX one."""
        digits = first.text
        while not self.is_tex and (after := self.cursor.peek()) and not after.spaced and _is_digits(after.text):
            digits += self.cursor.take().text
        return digits[:MOST_DIGITS]

    # atoms ------------------------------------------------------------------------------------------------------------

    def atom(self) -> n.Formula:
        node = self.cursor.peek()
        if node is None or self.ends():
            end = self.cursor.behind if self.cursor.at else self.cursor.place
            self.refuse("E-SYNTAX", "the formula ends where a factor is expected", Span(end, end), _CONVENTION)
        self.depth += 1
        if self.depth > DEEPEST_BRACKETS:
            what = f"brackets are nested more than {DEEPEST_BRACKETS} deep"
            self.refuse("E-LIMIT", what, node.span, "use a statement for an inner part")
        try:
            return self._atom(node)
        finally:
            self.depth -= 1

    def _atom(self, node: tex.Node) -> n.Formula:
        if node.kind == "group":
            self.cursor.take()
            return self.inside(node)
        if _is_digits(node.text) or (node.text == "." and self._is_number()):
            return self.number()
        if node.text in CLOSING:
            self.cursor.take()
            return self.bracketed(node)
        if node.text == "|":
            return self.extent(node)
        if node.text in macros.FRACTIONS:
            self.cursor.take()
            above, below = self.argument(node), self.argument(node)
            return n.Chain((above, below), ("", "/"), Span(node.span.start, self.cursor.behind))
        if node.text in ("\\sqrt", "√"):
            self.cursor.take()
            return self.root(node)
        word = self.word()
        if word is None:
            self.stray()
        return self.applied(word)

    def inside(self, node: tex.Node) -> n.Formula:
        """What stands in a group, as a formula."""
        assert isinstance(node, tex.Group)
        if not node.nodes:
            self.refuse("E-SYNTAX", "the braces are empty", node.span, "remove them, or write a factor")
        outer, self.cursor = self.cursor, tex.contents(node)
        self.depth += 1
        if self.depth > DEEPEST_BRACKETS:
            what = f"brackets are nested more than {DEEPEST_BRACKETS} deep"
            self.refuse("E-LIMIT", what, node.span, "use a statement for an inner part")
        found = self.expression()
        if self.cursor.peek() is not None:
            self.stray()
        self.depth -= 1
        self.cursor = outer
        return found

    def argument(self, macro: tex.Node) -> n.Formula:
        """The next group or token, as TeX takes it."""
        node = self.cursor.argument()
        if node is None:
            hint = f"write {macro.text}{{…}}"
            self.refuse("E-SYNTAX", f"`{macro.text}` lacks an argument", macro.span, hint)
        if isinstance(node, tex.Group):
            return self.inside(node)
        outer, self.cursor = self.cursor, tex.contents(node)
        found = self.atom()
        self.cursor = outer
        return found

    def bracketed(self, opening: tex.Node) -> n.Formula:
        found = self.expression()
        self.close(opening)
        return found

    def close(self, opening: tex.Node) -> None:
        if not self.cursor.sees(CLOSING[opening.text]):
            if self.cursor.peek() is not None and not self.cursor.sees(*CLOSING.values(), ",", "="):
                self.stray()
            hint = f"close it with `{CLOSING[opening.text]}`"
            self.refuse("E-SYNTAX", f"`{opening.text}` is not closed", opening.span, hint)
        self.cursor.take()

    def root(self, node: tex.Node) -> n.Formula:
        if self.cursor.sees("["):
            where = self.cursor.take().span
            self.refuse("E-POWER", "a root other than the square root", where, "write a power: x**(1/3)")
        body = self.factor() if node.text == "√" else self.argument(node)
        return n.Apply(n.Word("sqrt", node.span), (body,), (), Span(node.span.start, self.cursor.behind))

    def extent(self, node: tex.Node) -> n.Formula:
        """`|i|`."""
        self.cursor.take()
        word = self.word(whole=True)
        if word is None or not self.cursor.sees("|"):
            hint = "write |i|; abs(x) is the absolute value"
            self.refuse("E-SYNTAX", "`|` begins the size of an axis", node.span, hint)
        self.cursor.take()
        return n.Extent(word.text, Span(node.span.start, self.cursor.behind))

    def _is_number(self) -> bool:
        after = self.cursor.peek(1)
        return after is not None and not after.spaced and _is_digits(after.text)

    def number(self) -> n.Literal:
        first = self.cursor.peek()
        assert first is not None
        found = re.compile(r"([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)?").match(self.source.text, first.span.start)
        assert found is not None
        stop = min(found.end(), self.cursor.end)
        digits = self.source.text[first.span.start : stop]
        while (node := self.cursor.peek()) is not None and node.span.start < stop:
            self.cursor.take()
        span = Span(first.span.start, stop)
        is_whole = digits.isdigit()
        if (is_whole and len(digits) > MOST_DIGITS) or float(digits) == inf:
            self.refuse("E-LIMIT", f"the number {digits[:20]} is too large", span, "declare it as a scalar input")
        return n.Literal(int(digits) if is_whole else float(digits), span)

    # functions -------------------------------------------------------------------------------------------------------

    def applied(self, word: n.Word) -> n.Formula:
        """A name with its scripts, and what it is applied to."""
        is_function = word.text not in self.known and words.function_of(word.text) is not None
        scripted = self.scripted(word)
        opening = self.cursor.peek()
        opens = opening is not None and opening.kind != "group" and opening.text in CLOSING
        if not is_function and not (opens and self._calls(scripted)):
            return scripted
        if opening is None or not (opens or opening.kind == "group"):
            what = f"the function `{word.text}` has no brackets that show how far it reaches"
            self.refuse("E-CALL", what, word.span, f"write {word.text}(…)")
        self.cursor.take()
        if opening.kind == "group":
            arguments: tuple[n.Formula, ...] = (self.inside(opening),)
        else:
            arguments = self.arguments(opening)
        axes = (scripted.scripts.lstrip("_^"),) if is_function and scripted.scripts else ()
        called = word if is_function else scripted
        return n.Apply(called, arguments, axes, Span(word.span.start, self.cursor.behind))

    def _calls(self, word: n.Word) -> bool:
        """Whether a name before a bracket is called: a defined function, or a word that names nothing known."""
        opening = self.cursor.peek()
        assert opening is not None
        unknown = word.text not in self.known and len(word.base) > 1 and not opening.spaced
        return word.text in self.functions or unknown

    def arguments(self, opening: tex.Node) -> tuple[n.Formula, ...]:
        """`(A, B)`."""
        found = [self.expression()]
        while self.cursor.sees(","):
            self.cursor.take()
            found.append(self.expression())
        self.close(opening)
        return tuple(found)

    def stray(self) -> NoReturn:
        """Raises what is wrong with the next node."""
        node = self.cursor.peek()
        assert node is not None
        shown = self.text(node.span)
        if node.text in words.UNCLEAR:
            what = f"`{shown}` has no one meaning in a matrix formula"
            self.refuse("E-SYMBOL", what, node.span, words.UNCLEAR[node.text])
        if node.kind == "macro":
            what = f"`{shown}` means nothing in a matrix formula"
            hint = r"write a name of several letters as \mathrm{…}, a transpose as A^\top"
            self.refuse("E-SYMBOL", what, node.span, hint)
        if node.text in (")", "]", "}"):
            self.refuse("E-SYNTAX", f"`{shown}` closes nothing", node.span, "remove it, or open the bracket")
        if node.text == "=":
            hint = r"a statement has one `=`; statements end at `;`, in plain text at a newline, in LaTeX at `\\`"
            self.refuse("E-SYNTAX", "a second `=`", node.span, hint)
        if node.text in ("+", "-", "−", ",", "|", "/", "*", "^", "_") or node.text in words.OPERATORS:
            self.refuse("E-SYNTAX", f"`{shown}` stands where a factor is expected", node.span, _CONVENTION)
        self.refuse("E-CHAR", f"the character {shown[:1]!r} means nothing in a matrix formula", node.span, _CONVENTION)


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdigit()
