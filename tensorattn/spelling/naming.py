r"""TeX nodes → names: a letter, a Greek macro, `\mathrm{seq}`, `\mathbf{k}`, `\bar W`, primes."""

from __future__ import annotations

import re
from typing import NamedTuple

from tensorattn.source import Span
from tensorattn.spelling import letters, macros
from tensorattn.spelling.origins import Writer
from tensorattn.spelling.tex import Cursor, Group, Node, contents

WITH_ARGUMENT = macros.WORDS | macros.BOLD | macros.STYLED | macros.ARROWS
_WORD = re.compile(r"(?:leaky_relu|[A-Za-z][A-Za-z0-9]*)'*")
MOST_MARKS = 8  # over one name


class Named(NamedTuple):
    """A canonical name and where it was written."""

    text: str
    span: Span
    plain: bool = False  # `\\mathrm{ln{}}`: a name, whatever the word says else
    under: str = ""  # what a bar stands over: over an index it is a softmax

    def with_mark(self, mark: str, span: Span) -> Named:
        """The mark goes before the primes: `\\bar{W'}` is `Wbar'`."""
        return Named(_marked(self.text, mark), span, under=self.text if mark == "bar" else _marked(self.under, mark))

    def primed(self, primes: str, span: Span) -> Named:
        """The name with more primes."""
        return self._replace(text=self.text + primes, span=span, under=self.under and self.under + primes)


def _marked(name: str, mark: str) -> str:
    stem = name.rstrip("'")
    return stem + mark + name[len(stem) :] if name else ""


def starts_name(node: Node | None) -> bool:
    """Whether a name begins here; a group has to be one name."""
    while isinstance(node, Group):
        inside = [n for n in node.nodes if not _is_mark(n) and n.text not in letters.PRIMES]
        with_argument = bool(inside) and inside[0].text in WITH_ARGUMENT
        if len(inside) != (2 if with_argument else 1):
            return False
        node = inside[0]
    if node is None:
        return False
    if node.kind == "char":
        return letters.word_of(letters.parts(node.text)[0]) is not None
    return _is_mark(node) or node.text in WITH_ARGUMENT or node.text in letters.GREEK_MACROS


def _is_mark(node: Node) -> bool:
    return node.text in macros.MARKS or (node.kind == "char" and letters.is_combining(node.text))


def take_name(cursor: Cursor, writer: Writer) -> Named | None:
    """The name that begins at the cursor with its primes; what is no name is complained of."""
    start, marks = cursor.place, []
    while (node := cursor.peek()) is not None and node.kind == "macro" and node.text in macros.MARKS:
        marks.append(macros.MARKS[cursor.take().text])
    if cursor.peek() is None:
        hint = r"write it over one name: \bar{W}_{ij}"
        writer.complain("E-OVERLINE", "a mark stands over nothing", Span(start, cursor.end), hint)
        return None
    named = _unmarked(cursor, writer, bool(marks))
    if named is not None and len(marks) > MOST_MARKS:
        hint = r"\bar, \tilde and \hat may stand over a name"
        writer.complain("E-OVERLINE", f"{len(marks)} marks stand over `{named.text}`", Span(start, cursor.behind), hint)
        return None
    if named is None:
        return None
    primes = take_primes(cursor)
    named = named.primed(primes, Span(start, cursor.behind))
    for mark in reversed(marks):
        named = named.with_mark(mark, named.span)
    return named


def take_primes(cursor: Cursor) -> str:
    r"""The primes that stand here: `'`, `′`, `^\prime`, `^{\prime\prime}`."""
    primes = ""
    while True:
        node = cursor.peek()
        if node is not None and node.text in letters.PRIMES:
            primes += letters.PRIMES[cursor.take().text]
            continue
        above = cursor.peek(1)
        if node is None or node.text != "^" or above is None:
            return primes
        inside = contents(above).nodes
        if not inside or any(n.text not in macros.PRIME_MACROS for n in inside):
            return primes
        cursor.take()
        cursor.take()
        primes += "'" * len(inside)


def _unmarked(cursor: Cursor, writer: Writer, marked: bool) -> Named | None:
    node = cursor.take()
    if isinstance(node, Group):
        return _only_name(node, writer, marked)
    if node.text in letters.GREEK_MACROS:
        return Named(letters.GREEK_MACROS[node.text], node.span)
    if node.text in macros.WORDS:
        return _word(cursor, node, writer)
    if node.text in WITH_ARGUMENT:
        return _styled(cursor, node, writer)
    base, *over = letters.parts(node.text) if node.kind == "char" else (node.text,)
    name = letters.word_of(base) if node.kind == "char" else None
    if name is None:
        what = f"`{node.text}` is no name"
        writer.complain("E-OVERLINE" if marked else "E-SYNTAX", what, node.span, r"write a letter, or \mathrm{seq}")
        return None
    return _with_accents(cursor, Named(name, node.span), over, writer)


