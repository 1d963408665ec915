"""The derivative of every function and operator, as expressions: the one table.

At kinks the choice is that of torch: `relu`, `abs` and `sign` have slope 0 at 0, `leaky_relu` its slope, `elu` 1;
`maximum` and `minimum` share equally between arguments that tie.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import pi, sqrt
from types import MappingProxyType

from tensorattn.differentiating.expressions import add, both, call, constant, negate, number, subtract, times, where
from tensorattn.ir import BOOLEAN, LEAKY_SLOPE, Expr, Number

CONSTANT = frozenset({"sign", "uniform"})  # their derivative is 0 wherever they have one
Partials = tuple[Expr | None, ...]  # one an argument; None: 0 everywhere
DENSITY = 1 / sqrt(2 * pi)  # of the normal distribution at 0
LEAK = Number(LEAKY_SLOPE)
NEAR = 0.1  # within it Φ is a series: gelu(x) / x has no derivative at 0


def partials(function: str, arguments: tuple[Expr, ...]) -> Partials:
    """The derivative of a function by each argument, at these arguments; `where` is no matter of factors."""
    if function in BOOLEAN or function in CONSTANT:
        return (None,) * len(arguments)
    return TABLE[function](*arguments)


def _power(base: Expr, exponent: Expr) -> Partials:
    value = call("power", base, exponent)
    both_zero = both(call("equal", base, Number(0)), call("greater_equal", exponent, Number(0)))
    by_exponent = where(both_zero, Number(0), times(value, call("log", base)))
    fixed = constant(exponent)
    if fixed is None:
        lower = times(exponent, call("power", base, add(exponent, negate(Number(1)))))
        none = both(call("equal", exponent, Number(0)), call("equal", base, Number(0)))
        return where(none, Number(0), lower), by_exponent
    if fixed in (0, 1):
        return (None if fixed == 0 else Number(1)), by_exponent
    lower = base if fixed == 2 else call("power", base, number(fixed - 1))
    return times(number(fixed), lower), by_exponent


def _normal(x: Expr) -> Expr:
    """Φ(x), which has no name in the notation: gelu(x) / x, and its series where x is small."""
    square = call("power", x, Number(2))
    series: Expr = Number(1 / 3456)
    for coefficient in (-1 / 336, 1 / 40, -1 / 6, 1.0):
        series = add(number(coefficient), times(square, series))
    near = call("less", call("abs", x), Number(NEAR))
    far = where(near, Number(1), x)
    return where(near, add(Number(0.5), times(Number(DENSITY), x, series)), times(call("gelu", far), _over(far)))


def _over(x: Expr) -> Expr:
    return call("reciprocal", x)


def _gelu(x: Expr) -> Partials:
    density = times(Number(DENSITY), call("exp", times(number(-0.5), call("power", x, Number(2)))))
    return (add(_normal(x), times(x, density)),)


def _silu(x: Expr) -> Partials:
    s = call("sigmoid", x)
    return (times(s, add(Number(1), times(x, subtract(Number(1), s)))),)


def _extreme(first: str) -> Callable[..., Partials]:
    def rule(a: Expr, b: Expr) -> Partials:
        tie = where(call("equal", a, b), Number(0.5), Number(0))
        return where(call(first, a, b), Number(1), tie), where(call(first, b, a), Number(1), tie)

    return rule


def _tanh(x: Expr) -> Partials:
    return (subtract(Number(1), call("power", call("tanh", x), Number(2))),)


def _sigmoid(x: Expr) -> Partials:
    return (times(call("sigmoid", x), call("sigmoid", negate(x))),)


def _positive(x: Expr) -> Expr:
    return call("greater", x, Number(0))


def _leaky_relu(x: Expr, slope: Expr = LEAK) -> Partials:
    return where(_positive(x), Number(1), slope), where(_positive(x), Number(0), x)


def _elu(x: Expr) -> Partials:
    return (where(_positive(x), Number(1), call("exp", call("minimum", x, Number(0)))),)


def _reciprocal(x: Expr) -> Partials:
    return (negate(times(_over(x), _over(x))),)


_TABLE: dict[str, Callable[..., Partials]] = {
    "exp": lambda x: (call("exp", x),),
    "log": lambda x: (_over(x),),
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "relu": lambda x: (where(_positive(x), Number(1), Number(0)),),
    "leaky_relu": _leaky_relu,
    "elu": _elu,
    "gelu": _gelu,
    "silu": _silu,
    "softplus": lambda x: (call("sigmoid", x),),
    "sqrt": lambda x: (times(Number(0.5), _over(call("sqrt", x))),),
    "abs": lambda x: (call("sign", x),),
    "sin": lambda x: (call("cos", x),),
    "cos": lambda x: (negate(call("sin", x)),),
    "maximum": _extreme("greater"),
    "minimum": _extreme("less"),
    "power": _power,
    "negate": lambda x: (negate(Number(1)),),
    "reciprocal": _reciprocal,
}
TABLE: Mapping[str, Callable[..., Partials]] = MappingProxyType(_TABLE)
