"""Contractions → instructions: the pairwise steps of the plan, and the guard of those below a predicate.

Below a predicate a contraction must not let an excluded entry that is no finite number reach a result or a gradient:
the guarded form zeroes such entries and marks the results that an admitted one reaches (docs/design.md §8).
"""

from __future__ import annotations

from math import inf, nan
from typing import TYPE_CHECKING

from tensorattn import dtypes
from tensorattn.ir import Expr, Index, Normalise, Reduce, Tensor, walk
from tensorattn.kernel import IfFinite
from tensorattn.lowering import distances, masks, running, scaling
from tensorattn.lowering.scaling import Operands
from tensorattn.parts import Literal, Operand, Register
from tensorattn.plan import Contraction, Order
from tensorattn.predicates import brings
from tensorattn.sizes import Size

if TYPE_CHECKING:
    from tensorattn.lowering.expressions import Lowering


def contract(state: Lowering, order: Order, dtype: str | None = None) -> Operand:
    """The value of a product, or of a sum under a predicate, in its own work dtype if no other is asked for."""
    own = dtypes.work(state.typing.of(order.contraction.node))
    if dtype not in (None, own):
        return _contract(state, order, dtype)
    distance = distances.expand(
        state, order.contraction, lambda: state.builder.array(_contract(state, order, own), own)
    )
    return _contract(state, order, own) if distance is None else distance


def _contract(state: Lowering, order: Order, dtype: str) -> Operand:
    contraction = order.contraction
    mask, operands = _operands(state, contraction, dtype)
    if contraction.alone is not None:
        result = state.builder.broadcast(_alone(state, order, operands, dtype), contraction.node.free)
    elif not operands.registers and mask is None:
        result = scaling.constant(state, contraction, operands, dtype)
    else:
        result = _guarded(state, order, operands, mask, dtype)
        result = _divided(state, contraction, result, mask, dtype)
        result = state.builder.broadcast(result, contraction.node.free)
    for delta in contraction.deltas:  # a delta selects: what stands off its diagonal is not read
        equal = state.equal_positions(tuple(dict.fromkeys(delta.indices)))  # type: ignore[union-attr]
        result = state.builder.apply("select", equal, result, Literal(0), dtype=dtype)
    return result


def mean(state: Lowering, node: Reduce, order: Order) -> Operand:
    """The sum divided by the number of admitted tuples; nothing admitted: 0."""
    b, dtype = state.builder, dtypes.work(state.typing.of(node))
    total = state.builder.array(contract(state, order), dtype)
    known: frozenset[Index] = frozenset()
    count: Operand = Literal(1)
    if ordered := running.operands(order):
        (along,) = ordered.values()
        count = running.count(b, along, node.free)
        known = frozenset({along.left, along.right})
    elif node.where is not None:
        where = b.array(state.lower(node.where), "int64")
        known = frozenset(where.axes)
        count = b.fold("sum", where, known - set(node.indices))
    size = Size.product(index.name for index in node.indices if index not in known)
    if isinstance(count, Literal):
        count = Literal(size)
    elif size != Size.of(1):
        count = b.apply("multiply", count, Literal(size), dtype="int64")
    count = b.apply("maximum", count, Literal(1), dtype="int64")
    return b.apply("divide", total, b.cast(count, dtype), dtype=dtype)


def _operands(state: Lowering, contraction: Contraction, dtype: str) -> tuple[Register | None, Operands]:
    """The factors as registers of the work dtype, and the predicate that their product stands under."""
    b, node = state.builder, contraction.node
    own = node.where if isinstance(node, Reduce) else None
    where = None if own is None else state.array(own)
    mask = b.all_of(masks.brought(state, contraction.factors, where)) if state.guarded else where
    early = b.all_of(masks.at_hand(state, contraction.factors, where)) if state.guarded else where
    factors = [_factor(state, contraction, n, mask, early) for n in range(len(contraction.factors))]
    with state.under(mask):
        for divisor in contraction.divisors:
            if divisor.of is not None:  # never below a predicate of the product itself
                below = masks.harmless(state, state.array(divisor.value, dtype))
                above = b.array(factors[divisor.of], dtype)
                ratio = masks.apply(state, "divide", [above, below], dtype, exposed=node in state.exposed)
                factors[divisor.of] = scaling.inside(state, contraction, ratio, above)
        scalars = [scaling.plain(state, state.lower(scalar), dtype) for scalar in contraction.scalars]
    literals = [o for o in (*factors, *scalars) if isinstance(o, Literal)]
    if contraction.missing:
        literals.append(Literal(Size.product(i.name for i in contraction.missing)))
    arrays = tuple(b.array(f, dtype) for f in factors)
    below = tuple(b.cast(state.lower(e), dtype) for e in contraction.below if not _is_late(mask, e))
    return mask, Operands(arrays, tuple(s for s in scalars if isinstance(s, Register)), tuple(literals), below)


def _is_late(mask: Register | None, below: Expr) -> bool:
    """Whether a divisor without indices is data (perhaps 0 or NaN), which what a predicate excludes must not see."""
    return mask is not None and any(isinstance(n, Tensor) for n in walk(below))


