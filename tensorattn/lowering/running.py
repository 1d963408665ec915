"""Products with a comparison of two positions as running sums (`comparisons.py`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

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
    return builder.emit(Accumulate(out, array, one.left, one.right, one.at_most, one.at_least))


def some(builder: Builder, known: Comparison | None, summed: Iterable[Index]) -> Register | None:
    """For each place along one index whether any along the other, which is summed, is admitted, without all pairs."""
    summed = set(summed)
    sides = () if known is None else (known, known.turned)
    one = next((c for c in sides if c.left in summed and c.right not in summed), None)
    if one is None:
        return None
    length, place = Size.of(one.left.name), builder.iota(one.right)
    found = [] if one.at_most is None else [builder.apply("greater_equal", place, Literal(-one.at_most), dtype="bool")]
    if one.at_least is not None:
        found.append(builder.apply("less", place, Literal(length - one.at_least), dtype="bool"))
    either = found[0] if len(found) == 1 else builder.apply("or", *found, dtype="bool")
    return builder.apply(
        "and", either, builder.apply("greater", Literal(length), Literal(0), dtype="bool"), dtype="bool"
    )
