"""Instructions under construction: cotangents as registers that may lack axes along which they are constant."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Cast, Contract, Fill, Fold, Instruction, Iota
from tensorattn.parts import Literal, Operand, Register
from tensorattn.sizes import Size


@dataclass(slots=True)
class Emitter:
    """A list of instructions that grows; names begin with `stem`, which no register of the kernel does."""

    stem: str
    body: list[Instruction] = field(default_factory=list)
    count: int = 0

    def register(self, axes: Iterable[Index], dtype: str) -> Register:
        self.count += 1
        return Register(f"{self.stem}{self.count}", tuple(axes), dtype)

    def emit(self, instruction: Instruction) -> Register:
        self.body.append(instruction)
        return instruction.out  # type: ignore[union-attr]

    def apply(self, function: str, *arguments: Operand, dtype: str, like: Sequence[Index] = ()) -> Register:
        """An elementwise function; axes in the order of `like`, then of the arguments."""
        found = dict.fromkeys(i for a in arguments if isinstance(a, Register) for i in a.axes)
        axes = [*(i for i in like if i in found), *(i for i in found if i not in like)]
        return self.emit(Apply(self.register(axes, dtype), function, arguments))

    def full(self, value: int | float | Size, axes: Sequence[Index], dtype: str) -> Register:
        return self.emit(Fill(self.register(axes, dtype), value))

    def scalar(self, value: Literal, dtype: str) -> Register:
        """A literal as an array without axes."""
        return self.emit(Fill(self.register((), dtype), value.value))

    def cast(self, register: Register, dtype: str) -> Register:
        return register if register.dtype == dtype else self.emit(Cast(self.register(register.axes, dtype), register))

    def iota(self, index: Index) -> Register:
        return self.emit(Iota(self.register((index,), "int64"), Size.of(index.name)))

    def whole(self, register: Register, axes: tuple[Index, ...]) -> Register:
        """The register with all these axes, in this order."""
        return register if register.axes == axes else self.emit(Arrange(self.register(axes, register.dtype), register))

    def select(self, p: Register, a: Operand, b: Operand, dtype: str) -> Register:
        arrays = [x.axes for x in (a, b, p) if isinstance(x, Register)]
        return self.apply("select", p, a, b, dtype=dtype, like=max(arrays, key=len))

    def fold(self, kind: str, source: Register, gone: Iterable[Index]) -> Register:
        axes = tuple(i for i in source.axes if i not in set(gone))
        return source if axes == source.axes else self.emit(Fold(self.register(axes, source.dtype), kind, source))

    def pulled(self, factors: Sequence[Operand], over: Iterable[Index], target: Sequence[Index]) -> Register:
        """Σ Π factors over the axes of `over` that the target lacks; what no factor holds there counts once a place.

        The first factor is an array, whose dtype the result has.
        """
        arrays = [self.cast(f, factors[0].dtype) for f in factors if isinstance(f, Register)]  # type: ignore[union-attr]
        gone = [i for i in dict.fromkeys(over) if i not in target]
        counted = Size.product(i.name for i in gone if all(i not in a.axes for a in arrays))
        scales = [f for f in factors if isinstance(f, Literal)]
        total = self._product(arrays, target)
        if counted != Size.of(1):
            scales.append(Literal(counted))
        for scale in scales:
            total = self.apply("multiply", total, scale, dtype=total.dtype)
        return total

    def _product(self, arrays: list[Register], target: Sequence[Index]) -> Register:
        """The product of arrays, summed over the axes that the target lacks; the largest enters last."""
        *early, last = sorted(arrays, key=lambda a: len(a.axes))
        if not early:
            return self.fold("sum", last, [i for i in last.axes if i not in target])
        first = early[0]
        for factor in early[1:]:
            first = self.apply("multiply", first, factor, dtype=last.dtype, like=target)
        both = {*first.axes, *last.axes}
        if both <= set(target):
            return self.apply("multiply", last, first, dtype=last.dtype, like=target)
        axes = tuple(i for i in target if i in both)
        shared = {*first.axes} & {*last.axes} & {*axes}
        if shared and not ({*first.axes} & {*axes} > shared and {*last.axes} & {*axes} > shared):
            product = self.apply("multiply", last, first, dtype=last.dtype, like=last.axes)  # no matrix by a matrix
            return self.emit(Fold(self.register(axes, last.dtype), "sum", product))
        return self.emit(Contract(self.register(axes, last.dtype), first, last))

    def total(self, terms: Sequence[Register], like: Sequence[Index]) -> Register:
        """The sum of cotangents of one register."""
        found = terms[0]
        for term in terms[1:]:
            found = self.apply("add", found, term, dtype=found.dtype, like=like)
        return found
