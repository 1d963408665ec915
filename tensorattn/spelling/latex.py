"""LaTeX → canonical."""

from __future__ import annotations

from tensorattn.source import Source, Span
from tensorattn.spelling import tex
from tensorattn.spelling.origins import Reading, Writer


def read_latex(source: Source) -> Reading:
    """The canonical pieces of a LaTeX text."""
    writer = Writer(source)
    tex.groups(tex.tokens(source.text, writer.complain), writer.complain)
    hint = "write index groups as ^<…> and _<…>, e.g. M_<i j>"
    writer.complain("E-BRACE", "LaTeX is not part of the plain notation", Span(0, 1), hint)
    return writer.reading()
