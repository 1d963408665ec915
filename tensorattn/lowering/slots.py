"""Tensors read through slots: plain, split, affine and gathered ones, of inputs and of earlier statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensorattn.dtypes import work
from tensorattn.ir import Affine, Extent, Index, Position, Slot, Split, Tensor
from tensorattn.kernel import CheckRange, Gather, Load, View
from tensorattn.parts import Literal, Register
from tensorattn.sizes import Size

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering

DIGIT = -1  # the number of an index that only counts the digits of a position


@dataclass(frozen=True, slots=True)
class Dimension:
    """One dimension of a table: the indices it is read as, and the slot with the length where it is gathered."""

    indices: tuple[Index, ...]
    slot: Affine | None = None
    length: Size | None = None
    digits: tuple[Index, ...] = ()  # a merged axis that is gathered: the axes it is made of


def read(state: Lowering, node: Tensor) -> Register:
    """The value of a tensor read through its slots."""
    if node.name in state.statements:
        return read_defined(state, node, state.values[node.name])
    dimensions = [
        _dimension(state, node, axis, slot, lambda axis=axis: _length(state, node.name, axis))
        for axis, slot in enumerate(node.slots)
    ]
    dtype = work(state.typing.names[node.name])
    splits = tuple(d.indices for d in dimensions)
    key = (node.name, splits)
    table = state.loads.get(key)
    if table is None:
        axes = tuple(dict.fromkeys(index for split in splits for index in split))
        table = state.builder.emit(Load(state.builder.register(axes, dtype), node.name, splits, state.given[node.name]))
        state.loads[key] = table
    return _gathered(state, node, table, dimensions)


def _dimension(state: Lowering, node: Tensor, number: int, slot: Slot, length: Callable[[], Size]) -> Dimension:
    """How one axis is read; `length`: of the axis, where positions along it are computed."""
    match slot:
        case Index():
            return Dimension((slot,))
        case Split(indices=indices):
            return Dimension(indices)
        case Affine():
            size = length()
            return Dimension((_table_axis(state, f"{node.name}.{number}", size),), slot, size)


def _table_axis(state: Lowering, name: str, size: Size) -> Index:
    """An axis along which positions are computed, a name of its own for this size."""
    state.builder.name_length(name, size)
    return Index(name)


def _length(state: Lowering, name: str, axis: int) -> Size:
    """The length of an axis of an input."""
    own = state.builder.length(name, axis)
    return _declared(state, name, axis) or own


def _declared(state: Lowering, name: str, axis: int) -> Size | None:
    """The size of an axis of an input that a plain slot elsewhere in the program names."""
    for tensor in state.plan.program.tensors:
        if tensor.name == name and not isinstance(slot := tensor.slots[axis], Affine):
            return Size.product(i.name for i in (slot.indices if isinstance(slot, Split) else (slot,)))
    return None


def read_defined(state: Lowering, node: Tensor, source: Register, *, partial: bool = False) -> Register:
    """A register over a statement's indices, read through the slots of `node`. `partial`: it may lack some of them."""
    b, axes = state.builder, state.statements[node.name].axes
    if any(len(axis) != 1 for axis in axes):
        whole = tuple(index for axis in axes for index in axis)
        source = b.arrange(b.broadcast(source, whole) if partial else source, whole)
        dimensions = [d for axis, slot in zip(axes, node.slots, strict=True) for d in _merged(state, node, axis, slot)]
    else:
        slots = {axis[0]: (n, slot) for n, (axis, slot) in enumerate(zip(axes, node.slots, strict=True))}
        dimensions = [_dimension(state, node, *slots[i], lambda i=i: Size.of(i.name)) for i in source.axes]
    splits = tuple(d.indices for d in dimensions)
    flat = tuple(dict.fromkeys(index for split in splits for index in split))
    if splits != tuple((index,) for index in source.axes):
        source = b.emit(View(b.register(flat, source.dtype), source, splits))
    return _gathered(state, node, source, dimensions)


def _merged(state: Lowering, node: Tensor, axis: tuple[Index, ...], slot: Slot) -> list[Dimension]:
    """A merged axis in row-major order is any reading of it with the same number of entries."""
    number = node.slots.index(slot)
    if len(axis) == 1:
        return [_dimension(state, node, number, slot, lambda: Size.of(axis[0].name))]
    rest = [Dimension(())] * (len(axis) - 1)
    match slot:
        case Index():
            return [Dimension((slot,)), *rest]
        case Split(indices=indices):
            return [Dimension(indices), *rest]
        case Affine():
            digits = tuple(_table_axis(state, f"{node.name}.{number}.{n}", Size.of(i.name)) for n, i in enumerate(axis))
            first = Dimension(digits[:1], slot, Size.product(i.name for i in axis), axis)
            return [first, *(Dimension((digit,)) for digit in digits[1:])]


