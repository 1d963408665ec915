"""The letters and signs beyond ASCII that formulas are written with, and what they say in the canonical text.

Characters are decomposed by NFD, never by NFKC: a script or bold letter is no plain one. Only the micro sign is mu.
"""

from __future__ import annotations

from functools import cache
from unicodedata import category, combining, decomposition, normalize

from tensorattn.scanning import GREEK

_LOWER = dict(zip("αβγδεζηθικλμνξοπρστυφχψω", GREEK, strict=True))
_UPPER = dict(zip("ΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩ", (name.capitalize() for name in GREEK), strict=True))
_VARIANTS = {
    "ϵ": "epsilon", "ϑ": "theta", "ϰ": "kappa", "ϖ": "pi", "ϱ": "rho", "ς": "sigma", "ϕ": "phi", "ϐ": "beta", "µ": "mu",
}  # fmt: skip
GREEK_LETTERS = {**_LOWER, **_UPPER, **_VARIANTS}
GREEK_MACROS = {
    **{f"\\{name}": name for name in (*GREEK, *_UPPER.values())},
    **{f"\\var{name}": name for name in (*GREEK, *_UPPER.values())},
}

MARKS = {"\u0304": "bar", "\u0305": "bar", "\u0303": "tilde", "\u0302": "hat"}
OPERATORS = {
    "−": "-", "·": "*", "⋅": "*", "×": "*", "≤": "<=", "≥": ">=", "⩽": "<=", "⩾": ">=", "≠": "!=", "…": "...",
    "∧": "and", "∨": "or", "¬": "not",
}  # fmt: skip
PRIMES = {"'": "'", "′": "'", "″": "''", "‴": "'''"}
REPAIRS = {
    "⊙": "the entrywise product needs no sign: write the factors side by side, x_i z_i",
    "∘": "it may mean an entrywise product, a sum or a composition: write x_i z_i or x_i + z_i",
    "⊗": "write the factors side by side, each with indices of its own: a_i b_j",
    "⊕": "write `+`, or join two axes with cat[a = m + j](x_m, z_j)",
    "•": "write `·` or nothing between the factors",
    "∙": "write `·` or nothing between the factors",
    "∗": "write `*`",
    "÷": "write `/`",
    "‖": "write a norm with its index: sqrt(x_d x_d)",
    "∥": "write a norm with its index: sqrt(x_d x_d)",
    "∞": "leave entries out with a predicate: softmax[j : j <= i](…)",
    "∈": "write a predicate: sum[j : adj_<i j>](…)",
    "∂": "derivatives are made by tensorattn.grad",
    "∇": "derivatives are made by tensorattn.grad",
    "∏": "name the index: prod[j](…)",
    "→": "a definition is written with `=`",
    "←": "a definition is written with `=`",
    "〈": "index groups stand in ⟨ ⟩ (U+27E8, U+27E9) or < >",
    "〉": "index groups stand in ⟨ ⟩ (U+27E8, U+27E9) or < >",
    "∼": "a definition is written with `=`",
    "≈": "a definition is written with `=`",
}


@cache
def parts(character: str) -> str:
    """The character decomposed (NFD): a letter, then its combining marks."""
    return character if character == "µ" else normalize("NFD", character)


@cache
def script(character: str) -> tuple[str, str] | None:
    """`("_", "i")` for ᵢ, `("^", "mu")` for a raised mu, `("^", "2")` for ²; None for a sign that is on the line."""
    kind, _, code = decomposition(character).partition(" ")
    if kind not in ("<sub>", "<super>") or " " in code or category(character) == "Lo":  # ª is no raised a
        return None
    base = chr(int(code, 16))
    name = GREEK_LETTERS.get(base, base)
    return ("_" if kind == "<sub>" else "^"), name


def word_of(character: str) -> str | None:
    """A letter as it stands in a canonical name, None for any other character."""
    return character if character.isascii() and character.isalpha() else GREEK_LETTERS.get(character)


def is_combining(character: str) -> bool:
    """Whether it stands over or under the letter before."""
    return combining(character) != 0 or character == "\u20d7"


def is_styled(character: str) -> bool:
    """Whether it is a letter of a script, bold or other mathematical alphabet."""
    return decomposition(character).startswith("<font>") and category(character).startswith("L")


def plain(character: str) -> str:
    """The letter that a styled one looks like: for messages only."""
    return normalize("NFKC", character)


def reads_as_word(letters: list[str]) -> bool:
    """Whether a run of raised or lowered letters reads as a word (`ₘₒₙₑᵧ`) rather than as indices.

    There is no lowered b, g, w or y: authors take β or γ for them, so a run of both alphabets is a word.
    """
    alphabets = {len(letter) > 1 for letter in letters}
    return len(letters) > 4 or (len(letters) > 2 and len(alphabets) > 1)
