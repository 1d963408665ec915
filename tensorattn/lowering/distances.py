"""Squared distances in scores: `Σ_i (x_<mu i> − y_<nu i>)²` as `‖x‖² + ‖y‖² − 2 x·y`.

One GEMM in place of an array over all pairs and features.

The expanded form cancels: its error is that of the squared norms. In the score of a softmax an absolute error is a
relative one of the weights, so it is used only there, and only where the norms, in the units of the score, are small
enough at the call (a test of O(N d)). Else, and where an entry is no finite number, the differences are formed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import inf, prod
from typing import TYPE_CHECKING

from tensorattn import dtypes
from tensorattn.ir import Add, Expr, Map, Normalise, Number, Reduce, walk
from tensorattn.kernel import IfFinite
from tensorattn.lowering import masks, scaling
from tensorattn.lowering.scaling import Operands
from tensorattn.parts import Literal, Register
from tensorattn.plan import Contraction
from tensorattn.program import Program

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering

LEAST_FEATURES = 4  # below that many a difference is the cheaper
# 2 (max ‖x‖² + max ‖y‖²), in units of the score, up to which the expanded form errs by less than about 1e-5 and 1e-11
LARGEST = {"float32": 64.0, "float64": 65536.0}


@dataclass(frozen=True, slots=True)
class Difference:
    """`±x ± y`, squared and summed: `sign` is that of the mixed term."""

    x: Expr
    y: Expr
    sign: int


def scores(program: Program) -> frozenset[Expr]:
    """The terms of the scores of every softmax and log-sum-exp: what they sum is exponentiated and normalised."""
    found: set[Expr] = set()
    for statement in program.statements:
        for node in walk(statement.body):
            match node:
                case Normalise(kind="softmax", score=body) | Reduce(kind="lse", body=body):
                    found.update(_terms(body))
    return frozenset(found)


def _terms(node: Expr) -> Iterator[Expr]:
    match node:
        case Add(terms=terms):
            for term in terms:
                yield from _terms(term)
        case Map(function="negate", arguments=(inner,)):
            yield from _terms(inner)
        case _:
            yield node


def difference(contraction: Contraction) -> Difference | None:
    """The difference that a contraction squares and sums over indices that both sides have; None for others."""
    match contraction.factors:
        case (Map(function="power", arguments=(Add(terms=(a, b)), Number(value=2))),):
            pass
        case (Add(terms=(a, b)) as first, second) if first == second:
            pass
        case _:
            return None
    if contraction.predicate is not None or contraction.divisors or contraction.missing or contraction.deltas:
        return None
    x, y = _sign(a), _sign(b)
    everything, both = a.free | b.free, a.free & b.free
    if not a.free < everything or not b.free < everything or not both >= set(contraction.summed) != set():
        return None
    return Difference(x[1], y[1], x[0] * y[0])


def _sign(term: Expr) -> tuple[int, Expr]:
    match term:
        case Map(function="negate", arguments=(inner,)):
            return -1, inner
    return 1, term


def expand(state: Lowering, contraction: Contraction, direct: Callable[[], Register]) -> Register | None:
    """A squared distance by either form, as the call's norms are; None for what is no such case.

    `direct` writes the form with the differences.
    """
    dtype = dtypes.work(state.typing.of(contraction.node))
    found = difference(contraction) if contraction.node in state.scores and dtype in LARGEST else None
    if found is None or prod(state.sizes.get(i.name, 1) for i in contraction.summed) < LEAST_FEATURES:
        return None
    if state.guarded and any(masks.mask_of(state, factor) is not None for factor in contraction.factors):
        return None
    b = state.builder
    sides = [b.array(state.lower(side), dtype) for side in (found.x, found.y)]
    scalars = [scaling.plain(state, state.lower(scalar), dtype) for scalar in contraction.scalars]
    literals = tuple(o for o in scalars if isinstance(o, Literal))
    arrays = tuple(o for o in scalars if isinstance(o, Register))
    below = tuple(b.cast(state.lower(e), dtype) for e in contraction.below)
    operands = Operands(tuple(sides), arrays, literals, below)

    def scaled(array: Register) -> Register:
        return scaling.scaled(state, contraction, operands, array, arrays, dtype)

    squares = [b.contract(side, side, set(side.axes) - set(contraction.summed)) for side in sides]
    test = _test(state, squares, scaled, dtype)
    squares = [scaled(square) for square in squares]
    place = min((0, 1), key=lambda n: prod(state.sizes.get(i.name, 1) for i in sides[n].axes))
    small = b.apply("multiply", scaled(sides[place]), Literal(2 * found.sign), dtype=dtype)
    with b.nested() as fast:
        mixed = b.contract(small, sides[1 - place], contraction.node.free)
        first = b.apply("add", mixed, squares[0], dtype=dtype)
        total = b.apply("add", first, squares[1], dtype=dtype)
    with state.forgetting(), b.nested() as safe:
        plain = direct()
    out = b.register(total.axes, dtype)
    return b.emit(IfFinite(out, (test,), b.finish(fast, total, out), b.finish(safe, plain, out)))


def _test(state: Lowering, squares: list[Register], scaled: Callable[[Register], Register], dtype: str) -> Register:
    """0 where the norms are small, else +∞."""
    b = state.builder
    most = [b.fold("max", square, ()) for square in squares]
    norms = b.apply("multiply", b.apply("add", *most, dtype=dtype), Literal(2), dtype=dtype)
    size = b.apply("abs", scaled(norms), dtype=dtype)
    small = b.apply("less_equal", size, Literal(LARGEST[dtype]), dtype="bool")
    return b.apply("select", small, Literal(0.0), Literal(inf), dtype=dtype)
