"""The instructions under construction: fresh registers, casts, axis order, small arithmetic on literals."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Attempt, Cast, Contract, Fill, Fold, IfFinite, Instruction, Iota
from tensorattn.parts import Literal, Operand, Register
from tensorattn.sizes import Axis, Size, SizeRead


@dataclass(slots=True)
class Builder:
    """A list of instructions that grows; `rank` orders the axes of every register made."""

    reads: dict[str, SizeRead]
    body: list[Instruction] = field(default_factory=list)
    rank: dict[Index, int] = field(default_factory=dict)
    _count: int = 0
    _lengths: dict[str, Axis | Size] = field(default_factory=dict)
    _casts: dict[tuple[Register, str], Register] = field(default_factory=dict)
    _iotas: dict[Index, Register] = field(default_factory=dict)
    _numbers: dict[Register, Apply] = field(default_factory=dict)  # choices of literals
    products: dict[frozenset[Register], tuple[Register, ...]] | None = None  # made by `contract`, while it is a dict

    @property
    def lengths(self) -> tuple[tuple[str, Axis | Size], ...]:
        """Axis lengths that no index names, asked for by `length`."""
        return tuple(self._lengths.items())

    def order(self, indices: Iterable[Index]) -> tuple[Index, ...]:
        """The indices as axes: those of the statement first, then in order of first use."""
        found = dict.fromkeys(indices)
        for index in found:  # new ones stand in no formula: the digits of a position, the axes of a table
            self.rank.setdefault(index, len(self.rank))
        return tuple(sorted(found, key=self.rank.__getitem__))

    def prefer(self, indices: Iterable[Index]) -> None:
        """From here on, these indices are the leading axes, in this order."""
        self.rank = {index: n for n, index in enumerate(dict.fromkeys(indices))}

    def register(self, axes: Iterable[Index], dtype: str) -> Register:
        self._count += 1
        return Register(f"t{self._count}", tuple(axes), dtype)

    def emit(self, instruction: Any) -> Register:
        self.body.append(instruction)
        return instruction.out

    @contextmanager
    def nested(self) -> Generator[list[Instruction]]:
        """Instructions made inside go to a list of their own."""
        outer, known = self.body, (self._casts, self._iotas, self.products)
        self.body, self._casts, self._iotas = [], dict(self._casts), dict(self._iotas)
        self.products = None if self.products is None else dict(self.products)
        try:
            yield self.body
        finally:
            self.body, (self._casts, self._iotas, self.products) = outer, known

    # instructions -------------------------------------------------------------------------------------------------

    def apply(self, function: str, *arguments: Operand, dtype: str) -> Register:
        axes = self.order(index for a in arguments if isinstance(a, Register) for index in a.axes)
        made = Apply(self.register(axes, dtype), function, arguments)
        if function in ("where", "select") and all(isinstance(a, Literal) or a in self._numbers for a in arguments[1:]):
            self._numbers[made.out] = made
        return self.emit(made)

    def fold(self, kind: str, source: Register, keep: Iterable[Index]) -> Register:
        """The source reduced to the axes it shares with `keep`; itself if that is all of them."""
        kept = set(keep)
        axes = self.order(index for index in source.axes if index in kept)
        if len(axes) == len(source.axes):
            return source
        return self.emit(Fold(self.register(axes, source.dtype), kind, source))

    def contract(self, a: Register, b: Register, keep: Iterable[Index]) -> Register:
        kept, both = set(keep), dict.fromkeys((*a.axes, *b.axes))
        axes = self.order(index for index in both if index in kept)
        if len(axes) == len(both):
            found = self.apply("multiply", a, b, dtype=a.dtype)
        else:
            found = self._summed(a, b, axes) or self.emit(Contract(self.register(axes, a.dtype), a, b))
        if self.products is not None:
            self.products[frozenset((a, b))] = (*self.products.get(frozenset((a, b)), ()), found)
        return found

    def _summed(self, a: Register, b: Register, axes: tuple[Index, ...]) -> Register | None:
        """A product that is known, summed over the axes that are too many."""
        known = () if self.products is None else self.products.get(frozenset((a, b)), ())
        return next((self.fold("sum", p, axes) for p in known if set(axes) <= set(p.axes)), None)

    def cast(self, operand: Operand, dtype: str) -> Operand:
        if isinstance(operand, Literal) or operand.dtype == dtype:
            return operand
        found = self._casts.get((operand, dtype))
        if found is None:
            found = self._casts[operand, dtype] = self._cast(operand, dtype)
        return found

    def _cast(self, register: Register, dtype: str) -> Register:
        """A new register; a choice of numbers is made in the other dtype."""
        made = self._numbers.get(register)
        if made is None or register.dtype == "bool":
            return self.emit(Cast(self.register(register.axes, dtype), register))
        p, *numbers = made.arguments
        return self.apply(made.function, p, *(self.cast(n, dtype) for n in numbers), dtype=dtype)

    def array(self, operand: Operand, dtype: str) -> Register:
        """An operand as a register of this dtype: a literal becomes an array without axes."""
        if isinstance(operand, Register):
            found = self.cast(operand, dtype)
            assert isinstance(found, Register)
            return found
        return self.emit(Fill(self.register((), dtype), operand.value))

    def broadcast(self, register: Register, indices: Iterable[Index]) -> Register:
        """The register with all these axes too."""
        axes = self.order((*register.axes, *indices))
        return register if set(axes) == set(register.axes) else self.arrange(register, axes)

    def arrange(self, register: Register, axes: tuple[Index, ...]) -> Register:
        if register.axes == axes:
            return register
        return self.emit(Arrange(self.register(axes, register.dtype), register))

    def iota(self, index: Index) -> Register:
        found = self._iotas.get(index)
        if found is None:
            found = self.emit(Iota(self.register((index,), "int64"), Size.of(index.name)))
            self._iotas[index] = found
        return found

    def all_of(self, masks: Iterable[Register | None]) -> Register | None:
        """The truths joined by `and`; None where there is none."""
        joined: Register | None = None
        for mask in dict.fromkeys(m for m in masks if m is not None):
            joined = mask if joined is None else self.apply("and", joined, mask, dtype="bool")
        return joined

    def finish(self, body: list[Instruction], result: Register, out: Register) -> tuple[Instruction, ...]:
        """The body with its result written to `out`."""
        last = body[-1] if body else None
        if last and last.out is result and result.axes == out.axes and not isinstance(last, (IfFinite, Attempt)):  # type: ignore[union-attr]
            return (*body[:-1], replace(body[-1], out=out))
        return (*body, Arrange(out, result))

    def length(self, name: str, axis: int) -> Size:
        """The length of an axis of an input, by an index that is read from it, else by a name of its own.

        Both are noted: the axis of the table that is gathered from bears the latter.
        """
        read, symbol = Axis(name, axis), f"{name}.{axis}"
        self._lengths[symbol] = read
        return next((Size.of(known) for known, how in self.reads.items() if how == read), Size.of(symbol))

    def name_length(self, name: str, size: Size) -> None:
        """A further name for a length."""
        if name not in self.reads and size != Size.of(name):
            self._lengths.setdefault(name, size)
