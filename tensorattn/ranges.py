"""Affine slots whose positions are known to leave their axis (`E-RANGE`), where no predicate guards them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorattn.equations import Equations
from tensorattn.errors import ShapeError
from tensorattn.ir import Affine, Expr, Extent, Index, Normalise, Position, Product, Reduce, Tensor, Top, children
from tensorattn.predicates import bringing, brings
from tensorattn.program import Program
from tensorattn.sizes import Size


def check_ranges(
    program: Program, axes: Mapping[str, tuple[Size, ...]], sizes: Mapping[str, Size], equations: Equations
) -> None:
    """Raises: ShapeError `E-RANGE` for the first affine slot that surely reads outside."""
    masked = bringing(program)
    for statement in program.statements:
        for tensor in _unguarded(statement.body, masked):
            if tensor.name not in axes:
                continue
            shift = len(tensor.slots) - len(axes[tensor.name])
            for number, slot in enumerate(tensor.slots):
                if isinstance(slot, Affine):
                    size = equations.reduced(axes[tensor.name][number - shift])
                    _check(program, tensor, number, slot, size, sizes)


def _check(program: Program, tensor: Tensor, number: int, slot: Affine, size: Size, sizes: Mapping[str, Size]) -> None:
    bounds = interval(slot, sizes)
    if bounds is None or not (_is_surely_negative(bounds.low) or _is_surely_negative(size - bounds.high - 1)):
        return
    spans = [tensor.slot_spans[number]] if number < len(tensor.slot_spans) else []
    facts = [f"the slot takes the values {bounds.low} … {bounds.high}"]
    if size.constant == 0:
        facts.append("the axis is empty")
    elif size != Size.of(f"{tensor.name}.{number}"):  # the axis of an input without a shape has no size to show
        facts.append(f"the axis has the positions 0 … {size - 1}")
    if (bounds.low.symbols | bounds.high.symbols) and tensor.free:
        facts.append("sizes of 0 excepted, where nothing is read")
    hint = "positions never wrap: shift the slot, or guard the tuples with a predicate"
    raise ShapeError(
        "E-RANGE",
        f"a slot of `{tensor.name}` reads outside its axis",
        source=program.source if spans else None,
        spans=spans,
        facts=facts,
        hint=hint,
    )


@dataclass(frozen=True, slots=True)
class Interval:
    """The least and the greatest position that a slot takes."""

    low: Size
    high: Size


def interval(slot: Affine, sizes: Mapping[str, Size]) -> Interval | None:
    """The positions in terms of sizes, or None where an atom is data or no tuple exists."""
    low = high = Size.of(slot.constant)
    for coefficient, atom in slot.terms:
        match atom:
            case Position(index=Index(name=name)):
                size = sizes.get(name, Size.of(name))
                if size.constant == 0:
                    return None
                end = coefficient * (size - 1)
                low, high = (low, high + end) if coefficient > 0 else (low + end, high)
            case Extent(name=name):
                size = coefficient * sizes.get(name, Size.of(name))
                low, high = low + size, high + size
            case _:
                return None
    return Interval(low, high)


def _is_surely_negative(size: Size) -> bool:
    """Whether a polynomial is below 0 wherever all its symbols are at least 1."""
    shifted = size.substitute({name: Size.of(name) + 1 for name in size.symbols})
    constant = next((c for m, c in shifted.terms if not m), 0)
    return constant < 0 and all(c < 0 for _, c in shifted.terms)


def _unguarded(expr: Expr, masked: frozenset[str]) -> Iterator[Tensor]:
    """The tensors whose every tuple is read; the definitions `masked` bring a predicate."""
    if isinstance(expr, Tensor):
        yield expr
    if isinstance(expr, (Reduce, Normalise, Top)) and expr.where is not None:
        return
    if isinstance(expr, Product) and any(brings(factor, masked) for factor in expr.factors):
        return
    for child in children(expr):
        yield from _unguarded(child, masked)
