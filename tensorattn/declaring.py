"""Shapes as users declare them → sizes: text, tuples of integers, names and expressions, or arrays, in any mix."""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterable
from fractions import Fraction
from typing import Any

from tensorattn.errors import ShapeError
from tensorattn.sizes import Size
from tensorattn.syntax import expression_tree

_HIGHEST_POWER = 16
_OPERATORS: dict[type[ast.operator], Any] = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}


def declared(name: str, shape: Any) -> tuple[Size, ...]:
    """The sizes of the axes of one declared input. Raises: ShapeError `E-EXTENT` for what is no size."""
    if isinstance(shape, (bool, int, float)):
        return ()  # a Python number is a scalar input
    if isinstance(shape, str):
        words = [w for w in (shape.split(",") if "," in shape else shape.split()) if w.strip()]
        return tuple(_size(name, w.strip()) for w in words)
    if hasattr(shape, "shape"):
        return tuple(_size(name, n) for n in shape.shape)
    if isinstance(shape, Iterable):
        return tuple(_size(name, entry) for entry in shape)
    raise _refused(name, shape, "a shape is text like 'M D', a tuple of integers and names, or an array")


def _size(name: str, entry: Any) -> Size:
    if isinstance(entry, Size):
        return entry
    if isinstance(entry, bool):
        raise _refused(name, entry, "a size is an integer, a name or an expression")
    if isinstance(entry, str):
        return _parsed(name, entry)
    if hasattr(entry, "free_symbols"):
        return _from_sympy(name, entry)
    try:
        value = operator.index(entry)
    except TypeError:
        raise _refused(name, entry, "a size is an integer, a name or an expression like 2*D") from None
    if value < 0:
        raise _refused(name, entry, "sizes are integers ≥ 0")
    return Size.of(value)


def _parsed(name: str, text: str) -> Size:
    """`2*D`, `H*K + 1`: integers, names, + - *, powers, and division by an integer."""
    try:
        tree = expression_tree(text.replace("'", "_prime"))
        size = _evaluate(tree)
    except (SyntaxError, TypeError, ValueError, RecursionError):
        raise _refused(name, text, "a size is an integer, a name, or these joined by + - * ** (2*D, H*K)") from None
    if not size.symbols and (size.constant is None or size.constant < 0):
        raise _refused(name, text, "sizes are integers ≥ 0")
    return size


def _evaluate(node: ast.expr) -> Size:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool) and value < 10**15:
            return Size.of(value)
        case ast.Name(id=symbol):
            return Size.of(symbol.replace("_prime", "'"))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_evaluate(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_evaluate(left), _evaluate(right))
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int(power))) if 0 <= power <= _HIGHEST_POWER:
            size = Size.of(1)
            for _ in range(power):
                size = size * _evaluate(left)
            return size
        case ast.BinOp(left=left, op=ast.Div() | ast.FloorDiv(), right=ast.Constant(value=int(divisor))) if divisor > 0:
            return Size(tuple((m, Fraction(c) / divisor) for m, c in _evaluate(left).terms))
    raise ValueError(ast.dump(node))


def _from_sympy(name: str, expression: Any) -> Size:
    """A polynomial in symbols term by term; anything else is an opaque symbol with its own text as name."""
    import sympy

    total = Size()
    for term in sympy.Add.make_args(sympy.expand(expression)):
        coefficient, rest = term.as_coeff_Mul()
        size: Size | None = Size.of(1)
        for factor in sympy.Mul.make_args(rest):
            base, power = factor.as_base_exp()
            if factor == 1:
                continue
            if not (base.is_Symbol and power.is_Integer and 0 < power <= _HIGHEST_POWER):
                size = None
                break
            for _ in range(int(power)):
                size = size * Size.of(str(base))
        if size is None or not isinstance(coefficient, sympy.Rational):
            return Size.of(str(expression))
        total = total + size * Size((((), Fraction(int(coefficient.p), int(coefficient.q))),))
    if not total.symbols and (total.constant is None or total.constant < 0):
        raise _refused(name, expression, "sizes are integers ≥ 0")
    return total


def _refused(name: str, value: Any, hint: str) -> ShapeError:
    return ShapeError("E-EXTENT", f"`{value}` in the shape of `{name}` is not a size", hint=hint)
