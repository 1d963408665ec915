"""TeX: text → tokens with spans → nested groups; delimiters, environments, spacing. Nothing here knows of tensors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Union

from tensorattn.source import Span

DEEPEST_GROUPS = 50
SPACING = frozenset(
    r"\, \; \: \! \> \  \quad \qquad \enspace \thinspace \medspace \thickspace \negthinspace \allowbreak \displaystyle "
    r"\textstyle \scriptstyle \scriptscriptstyle \limits \nolimits \nonumber \notag \hfill \noindent \centering \big "
    r"\Big \bigg \Bigg \bigl \Bigl \biggl \Biggl \bigr \Bigr \biggr \Biggr \bigm \Bigm \middle \bf".split()
) | {"\\ ", "\\\n", "\\\t"}
WITH_SKIPPED_ARGUMENT = frozenset(r"\label \tag \hspace \vspace \hphantom \vphantom \phantom".split())
DISPLAYS = frozenset("align alignat displaymath eqnarray equation flalign gather math multline".split())
INNER = frozenset("aligned alignedat array gathered multlined split".split())
WITH_COLUMNS = frozenset({"array", "alignat", "alignedat"})

_TOKEN = (
    r"(?P<comment>(?:#|%(?!\}))[^\n]*)"
    r"|(?P<display>\$\$?|\\[\[\]()]CURLY)"
    r"|(?P<environment>\\(?P<edge>begin|end)[ \t]*\{(?P<which>[A-Za-z]+)\*?\})"
    r"|(?P<row>\\\\(\*|[ \t]*\[-?[0-9.]+ *[a-z]{2}\])?|\\cr(?![A-Za-z])|\\newline(?![A-Za-z]))"
    r"|(?P<angle>\\(?:left|right|middle|[bB]igg?[lrm]?)\s*[<>])"
    r"|(?P<macro>\\(?:[A-Za-z]+\*?|.|$))"
    r"|(?P<space>[ \t\r\n\f~&]+)|(?P<open>\{)|(?P<close>\})|(?P<char>.)"
)
_PLAIN = re.compile(_TOKEN.replace("CURLY", ""), re.DOTALL)  # there `{%` is a brace and a comment, as in \frac{%
_CURLY = re.compile(_TOKEN.replace("CURLY", r"|\{%|%\}"), re.DOTALL)
_FENCE = re.compile(r"\\(left|right|[bB]ig)")  # what only says how tall a bracket is


@dataclass(frozen=True, slots=True)
class Token:
    r"""`kind`: macro (`\mu`), char (one character), row (`\\`), display (a delimiter or an edge of an environment)."""

    kind: str
    text: str
    span: Span
    spaced: bool = False  # white space stands before it


@dataclass(frozen=True, slots=True)
class Group:
    """`{…}`: its nodes, and its range with the braces."""

    nodes: tuple["Node", ...]
    span: Span
    spaced: bool = False
    kind: str = "group"
    text: str = ""

    @property
    def inside(self) -> Span:
        """Its range without the braces."""
        return Span(self.span.start + 1, self.span.end - 1)


Node = Union[Token, Group]
Complain = Callable[[str, str, Span, str], None]


def tokens(text: str, complain: Complain) -> Iterator[Token]:
    r"""The tokens of a text: comments, spacing macros, `\left \right`, `&` and white space are gone."""
    spaced, skip_to = False, 0
    for match in (_CURLY if "%}" in text else _PLAIN).finditer(text):
        kind, shown, span = _kind(match), match.group(), Span(*match.span())
        if span.start < skip_to:
            continue
        if kind == "environment":
            kind, skip_to = "display", _columns_end(match, text)
            if match["which"] not in DISPLAYS:
                kind = "space"
                _check_environment(match["which"], span, complain)
        if kind == "angle":  # a bracket, no comparison
            kind, shown = "macro", r"\langle" if shown.endswith("<") else r"\rangle"
        shown = shown.rstrip("*") if kind == "macro" and shown != "\\*" else shown
        if kind == "macro" and shown in WITH_SKIPPED_ARGUMENT:
            skip_to = _argument_end(text, span.end)
        skipped = kind in ("comment", "space") or shown in SPACING or span.end < skip_to
        if kind == "macro" and shown in (r"\left", r"\right"):
            skip_to = _invisible_fence(text, span.end)
            skipped = True
        if skipped and kind != "display":
            spaced = spaced or _FENCE.match(shown) is None
            continue
        yield Token(kind, shown, span, spaced)
        spaced = False


def _kind(match: re.Match[str]) -> str:
    name = match.lastgroup or "char"
    return next((k for k in ("environment", "row") if match[k] is not None), name)


def _check_environment(which: str, span: Span, complain: Complain) -> None:
    if which in INNER:
        return
    hint = "write the rows as statements of align or gather"
    if which.endswith("matrix"):
        hint = r"write the entries as one tensor with indices, or join parts with \mathrm{cat}_{a=m+j}\left(…, …\right)"
    if which == "cases":
        hint = r"write \mathrm{where}\left(condition, value, otherwise\right)"
    complain("E-SYMBOL", f"the environment `{which}` has no meaning here", span, hint)


def _columns_end(match: re.Match[str], text: str) -> int:
    r"""The end of what follows `\begin{array}`: an optional position and the columns."""
    if match["edge"] == "end":
        return match.end()
    place = re.compile(r"[ \t]*\[[a-z]\]").match(text, match.end())
    at = place.end() if place else match.end()
    return _argument_end(text, at) if match["which"] in WITH_COLUMNS else at


def _argument_end(text: str, at: int) -> int:
    """The end of a braced argument without nested braces that begins at `at`, else `at`."""
    found = re.compile(r"\s*\{[^{}]*\}").match(text, at)
    return found.end() if found else at


def _invisible_fence(text: str, at: int) -> int:
    r"""`\left.` and `\right.` show nothing."""
    return at + 1 if text[at : at + 1] == "." else at


def groups(found: Iterator[Token], complain: Complain) -> tuple[Node, ...]:
    """The tokens with every `{…}` as one node. Braces that do not match are complained of and dropped."""
    stack: list[list[Node]] = [[]]
    opened: list[Token] = []
    for token in found:
        if token.kind == "open":
            if len(opened) == DEEPEST_GROUPS:
                what = f"braces are nested more than {DEEPEST_GROUPS} deep"
                complain("E-LIMIT", what, token.span, "use a statement for an inner part")
                break
            opened.append(token)
            stack.append([])
        elif token.kind != "close":
            stack[-1].append(token)
        elif opened:
            brace, nodes = opened.pop(), stack.pop()
            stack[-1].append(Group(tuple(nodes), Span(brace.span.start, token.span.end), brace.spaced))
        else:
            complain("E-BRACE", "`}` closes nothing", token.span, "remove it, or open the group with `{`")
    for brace in opened[:1]:
        complain("E-BRACE", "`{` is never closed", brace.span, "close the group with `}`")
    return tuple(node for nodes in stack for node in nodes)


class Cursor:
    """A place in a row of nodes, and TeX's rule for arguments: the next token, or the next group."""

    def __init__(self, nodes: tuple[Node, ...], end: int) -> None:
        self.nodes, self.at, self.end = nodes, 0, end

    def peek(self, ahead: int = 0) -> Node | None:
        """The node that comes next, without taking it."""
        place = self.at + ahead
        return self.nodes[place] if place < len(self.nodes) else None

    def take(self) -> Node:
        """The next node."""
        self.at += 1
        return self.nodes[self.at - 1]

    def sees(self, *texts: str) -> bool:
        """Whether the next node is one of these tokens."""
        node = self.peek()
        return node is not None and node.kind != "group" and node.text in texts

    def argument(self) -> Node | None:
        """The argument of a macro: one token or one group, None where the text ends or a row or a display does."""
        node = self.peek()
        if node is None or node.kind in ("row", "display"):
            return None
        return self.take()

    @property
    def place(self) -> int:
        """Where the next node begins, or where the nodes end."""
        node = self.peek()
        return node.span.start if node is not None else self.end

    @property
    def behind(self) -> int:
        """Where the node before ended."""
        return self.nodes[self.at - 1].span.end if self.at else self.place


def exponent(cursor: Cursor) -> str:
    """The `e-6` that follows a number without a space."""
    found, at = "", cursor.at
    for node in cursor.nodes[at : at + 8]:
        if (
            node.kind != "char"
            or node.spaced
            or not (node.text.isascii() and (node.text.isdigit() or node.text in "eE+-"))
        ):
            break
        found += node.text
    match = re.match(r"[eE][+-]?[0-9]+", found)
    return match.group() if match else ""


def contents(node: Node) -> Cursor:
    """The nodes of a group, or the one token."""
    if isinstance(node, Group):
        return Cursor(node.nodes, max(node.span.end - 1, node.span.start))
    return Cursor((node,), node.span.end)


def is_tex(text: str) -> bool:
    r"""Whether a text is LaTeX: it has a backslash, a brace or a dollar sign outside the comments."""
    return any(sign in re.sub(r"(?<!\\)#[^\n]*", "", text) for sign in "\\{$")
