"""A lexer for Pygments, and with it for Sphinx, MkDocs, IPython and `rich`: formulas in ASCII and in Unicode."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pygments.lexer import RegexLexer, include, words
from pygments.token import Comment, Keyword, Name, Number, Operator, Punctuation, Text

from tensorattn.ir import FUNCTIONS
from tensorattn.scanning import BINDERS

_NAME = r"[A-Za-z\u0370-\u03ff][A-Za-z0-9\u0300-\u036f]*['′]*"
_END = r"(?![A-Za-z0-9'])"
_SMALL = r"[ªº²³¹ʰ-ʸˡ-ˣᴬ-ᵪᶜ-ᶿ⁰-ₜⱼ]+"  # letters raised or lowered


class TensorattnLexer(RegexLexer):
    """Tensors, indices, normalisers, functions and operators; what is no part of the notation is an error token."""

    name = "tensorattn"
    aliases: ClassVar[Sequence[str]] = ["tensorattn", "attn"]
    filenames: ClassVar[Sequence[str]] = ["*.attn"]
    mimetypes: ClassVar[Sequence[str]] = ["text/x-tensorattn"]

    tokens: ClassVar[dict[str, list[Any]]] = {
        "root": [
            (r"#[^\n]*", Comment.Single),
            include("common"),
            (_NAME, Name),
            (r"\*\*|<=|>=|==|!=|[-+*/=<>≤≥≠∧∨¬·×−|]", Operator),
            (r"[()\[\],:;]", Punctuation),
        ],
        "common": [
            (r"\s+", Text.Whitespace),
            (r"[\^_][<⟨]", Punctuation, "slots"),
            (rf"[\^_]{_NAME}", Name.Variable),
            (_SMALL, Name.Variable),
            (words(("and", "or", "not", "bar"), suffix=_END), Keyword),
            (words(BINDERS, suffix=_END), Name.Builtin),
            (words(FUNCTIONS, suffix=_END), Name.Function),
            (r"∑", Name.Builtin),
            (r"√", Name.Function),
            (r"(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?", Number),
            (r"\.\.\.", Name.Variable),
        ],
        "slots": [
            (r"[>⟩]", Punctuation, "#pop"),
            (r"\(", Punctuation, "bracket"),
            include("common"),
            (rf"{_NAME}(?=[\^_])", Name),
            (_NAME, Name.Variable),
            (r"[-+*|−·]", Operator),
            (r",", Punctuation),
        ],
        # inside a bracket `<` and `>` compare again
        "bracket": [(r"\)", Punctuation, "#pop"), (r"\(", Punctuation, "#push"), include("root")],
    }
