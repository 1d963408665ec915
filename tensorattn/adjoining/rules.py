"""Instruction by instruction: what the cotangent of a result gives to those of the operands."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from tensorattn.adjoining.emitting import Emitter
from tensorattn.adjoining.functions import partials
from tensorattn.adjoining.normalisers import normalised
from tensorattn.ir import Index
from tensorattn.kernel import (
    Accumulate,
    Apply,
    Arrange,
    Cast,
    CheckRange,
    Contract,
    Fill,
    Fold,
    Gather,
    Iota,
    Join,
    Largest,
    Load,
    LogSumExp,
    Normalised,
    Powers,
    Scatter,
    SegmentSum,
    View,
)
from tensorattn.lowering.looping import RefusalError
from tensorattn.parts import Literal, Operand, Register
from tensorattn.sizes import Size
from tensorattn.windows import turned

Terms = Iterator[tuple[Register, Register]]  # an operand, and what it gets


def terms(e: Emitter, made: Any, bar: Register) -> Terms:
    """What the cotangent `bar` of the result gives to the operands. Raises: RefusalError where there is no rule."""
    rule = RULES.get(type(made))
    if rule is None:
        raise RefusalError(f"there is no rule for the derivative of {type(made).__name__}")
    return rule(e, made, bar)


def _none(e: Emitter, made: Any, bar: Register) -> Terms:
    return iter(())


def _apply(e: Emitter, made: Apply, bar: Register) -> Terms:
    for number, argument in enumerate(made.arguments):
        if not isinstance(argument, Register) or not argument.dtype.startswith("float"):
            continue
        p, chosen = made.arguments[0], made.function in ("where", "select") and number == 1
        if chosen and isinstance(p, Register) and argument.axes == made.out.axes == bar.axes:
            yield argument, e.select(p, bar, Literal(0.0), bar.dtype)
            continue
        factors = partials(e, made, number)
        if factors is not None:
            yield argument, e.pulled([bar, *factors], made.out.axes, argument.axes)


def _contract(e: Emitter, made: Contract, bar: Register) -> Terms:
    both = (*made.a.axes, *made.b.axes)
    yield made.a, e.pulled([bar, made.b], both, made.a.axes)
    yield made.b, e.pulled([bar, made.a], both, made.b.axes)


def _cast(e: Emitter, made: Cast, bar: Register) -> Terms:
    yield made.source, bar


def _arrange(e: Emitter, made: Arrange, bar: Register) -> Terms:
    yield made.source, e.pulled([bar], made.out.axes, made.source.axes)


def _fold(e: Emitter, made: Fold, bar: Register) -> Terms:
    source, gone = made.source, [i for i in made.source.axes if i not in made.out.axes]
    if made.kind == "sum":
        yield source, bar
    elif made.kind in ("max", "min"):  # shared equally among ties
        same = e.apply("equal", source, made.out, dtype="bool", like=source.axes)
        ties = e.cast(same, made.out.dtype)
        share = e.apply("divide", bar, e.fold("sum", ties, gone), dtype=made.out.dtype)
        yield source, e.apply("multiply", ties, share, dtype=made.out.dtype, like=source.axes)
    elif made.kind == "prod":
        yield source, e.pulled([bar, *_others(e, source, gone)], source.axes, source.axes)


def _others(e: Emitter, source: Register, gone: Sequence[Index]) -> Iterator[Register]:
    """For each entry the product of all the others, as factors: those beside it along one index after the other.

    Nothing is divided, so that it is right with zeros among them.
    """
    for index in gone:
        out = e.register(source.axes, source.dtype)
        yield e.emit(Accumulate(out, source, index, index, ((None, -1), (1, None)), kind="prod"))
        source = e.fold("prod", source, [index])


def exponentials(e: Emitter, score: Register, total: Register, where: Register | None) -> Register:
    """exp(score − total), 0 where excluded and where the total is −∞.

    What is excluded does not reach exp: the derivative of what follows is 0 there, but 0 · exp(NaN) is not.
    """
    none = e.apply("equal", total, Literal(-inf), dtype="bool")
    shift = e.select(none, Literal(0.0), total, total.dtype)
    less = e.apply("subtract", score, shift, dtype=score.dtype, like=score.axes)
    admitted = less if where is None else e.select(where, less, Literal(-inf), score.dtype)
    return e.apply("exp", admitted, dtype=score.dtype)


def _powers(e: Emitter, made: Powers, bar: Register) -> Terms:
    """The maximum is a constant."""
    found = e.apply("multiply", bar, made.out, dtype=bar.dtype, like=made.score.axes)
    where = made.where
    yield made.score, found if where is None else e.select(where, found, Literal(0.0), bar.dtype)


def less(e: Emitter, score: Operand, total: Register) -> Register:
    """The score less a log Σ exp that is a number: small numbers, of which a softmax is exact."""
    finite = e.apply("isfinite", total, dtype="bool")
    shift = e.select(finite, total, Literal(0.0), total.dtype)
    axes = score.axes if isinstance(score, Register) else ()
    return e.apply("subtract", score, shift, dtype=total.dtype, like=axes)


def _log_sum_exp(e: Emitter, made: LogSumExp, bar: Register) -> Terms:
    """By a softmax, which is right where the logarithm of the number of entries has no digit in the result."""
    axes = _axes_of(made)
    score = e.whole(less(e, made.source, made.out), axes)
    gone = tuple(i for i in axes if i not in made.out.axes)
    weights = e.emit(Normalised(e.register(axes, score.dtype), "softmax", gone, score, made.where))
    yield made.source, e.pulled([bar, weights], axes, made.source.axes)


def by_logarithm(e: Emitter, made: LogSumExp, bar: Register) -> Terms:
    """From the result alone."""
    weights = exponentials(e, made.source, made.out, made.where)
    yield made.source, e.pulled([bar, weights], _axes_of(made), made.source.axes)


def _axes_of(made: LogSumExp) -> tuple[Index, ...]:
    where = () if made.where is None else made.where.axes
    return tuple(dict.fromkeys((*made.source.axes, *where)))


def _gather(e: Emitter, made: Gather, bar: Register) -> Terms:
    if not made.table.dtype.startswith("float"):
        return
    plain = [p for p in made.positions if isinstance(p, Index)]
    if len(plain) == len(made.positions) and len(set(plain)) == len(plain):
        yield made.table, _viewed(e, e.whole(bar, tuple(plain)), made.table)
        return
    read = {i for p in made.positions for i in (p.axes if isinstance(p, Register) else (p,))}
    axes = tuple(dict.fromkeys((*made.out.axes, *sorted(read))))
    out = e.register(made.table.axes, made.table.dtype)
    yield made.table, e.emit(Scatter(out, e.whole(bar, axes), made.positions))


def _viewed(e: Emitter, value: Register, source: Register) -> Register:
    """The value, whose axes stand for those of the source in order, under the names of the source."""
    if value.axes == source.axes:
        return value
    return e.emit(View(e.register(source.axes, value.dtype), value, tuple((i,) for i in source.axes)))


def _scatter(e: Emitter, made: Scatter, bar: Register) -> Terms:
    if not made.source.dtype.startswith("float"):
        return
    table = e.whole(bar, made.out.axes)
    yield made.source, e.emit(Gather(e.register(made.source.axes, bar.dtype), table, made.positions))


def _segment_sum(e: Emitter, made: SegmentSum, bar: Register) -> Terms:
    table = e.whole(bar, made.out.axes)
    positions = tuple(made.segments if i == made.segment else i for i in made.out.axes)
    yield made.source, e.emit(Gather(e.register(made.source.axes, bar.dtype), table, positions))


def _accumulate(e: Emitter, made: Accumulate, bar: Register) -> Terms:
    """What t ≤ i + n sums along t, i ≥ t − n sums along i."""
    if made.kind == "prod":
        yield made.source, _running_product(e, made, bar)
        return
    whole = e.whole(bar, tuple(made.along if i == made.axis else i for i in made.source.axes))
    out = e.register(made.source.axes, bar.dtype)
    yield made.source, e.emit(Accumulate(out, whole, made.along, made.axis, turned(made.windows)))


def _running_product(e: Emitter, made: Accumulate, bar: Register) -> Register:
    """Each product in full: Σ_i bar_i · (what is t for i ? the product of the others that are : 0)."""
    source, t, i = made.source, made.axis, made.along
    if i in source.axes:
        i = Index(i.name, max(a.number for a in (*source.axes, *bar.axes) if a.name == i.name) + 1)
    whole = e.whole(bar, tuple(made.along if a == t else a for a in source.axes))
    each = tuple(i if a == t else a for a in source.axes)
    rows = whole if each == whole.axes else e.emit(View(e.register(each, bar.dtype), whole, tuple((a,) for a in each)))
    ahead = e.apply("subtract", e.iota(t), e.iota(i), dtype="int64")
    sides = [side for low, high in made.windows for side in (("greater_equal", low), ("less_equal", high))]
    chosen = [e.apply(name, ahead, Literal(bound), dtype="bool") for name, bound in sides if bound is not None]
    there = chosen[0] if len(chosen) == 1 else e.apply("or", *chosen, dtype="bool")
    entries = e.apply("select", there, source, Literal(1.0), dtype=source.dtype, like=(i, *source.axes))
    (others,) = _others(e, entries, (t,))
    found = e.apply("select", there, others, Literal(0.0), dtype=source.dtype, like=others.axes)
    return e.pulled([rows, found], others.axes, source.axes)


def _view(e: Emitter, made: View, bar: Register) -> Terms:
    flat = [index for split in made.splits for index in split]
    value = off_diagonal(e, bar, flat)
    if all(len(split) == 1 for split in made.splits):
        yield made.source, _viewed(e, value, made.source)
        return
    splits = (made.source.axes, *[()] * (len(flat) - 1))
    yield made.source, e.emit(View(e.register(made.source.axes, value.dtype), value, splits))


def off_diagonal(e: Emitter, value: Register, flat: Sequence[Index]) -> Register:
    """The value with all these axes in order; an index that stands twice has a twin, with 0 off the diagonal."""
    axes: list[Index] = []
    for index in flat:
        twin = index
        if index in axes:
            twin = Index(index.name, max(i.number for i in (*axes, *value.axes, *flat)) + 1)
            same = e.apply("equal", e.iota(index), e.iota(twin), dtype="bool")
            value = e.select(same, value, Literal(0.0), value.dtype)
        axes.append(twin)
    return e.whole(value, tuple(axes))


def _join(e: Emitter, made: Join, bar: Register) -> Terms:
    """Each part is read from its stretch of the joined axis."""
    whole = e.whole(bar, made.out.axes)
    start = Size()
    for source, part in zip(made.sources, made.parts, strict=True):
        place = e.apply("add", e.iota(part), Literal(start), dtype="int64") if start.terms else e.iota(part)
        positions = tuple(place if i == made.axis else i for i in made.out.axes)
        axes = tuple(part if i == made.axis else i for i in made.out.axes)
        stretch = e.emit(Gather(e.register(axes, bar.dtype), whole, positions))
        start = start + Size.of(part.name)
        if source.dtype.startswith("float"):
            yield source, e.pulled([stretch], axes, source.axes)


def _normalised(e: Emitter, made: Normalised, bar: Register) -> Terms:
    yield from normalised(e, made, bar)


RULES: dict[type, Callable[[Emitter, Any, Register], Terms]] = {
    Apply: _apply, Contract: _contract, Cast: _cast, Arrange: _arrange, Fold: _fold, LogSumExp: _log_sum_exp,
    Gather: _gather, Scatter: _scatter, SegmentSum: _segment_sum, View: _view, Join: _join, Normalised: _normalised,
    Accumulate: _accumulate, Powers: _powers,
    CheckRange: _none, Fill: _none, Iota: _none, Largest: _none, Load: _none,
}  # fmt: skip
