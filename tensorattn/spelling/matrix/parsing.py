"""Matrix formulas, plain, in Unicode or in LaTeX → what they say: statements, sums and products."""

from __future__ import annotations

from collections.abc import Collection

from tensorattn.parsing import raise_first
from tensorattn.scanning import check_length
from tensorattn.source import Source, Span
from tensorattn.spelling import tex
from tensorattn.spelling.displays import displays
from tensorattn.spelling.matrix import nodes as n
from tensorattn.spelling.matrix import words
from tensorattn.spelling.matrix.factors import CLOSING, FactorReader
from tensorattn.spelling.origins import Writer


def parse_matrix(source: Source, known: Collection[str] | None) -> tuple[n.Assignment, ...]:
    """The statements of a matrix formula. `known`: the declared names; None where nothing is declared.

    Raises: NotationError.
    """
    raise_first(check_length(source))
    writer = Writer(source)
    nodes = tex.groups(tex.tokens(source.text, writer.complain), writer.complain)
    stretches = list(displays(nodes, writer, len(source.text)))
    raise_first(writer.complaints)
    return _Parser(source, known).program(stretches)


class _Parser(FactorReader):
    """Statements, sums and products; factors are read by the base class."""

    # statements -------------------------------------------------------------------------------------------------------

    def program(self, stretches: list[tex.Cursor]) -> tuple[n.Assignment, ...]:
        """The statements of all displays."""
        found: list[n.Assignment] = []
        for self.cursor in stretches:
            while self._more():
                found.append(self.statement())
                if self.cursor.peek() is not None and not self.ends():
                    self.stray()
        if not found:
            hint = "write a formula, e.g. Y = softmax(Q K^T / sqrt(d_k)) V"
            self.refuse("E-SYNTAX", "the matrix formula is empty", Span(0, 0), hint)
        return tuple(found)

    def _more(self) -> bool:
        """Whether a statement follows what separates statements."""
        while (node := self.cursor.peek()) is not None and self._separates(node):
            self.cursor.take()
        return node is not None

    def _separates(self, node: tex.Node) -> bool:
        return node.kind in ("row", "display") or node.text in (";", ",", ".")

    def statement(self) -> n.Assignment:
        start = self.cursor.place
        target, parameters = None, ()
        if self._defines():
            target, parameters = self.target()
            if self.guesses:
                self.known.update(word.text for word in parameters)
        body = self.expression()
        if target is not None:
            self.known.add(target.text)
            if parameters:
                self.functions.add(target.text)
        return n.Assignment(target, parameters, body, Span(start, self.cursor.behind))

    def _defines(self) -> bool:
        """Whether an equals sign stands in this statement."""
        at, depth = self.cursor.at, 0
        try:
            while (node := self.cursor.peek()) is not None:
                if not depth and self.cursor.at > at and self.ends():
                    return False
                depth += (node.text in CLOSING) - (node.text in CLOSING.values())
                if node.text in ("=", "\\coloneqq", "≔"):
                    return True
                self.cursor.take()
        finally:
            self.cursor.at = at
        return False

    def target(self) -> tuple[n.Word, tuple[n.Word, ...]]:
        start = self.cursor.at
        first = self.cursor.peek()
        assert first is not None
        if self.cursor.sees("=", "\\coloneqq", "≔"):
            self.refuse("E-SYNTAX", "nothing stands left of `=`", first.span, "write a name: Y = …")
        word = self.named()
        parameters: list[n.Word] = []
        if self.cursor.sees("("):
            self.cursor.take()
            while not self.cursor.sees(")"):
                parameters.append(self.named())
                if self.cursor.sees(","):
                    self.cursor.take()
            self.cursor.take()
        if self.cursor.sees(":"):
            self.cursor.take()
        if not self.cursor.sees("=", "\\coloneqq", "≔"):
            begin = self.cursor.nodes[start].span.start
            what = "the left side of `=` is one name, or a function of names"
            self.refuse("E-SYNTAX", what, Span(begin, self.cursor.place), "write Y = … or f(Q, K, V) = …")
        self.cursor.take()
        return word, tuple(parameters)

    def named(self) -> n.Word:
        """A name, whole: on the left side nothing is multiplied."""
        node = self.cursor.peek()
        if node is None or (word := self.word(whole=True)) is None:
            span = node.span if node is not None else Span(self.cursor.end, self.cursor.end)
            self.refuse("E-SYNTAX", "a name is expected here", span, "write a name, e.g. Y = … or f(Q, K, V) = …")
        return self.scripted(word)

    # sums and products ------------------------------------------------------------------------------------------------

    def expression(self) -> n.Formula:
        """`A - B + c`."""
        start = self.cursor.place
        sign, terms = 1, []
        if self.cursor.sees("+", "-", "−"):
            sign = 1 if self.cursor.take().text == "+" else -1
        terms.append((sign, self.product()))
        while not self.ends() and self.cursor.sees("+", "-", "−"):
            sign = 1 if self.cursor.take().text == "+" else -1
            terms.append((sign, self.product()))
        if len(terms) == 1 and terms[0][0] > 0:
            return terms[0][1]
        return n.Sum(tuple(terms), Span(start, self.cursor.behind))

    def product(self) -> n.Formula:
        """`A B / c ⊙ D`."""
        start = self.cursor.place
        factors, operators = [self.factor()], [""]
        while not self.ends():
            node = self.cursor.peek()
            assert node is not None
            if node.text in words.UNCLEAR and node.kind != "group":
                what = f"`{node.text}` has no one meaning in a matrix formula"
                self.refuse("E-SYMBOL", what, node.span, words.UNCLEAR[node.text])
            operator = words.OPERATORS.get(node.text, "") if node.kind != "group" else ""
            if operator:
                self.cursor.take()
            elif node.text in ("+", "-", "−", ",", ")", "]", "=", "|") and node.kind != "group":
                break
            elif node.text.isascii() and node.text.isdigit():
                hint = "write the number first, 2 A; a label is W_1, a power of a scalar s^2"
                self.refuse("E-SYNTAX", "a number stands behind a factor", node.span, hint)
            factors.append(self.factor())
            operators.append(operator)
        self._one_reading(factors, operators)
        span = Span(start, self.cursor.behind)
        return factors[0] if len(factors) == 1 else n.Chain(tuple(factors), tuple(operators), span)

    def _one_reading(self, factors: list[n.Formula], operators: list[str]) -> None:
        for at in range(2, len(factors)):
            if operators[at] == "" and operators[at - 1] == "/":
                a, b = (self.text(f.span) for f in factors[at - 1 : at + 1])
                span = factors[at - 1].span | factors[at].span
                self.refuse("E-DIV", "`a / b c` has two readings", span, f"… / ({a} {b}), or (… / {a}) {b}")
