"""A factored reduction → instructions: the ratio of two sums of products, a test that it is right, and the fallback.

Every exponential is shifted by its maximum along the normalised indices, so that none exceeds 1; the shifts cancel in
the ratio. A product of shifted exponentials may underflow where the terms oppose each other, hence the test. Whatever
underflows in either sum is less than `n · 2^−126` (float32; n: the product of the summed sizes times the number of
operands), times the values. Where the denominator, times the least of the largest values, is at least `n · 2^−64`,
that is less than 2^−62 of the largest value in the result. Values of any size count, for a product of a small
exponential and a small value underflows too: the value 10⁻³⁰ may be all there is.

The test wants the result finite besides: what is NaN, or infinite, or too large is left to the fallback, and so is what
a predicate excludes if it is not finite. Where it fails in float32 the same is tried in float64.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tensorattn import dtypes
from tensorattn.ir import Expr, walk
from tensorattn.kernel import Attempt, Instruction, Powers
from tensorattn.lowering import contractions
from tensorattn.lowering.liveness import without_dead
from tensorattn.parts import Literal, Register
from tensorattn.plan import Exponent, Factored
from tensorattn.sizes import Size

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering

LEAST = {"float32": 2.0**-64, "float64": 2.0**-500}  # of the denominator, over n; in float64 squares do not underflow


def attempt(state: Lowering, found: Factored) -> Register:
    """The value of a factored product."""
    b, dtype = state.builder, dtypes.work(state.typing.of(found.node))
    if found.weights.where is not None:  # the new products stand below the predicate like those they were made of
        state.exposed |= frozenset(node for e in found.exponents for node in walk(e.score))
    out = b.register(b.order(found.node.free), dtype)
    with _side(state) as dense:
        value = b.broadcast(b.array(contractions.contract(state, state.orders[found.node]), dtype), found.node.free)
    fallback = without_dead(b.finish(dense, value, out), (out,))
    for precision in ("float64", "float32") if dtype == "float32" else ("float64",):  # the last is tried first
        fallback = (_attempt(state, found, precision, out, fallback),)
    return b.emit(fallback[0])


def _attempt(state: Lowering, found: Factored, dtype: str, out: Register, fallback: tuple[Instruction, ...]) -> Attempt:
    b = state.builder
    with _side(state) as fast:
        b.products = {}
        value, test = _ratio(state, found, dtype)
        value = b.arrange(b.broadcast(b.array(value, out.dtype), out.axes), out.axes)
    return Attempt((out,), test, without_dead(b.finish(fast, value, out), (out, test)), fallback)


@contextmanager
def _side(state: Lowering) -> Generator[list[Instruction]]:
    """A body of its own: what is known inside it is not known after it."""
    with state.forgetting(), state.builder.nested() as body:
        yield body


# The ratio --------------------------------------------------------------------------------------------------------


def _ratio(state: Lowering, found: Factored, dtype: str) -> tuple[Register, Register]:
    """The result, and whether it is right."""
    b = state.builder
    shifts = []
    for exponent in found.exponents:
        power, shift = _powers(state, found, exponent, dtype)
        state.know(exponent.node, power)
        shifts.append(shift)
    above = b.array(contractions.contract(state, found.numerator, dtype), dtype)
    below = b.array(contractions.contract(state, found.denominator, dtype), dtype)
    least = _least(state, found, dtype)
    below = _without_empty(state, found, below, least)
    value = _beside_sink(state, found, b.apply("divide", above, below, dtype=dtype), below, shifts)
    if found.finish is not None:
        state.know(found.ratio, value)
        value = b.array(contractions.contract(state, found.finish, dtype), dtype)
    bound = b.fold("min", below, ())
    for factor in found.values:
        scale = _scale(state, found, factor, dtype)
        bound = bound if scale is None else b.apply("multiply", bound, scale, dtype=dtype)
    tests = [b.apply("greater_equal", bound, least, dtype="bool")]
    for number in (value, *(state.array(row, dtype) for row in found.rows)):
        tests.append(b.apply("isfinite", b.fold("sum", number, ()), dtype="bool"))
    test = b.all_of(tests)
    assert test is not None
    return value, test


def _beside_sink(
    state: Lowering, found: Factored, value: Register, below: Register, shifts: list[Register]
) -> Register:
    """The ratio times Σ exp(s) / (Σ exp(s) + exp(sink)), the sigmoid of a difference of logarithms."""
    sink = dict(found.weights.options).get("sink")
    if sink is None:
        return value
    b, dtype = state.builder, value.dtype
    total = b.apply("log", below, dtype=dtype)
    for part in (*shifts, *(state.array(row) for row in found.rows)):
        total = b.apply("add", total, b.array(part, dtype), dtype=dtype)
    total = b.apply("subtract", total, b.cast(state.lower(sink), dtype), dtype=dtype)
    return b.apply("multiply", value, b.apply("sigmoid", total, dtype=dtype), dtype=dtype)


def _powers(state: Lowering, found: Factored, exponent: Exponent, dtype: str) -> tuple[Register, Register]:
    """The exponential of one term, made in the precision of the term and in `dtype` then, and what it is shifted by."""
    b, free = state.builder, exponent.score.free
    own = dtypes.work(dtypes.floating(state.typing.of(exponent.score)))
    own = own if own == "float64" else dtype
    where = None if exponent.where is None else state.array(exponent.where)
    with state.under(where):
        score = b.broadcast(state.array(exponent.score), free)
    indices = tuple(i for i in found.weights.indices if i in free)
    out = b.register(score.axes, own)
    greatest = b.register((i for i in score.axes if i not in indices), own)
    return b.array(b.emit(Powers(out, greatest, indices, score, where)), dtype), greatest


def _least(state: Lowering, found: Factored, dtype: str) -> Register:
    """What the denominator may not fall below: a multiple of how many tuples are summed."""
    operands = len(found.numerator.contraction.factors) + len(found.numerator.steps)
    least = state.builder.array(Literal(LEAST[dtype] * operands), dtype)
    for index in found.node.summed:
        least = state.builder.apply("multiply", least, Literal(Size.of(index.name)), dtype=dtype)
    return least


def _without_empty(state: Lowering, found: Factored, below: Register, least: Register) -> Register:
    """The denominator with 1 in the rows that admit no tuple; they are only looked for where it is small somewhere."""
    if found.count is None:
        return below
    b, dtype = state.builder, below.dtype
    out = b.register(below.axes, dtype)
    test = b.apply("greater_equal", b.fold("min", below, ()), least, dtype="bool")
    with _side(state) as slow:
        count = b.array(contractions.contract(state, found.count, dtype), dtype)
        empty = b.apply("equal", count, Literal(0), dtype="bool")
        full = b.broadcast(b.apply("select", empty, Literal(1), below, dtype=dtype), below.axes)
    return b.emit(Attempt((out,), test, b.finish([], below, out), b.finish(slow, full, out)))


def _scale(state: Lowering, found: Factored, factor: Expr, dtype: str) -> Register | None:
    """The least of 1 and of the largest magnitudes of a factor along the summed indices; 0 throughout counts as 1."""
    b = state.builder
    value = state.array(factor)
    if not value.dtype.startswith("float"):
        return None  # 0, or at least 1
    size = b.apply("abs", b.array(value, dtype), dtype=dtype)
    largest = b.fold("max", size, set(value.axes) - set(found.node.summed))
    some = b.apply("greater", largest, Literal(0), dtype="bool")
    largest = b.apply("select", some, largest, Literal(1.0), dtype=dtype)
    return b.apply("minimum", b.fold("min", largest, ()), Literal(1.0), dtype=dtype)
