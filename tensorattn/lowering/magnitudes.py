"""Bounds on what a loop makes, as expressions in norms of what lies outside it.

A bound that is finite proves that every entry it speaks of is finite, and every entry of what it was made from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isfinite, log, prod

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Cast, Contract, Fold, Instruction, Slice
from tensorattn.lowering.liveness import makes
from tensorattn.parts import Ceiling, Joint, Limiting, Literal, Norm, Operand, Register, Root, Stretch
from tensorattn.sizes import Size

SAME = frozenset("negate abs relu".split())
AT_MOST_ONE = frozenset("tanh sigmoid sin cos".split())
Axes = frozenset[Index]
ONE = Literal(1)
SAFE = 1e37  # what float32 holds
LONGEST = 2.0**63  # of a size


class Magnitudes:
    """Bounds for the registers of a loop body, which reads the `states` and holds the bounds of its `weights` already.

    `whole`: the axes of what is too large to be looked at. `seen`: the registers that bounds were asked for.
    """

    def __init__(
        self, body: Sequence[Instruction], states: Iterable[str], weights: Mapping[str, float], whole: Axes
    ) -> None:
        self.makers = {r.name: i for i in body for r in makes(i)}
        self.states, self.weights, self.whole = frozenset(states), weights, whole
        self.seen: set[str] = set()
        self.known: dict[tuple[str, Axes], Limiting | None] = {}

    def score(self, operand: Operand) -> Limiting | None:
        """A bound on |entries| of a score but those of −∞, which weigh nothing."""
        made = self.makers.get(operand.name) if isinstance(operand, Register) else None
        match made:
            case Apply(function="add", arguments=arguments):
                bounds = tuple(map(self.score, arguments))
            case Apply(function="select", arguments=(_, first, Literal(value=value))) if value == -inf:
                bounds = (self.score(first),)
            case Apply(function="multiply", arguments=(first, Literal(value=float(scale)))) if scale > 0:
                return _product(self.score(first), Literal(scale))
            case _:
                return self.norm(operand)
        self.seen.add(operand.name)  # type: ignore[union-attr]
        return None if None in bounds else Ceiling("sum", bounds)  # type: ignore[arg-type]

    def norm(self, operand: Operand, over: Axes = frozenset()) -> Limiting | None:
        """A bound on the Euclidean norm over these axes, for each place along the others; over none: on |entries|.

        An axis that the operand lacks counts as broadcast. None where no bound is known.
        """
        if isinstance(operand, Literal):
            return _product(_absolute(operand), _root(over))
        held = over & {*operand.axes}
        key = (operand.name, held)
        if key not in self.known:
            self.known[key] = self._found(operand, held)
        self.seen.add(operand.name)
        return _product(self.known[key], _root(over - held))

    def _found(self, register: Register, over: Axes) -> Limiting | None:
        if register.dtype == "bool" or register.name in self.states:
            return None
        if register.name in self.weights:
            return _product(Literal(self.weights[register.name]), _root(over))
        if register.name not in self.makers:
            axes = tuple(i for i in register.axes if i in over)
            return None if self.whole <= {*register.axes} else Norm(register, axes)
        match self.makers[register.name]:
            case Slice(source=source) | Arrange(source=source):
                return self.norm(source, over)
            case Cast(out=out, source=source):
                found = self.norm(source, over)
                narrowed = (source.dtype, out.dtype) == ("float64", "float32")
                return None if narrowed and not (found and _greatest(found) < SAFE) else found
            case Contract(a=a, b=b):
                return self._contracted(a, b, over, frozenset({*a.axes, *b.axes} - {*register.axes}))
            case Fold(kind="sum", source=source):
                gone = frozenset({*source.axes} - {*register.axes})
                return _product(self.norm(source, over | gone), _root(gone))
            case Apply() as made:
                return self._applied(made, over)
        return None

    def _contracted(self, a: Operand, b: Operand, over: Axes, gone: Axes) -> Limiting | None:
        """‖Σ a·b‖ ≤ ‖a‖ ‖b‖, over `over` and `gone`: what both have of `over` alone counts on either side."""
        shared = over & _axes(a) & _axes(b)
        own = [(over - (_axes(y) - _axes(x))) | gone for x, y in ((a, b), (b, a))]
        first = _product(self.norm(a, own[0]), self.norm(b, own[1] - shared))
        if not shared:
            return self._stretched(a, b, over, gone) or self._stretched(b, a, over, gone) or first
        second = _product(self.norm(a, own[0] - shared), self.norm(b, own[1]))
        found, joint = _least(first, second), None if gone else self._joint(a, b, over)
        return found if found is None or joint is None else _least(found, joint)

    def _stretched(self, a: Operand, b: Operand, over: Axes, gone: Axes) -> Limiting | None:
        """‖Σ a·b‖ ≤ ‖a‖ · the factor by which b, an array from outside the loop, lengthens what it is summed with."""
        matrix, columns = self._outside(b), over & _axes(b)
        if matrix is None or not (gone and columns) or over & _axes(a) or not gone <= _axes(a) & _axes(b):
            return None
        if self.whole <= {*matrix.axes} or not matrix.dtype.startswith("float"):
            return None
        rows = tuple(i for i in matrix.axes if i in gone)
        return _product(self.norm(a, gone), Stretch(matrix, rows, tuple(i for i in matrix.axes if i in columns)))

    def _joint(self, a: Operand, b: Operand, over: Axes) -> Limiting | None:
        """The norm of the very product, of arrays from outside the loop that are few beside its scores."""
        outside = [self._outside(operand) for operand in (a, b)]
        if any(r is None or not over <= {*r.axes} or not r.dtype.startswith("float") for r in outside):
            return None
        first, second = outside
        rows = tuple(sorted(self.whole - {*first.axes, *second.axes}))  # type: ignore[union-attr]
        return Joint(first, second, tuple(sorted(over)), rows) if rows else None  # type: ignore[arg-type]

    def _outside(self, operand: Operand) -> Register | None:
        """The array from outside the loop that this is a part of."""
        if isinstance(operand, Literal) or operand.name in self.states or operand.name in self.weights:
            return None
        match self.makers.get(operand.name):
            case None:
                return operand
            case Slice(source=source):
                return self._outside(source)
        return None

    def _applied(self, made: Apply, over: Axes) -> Limiting | None:
        function, arguments = made.function, made.arguments
        if function == "multiply" and len(arguments) == 2:
            return self._contracted(*arguments, over, frozenset())
        if function == "divide" and isinstance(below := arguments[1], Literal):
            return _product(self.norm(arguments[0], over), _inverse(below))
        if function == "in_twos":
            return _product(self.norm(arguments[0], over), Literal(1 / log(2)))
        if function in SAME and len(arguments) == 1:
            return self.norm(arguments[0], over)
        if function == "uniform":
            return _root(over)
        if function in AT_MOST_ONE:
            inner = _product(self.norm(arguments[0]), Literal(0))  # NaN unless what is inside is finite
            return None if inner is None else _product(Ceiling("sum", (inner, ONE)), _root(over))
        terms = {"add": arguments, "subtract": arguments, "select": arguments[1:], "where": arguments[1:]}.get(function)
        if terms is None or (isinstance(arguments[0], Literal) and function == "select"):
            return None
        bounds = tuple(self.norm(term, over) for term in terms)
        return None if None in bounds else Ceiling("sum", bounds)  # type: ignore[arg-type]


def _axes(operand: Operand) -> Axes:
    return frozenset(operand.axes) if isinstance(operand, Register) else frozenset()


def _product(first: Limiting | None, second: Limiting | None) -> Limiting | None:
    if first is None or second is None:
        return None
    factors = [f for x in (first, second) for f in (x.of if isinstance(x, Ceiling) and x.kind == "product" else (x,))]
    left = tuple(f for f in factors if f != ONE)
    return left[0] if len(left) == 1 else Ceiling("product", left) if left else ONE


def _least(first: Limiting | None, second: Limiting | None) -> Limiting | None:
    return first or second if first is None or second is None else Ceiling("least", (first, second))


def _root(axes: Iterable[Index]) -> Literal:
    """√(the number of entries over the axes)."""
    names = sorted(i.name for i in axes)
    return Literal(Root(Size.product(names))) if names else ONE


def _inverse(literal: Literal) -> Limiting | None:
    """The magnitude of one over a number or a size."""
    value = literal.value
    if isinstance(value, (Size, Root)):
        return Ceiling("inverse", (literal,))
    return Literal(abs(1 / value)) if value and isfinite(value) else None


def _greatest(bound: Limiting) -> float:
    """What a bound made of numbers comes to at most; infinite where it depends on arrays."""
    match bound:
        case Literal(value=value):
            return LONGEST if isinstance(value, (Size, Root)) else abs(value)
        case Ceiling(kind="sum" | "product" as kind, of=of):
            return (sum if kind == "sum" else prod)(map(_greatest, of))
    return inf


def _absolute(literal: Literal) -> Literal | None:
    """The magnitude of a number; None of what is no finite number."""
    value = literal.value
    if isinstance(value, (Size, Root)):
        return literal if isinstance(value, Root) else None
    return Literal(abs(value)) if isfinite(value) else None