def _factor(
    state: Lowering, contraction: Contraction, number: int, mask: Register | None, early: Register | None
) -> Register:
    """A factor below the predicate of the product; the one that brings it applies it itself.

    One that brings its own from where it is looked up is 0 where that excludes, if it is read there: it stands below
    the `early` ones alone, those that are at hand.
    """
    factor = contraction.factors[number]
    if number == contraction.predicate or (isinstance(factor, Normalise) and factor.where is not None):
        return state.array(factor)
    with state.under(early if masks.is_looked_up(factor) and brings(factor, state.masked) else mask):
        return state.array(factor)


# The steps --------------------------------------------------------------------------------------------------------


def _evaluate(state: Lowering, order: Order, operands: Operands, dtype: str) -> Register:
    """The steps of the plan; the scale goes to the smallest operand, before or after the steps."""
    b, contraction = state.builder, order.contraction
    factors = []
    for n, factor in enumerate(operands.factors):
        lone = contraction.lone(n)
        factors.append(b.fold("sum", factor, set(factor.axes) - lone) if lone else factor)
    result = contraction.node.free
    if not factors:
        return scaling.scaled(state, contraction, operands, operands.scalars[0], operands.scalars[1:], dtype)
    places = [frozenset(f.axes) for f in factors]
    ordered = running.operands(order)
    place = min((n for n in range(len(factors)) if n not in ordered), key=lambda n: _entries(state, places[n]))
    after = _entries(state, result) < _entries(state, places[place])
    if not after:
        factors[place] = scaling.scaled(state, contraction, operands, factors[place], operands.scalars, dtype)
    for step in order.steps:
        if step.running is not None:
            other = step.right if step.running == step.left else step.left
            factors.append(running.accumulate(b, ordered[step.running], factors[other], step.out))
        else:
            factors.append(b.contract(factors[step.left], factors[step.right], step.out))
    return scaling.scaled(state, contraction, operands, factors[-1], operands.scalars, dtype) if after else factors[-1]


def _entries(state: Lowering, indices: object) -> int:
    total = 1
    for index in indices:  # type: ignore[attr-defined]
        total *= state.sizes.get(index.name, 1)
    return total


# A sum of one array under its own predicate -----------------------------------------------------------------------


def _alone(state: Lowering, order: Order, operands: Operands, dtype: str) -> Register:
    """The admitted entries of one array, summed: an admitted ±∞ stays ±∞, as in a sum without a predicate.

    Running sums under an order of positions. Else zeros in the excluded places and a plain sum, unless that takes an
    array larger than both operands.
    """
    b, contraction = state.builder, order.contraction
    assert contraction.alone is not None
    assert isinstance(contraction.node, Reduce)
    assert contraction.node.where is not None
    array, where = operands.factors[contraction.alone], state.array(contraction.node.where)
    array = b.fold("sum", array, set(array.axes) - contraction.lone(contraction.alone))
    if ordered := running.operands(order):
        (along,) = ordered.values()
        total = running.accumulate(b, along, array, contraction.node.free)
    elif set(where.axes) <= set(array.axes) or set(array.axes) <= set(where.axes):
        admitted = b.apply("select", where, array, Literal(0), dtype=dtype)
        total = b.fold("sum", admitted, contraction.node.free)
    else:
        total = _by_kind(state, order, array, where, dtype)
    total = scaling.scaled(state, contraction, operands, total, operands.scalars, dtype)
    if contraction.missing:
        size = Size.product(i.name for i in contraction.missing)
        nothing = b.broadcast(b.array(Literal(0), dtype), total.axes)
        total = b.apply("select", Literal(size), total, nothing, dtype=dtype)
    return total


def _by_kind(state: Lowering, order: Order, array: Register, where: Register, dtype: str) -> Register:
    """The same as a contraction with the predicate: what is not finite is counted apart, kind by kind, and added."""
    b, alone = state.builder, order.contraction.alone

    def total(entries: Register) -> Register:
        factors = (entries, b.array(where, dtype)) if alone == 0 else (b.array(where, dtype), entries)
        return _evaluate(state, order, Operands(factors, (), (), ()), dtype)

    if not dtype.startswith("float"):
        return total(array)
    with b.nested() as fast:
        plain = total(array)
    with b.nested() as safe:
        value = total(b.apply("select", b.apply("isfinite", array, dtype="bool"), array, Literal(0.0), dtype=dtype))
        kinds = [(b.apply("equal", array, Literal(limit), dtype="bool"), limit) for limit in (inf, -inf)]
        kinds.append((b.apply("not_equal", array, array, dtype="bool"), nan))
        for bad, limit in kinds:
            reached = _reached(state, order.contraction, where, bad, value, dtype)
            mark = b.apply("select", reached, Literal(limit), Literal(0.0), dtype=dtype)
            value = b.apply("add", value, mark, dtype=dtype)
    out = b.register(plain.axes, dtype)
    return b.emit(IfFinite(out, (array,), b.finish(fast, plain, out), b.finish(safe, value, out)))


