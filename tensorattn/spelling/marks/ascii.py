"""The canonical spelling, and with it what a spelling is: the marks that `showing` asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tensorattn.ir import COMPARISONS
from tensorattn.scanning import is_one_index

OR, AND, NOT, COMPARISON, SUM, PRODUCT, UNIT, ATOM = range(8)  # how tightly a text holds together


@dataclass(frozen=True, slots=True)
class Text:
    """A spelt expression and its level."""

    words: str
    level: int


@dataclass(frozen=True, slots=True)
class Item:
    """One spelt slot. `name`: of the index where it is a plain one; a `place` is a lone integer, gather or scalar."""

    text: str
    kind: Literal["index", "bar", "split", "place", "arithmetic"]
    name: str = ""


@dataclass(frozen=True, slots=True)
class Part:
    """A factor of a printed product, or several in brackets of their own; `over`: a divisor, without its `/`."""

    text: Text
    over: bool = False
    group: bool = False
    bare: bool = False  # a name without indices, which a bracket after it would make a call


class Ascii:
    """`y^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n`; the other spellings change what they write otherwise."""

    signs: Mapping[str, str] = {function: f" {sign} " for sign, function in COMPARISONS.items()}
    words: Mapping[str, str] = {"and": " and ", "or": " or ", "not": "not "}
    constants: Mapping[str, Sequence[str]] = {"eps": ("eps", "epsilon")}  # the name preferred comes first
    moves_bars = False  # whether a barred index makes `W` mean the `Wbar` that a statement defines
    times = " * "
    angles = ("<", ">")

    def program(self, statements: Sequence[tuple[str, Text]]) -> str:
        """Left and right sides, one statement a line."""
        return "\n".join(f"{left} = {right.words}" for left, right in statements)

    # names and numbers

    def tensor(self, name: str) -> str:
        return name

    def index(self, name: str) -> str:
        return name

    def indices(self, names: Sequence[str]) -> str:
        return " ".join(map(self.index, names))

    def number(self, value: float) -> str:
        return repr(value)

    def extent(self, name: str) -> str:
        return f"|{self.index(name)}|"

    # slots

    def reference(self, name: str, upper: Sequence[Item], lower: Sequence[Item]) -> str:
        return self.tensor(name) + self.scripts(upper, lower)

    def scripts(self, upper: Sequence[Item], lower: Sequence[Item]) -> str:
        """The index groups of a tensor."""
        return "".join(self.script(mark, items) for mark, items in (("^", upper), ("_", lower)) if items)

    def script(self, mark: str, items: Sequence[Item]) -> str:
        if len(items) == 1 and is_one_index(items[0].name) and (mark, items[0].name) != ("^", "T"):
            return mark + items[0].text
        commas = len(items) > 1 and any(i.kind == "arithmetic" for i in items)
        opening, closing = self.angles
        return mark + opening + (", " if commas else " ").join(i.text for i in items) + closing

    def bar(self, names: Sequence[str], where: str) -> str:
        return f"bar({self.binder(names, where, '')})"

    def split(self, names: Sequence[str]) -> str:
        return f"({self.indices(names)})"

    def coefficient(self, size: int) -> str:
        return f"{size}*"

    # expressions

    def bracket(self, words: str) -> str:
        return f"({words})"

    def at(self, level: int, text: Text) -> str:
        """A text in a place that asks for this level."""
        return text.words if text.level >= level else self.bracket(text.words)

    def call(self, function: str, arguments: Sequence[str]) -> str:
        return f"{function}({', '.join(arguments)})"

    def binder(self, names: Sequence[str], where: str, options: str) -> str:
        """Indices, their predicate and options."""
        return self.indices(names) + (f" : {where}" if where else "") + (f"; {options}" if options else "")

    def option(self, name: str, value: str) -> str:
        return f"{name}={value}"

    def bind(self, kind: str, binder: str, body: Text) -> Text:
        """A normaliser, a reduction or `top` over a body."""
        return Text(f"{kind}[{binder}]({body.words})", ATOM)

    def cat(self, index: str, parts: Sequence[str], arguments: Sequence[str]) -> str:
        return f"cat[{self.index(index)} = {' + '.join(map(self.index, parts))}]({', '.join(arguments)})"

    def power(self, base: Text, sign: str, exponent: Text, placed: bool) -> str:
        """`placed`: a position stands in the exponent."""
        return f"{self.at(ATOM, base)}**{sign}{self.at(ATOM, exponent)}"

    def reciprocal(self, divisor: Text) -> str:
        return f"1 / {self.at(UNIT, divisor)}"

    def product(self, parts: Sequence[Part], encloses: Callable[[int], bool]) -> str:
        """Factors and divisors in order. `encloses(n)`: whether a bracket may stand around the first n parts."""
        out, last = "", None
        for part in parts:
            out += self.join(last, part) + self.at(UNIT, part.text)
            last = part
        return out

    def join(self, last: Part | None, part: Part) -> str:
        """What stands between two parts of a product."""
        if last is None:
            return ""
        if part.over:
            return " / "
        return self.times if last.over or self.apart(last, part) else " "

    def apart(self, last: Part, part: Part) -> bool:
        """Whether two factors beside each other need a sign between them."""
        words = self.at(UNIT, part.text)
        bracketed = words.startswith(self.bracket(" ").split(" ")[0])
        return last.group or part.group or words[0].isdigit() or (bracketed and last.bare)