def _gathered(state: Lowering, node: Tensor, table: Register, dimensions: list[Dimension]) -> Register:
    """The table at the positions of its affine slots; the table itself where all slots are plain."""
    positions: dict[Index, Register] = {}
    for dimension in dimensions:
        if dimension.slot is None:
            continue
        place = _position(state, node, dimension)
        if dimension.digits:
            number = dimensions.index(dimension)
            heads = [d.indices[0] for d in dimensions[number : number + len(dimension.digits)]]
            positions |= dict(zip(heads, _digits(state, place, dimension.digits), strict=True))
        else:
            positions[dimension.indices[0]] = place
    if not positions:
        return table
    places = tuple(positions.get(index, index) for index in table.axes)
    free = [i for place in places for i in (place.axes if isinstance(place, Register) else (place,))]
    b = state.builder
    return b.emit(Gather(b.register(b.order(free), table.dtype), table, places))


def _digits(state: Lowering, place: Register, axes: tuple[Index, ...]) -> list[Register]:
    """A position in a merged axis as positions in its parts: how many multiples of the rest it has passed."""
    b, digits = state.builder, []
    for n, axis in enumerate(axes[:-1]):
        step = Literal(Size.product(i.name for i in axes[n + 1 :]))
        counter = Index(axis.name, DIGIT - n)
        multiples = b.apply("multiply", b.iota(counter), step, dtype="int64")
        passed = b.cast(b.apply("greater_equal", place, multiples, dtype="bool"), "int64")
        assert isinstance(passed, Register)
        digit = b.apply("subtract", b.fold("sum", passed, place.axes), Literal(1), dtype="int64")
        digits.append(digit)
        place = b.apply("subtract", place, b.apply("multiply", digit, step, dtype="int64"), dtype="int64")
    return [*digits, place]


def _position(state: Lowering, node: Tensor, dimension: Dimension) -> Register:
    """The positions of an affine slot, checked unless they are in range for all sizes."""
    slot, length, b = dimension.slot, dimension.length, state.builder
    assert slot is not None
    assert length is not None
    fixed, total = Size.of(slot.constant), None
    for coefficient, atom in slot.terms:
        value = state.lower(atom)
        if isinstance(value, Literal):
            fixed = fixed + Size.of(value.value) * coefficient  # type: ignore[arg-type]
            continue
        term = b.cast(value, "int64")
        if total is None:
            total = term if coefficient == 1 else b.apply("multiply", term, Literal(coefficient), dtype="int64")
        elif abs(coefficient) == 1:
            total = b.apply("add" if coefficient > 0 else "subtract", total, term, dtype="int64")
        else:
            scaled = b.apply("multiply", term, Literal(coefficient), dtype="int64")
            total = b.apply("add", total, scaled, dtype="int64")
    if total is None:
        total = b.array(Literal(fixed.constant if fixed.constant is not None else fixed), "int64")
    elif fixed.terms:
        constant = fixed.constant
        total = b.apply("add", total, Literal(fixed if constant is None else constant), dtype="int64")
    assert isinstance(total, Register)
    if in_range(slot, length):
        return total
    out = b.register(total.axes, "int64")
    return b.emit(CheckRange(out, total, length, _where(state, total), _what(state, node, dimension)))


def _where(state: Lowering, positions: Register) -> Register | None:
    """The enclosing predicate over the axes of the positions: admitted if any tuple over the others is."""
    mask = state.admitted
    return None if mask is None else state.builder.fold("any", mask, positions.axes)


def _what(state: Lowering, node: Tensor, dimension: Dimension) -> str:
    """What is read: rows by symbol, which the text does not have, are those of a table (rewriting/rows.py)."""
    number = next(n for n, slot in enumerate(node.slots) if slot is dimension.slot)
    name, axis = node.name, str(number)
    if node.name in state.statements and "." in (symbol := state.statements[node.name].axes[number][0].name):
        name, _, axis = symbol.rpartition(".")
    return f"position in axis {axis} of `{name}`"


def in_range(slot: Affine, length: Size) -> bool:
    """Whether 0 ≤ position < length for all sizes ≥ 1, proved by interval arithmetic.

    With a size of 0 among them there is no position; one that is fixed is a matter of the shapes.
    """
    low = high = Size.of(slot.constant)
    for coefficient, atom in slot.terms:
        match atom:
            case Position(index=index):
                reach = (Size.of(index.name) - 1) * coefficient
                low, high = (low, high + reach) if coefficient > 0 else (low + reach, high)
            case Extent(name=name):
                low, high = low + Size.of(name) * coefficient, high + Size.of(name) * coefficient
            case _:
                return False
    return _never_negative(low) and _never_negative(length - 1 - high)


def _never_negative(size: Size) -> bool:
    """Whether a polynomial is ≥ 0 wherever every symbol is ≥ 1: all its coefficients around 1 are."""
    around = size.substitute({name: Size.of(name) + 1 for name in size.symbols})
    return all(coefficient >= 0 for _, coefficient in around.terms)
