"""Biases as columns beside the features of queries and keys: a sum of products is one longer product.

A bias of keys b(ν) is the column (1, b). A factor times a difference of positions, as ALiBi's `slope · (ν − μ)` (Press
et al. 2022, eq. 1), is two: `slope · ν − slope · μ = (−μ, 1) · (slope, slope · ν)`. Each half is as large as a position
and their sum is not, so that a rounded half would be a large error: the factor is written as a sum of pieces of so few
bits that their products with positions are exact, and these columns stand first, where the sum is still of them alone.
Where rows are few, a matrix product adds in another order: positions count from the first of the rows.
Positions that are data, as times of events, may be of any size and only their differences small: these are no columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Cast, Fill, Fold, Iota
from tensorattn.lowering.multilinear import Factor, Product, Reader, Scale, Term
from tensorattn.lowering.sides import Sides
from tensorattn.parts import Literal, Register
from tensorattn.sizes import Size

# x · SPLITTER keeps the upper bits of x (Dekker 1971): 6 of 24 in each of four pieces, or 14 of 53
SPLITTER = {"float32": 2.0**18 + 1, "float64": 2.0**39 + 1}
PIECES = 4
# The positions that a plan is made for; their products with a piece are exact up to four times as many, until which a
# plan that was chosen is kept.
LARGEST = {"float32": 2**16, "float64": 2**37}
NO_ROWS = 2.0**62  # the first of no rows: more than any other, and finite, as a gradient of 0 times it is to be 0


@dataclass(frozen=True, slots=True)
class Positions:
    """A term `factors · scales · (rows + keys)`: integers that depend on rows alone and on keys alone."""

    factors: list[Factor]
    scales: tuple[Scale, ...]
    rows: list[Term]
    keys: list[Term]

    @property
    def axes(self) -> set[Index]:
        parts = [f for t in (*self.rows, *self.keys) if (f := t.factor) is not None]
        return {i for f in (*self.factors, *parts) for i in f.axes}


@dataclass(frozen=True, slots=True)
class Column:
    """One more feature of queries and keys."""

    query: Register
    key: Register


def positions(
    reader: Reader, term: Term, score: Register, rows: frozenset[Index], group: set[Index], sizes: Mapping[str, int]
) -> Positions | None:
    """The term as positions times a factor without axes of rows or keys; None where it is not that."""
    if term.factor is None or term.factor.register.dtype != score.dtype:
        return None
    found = reader.product(term.factor, set(score.axes))
    both = [f for f in found.factors if group & set(f.axes) and rows & set(f.axes)]
    others = [f for f in found.factors if f not in both]
    if len(both) != 1 or any((rows | group) & set(f.axes) or f.register.dtype != score.dtype for f in others):
        return None
    made = reader.makers.get(both[0].register.name)
    if not isinstance(made, Cast) or made.source.dtype != "int64":
        return None
    names = dict(zip(made.out.axes, both[0].axes, strict=True))
    parts = reader.terms(made.source, names)
    keys = [t for t in parts if t.factor is not None and group & set(t.factor.axes)]
    of_rows = [t for t in parts if t not in keys]
    if not keys or not of_rows or any(rows & set(t.factor.axes) for t in keys if t.factor is not None):
        return None
    if not _are_small(reader, parts, LARGEST[score.dtype], sizes):
        return None
    return Positions(others, (*found.scales, *term.scales), of_rows, keys)


def _are_small(reader: Reader, terms: list[Term], largest: int, sizes: Mapping[str, int]) -> bool:
    """Whether the terms are positions of indices up to `largest` in all, or one is a number without axes: where that
    is large, so is the difference."""
    total, free = 0, 0
    for term in terms:
        if term.factor is not None and not term.factor.axes:
            free += 1
            continue
        found = Product() if term.factor is None else reader.product(term.factor, set(term.factor.axes))
        reach = 1
        for factor in found.factors:
            if not isinstance(reader.makers.get(factor.register.name), Iota):
                return False
            reach *= max(sizes.get(factor.axes[0].name, 1), 1)
        for function, by in (*found.scales, *term.scales):
            number = by.value if isinstance(by, Literal) and function == "multiply" else None
            if isinstance(number, Size):
                number = number.value({n: sizes.get(n, 1) for n in number.symbols})
            if not isinstance(number, int):
                return False
            reach *= abs(number)
        total += reach
    return total <= largest and free <= 1


def is_of_keys(term: Term, score: Register, rows: frozenset[Index], group: set[Index]) -> bool:
    """Whether the term is a bias of keys alone."""
    if term.factor is None or term.factor.register.dtype != score.dtype:
        return False
    return bool(group & set(term.factor.axes)) and not rows & set(term.factor.axes)


class Columns:
    """The columns of some terms, their instructions in `sides`."""

    def __init__(self, sides: Sides) -> None:
        self.sides = sides
        self.one = sides.emit(Fill(sides.register("one", ()), 1.0))

    def of_positions(self, found: Positions) -> Iterator[Column]:
        """Two for each piece of the factor."""
        sides, names = self.sides, {i for f in found.factors for i in f.axes}
        factor = self.one
        if found.factors:
            factor = sides.built("g", found.factors, tuple(sorted(names)))
        rows, keys = self._sum("a", found.rows), self._sum("c", found.keys)
        first = sides.emit(Fold(sides.register("a", ()), "min", rows))
        first = self._apply("minimum", first, Literal(NO_ROWS))
        rows, keys = self._apply("subtract", rows, first), self._apply("add", keys, first)
        for piece in self._pieces(sides.scaled("g", factor, found.scales)):
            yield Column(rows, piece)
            yield Column(self.one, self._apply("multiply", piece, keys))

    def _sum(self, word: str, terms: list[Term]) -> Register:
        """The sum of integers, as floats, which hold them exactly."""
        sides = self.sides
        total: Register | None = None
        for term in terms:
            part = self.one
            if term.factor is not None:
                part = sides.named(word, term.factor)
                part = sides.emit(Cast(sides.register(word, part.axes), part))
            part = sides.scaled(word, part, term.scales)
            total = part if total is None else self._apply("add", total, part)
        assert total is not None
        return total

    def _pieces(self, factor: Register) -> Iterator[Register]:
        """Some whose sum is the factor, each of a few of its bits."""
        rest = factor
        for _ in range(PIECES - 1):
            large = self._apply("multiply", rest, Literal(SPLITTER[factor.dtype]))
            upper = self._apply("subtract", large, self._apply("subtract", large, rest))
            finite = self.sides.emit(Apply(self.sides.register("f", factor.axes, "bool"), "isfinite", (upper,)))
            upper = self._apply("select", finite, upper, rest)
            yield upper
            rest = self._apply("subtract", rest, upper)
        yield rest

    def _apply(self, function: str, *arguments: Register | Literal) -> Register:
        axes = dict.fromkeys(i for a in arguments if isinstance(a, Register) for i in a.axes)
        return self.sides.emit(Apply(self.sides.register("g", axes), function, arguments))
