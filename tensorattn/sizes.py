"""Symbolic sizes: polynomials with rational coefficients over size symbols, and how a call reads sizes from shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import gcd
from typing import Any

from tensorattn.errors import ShapeError

Monomial = tuple[tuple[str, int], ...]  # sorted (symbol, power) pairs; () is the constant


@dataclass(frozen=True, slots=True)
class Size:
    """A polynomial in size symbols: `terms` maps monomials to non-zero coefficients, in sorted order."""

    terms: tuple[tuple[Monomial, int | Fraction], ...] = ()

    @staticmethod
    def of(value: int | Fraction | str | Size) -> Size:
        """A number, a symbol or a size as a `Size`."""
        if isinstance(value, Size):
            return value
        if isinstance(value, str):
            return Size(((((value, 1),), 1),))
        return Size((((), value),)) if value else Size()

    @staticmethod
    def product(names: Iterable[str]) -> Size:
        """The product of the sizes of these indices."""
        powers: dict[str, int] = {}
        for name in names:
            powers[name] = powers.get(name, 0) + 1
        return Size(((tuple(sorted(powers.items())), 1),))

    @staticmethod
    def _collect(pairs: Iterable[tuple[Monomial, int | Fraction]]) -> Size:
        total: dict[Monomial, int | Fraction] = {}
        for monomial, coefficient in pairs:
            total[monomial] = total.get(monomial, 0) + coefficient
        return Size(tuple(sorted((m, c) for m, c in total.items() if c)))

    def __add__(self, other: Size | int) -> Size:
        if not isinstance(other, int) and not (self.terms and other.terms):
            return self if self.terms else other
        return Size._collect((*self.terms, *Size.of(other).terms))

    def __neg__(self) -> Size:
        return Size(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Size | int) -> Size:
        return self + (-Size.of(other))

    def __mul__(self, other: Size | Fraction | int) -> Size:
        if isinstance(other, int):
            return Size(tuple((m, c * other) for m, c in self.terms)) if other else Size()
        return Size._collect((_times(m, n), c * d) for m, c in self.terms for n, d in Size.of(other).terms)

    __radd__, __rmul__ = __add__, __mul__

    @property
    def symbols(self) -> frozenset[str]:
        return frozenset(name for monomial, _ in self.terms for name, _ in monomial)

    @property
    def constant(self) -> int | None:
        """Its value if it has no symbol, else None."""
        if not self.terms:
            return 0
        (monomial, value), *more = self.terms
        return int(value) if not monomial and not more and value == int(value) else None

    def substitute(self, values: Mapping[str, Size]) -> Size:
        """The size with symbols replaced."""
        if not self.symbols & values.keys():
            return self
        total = Size()
        for monomial, coefficient in self.terms:
            term = Size((((), coefficient),))
            for name, power in monomial:
                for _ in range(power):
                    term = term * values.get(name, Size.of(name))
            total = total + term
        return total

    def value(self, sizes: Mapping[str, int]) -> int:
        """Its integer value. Raises: ShapeError `E-EXTENT` where a symbol has none."""
        lacking = sorted(self.symbols - sizes.keys())
        if lacking:
            raise ShapeError("E-EXTENT", f"the size of {', '.join(lacking)} is not given", hint=f"{lacking[0]}=…")
        total: int | Fraction = 0
        for monomial, coefficient in self.terms:
            for name, power in monomial:
                coefficient = coefficient * sizes[name] ** power
            total += coefficient
        return int(total)

    def divide(self, other: Size) -> Size | None:
        """The exact polynomial quotient by a monomial, or None."""
        if len(other.terms) != 1:
            return Size.of(1) if self == other and self.terms else None
        (monomial, coefficient) = other.terms[0]
        quotient = []
        for m, c in self.terms:
            powers = dict(m)
            for name, power in monomial:
                powers[name] = powers.get(name, 0) - power
            ratio = Fraction(c) / Fraction(coefficient)
            if ratio.denominator != 1 or any(p < 0 for p in powers.values()):
                return None
            quotient.append((tuple(sorted((n, p) for n, p in powers.items() if p)), int(ratio)))
        return Size._collect(quotient)

    def __repr__(self) -> str:
        return f"Size({str(self)!r})"

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        out = ""
        for monomial, coefficient in sorted(self.terms, key=lambda t: (not t[0], t[0])):
            word = "*".join(n if p == 1 else f"{n}**{p}" for n, p in monomial)
            size = abs(coefficient)
            body = word if word and size == 1 else f"{size}*{word}" if word else str(size)
            sign = "-" if coefficient < 0 else "+"
            out += f" {sign} {body}" if out else ("-" if coefficient < 0 else "") + body
        return out

    def to_sympy(self, symbol: Callable[[str], Any] | None = None) -> Any:
        """The same as a sympy expression of positive integer symbols (imports sympy)."""
        import sympy

        make = symbol or (lambda name: sympy.Symbol(name, integer=True, positive=True))
        total = sympy.Integer(0)
        for monomial, coefficient in self.terms:
            term = sympy.Rational(coefficient)
            for name, power in monomial:
                term *= make(name) ** power
            total += term
        return total


def _times(a: Monomial, b: Monomial) -> Monomial:
    powers = dict(a)
    for name, power in b:
        powers[name] = powers.get(name, 0) + power
    return tuple(sorted(powers.items()))


def verdict(left: Size, right: Size) -> str:
    """Whether `left == right` for sizes ≥ 0: `proved`, `refuted`, `zero` (only where sizes are 0) or `required`."""
    difference = left - right
    if not difference.terms:
        return "proved"
    constant = next((c for m, c in difference.terms if not m), 0)
    others = [c for m, c in difference.terms if m]
    if not others:
        return "refuted"
    if all(isinstance(c, int) for c in (*others, constant)) and constant % gcd(*map(int, others)):
        return "refuted"
    if all(c > 0 for c in others) or all(c < 0 for c in others):
        if constant and (constant > 0) == (others[0] > 0):
            return "refuted"
        if not constant:
            return "zero" if left.terms and right.terms else "required"  # a size that is said to be 0 is no surprise
    return "required"


# How a call finds the size of an index ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Axis:
    """The length of one axis of an input."""

    input: str
    axis: int


@dataclass(frozen=True, slots=True)
class Quotient:
    """The length of an axis, or a size found before, divided by the sizes of indices found before."""

    of: Axis | Size
    by: tuple[str, ...]


SizeRead = int | Axis | Quotient | Size  # Size: a polynomial in sizes of indices found before