def _with_accents(cursor: Cursor, named: Named, over: list[str], writer: Writer) -> Named | None:
    """Combining marks after a letter, as in Unicode."""
    while (node := cursor.peek()) is not None and node.kind == "char" and letters.is_combining(node.text):
        over.append(cursor.take().text)
    if len(over) > MOST_MARKS:
        what = f"{len(over)} marks stand over `{named.text}`"
        writer.complain("E-OVERLINE", what, named.span, r"\bar, \tilde and \hat may stand over a name")
        return None
    for mark in over:
        if mark not in letters.MARKS:
            what = f"the mark U+{ord(mark):04X} over `{named.text}` means nothing here"
            code = "E-VEC" if mark == "\u20d7" else "E-CHAR"
            writer.complain(code, what, named.span, r"\bar, \tilde and \hat may stand over a name")
            return None
        named = named.with_mark(letters.MARKS[mark], Span(named.span.start, cursor.behind))
    return named


def _only_name(group: Group, writer: Writer, marked: bool) -> Named | None:
    """The one name that a group holds."""
    cursor = contents(group)
    named = take_name(cursor, writer) if starts_name(cursor.peek()) else None
    if named is not None and cursor.peek() is None:
        return named._replace(span=group.span)
    inside = writer.text(group.inside)
    if marked:
        hint = (
            r"mark one name and write its indices after it: \bar{W}^{\mu\nu}; over indices \bar{\nu\rho} is a softmax"
        )
        writer.complain("E-OVERLINE", f"a mark over `{inside}` is not over one name", group.span, hint)
    else:
        hint = rf"write \mathrm{{{inside}}} for one name, or the names one after another"
        writer.complain("E-RUN", f"`{inside}` is not one name", group.span, hint)
    return None


def _word(cursor: Cursor, macro: Node, writer: Writer) -> Named | None:
    r"""`\mathrm{seq}`."""
    argument = cursor.argument()
    if argument is None:
        writer.complain("E-SYNTAX", f"nothing follows `{macro.text}`", macro.span, rf"write {macro.text}{{seq}}")
        return None
    span = Span(macro.span.start, argument.span.end)
    shown = writer.text(argument.inside if isinstance(argument, Group) else argument.span).strip()
    if isinstance(argument, Group) and len(argument.nodes) == 1 and starts_name(argument.nodes[0]):
        named = take_name(contents(argument), writer)
        return named._replace(span=span) if named else None
    if macro.text in macros.TEXTS and shown in macros.PROSE:
        hint = r"write \mathrm{where}\left(condition, value, otherwise\right), or \sum_{j:j\le i} with a condition"
        writer.complain("E-SYMBOL", f"`{shown}` is no word of the notation", span, hint)
        return None
    if isinstance(argument, Group) and writer.text(argument.inside) != shown and shown not in macros.KNOWN:
        hint = "leave words beside the formula out; a name has no space"
        writer.complain("E-SYNTAX", f"`{shown}` between spaces is a word, not a factor", span, hint)
        return None
    word = re.sub(r"\\(?=_)", "", shown.removesuffix("{}"))
    if greek := re.fullmatch(r"(\\[A-Za-z]+) ?([0-9]+'*)", shown):
        word = letters.GREEK_MACROS.get(greek[1], greek[1]) + greek[2]
    if not _WORD.fullmatch(word):
        known = re.sub(r"[^A-Za-z0-9]", "", word) or "seq"
        hint = rf"a name has letters, digits and primes: \mathrm{{{known}}}"
        writer.complain("E-CHAR", f"`{shown}` is no name", span, hint)
        return None
    return Named(word, span, shown.endswith("{}"))


def _styled(cursor: Cursor, macro: Node, writer: Writer) -> Named | None:
    r"""`\mathbf{k}` is k; a script letter is refused, and so is an arrow."""
    argument = cursor.argument()
    if argument is None:
        writer.complain("E-SYNTAX", f"nothing follows `{macro.text}`", macro.span, rf"write {macro.text}{{k}}")
        return None
    span = Span(macro.span.start, argument.span.end)
    shown = writer.text(argument.inside if isinstance(argument, Group) else argument.span)
    if macro.text in macros.ARROWS:
        what, hint = (
            "an arrow hides the index that the vector has",
            f"write the index: {shown}_{{ic}} for {shown}_{{i}}",
        )
        writer.complain("E-VEC", what, span, hint)
        return None
    if macro.text in macros.STYLED:
        what = f"`{macro.text}` marks a set, an operator or a script letter, which has no one meaning"
        writer.complain("E-CHAR", what, span, f"write {shown} if that is meant")
        return None
    inside = contents(argument)
    named = take_name(inside, writer) if starts_name(inside.peek()) else None
    if named is None or inside.peek() is not None:
        what = f"`{shown}` in bold may be one name or several"
        writer.complain(
            "E-RUN", what, span, rf"write \mathrm{{{shown}}} for one name, {macro.text} over each for several"
        )
        return None
    return named._replace(span=span)
