"""How a product with a sum is made of matrices, by the axes of its operands and its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from tensorattn.ir import Index
from tensorattn.kernel import Contract

Axes = tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Product:
    """A product with a sum as matrices, `left × inner` times `inner × right`, for every place of `batch`.

    `turned`: the second operand stands on the left. `apart`: a summed axis for each place of which there is a product;
    all of them are added up.
    """

    batch: Axes
    left: Axes
    right: Axes
    inner: Axes
    turned: bool
    apart: Axes = ()

    @property
    def axes(self) -> Axes:
        """The axes of the result, in the order in which it is made."""
        return (*self.batch, *self.left, *self.right)

    def copies(self, axes: Axes) -> bool:
        """Whether an operand that has these axes is copied to be matrices."""
        axes = tuple(index for index in axes if index not in self.apart)
        outer = tuple(index for index in axes if index not in (*self.batch, *self.inner))
        return _is_copied(axes, self.batch, outer, self.inner)


def product(a: Axes, b: Axes, out: Axes, along: Index | None = None) -> Product:
    """How a product of operands with these axes is made: with as few copies as can be of what they hold.

    `along`: an axis whose places are multiplied one by one, come what may.
    """
    apart = (along,) if along is not None and along not in out else ()
    a, b = (tuple(index for index in axes if index not in apart) for axes in (a, b))
    repeated = {repeating(a, b, out), repeating(b, a, out)} if along is None else {along}
    batch = tuple(index for index in out if (index in a and index in b) or index in repeated)
    left = tuple(index for index in a if index in out and index not in (*b, *batch))
    right = tuple(index for index in b if index in out and index not in (*a, *batch))
    present = tuple(index for index in out if index in (*batch, *left, *right))
    turned = present != (*batch, *left, *right) and present == (*batch, *right, *left)
    if turned:
        a, b, left, right = b, a, right, left
    inner = tuple(index for index in a if index in b and index not in out)
    in_b = tuple(index for index in b if index in inner)

    def copies(order: Axes) -> int:
        return _is_copied(a, batch, left, order) + _is_copied(b, batch, right, order)

    return Product(batch, left, right, min(inner, in_b, key=copies), turned, apart)


def product_of(step: Contract, *, onto: bool = False) -> Product:
    """How a step is made: what lies apart is added up where it is added to something, or is to be (`onto`)."""
    summed = step.along is not None and step.along not in step.out.axes
    along = None if summed and step.added is None and not onto else step.along
    return product(step.a.axes, step.b.axes, step.out.axes, along)


def orders(batch: Axes, outer: Axes, inner: Axes) -> tuple[Axes, Axes]:
    """The orders of axes that a reshape turns into a matrix without a copy: rows × inner, and inner × rows."""
    return (*batch, *outer, *inner), (*batch, *inner, *outer)


def _is_copied(axes: Axes, batch: Axes, outer: Axes, inner: Axes) -> bool:
    """Whether an operand has to be copied to be matrices of these axes."""
    held = tuple(index for index in batch if index in axes)
    return axes not in orders(held, outer, inner) and (len(outer) > 1 or len(inner) > 1)


def repeating(value: Axes, other: Axes, out: Axes) -> Index | None:
    """The first axis of `other` along which a product with `value` is to be made anew; None: one product will do.

    As one matrix, `other` would have to be copied, for what is summed stands between the axes of its rows; it is many
    times as large as the value. As many matrices, all of them times the same value, it stays where it is. A value that
    would be copied as well gains nothing: with one for each place of both, every pair of places is a product.
    """
    inner = [i for i in other if i in value]
    outer = [i for i in other if i in out and i not in value]
    if not inner or any(i in out for i in inner) or len(outer) < 2 or outer[0] != other[0]:
        return None
    own = [i for i in value if i in out]
    if (neighbours(outer, other) and neighbours(inner, other)) or not neighbours(own, value):
        return None
    rest = [i for i in outer if i != other[0]]
    return other[0] if neighbours(rest, other) and neighbours(inner, other) else None


def neighbours(group: Sequence[Index], axes: Sequence[Index]) -> bool:
    """Whether the axes of a group stand side by side, in this order."""
    if len(group) < 2 or not {*group} <= {*axes}:
        return len(group) < 2
    places = [axes.index(index) for index in group]
    return all(q == p + 1 for p, q in pairwise(places))
