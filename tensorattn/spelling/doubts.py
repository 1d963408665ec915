r"""What reads as a position in the grammar and as an index in a paper: `x_ij`, `\left(W v\right)^{\mu}`.

Whether a name is an index, only the end of the program tells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorattn.errors import NotationError
from tensorattn.source import Span
from tensorattn.spelling import letters, macros, operands
from tensorattn.spelling.naming import WITH_ARGUMENT, starts_name, take_name
from tensorattn.spelling.origins import Writer
from tensorattn.spelling.tex import Cursor, Group, Node, contents

if TYPE_CHECKING:
    from tensorattn.spelling.latex import Formula

_JOINING = ("+", "-", ",")


class Doubts:
    """Complaints that hold if one of their names is an index."""

    def __init__(self, formula: Formula) -> None:
        self.formula, self.writer = formula, formula.writer
        self.waiting: list[tuple[list[str], NotationError]] = []

    def settle(self) -> None:
        """Now all indices are known."""
        indices = self.formula.scripts.indices
        self.writer.complaints += [error for names, error in self.waiting if not indices.isdisjoint(names)]

    def _doubt(self, names: list[str], code: str, what: str, span: Span, hint: str) -> None:
        error = NotationError(code, what, source=self.writer.source, spans=[span], hint=hint)
        self.waiting.append((names, error))

    def script(self, owned: str, mark: str, first: Node, cursor: Cursor) -> None:
        """`x_ij` is `x_{i} j` to TeX, which nobody means where j is an index."""
        node, after = cursor.peek(), cursor.peek(1)
        if isinstance(first, Group) or node is None or node.spaced or node.text in (*macros.MARKS, *WITH_ARGUMENT):
            return
        if after is not None and (after.text in ("^", "_") or after.text in letters.PRIMES):
            return
        name = letters.GREEK_MACROS.get(node.text) or letters.word_of(node.text)
        if name is None:
            return
        one, two = self.writer.text(first.span), self.writer.text(node.span)
        what = f"`{mark}{one}{two}` {'raises' if mark == '^' else 'lowers'} `{one}` only"
        apart = " " if one[:1] == "\\" and two.isalpha() else ""
        hint = rf"{owned}{mark}{{{one}{apart}{two}}} for two indices, {owned}{mark}{{{one}}} {two} for a product"
        self._doubt([name], "E-RUN", what, Span(first.span.start, node.span.end), hint)

    def power(self, argument: Node, mark: Node) -> None:
        r"""`(W v)^{\mu}` is a component to a physicist, `(W x)^{(l)}` a layer; the grammar has powers only."""
        inside = contents(argument)
        shown, span = self.writer.text(Span(inside.place, inside.end)), Span(mark.span.start, argument.span.end)
        first, last = (inside.nodes[0].text, inside.nodes[-1].text) if inside.nodes else ("", "")
        if (first, last) == ("(", ")") and self._names(Cursor(inside.nodes[1:-1], inside.end)) is not None:
            what, hint = f"`^{{{shown}}}` is a label, which names no axis", f"a power is written ^{{+{shown[1:-1]}}}"
            self.writer.complain("E-LABEL", what, span, hint)
        elif macros.SIGNS.get(first) not in ("+", "-") and (names := self._names(inside)):
            what = f"`^{{{shown}}}` behind a bracket may be its indices or a power"
            hint = rf"indices stand at the names in the bracket; the power of a position is written ^{{+{shown}}}"
            self._doubt(names, "E-POWER", what, span, hint)

    def _names(self, inside: Cursor) -> list[str] | None:
        """The names in what holds only names, digits and signs; None for anything else."""
        found, aside = [], Writer(self.writer.source)  # complaints come where it is read
        while (node := inside.peek()) is not None:
            if starts_name(node):
                named = take_name(inside, aside)
                found.append(named.text if named else "")
            elif operands.is_digit(node) or macros.SIGNS.get(node.text) in _JOINING:
                inside.take()
            else:
                return None
        return found
