"""Predicates that compare two positions (`rho <= nu`, `nu != rho`, `0 <= nu - rho < 8`): sums below are running sums.

`Σ_{ρ ≤ ν} x_ρ` for all ν takes as many additions as there are ρ; as a product with an array of 0 and 1, one for each
pair. A window takes a few times as many (`windows.additions`), and `ν ≠ ρ` is what comes before and what comes after.
Nothing is subtracted, so that nothing cancels.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from tensorattn.ir import Add, Expr, Index, Map, Number, Position
from tensorattn.windows import Windows, common, complement, turned

FARTHEST = 1 << 31  # no offset is larger
EXCHANGED = {"greater": "less", "greater_equal": "less_equal"}  # the same with the sides exchanged
OPPOSITE = {"less": "less_equal", "less_equal": "less"}  # the opposite, with the sides exchanged


@dataclass(frozen=True, slots=True)
class Comparison:
    """True where left − right is in one of the windows."""

    left: Index
    right: Index
    windows: Windows

    @property
    def turned(self) -> Comparison:
        """The same about right − left."""
        return Comparison(self.right, self.left, turned(self.windows))

    @property
    def negated(self) -> Comparison:
        """True where this one is false."""
        return replace(self, windows=complement(self.windows))

    def joined(self, other: Comparison) -> Comparison | None:
        """True where both are; None for one of other indices."""
        if other.left == self.right:
            other = other.turned
        if (other.left, other.right) != (self.left, self.right):
            return None
        return replace(self, windows=common(self.windows, other.windows))

    def running(self, other: Set[Index], out: Set[Index]) -> Comparison | None:
        """Whether the product with an array over `other`, summed to `out`, is a running sum: along `left` then."""
        for one in (self, self.turned):
            if one.left in other and one.right not in other and one.left not in out and one.right in out:
                return one
        return None


def comparison(node: Expr) -> Comparison | None:
    """What a predicate says of the difference of two positions, if that is all it says."""
    match node:
        case Map(function="not", arguments=(inner,)):
            found = comparison(inner)
            return None if found is None else found.negated
        case Map(function="and", arguments=parts):
            return _all(map(comparison, parts))
        case Map(function="or", arguments=parts):
            found = _all(None if c is None else c.negated for c in map(comparison, parts))
            return None if found is None else found.negated
        case Map(function="less" | "less_equal" | "equal" as function, arguments=(left, right)):
            return _compared(function, left, right)
        case Map(function="greater" | "greater_equal" as function, arguments=(left, right)):
            return _compared(EXCHANGED[function], right, left)
        case Map(function="not_equal", arguments=(left, right)):
            found = _compared("equal", left, right)
            return None if found is None else found.negated
    return None


def _all(parts: Iterable[Comparison | None]) -> Comparison | None:
    """True where all are, which have to be of the same two indices."""
    first, *others = parts
    for other in others:
        first = None if first is None or other is None else first.joined(other)
    return first


def _compared(function: str, left: Expr, right: Expr) -> Comparison | None:
    match function, left, right:
        case "less" | "less_equal", Map(function="abs", arguments=(inner,)), _:
            sides = (inner, Map("negate", (inner,)))
            return _all(_compared(function, side, right) for side in sides)
        case "less" | "less_equal", _, Map(function="abs"):
            found = _compared(OPPOSITE[function], right, left)
            return None if found is None else found.negated
    forms = [_affine(side) for side in (left, right)]
    if None in forms:
        return None
    (above, constant), (below, other) = forms  # type: ignore[misc]
    signs: dict[Index, int] = {}
    for positions, sign in ((above, 1), (below, -1)):
        for index, count in positions:
            signs[index] = signs.get(index, 0) + sign * count
    signs = {index: count for index, count in signs.items() if count}
    if sorted(signs.values()) != [-1, 1] or abs(rest := other - constant) >= FARTHEST:
        return None
    first, second = sorted(signs, key=signs.__getitem__, reverse=True)
    low = rest if function == "equal" else None
    return Comparison(first, second, ((low, rest - 1 if function == "less" else rest),))


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
