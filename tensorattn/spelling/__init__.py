r"""The spellings: a pasted text → canonical pieces that know where they come from.

Every spelling is read by the one grammar of the canonical text; `Reading` puts what that says into the pasted text.
"""

from __future__ import annotations

from tensorattn.source import Source
from tensorattn.spelling.origins import Reading
from tensorattn.spelling.tex import is_tex

SPELLINGS = ("ascii", "unicode", "latex", "matrix", "einsum")  # the last two have readers of their own


def spelling_of(source: Source) -> str:
    r"""How a text is spelt: LaTeX if it has a backslash, `{` or `$`, Unicode if it has other than ASCII characters."""
    if source.spelling is not None:
        return source.spelling
    if is_tex(source.text):
        return "latex"
    return "ascii" if source.text.isascii() else "unicode"


def read(source: Source) -> Reading | None:
    """The text in canonical pieces, None where it is canonical as it stands."""
    match spelling_of(source):
        case "latex":
            from tensorattn.spelling.latex import read_latex

            return read_latex(source)
        case "unicode":
            from tensorattn.spelling.unicode import read_unicode

            return read_unicode(source)
        case _:
            return None
