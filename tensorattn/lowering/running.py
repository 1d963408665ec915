"""Products with a comparison of two positions as running sums (`comparisons.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from tensorattn.comparisons import Comparison, comparison
from tensorattn.ir import Index
from tensorattn.kernel import Accumulate
from tensorattn.lowering.building import Builder
from tensorattn.parts import Literal, Register
from tensorattn.plan import Order
from tensorattn.sizes import Size


def operands(order: Order) -> Mapping[int, Comparison]:
    """The factors that steps of a contraction use as comparisons and not as arrays, by number."""
    numbers = [step.running for step in order.steps if step.running is not None]
    found = {number: comparison(order.contraction.factors[number]) for number in numbers}
    return {number: known for number, known in found.items() if known is not None}


def accumulate(builder: Builder, along: Comparison, array: Register, keep: Iterable[Index]) -> Register:
    """The running sums of an array."""
    kept = set(keep)
    one = along.running(set(array.axes), kept)
    assert one is not None
    array = builder.fold("sum", array, kept | {one.left})
    axes = builder.order((*(i for i in array.axes if i != one.left), one.right))
    out = builder.register(axes, array.dtype)
    return builder.emit(Accumulate(out, array, one.left, one.right, one.windows))


def count(builder: Builder, along: Comparison, keep: Set[Index]) -> Register:
    """How many places are admitted for each along the index that is kept; of none, how many pairs."""
    index, other = (along.left, along.right) if along.right in keep else (along.right, along.left)
    ones = builder.broadcast(builder.array(Literal(1), "int64"), {index})
    return builder.fold("sum", accumulate(builder, along, ones, {other}), keep)


def some(builder: Builder, known: Comparison | None, summed: Iterable[Index]) -> Register | None:
    """For each place along one index whether any along the other, which is summed, is admitted, without all pairs."""
    summed = set(summed)
    sides = () if known is None else (known, known.turned)
    one = next((c for c in sides if c.left in summed and c.right not in summed), None)
    if one is None:
        return None
    length, place = Size.of(one.left.name), builder.iota(one.right)
    found = builder.apply("less", place, Literal(0), dtype="bool")
    for low, high in one.windows:
        reached = builder.apply("greater", Literal(length), Literal(0), dtype="bool")
        if high is not None:
            starts = builder.apply("greater_equal", place, Literal(-high), dtype="bool")
            reached = builder.apply("and", reached, starts, dtype="bool")
        if low is not None:
            stops = builder.apply("less", place, Literal(length - low), dtype="bool")
            reached = builder.apply("and", reached, stops, dtype="bool")
        found = builder.apply("or", found, reached, dtype="bool")
    return found
