"""What instructions are made of: registers and literals, and how loops are cut, carried and bounded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tensorattn.ir import Index
from tensorattn.sizes import Size


@dataclass(frozen=True, slots=True)
class Register:
    """One array: an identifier, its index axes and its work dtype."""

    name: str
    axes: tuple[Index, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Root:
    """The square root of a size that is ≥ 0."""

    of: Size


@dataclass(frozen=True, slots=True)
class Literal:
    """A weak scalar that is no array: a number, an integer polynomial in sizes, or the root of one."""

    value: int | float | Size | Root


Operand = Union[Register, Literal]


@dataclass(frozen=True, slots=True)
class Summand:
    """What a product takes along, broadcast: it becomes `signs[0] Σ a·b + signs[1] register`, where one is 1."""

    register: Register
    signs: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TileRule:
    """How many positions a tile has: `entries` over the size `per` of one position, at least one, at most all.

    In a loop inside others, the symbols of the axes that those cut stand in `per` for the lengths of their tiles.
    """

    entries: int
    per: Size


@dataclass(frozen=True, slots=True)
class Carry:
    """One component of the monoid a stream carries: its register, unit, and the name of its part in a tile."""

    state: Register
    unit: float
    part: Register


@dataclass(frozen=True, slots=True)
class Stacked:
    """A result put together along the axis of a stream: every tile leaves its stretch of `out` in `part`."""

    out: Register
    part: Register


@dataclass(frozen=True, slots=True)
class Edge:
    """The first or the last position of the axis in a round of the loops around."""

    axis: Index
    last: bool


@dataclass(frozen=True, slots=True)
class Bound:
    """(Σ coefficient · atom + constant) / divisor, of which an upper bound is the floor, and a lower one, whose sign
    is turned, the ceiling of the negative."""

    terms: tuple[tuple[int, Edge | Register], ...]
    constant: Size
    divisor: int


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Only positions of `axis` from the greatest of `low` to the least of `high`, both included, can matter."""

    axis: Index
    low: tuple[Bound, ...]
    high: tuple[Bound, ...]


@dataclass(frozen=True, slots=True)
class Norm:
    """The greatest Euclidean norm of a register over some of its axes, for any place along the others."""

    source: Register
    over: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Joint:
    """The greatest norm over some axes, which both registers have, of the product of any two places that go together.

    At most the product of a norm and a largest entry, and often far less, but of one place a pair: it pays where the
    scores have many `rows` for each.
    """

    a: Register
    b: Register
    over: tuple[Index, ...]
    rows: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Stretch:
    """The greatest factor by which a register lengthens a vector over `rows`, as a matrix from these to `columns` for
    any place along the other axes.

    At most the norm over both, and for many independent entries about the root of the fewer of them less.
    """

    source: Register
    rows: tuple[Index, ...]
    columns: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Ceiling:
    """The `sum`, `product` or `least` of numbers that are no less than 0, or the `inverse` of a size or its root (at
    least 1: where it is 0, there is nothing to bound)."""

    kind: str
    of: tuple["Limiting", ...]


Limiting = Union[Norm, Joint, Stretch, Ceiling, Literal]
