r"""`\sum` and `\prod` with their limits, as binders."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorattn.source import Span
from tensorattn.spelling import macros
from tensorattn.spelling.naming import Named, starts_name, take_name
from tensorattn.spelling.origins import Piece
from tensorattn.spelling.tex import Cursor, Group, Node, contents

if TYPE_CHECKING:
    from tensorattn.spelling.latex import Formula


class Sums:
    r"""Reads `\sum_{j=1}^{i}`: `i` bounds the sum where it is an index of the program, which only its end tells."""

    def __init__(self, formula: Formula) -> None:
        self.formula, self.writer = formula, formula.writer
        self.bounded: list[tuple[int, Named, Named]] = []

    def read(self, cursor: Cursor) -> Node:
        """The sign and its limits: `sum[j : j <= i](`."""
        macro = cursor.take()
        word = "prod" if macro.text in (r"\prod", "∏") else "sum"
        limits: dict[str, Node | None] = {}
        while cursor.sees("_", "^"):
            mark = cursor.take()
            limits.setdefault(mark.text, cursor.argument())
        span = Span(macro.span.start, cursor.behind)
        self.writer.apart(word, macro.span)
        below, above = limits.get("_"), limits.get("^")
        if below is None or not self._binder(contents(below), above):
            self._refuse(word, macro, span, bool(limits))
            self.writer.put("[j]", span)
        self.writer.put("(", Span(span.end, span.end))
        return macro

    def _binder(self, below: Cursor, above: Node | None) -> bool:
        """Writes the binder, if the limits are ones we read."""
        if above is None and all(_holds_names(node) for node in _before_condition(below)):
            self.formula.scripts.binder(below)
            return below.at > 0
        named = take_name(below, self.writer) if starts_name(below.peek()) else None
        if named is None:
            return False
        if below.sees(*(sign for sign, means in macros.SIGNS.items() if means == "<=")) and above is None:
            below.take()
            bound = take_name(below, self.writer) if starts_name(below.peek()) else None
            return bound is not None and below.peek() is None and self._bound(named, bound, surely=True)
        if not below.sees("=") or above is None:
            return False
        below.take()
        bound = self._upper(above)
        one = below.sees("1") and len(below.nodes) == below.at + 1
        return one and bound is not None and self._bound(named, bound, surely=False)

    def _upper(self, above: Node) -> Named | None:
        """The one name of an upper limit, perhaps in bars: `|j|` is the size of j."""
        inside = contents(above)
        size = inside.sees(*macros.LINES) and inside.take()
        named = take_name(inside, self.writer) if starts_name(inside.peek()) else None
        if size and inside.sees(*macros.LINES):
            inside.take()
            named = Named("", above.span) if named else None
        return named if inside.peek() is None else None

    def _bound(self, named: Named, bound: Named, surely: bool) -> bool:
        self.formula.scripts.indices.add(named.text)
        self.writer.put("[", Span(named.span.start, named.span.start))
        self.writer.put(named.text, named.span)
        if surely:
            self.formula.scripts.indices.add(bound.text)
        self.bounded.append((len(self.writer.pieces), named, bound))
        self.writer.pieces.append(Piece("", bound.span))
        self.writer.put("]", Span(bound.span.end, bound.span.end))
        return True

    def _refuse(self, word: str, macro: Node, span: Span, limited: bool) -> None:
        what = f"these limits of `{macro.text}` are not read" if limited else f"`{word}` names no axis"
        name = rf"\{word}"
        hint = rf"write {name}_{{j}} for all positions, {name}_{{j:j\le i}} with a condition"
        self.writer.complain("E-AXIS", what, span, hint)

    def settle(self) -> None:
        """Now all indices are known: an upper limit that is one is a condition, any other name is the size."""
        for place, named, bound in self.bounded:
            if bound.text in self.formula.scripts.indices:
                self.writer.pieces[place] = Piece(f" : {named.text} <= {bound.text}", bound.span)


def _before_condition(below: Cursor) -> list[Node]:
    nodes: list[Node] = []
    for node in below.nodes:
        if node.text in (":", r"\colon"):
            break
        nodes.append(node)
    return nodes


def _holds_names(node: Node) -> bool:
    # a group is the argument of \mathrm; what it holds else, the binder refuses
    return isinstance(node, Group) or starts_name(node) or node.text in (",", "^", "'", r"\prime")