# Below a predicate ------------------------------------------------------------------------------------------------


def _guarded(state: Lowering, order: Order, operands: Operands, mask: Register | None, dtype: str) -> Register:
    """The contraction; below a predicate as a branch on whether its operands are finite."""
    b = state.builder
    predicate = order.contraction.predicate
    tested = [n for n in range(len(operands.registers)) if n != predicate and dtype.startswith("float")]
    exposed = operands.arrays > 1 and order.contraction.node in state.exposed
    if not tested or (mask is None and not exposed):
        return _evaluate(state, order, operands, dtype)
    with b.nested() as fast:
        plain = _evaluate(state, order, operands, dtype)
    with b.nested() as safe:
        marked = _safe(state, order, operands, tested, mask, dtype)
    out = b.register(plain.axes, dtype)
    alone = _only_weights(state, order.contraction)
    values = tuple(operands.registers[n] for n in tested if n != alone)
    return b.emit(IfFinite(out, values, b.finish(fast, plain, out), b.finish(safe, marked, out)))


def _only_weights(state: Lowering, contraction: Contraction) -> int | None:
    """The number of the factor that is the one normaliser below a predicate: its NaN rows spread by themselves."""
    found = []
    for n, factor in enumerate(contraction.factors):
        if not brings(factor, state.masked):
            continue
        if isinstance(factor, Tensor):
            factor = state.statements[factor.name].body
        if not isinstance(factor, Normalise):
            return None
        found.append(n)
    return found[0] if len(found) == 1 and contraction.predicate is None else None


def _safe(
    state: Lowering, order: Order, operands: Operands, tested: list[int], mask: Register | None, dtype: str
) -> Register:
    b = state.builder
    finite = {n: b.apply("isfinite", operands.registers[n], dtype="bool") for n in tested}
    clean = [
        b.apply("select", finite[n], r, Literal(0.0), dtype=dtype) if n in finite else r
        for n, r in enumerate(operands.registers)
    ]
    count = len(operands.factors)
    cleaned = Operands(tuple(clean[:count]), tuple(clean[count:]), operands.literals, operands.below)
    value = _evaluate(state, order, cleaned, dtype)
    if mask is None:
        return _as_computed(state, order, operands, value, dtype)
    for n in tested:
        bad = b.apply("not", finite[n], dtype="bool")
        reached = _reached(state, order.contraction, mask, bad, value, dtype)
        value = b.apply("select", reached, Literal(nan), value, dtype=dtype)
    return value


def _as_computed(state: Lowering, order: Order, operands: Operands, value: Register, dtype: str) -> Register:
    """No predicate of its own: what is not finite stays what it is (a score of −∞), but carries no gradient."""
    b = state.builder
    plain = _evaluate(state, order, operands, dtype)
    kind = masks.limits(state, plain, (-inf, inf))
    return b.apply("select", b.apply("isfinite", plain, dtype="bool"), value, kind, dtype=dtype)


def _reached(
    state: Lowering, contraction: Contraction, mask: Register, bad: Register, value: Register, dtype: str
) -> Register:
    """Whether an admitted tuple holds a bad entry of one operand, for each entry of the result."""
    b = state.builder
    marked = b.array(bad, dtype)
    count = b.contract(b.array(mask, dtype), marked, value.axes)
    reached = b.apply("greater", count, Literal(0), dtype="bool")
    known = {*mask.axes, *bad.axes}
    rest = Size.product(index.name for index in contraction.summed if index not in known)
    if rest == Size.of(1):
        return reached
    return b.apply("and", reached, b.apply("greater", Literal(rest), Literal(0), dtype="bool"), dtype="bool")


def _divided(state: Lowering, contraction: Contraction, value: Register, mask: Register | None, dtype: str) -> Register:
    """The result divided by the factors `1 / x`; where nothing is admitted it is 0, whatever x is."""
    b, free = state.builder, contraction.node.free
    row = None if mask is None else b.fold("any", mask, free)
    late = [e for e in contraction.below if _is_late(mask, e)]
    for divisor in (*late, *(d.value for d in contraction.divisors if d.of is None)):
        with state.under(row):
            below: Operand = state.array(divisor, dtype)
            above: Operand = value
            if row is not None:
                zero = b.apply("equal", below, Literal(0), dtype="bool")
                below = b.apply("select", zero, Literal(nan), below, dtype=dtype)  # an admitted 1/0 is no ±∞
                above = b.apply("select", row, above, Literal(1), dtype=dtype)
                below = b.apply("select", row, below, Literal(1), dtype=dtype)
            elif state.admitted is not None:
                whole = {*value.axes, *below.axes}
                if set(state.admitted.axes) <= whole:
                    above = masks.harmless(state, b.broadcast(value, whole))
                    below = masks.harmless(state, below)
        exposed = row is not None or contraction.node in state.exposed
        ratio = masks.apply(state, "divide", [above, below], dtype, exposed=exposed)
        if row is not None:
            ratio = b.apply("select", row, ratio, Literal(0), dtype=dtype)
        value = scaling.inside(state, contraction, ratio, value)
    return value
