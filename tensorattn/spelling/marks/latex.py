r"""The LaTeX spelling: `W^{\mu\overline{\nu:\nu \le \mu}} v^{\nu}_{n}`, for KaTeX, MathJax, pdfLaTeX."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from itertools import pairwise

from tensorattn.ir import BATCH
from tensorattn.scanning import GREEK
from tensorattn.spelling.macros import ALIASES
from tensorattn.spelling.marks.ascii import ATOM, OR, PRODUCT, SUM, UNIT, Ascii, Item, Part, Text

CAPITALS = "gamma delta theta lambda xi pi sigma upsilon phi psi omega".split()
LETTERS = frozenset({*GREEK, *(name.capitalize() for name in CAPITALS)} - {"omicron"})  # those that TeX has a macro for
ACCENTS = ("bar", "tilde", "hat")
UPRIGHT = r"\mathrm"
MACROS = frozenset("exp log tanh sin cos max min".split())
REACHING = ("sum", "prod")  # to the end of their term


class Latex(Ascii):
    r"""`y_{ie} = \mathrm{softmax}_{j}\left(\frac{Q_{id} K_{jd}}{\sqrt{|d|}}\right) V_{je}`"""

    signs: Mapping[str, str] = {
        **Ascii.signs, "equal": " = ", "less_equal": r" \le ", "greater_equal": r" \ge ", "not_equal": r" \ne ",
    }  # fmt: skip
    words: Mapping[str, str] = {"and": r" \land ", "or": r" \lor ", "not": r"\lnot "}
    constants: Mapping[str, Sequence[str]] = {"eps": ("epsilon", "eps")}
    moves_bars = True
    times = r" \cdot "

    def program(self, statements: Sequence[tuple[str, Text]]) -> str:
        rows = [(left, self.at(SUM, right)) for left, right in statements]  # `=` beside the first one needs a bracket
        if len(rows) == 1:
            return " = ".join(rows[0])
        return "\n".join((r"\begin{aligned}", " \\\\\n".join(map(" &= ".join, rows)), r"\end{aligned}"))

    # names and numbers

    def tensor(self, name: str) -> str:
        stem = next((name[: -len(a)] for a in ACCENTS if name.endswith(a)), "")
        if len(stem) == 1 or stem in LETTERS:
            return rf"\{name[len(stem) :]}{{{self.index(stem)}}}"
        return self.index(name)

    def index(self, name: str) -> str:
        if name == BATCH:
            return r"\ldots"
        stem = name.rstrip("'")
        primes = name[len(stem) :]
        if name in ALIASES:
            return rf"{UPRIGHT}{{{name}{{}}}}"  # in braces of its own, for by itself it would be the function
        letter = stem.rstrip("0123456789")
        shown = rf"\{letter}" if letter in LETTERS else letter
        if letter == stem and (len(letter) == 1 or letter in LETTERS):
            return shown + primes
        return rf"{UPRIGHT}{{{shown}{stem[len(letter) :]}}}{primes}"

    def indices(self, names: Sequence[str]) -> str:
        return _run([self.index(name) for name in names])

    def number(self, value: float) -> str:
        return repr(value) if isinstance(value, int) else _digits(value)

    # slots

    def reference(self, name: str, upper: Sequence[Item], lower: Sequence[Item]) -> str:
        if name == "e" and any(item.kind != "index" or item.name == BATCH for item in upper):
            return rf"{UPRIGHT}{{e{{}}}}" + self.scripts(upper, lower)  # no power of e
        return super().reference(name, upper, lower)

    def script(self, mark: str, items: Sequence[Item]) -> str:
        texts = [item.text for item in items]
        # a lone digit would be a label, and a lone upper T a transpose
        lone = len(items) == 1 and (texts[0].isdigit() or (mark, texts[0]) == ("^", "T"))
        run = all(item.kind in ("index", "bar") for item in items)
        return f"{mark}{{{_run(texts) if run else ','.join(texts)}{',' if lone else ''}}}"

    def bar(self, names: Sequence[str], where: str) -> str:
        macro = "overline" if where or len(names) > 1 else "bar"  # which does not stretch
        return rf"\{macro}{{{self.binder(names, where, '')}}}"

    def split(self, names: Sequence[str]) -> str:
        return f"({','.join(map(self.index, names))}{',' if len(names) == 1 else ''})"  # `(h)` would be a label

    def coefficient(self, size: int) -> str:
        return rf"{size} \cdot "

    # expressions

    def bracket(self, words: str) -> str:
        return rf"\left({words}\right)"

    def call(self, function: str, arguments: Sequence[str]) -> str:
        if function == "sqrt":
            return rf"\sqrt{{{arguments[0]}}}"
        return self.word(function) + self.bracket(", ".join(arguments))

    def word(self, name: str) -> str:
        escaped = name.replace("_", r"\_")
        return rf"\{name}" if name in MACROS else rf"\mathrm{{{escaped}}}"

    def binder(self, names: Sequence[str], where: str, options: str) -> str:
        return self.indices(names) + (f":{where}" if where else "") + (f";{options}" if options else "")

    def option(self, name: str, value: str) -> str:
        return f"{self.word(name)}={value}"

    def bind(self, kind: str, binder: str, body: Text) -> Text:
        if kind in REACHING:
            return Text(rf"\{kind}_{{{binder}}} {self.at(PRODUCT, body)}", PRODUCT)
        return Text(rf"{self.word(kind)}_{{{binder}}}{self.bracket(body.words)}", ATOM)

    def cat(self, index: str, parts: Sequence[str], arguments: Sequence[str]) -> str:
        binder = f"{self.index(index)}={'+'.join(map(self.index, parts))}"
        return rf"\mathrm{{cat}}_{{{binder}}}{self.bracket(', '.join(arguments))}"

    def power(self, base: Text, sign: str, exponent: Text, placed: bool) -> str:
        raised = sign + self.at(PRODUCT if sign else OR, exponent)
        if raised == "T" or (placed and raised[0] not in "+-"):
            raised = f"+{raised}"  # without a sign it would be a transpose, or an index of the bracket
        return f"{self.bracket(base.words)}^{{{raised}}}"

    def reciprocal(self, divisor: Text) -> str:
        return rf"\frac{{1}}{{{divisor.words}}}"

    def product(self, parts: Sequence[Part], encloses: Callable[[int], bool]) -> str:
        """A fraction of all that stands before a divisor, where a bracket may stand around either."""
        last = parts[0]
        out = self.at(UNIT, last.text)
        for number, part in enumerate(parts[1:], 1):
            if part.over and encloses(number) and encloses(number + 1):
                numerator = last.text.words if number == 1 else out
                out = rf"\frac{{{numerator}}}{{{part.text.words}}}"
                last = Part(Text(out, ATOM))
            else:
                ends = number == len(parts) - 1 and _reaches(part)
                out += self.join(last, part) + self.at(PRODUCT if ends else UNIT, part.text)
                last = part
        return out

    def join(self, last: Part | None, part: Part) -> str:
        """Upright words beside each other need a thin space, for TeX ignores the others."""
        sign = super().join(last, part)
        upright = part.text.words.startswith(UPRIGHT) or (
            last is not None and last.bare and last.text.words.startswith(UPRIGHT)
        )
        return r" \, " if sign == " " and upright else sign


def _reaches(part: Part) -> bool:
    return part.text.words.startswith(tuple(rf"\{kind}_" for kind in REACHING)) and not part.group and not part.over


def _run(texts: Sequence[str]) -> str:
    """Texts beside each other; a space ends a macro before a letter, a thin one sets upright words apart."""
    out = ""
    for last, text in pairwise(("", *texts)):
        if last and UPRIGHT in (last[: len(UPRIGHT)], text[: len(UPRIGHT)]):
            out += r"\,"
        out += (" " if re.search(r"\\[A-Za-z]+$", out) and text[0].isalpha() else "") + text
    return out


def _digits(value: float) -> str:
    """A number without an exponent, for in `1e-06` the `e` would be a name."""
    text = repr(value)
    if "e" not in text:
        return text
    plain = format(Decimal(text), "f")
    return plain if "." in plain else f"{plain}.0"
