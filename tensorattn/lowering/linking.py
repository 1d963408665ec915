"""Which inputs a result of a kernel is no differentiable function of: their gradients are zeros, and not missing.

An array library that records operations finds no way from the result to them: they are compared only, or what held them
was dropped, or reduced over nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tensorattn.dtypes import FLOATS
from tensorattn.ir import Index
from tensorattn.kernel import Apply, Fold, Instruction, Kernel, Load, LogSumExp
from tensorattn.lowering.liveness import makes, reads
from tensorattn.parts import Literal, Register
from tensorattn.sizes import Size


def unlinked(kernel: Kernel, dtypes: Mapping[str, str], sizes: Mapping[str, int] | None) -> tuple[tuple[int, ...], ...]:
    """For each output, the places among the inputs of those that are floats and that it has no derivative in.

    `sizes`: those at hand, so that what is reduced over nothing is known.
    """
    floats = [n for n, name in enumerate(kernel.inputs) if dtypes.get(name) in FLOATS]
    found: list[tuple[int, ...]] = []
    for output in kernel.outputs:
        linked = _linked(kernel.body, output.register, sizes or {})
        found.append(tuple(n for n in floats if output.dtype in FLOATS and kernel.inputs[n] not in linked))
    return tuple(found)


def _linked(body: Sequence[Instruction], result: Register, sizes: Mapping[str, int]) -> set[str]:
    """The inputs that a register is made of by floats alone."""
    needed = {result.name}
    found: set[str] = set()
    for instruction in reversed(body):
        if needed.isdisjoint(r.name for r in makes(instruction)):
            continue
        if isinstance(instruction, Load):
            found.add(instruction.input)
        elif not _is_constant(instruction, sizes):
            needed |= {r.name for r in _taken(instruction, sizes) if r.dtype.startswith("float")}
    return found


def _taken(instruction: Instruction, sizes: Mapping[str, int]) -> Iterable[Register]:
    """What it reads; of two registers between which a size chooses, the one."""
    match instruction:
        case Apply(
            function="select", arguments=(Literal(value=Size() as size), Register() as some, Register() as none)
        ):
            if size.symbols <= sizes.keys():
                return (some if size.value(sizes) else none,)
    return reads(instruction)


def _is_constant(instruction: Instruction, sizes: Mapping[str, int]) -> bool:
    """Whether it reduces over nothing to a constant."""
    match instruction:
        case Fold(out=out, source=source) | LogSumExp(out=out, source=source):
            return any(_is_empty(index, sizes) for index in source.axes if index not in out.axes)
    return False


def _is_empty(index: Index, sizes: Mapping[str, int]) -> bool:
    return sizes.get(index.name) == 0
