"""The Unicode spelling: Greek letters, `⟨ ⟩`, the sub- and superscript letters that exist, and an overline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensorattn.spelling.letters import GREEK_LETTERS, reads_as_word
from tensorattn.spelling.marks.ascii import Ascii, Item, Text

_LIKE_LATIN = "ΑΒΕΖΗΙΚΜΝΟΡΤΥΧο"  # these print as words, lest they be taken for Latin letters
LETTERS = {name: letter for letter, name in reversed(GREEK_LETTERS.items()) if letter not in _LIKE_LATIN}
SUBSCRIPTS = dict(zip("aehijklmnoprstuvx", "ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ", strict=True))
SUPERSCRIPTS = dict(zip("abcdefghijklmnoprstuvwxyz", "ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ", strict=True))
OVERLINE = "\N{COMBINING OVERLINE}"


class Unicode(Ascii):
    """`y^μₙ = W^⟨μ bar(ν ρ)⟩ v^⟨ν ρ⟩ₙ`"""

    signs: Mapping[str, str] = {**Ascii.signs, "less_equal": " ≤ ", "greater_equal": " ≥ ", "not_equal": " ≠ "}
    words: Mapping[str, str] = {"and": " ∧ ", "or": " ∨ ", "not": "¬"}
    constants: Mapping[str, Sequence[str]] = {"eps": ("epsilon", "eps")}
    moves_bars = True
    times = " · "
    angles = ("⟨", "⟩")

    def tensor(self, name: str) -> str:
        return self.index(name)

    def index(self, name: str) -> str:
        stem, rest = _split(name)
        return LETTERS.get(stem, stem) + rest

    def script(self, mark: str, items: Sequence[Item]) -> str:
        letters = SUPERSCRIPTS if mark == "^" else SUBSCRIPTS
        names = [item.name for item in items]
        if all(name in letters for name in names) and not reads_as_word(names):
            return "".join(letters[name] for name in names)
        return super().script(mark, items)

    def bar(self, names: Sequence[str], where: str) -> str:
        shown = self.indices(names)
        return super().bar(names, where) if where or len(shown) > 1 else shown + OVERLINE

    def call(self, function: str, arguments: Sequence[str]) -> str:
        return super().call("√" if function == "sqrt" else function, arguments)

    def bind(self, kind: str, binder: str, body: Text) -> Text:
        return super().bind("∑" if kind == "sum" else kind, binder, body)


def _split(name: str) -> tuple[str, str]:
    """A name without its digits and primes, and these."""
    stem = name.rstrip("'").rstrip("0123456789")
    return stem, name[len(stem) :]
