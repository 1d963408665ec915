"""How a parameter of a formula starts, read off the place where it stands.

| its first place | it starts as |
|---|---|
| a factor of a product that sums indices of it | N(0, 1/fan-in); fan-in: the product of the sizes of those indices |
| read through an index tensor, `E_<token_t, d>` | N(0, 1) |
| a factor of a product that sums none of its indices | 1: a gain |
| anywhere else: a term of a sum, an argument, an option | 0: a bias |

Source: LeCun et al. 1998, "Efficient BackProp", §4.6: what a layer makes has the variance of what it takes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from tensorattn.ir import Affine, Expr, Index, Map, Product, Reduce, Tensor, children
from tensorattn.program import Program


@dataclass(frozen=True, slots=True)
class Start:
    """The mean and the standard deviation of a parameter's first entries."""

    mean: float
    deviation: float


@dataclass(frozen=True, slots=True)
class _Place:
    """A tensor as it is read: whether it is a factor, and the indices that are summed around it."""

    tensor: Tensor
    is_factor: bool
    summed: frozenset[Index]


def start(program: Program, name: str, sizes: Mapping[str, int | None]) -> Start:
    """How the parameter of this name starts; a size that is not known counts as 1."""
    place = next(p for s in program.statements for p in _places(s.body, True, frozenset()) if p.tensor.name == name)
    if any(isinstance(slot, Affine) and _is_gathered(slot) for slot in place.tensor.slots):
        return Start(0, 1)
    if not place.is_factor:
        return Start(0, 0)
    contracted = place.tensor.free & place.summed
    if not contracted:
        return Start(1, 0)
    fan_in = prod(sizes.get(i.name) or 1 for i in contracted)
    return Start(0, fan_in**-0.5)


def _is_gathered(slot: Affine) -> bool:
    return any(isinstance(atom, Tensor) and atom.slots for _, atom in slot.terms)


def _places(node: Expr, is_factor: bool, summed: frozenset[Index]) -> Iterator[_Place]:
    """Every tensor of an expression, in reading order."""
    match node:
        case Tensor():
            yield _Place(node, is_factor, summed)
            is_factor = False
        case Product(summed=more):
            is_factor, summed = True, summed | frozenset(more)
        case Reduce(kind="sum" | "mean", indices=more):
            summed = summed | frozenset(more)
        case Map(function="negate" | "reciprocal"):
            pass
        case _:
            is_factor = False
    for child in children(node):
        yield from _places(child, is_factor, summed)
