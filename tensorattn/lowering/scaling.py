"""What scales a contraction: its numbers, its factors without indices, and the divisors that are no arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorattn.parts import Literal, Operand, Register, Root
from tensorattn.plan import Contraction
from tensorattn.sizes import Size

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering


@dataclass(frozen=True, slots=True)
class Operands:
    """What a contraction combines: its factors, what scales it (factors without indices, numbers), what divides it."""

    factors: tuple[Register, ...]
    scalars: tuple[Register, ...]
    literals: tuple[Literal, ...]
    below: tuple[Operand, ...]

    @property
    def registers(self) -> tuple[Register, ...]:
        """What is tested for finiteness where it matters."""
        return (*self.factors, *self.scalars)

    @property
    def arrays(self) -> int:
        return len(self.registers) + sum(isinstance(b, Register) for b in self.below)


def constant(state: Lowering, contraction: Contraction, operands: Operands, dtype: str) -> Operand:
    """A product of numbers and sizes, a Python number where that is exact."""
    b, free, (number, size) = state.builder, contraction.node.free, _merged(operands.literals)
    found: Operand = Literal(size) if number == 1 and size != Size.of(1) else Literal(number)
    if number != 1 and size != Size.of(1):
        found = b.apply("multiply", Literal(size), Literal(number), dtype=dtype)
    plain = found
    for below in operands.below:
        found = _quotient(state, found, below, dtype)
    if isinstance(found, Register):
        found = inside(state, contraction, found, b.array(plain, dtype))
    return b.broadcast(b.array(found, dtype), free) if free else found


def _quotient(state: Lowering, above: Operand, below: Operand, dtype: str) -> Operand:
    """A quotient of operands without axes, of Python numbers where both are."""
    if isinstance(above, Literal) and isinstance(below, Literal):
        value, by = above.value, below.value
        if isinstance(value, (int, float)) and isinstance(by, (int, float)) and by:
            return Literal(value / by)
    return state.builder.apply("divide", above, below, dtype=dtype)


def _merged(literals: tuple[Literal, ...]) -> tuple[int | float, Size]:
    number: int | float = 1
    size = Size.of(1)
    for literal in literals:
        if isinstance(literal.value, Size):
            size = size * literal.value
        else:
            assert not isinstance(literal.value, Root)  # `plain` has made an array of it
            number = number * literal.value
    return number, size


def scaled(
    state: Lowering,
    contraction: Contraction,
    operands: Operands,
    array: Register,
    scalars: tuple[Register, ...],
    dtype: str,
) -> Register:
    """The array times the numbers and the factors without indices, over the divisors without indices.

    These are combined among themselves first; a divisor alone divides, which is exact where the quotient is.
    """
    b = state.builder
    scale = _folded(state, [*scalars, *_literals(operands.literals)], dtype)
    below = _folded(state, list(operands.below), dtype)
    if below is None:
        match scale:
            case None:
                return array
            case Literal(value=-1):
                return b.apply("negate", array, dtype=dtype)
            case Literal():  # finite: 0 times it is 0
                return b.apply("multiply", array, scale, dtype=dtype)
    elif scale is None:
        return inside(state, contraction, b.apply("divide", array, below, dtype=dtype), array)
    else:
        scale = _quotient(state, scale, below, dtype)
    return inside(state, contraction, b.apply("multiply", array, scale, dtype=dtype), array)


def inside(state: Lowering, contraction: Contraction, scaled: Register, plain: Register) -> Register:
    """What is scaled by perhaps 0⁻¹ or NaN; but as it was where the sum is empty, for the scale stands inside it.

    An empty axis that the array itself has leaves nothing to scale.
    """
    b = state.builder
    summed = [index for index in contraction.summed if index not in plain.axes]
    if not summed:
        return scaled
    return b.apply(
        "select",
        Literal(Size.product(i.name for i in summed)),
        scaled,
        b.broadcast(plain, scaled.axes),
        dtype=scaled.dtype,
    )


def plain(state: Lowering, operand: Operand, dtype: str) -> Operand:
    """The operand in this dtype; a root as an array, for numbers are multiplied exactly."""
    if isinstance(operand, Literal) and isinstance(operand.value, Root):
        return state.builder.array(operand, dtype)
    return state.builder.cast(operand, dtype)


def _literals(literals: tuple[Literal, ...]) -> list[Operand]:
    number, size = _merged(literals)
    parts: list[Operand] = [Literal(size)] if size != Size.of(1) else []
    return parts + ([Literal(number)] if number != 1 else [])


def _folded(state: Lowering, parts: list[Operand], dtype: str) -> Operand | None:
    """The product of operands without axes, the numbers among them first; None where there is none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    parts = [plain(state, part, dtype) for part in parts]
    numbers = tuple(p for p in parts if isinstance(p, Literal))
    arrays: list[Operand] = [p for p in parts if isinstance(p, Register)]
    factors = [*arrays, *_literals(numbers)] or [Literal(1)]
    total = factors[0]
    for factor in factors[1:]:
        total = state.builder.apply("multiply", total, factor, dtype=dtype)
    return total
