"""What a register is in terms of others: a sum of terms, and a term as a product of factors with numbers beside them.

Read off the instructions of a kernel, through definitions (views), broadcasts and the guards of a predicate, whose
plain side says what is computed. Indices that are summed inside are kept apart, so that factors can be regrouped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Contract, Fold, IfFinite, Instruction, View
from tensorattn.lowering.liveness import makes
from tensorattn.parts import Literal, Operand, Register
from tensorattn.sizes import Size

Names = Mapping[Index, Index]
Scale = tuple[str, Operand]  # `multiply` or `divide`, and by what: a number, or a register without axes


@dataclass(frozen=True, slots=True)
class Factor:
    """A register read under the index names of the place where it stands."""

    register: Register
    axes: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Term:
    """A factor (None: the number 1) with what scales it."""

    factor: Factor | None
    scales: tuple[Scale, ...]


@dataclass(slots=True)
class Product:
    """Factors to be multiplied and summed over every index that the result lacks, and what scales them."""

    factors: list[Factor] = field(default_factory=list)
    scales: list[Scale] = field(default_factory=list)


def plain_side(body: Iterable[Instruction]) -> Iterator[Instruction]:
    """The instructions with every branch replaced by its side for finite values."""
    for instruction in body:
        if isinstance(instruction, IfFinite):
            yield from plain_side(instruction.fast)
        else:
            yield instruction


class Reader:
    """The makers of the registers of a kernel."""

    def __init__(self, body: Iterable[Instruction]) -> None:
        self.makers = {made.name: i for i in plain_side(body) for made in makes(i)}

    # a sum of terms ----------------------------------------------------------------------------------------------

    def terms(self, register: Register, names: Names, scales: tuple[Scale, ...] = ()) -> list[Term]:
        """The terms whose sum the register is; one term where it is no sum."""
        match made := self.makers.get(register.name):
            case Apply(function="add" | "subtract" as function, arguments=(a, b)) if _alike(register, a, b):
                negative = (*scales, ("multiply", Literal(-1))) if function == "subtract" else scales
                return [*self._part(a, names, scales), *self._part(b, names, negative)]
            case Apply(function="negate", arguments=(Register() as a,)) if _alike(register, a):
                return self.terms(a, names, (*scales, ("multiply", Literal(-1))))
            case Arrange(source=source) if _alike(register, source):
                return self.terms(source, names, scales)
            case View(source=source) if (inner := _renaming(made, names)) is not None:
                return self.terms(source, inner, scales)
            case _ if (found := _scaled(register, made)) is not None:
                inner_terms = self.terms(found[0], names, (*scales, *found[1]))
                if len(inner_terms) > 1:
                    return inner_terms
        return [Term(_factor(register, names), scales)]

    def _part(self, operand: Operand, names: Names, scales: tuple[Scale, ...]) -> list[Term]:
        if isinstance(operand, Literal):
            return [Term(None, (*scales, ("multiply", operand)))]
        return self.terms(operand, names, scales)

    # a product of factors ----------------------------------------------------------------------------------------

    def product(self, factor: Factor, used: set[Index]) -> Product:
        """The factor taken apart as far as it is multilinear; `used`: the index names that are taken, and grows."""
        found = Product()
        self._collect(factor.register, dict(zip(factor.register.axes, factor.axes, strict=True)), used, found)
        return found

    def _collect(self, register: Register, names: Names, used: set[Index], found: Product) -> None:
        match made := self.makers.get(register.name):
            case Contract(a=a, b=b):
                inner = _apart(names, {*a.axes, *b.axes} - set(register.axes), used)
                self._collect(a, inner, used, found)
                self._collect(b, inner, used, found)
            case Apply(function="multiply", arguments=(Register() as a, Register() as b)) if _alike(register, a, b):
                self._collect(a, names, used, found)
                self._collect(b, names, used, found)
            case Apply(function="negate", arguments=(Register() as a,)) if _alike(register, a):
                found.scales.append(("multiply", Literal(-1)))
                self._collect(a, names, used, found)
            case Fold(kind="sum", source=source) if _alike(register, source):
                self._collect(source, _apart(names, set(source.axes) - set(register.axes), used), used, found)
            case Arrange(source=source) if _alike(register, source) and set(source.axes) == set(register.axes):
                self._collect(source, names, used, found)
            case View(source=source) if (inner := _renaming(made, names)) is not None:
                self._collect(source, inner, used, found)
            case _ if (scaled := _scaled(register, made)) is not None:
                found.scales += scaled[1]
                self._collect(scaled[0], names, used, found)
            case _:
                found.factors.append(_factor(register, names))


def _factor(register: Register, names: Names) -> Factor:
    return Factor(register, tuple(names[index] for index in register.axes))


def _alike(out: Register, *operands: Operand) -> bool:
    """Whether no operand is cast on the way in."""
    return all(isinstance(o, Literal) or o.dtype == out.dtype for o in operands)


def _scaled(out: Register, made: Instruction | None) -> tuple[Register, tuple[Scale, ...]] | None:
    """The one operand with axes and what scales it. A scale that stands inside an empty sum has nothing to scale."""
    match made:
        case Apply(function="select", arguments=(Literal(value=Size()), Register() as a, Register())):
            return (a, ()) if a.axes == out.axes else None
        case Apply(function="multiply", arguments=(Register() as a, by)) if _is_scalar(by) and _alike(out, a, by):
            return a, (("multiply", by),)
        case Apply(function="multiply", arguments=(by, Register() as a)) if _is_scalar(by) and _alike(out, a, by):
            return a, (("multiply", by),)
        case Apply(function="divide", arguments=(Register() as a, by)) if _is_scalar(by) and _alike(out, a, by):
            return a, (("divide", by),)
    return None


def _is_scalar(operand: Operand) -> bool:
    return isinstance(operand, Literal) or not operand.axes


def _renaming(view: View, names: Names) -> Names | None:
    """The names of the axes of the source of a view that renames them one by one; None for any other view."""
    seen = [index for split in view.splits for index in split]
    plain = all(len(split) == 1 for split in view.splits) and len(set(seen)) == len(seen)
    if not plain or view.source.dtype != view.out.dtype:
        return None
    return {axis: names[index] for axis, index in zip(view.source.axes, seen, strict=True)}


def _apart(names: Names, summed: set[Index], used: set[Index]) -> Names:
    """The names, with one of its own for each index that is summed inside."""
    inner = dict(names)
    for index in sorted(summed):
        free = index
        while free in used:
            free = replace(free, number=free.number + 1)
        used.add(free)
        inner[index] = free
    return inner
