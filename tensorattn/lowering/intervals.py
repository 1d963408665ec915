"""Predicates → where along an axis anything can be admitted: affine comparisons of positions as intervals.

A predicate is a conjunction; each comparison of affine forms of positions (`mu - 16 < nu`, `abs(mu - nu) <= w`) is a
`Constraint` Σ c·position + rest ≤ 0. Given the stretch that every other axis runs over, it bounds the axis from one
side. What is not affine bounds nothing: the interval is never too small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from math import inf, lcm
from typing import Any

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Cast, Instruction, Iota, Slice
from tensorattn.parts import Bound, Edge, Literal, Narrowed, Operand, Register
from tensorattn.sizes import Size

ZERO = Size()
NEGATED = {
    "less": "greater_equal",
    "less_equal": "greater",
    "greater": "less_equal",
    "greater_equal": "less",
    "equal": "not_equal",
    "not_equal": "equal",
}


@dataclass(frozen=True, slots=True)
class Form:
    """Σ coefficient · position + Σ coefficient · scalar + constant; `whole` where it is an integer."""

    positions: tuple[tuple[Index, Fraction], ...] = ()
    scalars: tuple[tuple[Register, Fraction], ...] = ()
    constant: Size = ZERO
    whole: bool = True

    def plus(self, other: Form, factor: Fraction = Fraction(1)) -> Form:
        """This form and `factor` times the other."""
        positions = _added(self.positions, other.positions, factor)
        scalars = _added(self.scalars, other.scalars, factor)
        whole = self.whole and other.whole and factor.denominator == 1
        return Form(positions, scalars, self.constant + _times(other.constant, factor), whole)

    def times(self, factor: Fraction) -> Form:
        return Form().plus(self, factor)


@dataclass(frozen=True, slots=True)
class Constraint:
    """`form` ≤ 0, or < 0 where `strict`, at every admitted tuple."""

    form: Form
    strict: bool

    def bound(self, axis: Index, cut: frozenset[Index]) -> tuple[int, Bound] | None:
        """The bound on the axis where those `cut` run over a tile and all others over the whole of theirs.

        With 1 an upper one, the last position that can be admitted; with −1 a lower one, the first.
        """
        coefficients = dict(self.form.positions)
        own = coefficients.pop(axis, Fraction(0))
        if not own or not self.form.whole or any(r.dtype != "int64" for r, _ in self.form.scalars):
            return None  # where numbers are rounded, the predicate may admit what exact ones exclude
        parts = [*coefficients.values(), *(c for _, c in self.form.scalars), own]
        parts += [Fraction(c) for _, c in self.form.constant.terms]
        scale = lcm(*(c.denominator for c in parts))
        constant = -_times(self.form.constant, Fraction(scale))
        terms: list[tuple[int, Edge | Register]] = [(-int(c * scale), r) for r, c in self.form.scalars]
        for index, coefficient in coefficients.items():
            whole = int(coefficient * scale)
            if index in cut:
                terms.append((-whole, Edge(index, last=whole < 0)))
            elif whole < 0:
                constant = constant + (Size.of(index.name) - 1) * -whole
        if self.strict:
            constant = constant - 1
        side, divisor = (1 if own > 0 else -1), abs(int(own * scale))
        return side, Bound(tuple(terms), constant, divisor)


def constraints(mask: Register | None, makers: Mapping[str, Instruction]) -> tuple[Constraint, ...]:
    """What every tuple that the mask admits satisfies, as far as it is affine in positions."""
    return () if mask is None else tuple(dict.fromkeys(_conjuncts(mask, makers)))


def interval(
    found: Iterable[Constraint], axis: Index, cut: frozenset[Index]
) -> tuple[tuple[Bound, ...], tuple[Bound, ...]]:
    """The lower and the upper bounds on an axis."""
    bounds = [b for c in found if (b := c.bound(axis, cut)) is not None]
    low, high = (tuple(dict.fromkeys(b for side, b in bounds if side == wanted)) for wanted in (-1, 1))
    return low, high


def filled(score: Register, makers: Mapping[str, Instruction]) -> Register | None:
    """The predicate outside which a score is −∞, as lowering made it so; None where there is none."""
    match makers.get(score.name):
        case Apply(function="select", arguments=(Register(dtype="bool") as where, _, Literal() as other)):
            return where if other.value == -inf else None
        case Apply(function="add", arguments=arguments):
            found = (filled(a, makers) for a in arguments if isinstance(a, Register))
            return next((where for where in found if where is not None), None)
        case Apply(function="subtract", arguments=(Register() as first, _)):
            return filled(first, makers)
        case Apply(function="multiply", arguments=(Register() as first, Literal(value=float(scale)))):
            return filled(first, makers) if scale > 0 else None
        case Apply(function="in_twos", arguments=(Register() as first,)) | Slice(source=first):
            return filled(first, makers)
    return None


def _conjuncts(mask: Operand, makers: Mapping[str, Instruction]) -> Iterable[Constraint]:
    if not isinstance(mask, Register):
        return
    match makers.get(mask.name):
        case Apply(function="and", arguments=arguments):
            for argument in arguments:
                yield from _conjuncts(argument, makers)
        case Arrange(source=source) | Cast(source=source) | Slice(source=source) if source.dtype == "bool":
            yield from _conjuncts(source, makers)
        case Apply(function="not", arguments=(inner,)) if isinstance(inner, Register):
            match makers.get(inner.name):
                case Apply(function=function, arguments=(left, right)) if function in NEGATED:
                    yield from _compared(NEGATED[function], left, right, makers)
        case Apply(function=function, arguments=(left, right)) if function in NEGATED:
            yield from _compared(function, left, right, makers)


def _compared(function: str, left: Operand, right: Operand, makers: Mapping[str, Instruction]) -> Iterable[Constraint]:
    if function in ("greater", "greater_equal"):
        left, right = right, left
        function = function.replace("greater", "less")
    strict = function == "less"
    if function in ("less", "less_equal", "equal"):
        yield from _at_most(left, right, strict, makers)
    if function == "equal":
        yield from _at_most(right, left, False, makers)


def _at_most(left: Operand, right: Operand, strict: bool, makers: Mapping[str, Instruction]) -> Iterable[Constraint]:
    """left ≤ right (or <): one constraint, two where left is an absolute value."""
    below = _form(right, makers)
    if below is None:
        return
    inside = _absolute(left, makers)
    if inside is not None:
        form = _form(inside, makers)
        forms = [] if form is None else [form, form.times(Fraction(-1))]
    else:
        form = _form(left, makers)
        forms = [] if form is None else [form]
    for form in forms:
        difference = form.plus(below, Fraction(-1))
        if difference.positions:
            yield Constraint(difference, strict)


def _absolute(operand: Operand, makers: Mapping[str, Instruction]) -> Operand | None:
    """What a register is the absolute value of."""
    made = makers.get(operand.name) if isinstance(operand, Register) else None
    match made:
        case Apply(function="abs", arguments=(inner,)):
            return inner
        case Arrange(source=source) | Cast(source=source) | Slice(source=source):
            return _absolute(source, makers)
    return None


def _form(operand: Operand, makers: Mapping[str, Instruction]) -> Form | None:
    """The affine form of a number, or None."""
    if isinstance(operand, Literal):
        return _literal(operand)
    match makers.get(operand.name):
        case Iota(out=out):
            return Form(((out.axes[0], Fraction(1)),))
        case Arrange(source=source) | Cast(source=source) | Slice(source=source) if source.dtype != "bool":
            return _form(source, makers)
        case Apply(function="negate", arguments=(inner,)):
            form = _form(inner, makers)
            return None if form is None else form.times(Fraction(-1))
        case Apply(function="add" | "subtract" as function, arguments=(left, right)):
            forms = _form(left, makers), _form(right, makers)
            if forms[0] is not None and forms[1] is not None:
                return forms[0].plus(forms[1], Fraction(1 if function == "add" else -1))
        case Apply(function="multiply", arguments=(left, right)):
            for factor, other in ((left, right), (right, left)):
                if isinstance(factor, Literal) and isinstance(factor.value, (int, float)):
                    form = _form(other, makers)
                    return None if form is None else form.times(Fraction(factor.value))
    return Form(scalars=((operand, Fraction(1)),), whole=operand.dtype == "int64") if not operand.axes else None


def _literal(literal: Literal) -> Form | None:
    match literal.value:
        case bool():
            return None
        case int(value):
            return Form(constant=Size.of(value))
        case float(value) if value == value and abs(value) < 2**53:
            return Form(constant=_times(Size.of(1), Fraction(value)), whole=value.is_integer())
        case Size() as size:
            return Form(constant=size)
    return None


def _added(one: tuple[Any, ...], other: tuple[Any, ...], factor: Fraction) -> tuple[Any, ...]:
    total = dict(one)
    for key, coefficient in other:
        total[key] = total.get(key, Fraction(0)) + coefficient * factor
    return tuple((key, coefficient) for key, coefficient in total.items() if coefficient)


def _times(size: Size, factor: Fraction) -> Size:
    return replace(size, terms=tuple((m, Fraction(c) * factor) for m, c in size.terms if c * factor))


def span(cut: Narrowed) -> tuple[tuple[tuple[int, Index], ...], Size] | None:
    """Σ k·(length of a tile − 1) + constant that no stretch exceeds: of bounds on both sides that move together."""
    for low in cut.low:
        for high in cut.high:
            if low.divisor != 1 or high.divisor != 1:
                continue
            steps: dict[Index, list[int]] = {}
            fixed: dict[Register, int] = {}
            for coefficient, what in (*low.terms, *high.terms):
                if isinstance(what, Edge):
                    steps.setdefault(what.axis, [0, 0])[what.last] += coefficient
                else:
                    fixed[what] = fixed.get(what, 0) + coefficient
            if not any(fixed.values()) and all(first + last == 0 for first, last in steps.values()):
                return tuple((last, axis) for axis, (_, last) in steps.items()), low.constant + high.constant + 1
    return None
