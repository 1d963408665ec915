"""What elementwise instructions have for derivatives: for each argument the factors of the cotangent.

The functions of the notation have theirs in the table of `differentiating.functions`; here are those that only kernels
have. `select` is a `where` through whose truth no gradient passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

from tensorattn.adjoining.emitting import Emitter
from tensorattn.differentiating import functions as table
from tensorattn.ir import BOOLEAN, LEAKY_SLOPE, Add, Expr, Map, Number, Product, Tensor
from tensorattn.kernel import Apply
from tensorattn.lowering.looping import RefusalError
from tensorattn.parts import Literal, Operand, Register


def partials(e: Emitter, made: Apply, number: int) -> list[Operand] | None:
    """The factors of the cotangent of the result that give the one of argument `number`; None where it is constant.

    Raises: RefusalError where there is no rule.
    """
    arguments, dtype = made.arguments, made.out.dtype
    match made.function:
        case "add" | "multiply" | "maximum" | "minimum" if len(arguments) == 1:
            return []
        case "add":
            return []
        case "subtract":
            return [] if number == 0 else [Literal(-1.0)]
        case "negate":
            return [Literal(-1.0)]
        case "multiply":
            return [a for n, a in enumerate(arguments) if n != number]
        case "divide" if number == 0:
            below = arguments[1] if isinstance(arguments[1], Register) else e.scalar(arguments[1], dtype)
            return [e.apply("reciprocal", below, dtype=dtype)]
        case "divide":
            return [e.apply("negate", e.apply("divide", made.out, arguments[1], dtype=dtype), dtype=dtype)]
        case "exp":
            return [made.out]
        case "exp2":
            return [made.out, Literal(log(2))]
        case "tanh":
            return [_one_less(e, e.apply("multiply", made.out, made.out, dtype=dtype))]
        case "sigmoid":
            return [made.out, _one_less(e, made.out)]
        case "where" | "select":
            return None if number == 0 else [_chosen(e, made, number)]
        case "isfinite":
            return None
        case "leaky_relu" if len(arguments) == 1:
            return _tabled(e, made.function, (*arguments, Literal(LEAKY_SLOPE)), number, dtype)
    return _tabled(e, made.function, arguments, number, dtype)


def _one_less(e: Emitter, x: Register) -> Operand:
    """1 − x, in steps that write over what they read."""
    return e.apply("add", e.apply("negate", x, dtype=x.dtype), Literal(1.0), dtype=x.dtype)


def _chosen(e: Emitter, made: Apply, number: int) -> Register:
    """1 where the argument is taken, else 0."""
    p, dtype = made.arguments[0], made.out.dtype
    sides = (Literal(1.0), Literal(0.0)) if number == 1 else (Literal(0.0), Literal(1.0))
    if isinstance(p, Literal):
        return e.apply("select", p, *(e.scalar(s, dtype) for s in sides), dtype=dtype)
    return e.select(p, *sides, dtype)


def _tabled(e: Emitter, function: str, arguments: Sequence[Operand], number: int, dtype: str) -> list[Operand] | None:
    if function in BOOLEAN or function in table.CONSTANT:
        return None
    if function not in table.TABLE or (function in ("maximum", "minimum") and len(arguments) != 2):
        raise RefusalError(f"there is no rule for the derivative of {function} of {len(arguments)} arguments")
    found = table.partials(function, tuple(_named(n, a) for n, a in enumerate(arguments)))[number]
    return None if found is None else [made_of(e, found, arguments, dtype)]


def _named(number: int, argument: Operand) -> Expr:
    """An argument as an expression: a number, or a name that stands for it."""
    if isinstance(argument, Literal) and isinstance(argument.value, (int, float)):
        return Number(argument.value)
    return Tensor(str(number))


def made_of(e: Emitter, node: Expr, arguments: Sequence[Operand], dtype: str) -> Operand:
    """An expression as instructions, in which the tensor `n` is argument number n."""
    match node:
        case Number(value=value):
            return Literal(value)
        case Tensor(name=name):
            return arguments[int(name)]
        case Product(factors=parts):
            return _joined(e, "multiply", parts, arguments, dtype)
        case Add(terms=parts):
            return _joined(e, "add", parts, arguments, dtype)
        case Map(function="negate", arguments=(Number(value=value),)):
            return Literal(-value)
        case Map(function=function, arguments=parts):
            operands = [made_of(e, part, arguments, dtype) for part in parts]
            if function in BOOLEAN:
                return e.apply(function, *operands, dtype="bool")
            return e.apply("select" if function == "where" else function, *operands, dtype=dtype)
    raise TypeError(node)


def _joined(e: Emitter, function: str, parts: Sequence[Expr], arguments: Sequence[Operand], dtype: str) -> Operand:
    first, *rest = (made_of(e, part, arguments, dtype) for part in parts)
    for other in rest:
        first = e.apply(function, first, other, dtype=dtype)
    return first
