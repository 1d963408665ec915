r"""The displays of a LaTeX text: `$…$`, `\[…\]`, `{%…%}`, `\begin{align}…\end{align}`, or the whole text."""

from __future__ import annotations

from collections.abc import Iterator

from tensorattn.source import Span
from tensorattn.spelling.origins import Writer
from tensorattn.spelling.tex import Cursor, Node

_CLOSERS = {r"\[": r"\]", r"\(": r"\)", "{%": "%}", "$": "$", "$$": "$$"}
_PUNCTUATION = frozenset(".,;:")


def displays(nodes: tuple[Node, ...], writer: Writer, end: int) -> Iterator[Cursor]:
    """The nodes of each display, in order. Text between displays is refused, punctuation is skipped."""
    if not any(node.kind == "display" for node in nodes):
        yield Cursor(nodes, end)
        return
    opened: list[Node] = []
    inside: list[Node] = []
    outside: list[Node] = []
    for node in nodes:
        if node.kind != "display":
            (inside if opened else outside).append(node)
        elif opened and node.text == _closer(opened[-1].text):
            opened.pop()
            if not opened:
                yield Cursor(tuple(inside), node.span.start)
                inside = []
        elif node.text in _CLOSERS or node.text.startswith(r"\begin"):
            opened.append(node)
            _refuse(outside, writer)
            outside = []
        else:
            what = f"`{node.text}` closes nothing"
            writer.complain("E-SYNTAX", what, node.span, "open the display, or remove it")
    _refuse(outside, writer)
    if opened:
        closer = _closer(opened[0].text)
        writer.complain("E-SYNTAX", f"`{opened[0].text}` is never closed", opened[0].span, f"close it with `{closer}`")
        yield Cursor(tuple(inside), end)


def _closer(opener: str) -> str:
    return _CLOSERS.get(opener, opener.replace(r"\begin", r"\end"))


def _refuse(outside: list[Node], writer: Writer) -> None:
    found = [node for node in outside if node.text not in _PUNCTUATION and node.kind != "row"]
    if found:
        span = Span(found[0].span.start, found[-1].span.end)
        hint = "leave the words out; every display is read as statements"
        writer.complain("E-SYNTAX", "this text stands outside the formulas", span, hint)
