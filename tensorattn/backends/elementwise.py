"""`Apply` as source: operands cast as the function asks, aligned by index, and one template."""

from __future__ import annotations

from functools import reduce

from tensorattn.backends.writing import INPUT, Groups, Text, Writer
from tensorattn.ir import COMPARISONS, LEAKY_SLOPE, Index
from tensorattn.kernel import Apply
from tensorattn.lowering.buffers import placed
from tensorattn.parts import Literal, Operand, Register, Root

ORDER = ("bool", "int64", "float32", "float64")
INFIX = {"add": " + ", "multiply": " * ", "and": " & ", "or": " | "}
NESTED = ("maximum", "minimum")
LAST_PLACE = 2.0**-24  # of the 24 bits of `uniform`: every float dtype that is computed in holds them exactly


def apply(writer: Writer, instruction: Apply) -> None:
    """Write `out = function(arguments)`."""
    out, function = instruction.out, instruction.function
    arguments = instruction.arguments
    if function == "leaky_relu" and len(arguments) == 1:
        arguments = (*arguments, Literal(LEAKY_SLOPE))
    if function == "select" and isinstance(arguments[0], Literal):
        return _either(writer, instruction)
    dtypes = _operand_dtypes(function, arguments, out.dtype)
    present = tuple(i for i in out.axes if any(isinstance(a, Register) and i in a.axes for a in arguments))
    groups = _groups(writer, arguments, dtypes, present)
    texts = _operands(writer, function, arguments, dtypes, present, groups)
    place = writer.out(out, present, groups) if placed(instruction) else None
    if function == "uniform":
        bits = writer.words.cast.format(x=f"hashed({', '.join(texts)})", dtype=writer.words.dtype(out.dtype))
        source = f"{bits} * {LAST_PLACE!r}"
    elif place is not None:
        if isinstance(arguments[0], Literal) and function != "select":
            texts.reverse()  # a function that is symmetric: the array comes first
        source = f"{writer.words.into[function]}({', '.join(texts)}, out={place})"
    elif function in INFIX:
        source = INFIX[function].join(texts)
    elif function in NESTED:
        template = writer.words.functions[function]
        source = reduce(lambda first, second: template.format(first, second), texts)
    else:
        source = writer.words.functions[function].format(*texts)
    return writer.assign(out, writer.unpacked(source, present, None, groups))


def _groups(
    writer: Writer, arguments: tuple[Operand, ...], dtypes: list[str], axes: tuple[Index, ...]
) -> Groups | None:
    """The groups of axes that are one dimension of every operand that has any of them; None where they differ."""
    read = [writer.read(a, d) for a, d in zip(arguments, dtypes, strict=True) if isinstance(a, Register)]
    alike = {(text.axes, text.groups) for text in read if text.packed is not None}
    if len(alike) != 1:
        return None
    own, groups = alike.pop()
    several = {index for group in groups if len(group) > 1 for index in group}
    apart = all(text.packed is not None or several.isdisjoint(text.axes) for text in read)
    return groups if own == axes and apart else None


def _either(writer: Writer, instruction: Apply) -> None:
    """One of two arrays, as a size is positive or 0."""
    out, (size, first, second) = instruction.out, instruction.arguments
    assert isinstance(size, Literal)
    either = [writer.arranged(writer.read(r, out.dtype), out.axes) for r in (first, second) if isinstance(r, Register)]
    source = f"{either[0].source} if {writer.number(size.value)} > 0 else {either[1].source}"
    owner = either[0].owner if either[0].owner == either[1].owner else INPUT
    writer.assign(out, Text(source, out.axes, owner))


def _operand_dtypes(function: str, arguments: tuple[Operand, ...], out: str) -> list[str]:
    """The dtype in which each operand enters."""
    match function:
        case "and" | "or" | "not":
            return ["bool"] * len(arguments)
        case "where" | "select":
            return ["bool", out, out]
        case "isfinite":
            return [_common(arguments)]
        case _ if function in COMPARISONS.values():
            return [_common(arguments)] * len(arguments)
        case "uniform":
            return ["int64"] * len(arguments)
        case _:
            return [out] * len(arguments)


def _common(arguments: tuple[Operand, ...]) -> str:
    """The dtype of a comparison: no operand loses by it, and a literal never widens a float."""
    dtypes = {a.dtype for a in arguments if isinstance(a, Register)}
    fractions = any(isinstance(a, Literal) and isinstance(a.value, (float, Root)) for a in arguments)
    if fractions and not dtypes & {*ORDER[2:]}:
        return "float64"
    if "float32" in dtypes and "int64" in dtypes:
        return "float64"
    return max(dtypes, key=ORDER.index, default="int64")


def _operands(
    writer: Writer,
    function: str,
    arguments: tuple[Operand, ...],
    dtypes: list[str],
    axes: tuple[Index, ...],
    groups: Groups | None,
) -> list[str]:
    firsts = [group[0] for group in groups or ()]  # a dimension for each, of operands that have none of the others
    texts = []
    values = arguments[1:] if function in ("where", "select") else arguments
    bare = all(isinstance(a, Literal) for a in values)  # then the first of them has to bring the dtype
    first = len(arguments) - len(values)
    for position, (argument, dtype) in enumerate(zip(arguments, dtypes, strict=True)):
        match argument:
            case Register():
                value = writer.read(argument, dtype)
                packed = value.packed if groups else None
                texts.append(packed or writer.aligned(value, firsts if groups else axes))
            case Literal():
                array = dtype == "bool" or function in writer.words.array_only or position < first
                array = array or function == "uniform"  # a literal's own integers do not wrap around
                array = array or (bare and position == first)
                texts.append(writer.scalar(argument, dtype).source if array else writer.number(argument.value))
    return texts
