"""Which instructions make no memory of their own: views, and what back ends write as another name of the source."""

from __future__ import annotations

from collections.abc import Iterable

from tensorattn.ir import Index
from tensorattn.kernel import (
    Apply,
    Arrange,
    Cast,
    CheckRange,
    Fold,
    Gather,
    Instruction,
    Load,
    LogSumExp,
    Output,
    Slice,
    View,
)
from tensorattn.parts import Literal, Register
from tensorattn.records import Added, Record
from tensorattn.sizes import Size

BYTES = {"bool": 1, "int64": 8, "float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}

LISTS = frozenset("add multiply maximum minimum and or".split())  # functions that may be given one argument


def entries(indices: Iterable[Index]) -> Size:
    """The number of entries over these indices, each counted once."""
    return Size.product(index.name for index in dict.fromkeys(indices))


def size_in_bytes(register: Register) -> Size:
    """The bytes of a register."""
    return entries(register.axes) * BYTES[register.dtype]


def bytes_of(output: Output) -> Size:
    """The bytes of a result as its user has it."""
    return entries(index for axis in output.axes for index in axis) * BYTES[output.dtype]


def is_view(instruction: Instruction | Record) -> bool:
    """Whether the result is a view of the source, or the source itself."""
    match instruction:
        case Load(out=out, given=given):
            return given is None or given == out.dtype
        case View() | Slice() | Added():
            return True
        case Arrange(packed=packed):
            return not packed
        case Apply(function="select", arguments=(Literal(), *_)):  # one of two arrays
            return True
        case Cast(out=out, source=source):
            return out.dtype == source.dtype
        case Fold(out=out, source=source):
            return out.dtype == source.dtype and set(out.axes) == set(source.axes)
        case LogSumExp(out=out, source=source, where=None):
            return out.dtype == source.dtype and set(out.axes) == set(source.axes)
        case Apply(out=out, function=function, arguments=(Register() as only,)):
            return function in LISTS and out.dtype == only.dtype
        case CheckRange(where=None):
            return True
        case Gather(positions=positions):
            return all(isinstance(p, Index) for p in positions)
    return False


def viewed(instruction: Instruction | Record) -> Register:
    """What a view is a view of."""
    match instruction:
        case Added(into=into):
            return into
        case Gather(table=source) | CheckRange(positions=source) | Apply(arguments=(_, Register() as source, *_)):
            return source
        case Apply(arguments=(Register() as source,)):
            return source
        case View(source=source) | Arrange(source=source) | Cast(source=source) | Slice(source=source):
            return source
        case Fold(source=source) | LogSumExp(source=source):
            return source
    raise TypeError(f"not a view: {instruction!r}")
