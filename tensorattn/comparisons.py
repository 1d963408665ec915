"""Predicates that order two positions (`rho <= nu`, `rho < nu + 2`, `nu != rho`): sums under them are running sums.

`Σ_{ρ ≤ ν} x_ρ` for all ν takes as many additions as there are ρ; as a product with an array of 0 and 1, one for each
pair. `ν ≠ ρ` is what comes before and what comes after: two running sums, and nothing is subtracted.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from tensorattn.ir import Add, Expr, Index, Map, Number, Position

FARTHEST = 1 << 31  # no offset is larger
NEGATED = {
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
    "equal": "not_equal",
    "not_equal": "equal",
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """True where left − right ≤ `at_most` or left − right ≥ `at_least` (None: there is no such side)."""

    left: Index
    right: Index
    at_most: int | None
    at_least: int | None

    @property
    def turned(self) -> Comparison:
        """The same about right − left."""
        at_most, at_least = (None if n is None else -n for n in (self.at_least, self.at_most))
        return Comparison(self.right, self.left, at_most, at_least)

    def running(self, other: Set[Index], out: Set[Index]) -> Comparison | None:
        """Whether the product with an array over `other`, summed to `out`, is a running sum: along `left` then."""
        for one in (self, self.turned):
            if one.left in other and one.right not in other and one.left not in out and one.right in out:
                return one
        return None


def comparison(node: Expr) -> Comparison | None:
    """What a predicate says of the difference of two positions, if that is all it says."""
    match node:
        case Map(function="not", arguments=(Map(function=function, arguments=sides),)) if function in NEGATED:
            return _compared(NEGATED[function], sides)
        case Map(function=function, arguments=sides) if function in NEGATED:
            return _compared(function, sides)
    return None


def _compared(function: str, sides: tuple[Expr, ...]) -> Comparison | None:
    forms = [_affine(side) for side in sides]
    if None in forms:
        return None
    (left, constant), (right, other) = forms  # type: ignore[misc]
    signs: dict[Index, int] = {}
    for positions, sign in ((left, 1), (right, -1)):
        for index, count in positions:
            signs[index] = signs.get(index, 0) + sign * count
    signs = {index: count for index, count in signs.items() if count}
    if sorted(signs.values()) != [-1, 1]:
        return None
    first, second = sorted(signs, key=signs.__getitem__, reverse=True)
    rest = other - constant  # first - second stands where `function` compares with this
    limits = {"less": (rest - 1, None), "less_equal": (rest, None), "greater": (None, rest + 1)}
    limits |= {"greater_equal": (None, rest), "not_equal": (rest - 1, rest + 1)}
    return Comparison(first, second, *limits[function]) if function in limits and abs(rest) < FARTHEST else None


def _affine(node: Expr) -> tuple[tuple[tuple[Index, int], ...], int] | None:
    """Positions with their signs, and a whole constant."""
    match node:
        case Position(index=index):
            return ((index, 1),), 0
        case Number(value=int(value)) if not isinstance(value, bool):
            return (), value
        case Map(function="negate", arguments=(inner,)):
            found = _affine(inner)
            return None if found is None else (tuple((i, -n) for i, n in found[0]), -found[1])
        case Add(terms=terms):
            parts = [_affine(term) for term in terms]
            if None in parts:
                return None
            return tuple(p for part in parts for p in part[0]), sum(part[1] for part in parts)  # type: ignore[index]
    return None
