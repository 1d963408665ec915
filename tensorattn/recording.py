"""Kernel → what autograd records of it: its helpers written out, and the backward pass of the attention kernel.

One straight list: every branch takes its fast side, as a call with finite inputs does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Any

from tensorattn.adjoining import Sweep, activity
from tensorattn.adjoining.emitting import Emitter
from tensorattn.adjoining.rules import Terms, terms
from tensorattn.cost import OF_VALUES
from tensorattn.flash import fused
from tensorattn.kernel import Apply, Attend, Contract, Fill, Instruction, Kernel, Load, LogSumExp, Normalised, Powers
from tensorattn.lowering.liveness import reads
from tensorattn.lowering.looping import RefusalError
from tensorattn.parts import Literal, Operand, Register
from tensorattn.records import Added, Flash, FlashBack, Slope, SoftmaxBack, Widened
from tensorattn.rounds import straight

LOWEST = Literal(-inf)


def recorded(kernel: Kernel, sizes: Mapping[str, int]) -> tuple[Instruction, ...]:
    """The body as torch records it, where gradients of all float inputs are. `sizes`: which width of an attention is
    filled up to the other."""
    body = tuple(straight(kernel.body))
    inputs = frozenset(i.out.name for i in body if isinstance(i, Load) and i.out.dtype.startswith("float"))
    live, found = activity(body, inputs), []
    for number, made in enumerate(body):
        e = Emitter(f"r{number} ")
        found += [*_written(e, made, live, sizes)]
    return tuple(found)


def _written(e: Emitter, made: Instruction, live: frozenset[str], sizes: Mapping[str, int]) -> Iterator[Instruction]:
    """An instruction as what its helper records of it."""
    match made:
        case Normalised(kind="softmax") if made.score.name in live:
            _softmax(e, made)
        case Normalised(kind="l1norm" | "l2norm") if made.score.name in live:
            _norm(e, made)
        case Normalised(kind="sparsemax" | "entmax") if made.score.name in live:
            _sparse(e, made)
        case LogSumExp(source=source) if source.name in live:
            _log_sum_exp(e, made)
        case Apply(function="silu" | "gelu" | "softplus" | "leaky_relu", arguments=(Register() as x, *_)) if (
            x.name in live
        ):
            _function(e, made, x)
        case Attend(bias=bias, total=total) if total is not None or (bias is not None and bias.name in live):
            _plain(e, made)
        case Attend():
            fused(e, made, sizes)
        case _:
            e.body.append(made)
    return iter(e.body)


def _softmax(e: Emitter, made: Normalised) -> None:
    """Weights of the scores with −∞ where excluded, and 0 there once more, whose gradient is 0."""
    sink = dict(made.options).get("sink")
    if made.where is None and sink is None:
        e.body.append(made)
        return
    dtype, axes = made.out.dtype, made.out.axes
    barred = e.apply("isfinite" if made.where is None else "not", made.where or made.score, dtype="bool")
    admitted = e.whole(e.apply("select", barred, LOWEST, made.score, dtype=dtype, like=axes), axes)
    weights = e.emit(replace(made, out=e.register(axes, dtype), score=admitted, where=None, options=()))
    if sink is not None:
        total = LogSumExp(e.register((i for i in axes if i not in made.indices), dtype), admitted, None)
        share = e.apply("sigmoid", e.apply("subtract", e.emit(total), sink, dtype=dtype), dtype=dtype)
        weights = e.apply("multiply", weights, share, dtype=dtype, like=axes)
    e.emit(Apply(made.out, "select", (barred, Literal(0.0), weights)))


def _norm(e: Emitter, made: Normalised) -> None:
    """The admitted scores, scaled by a constant of each row, over their sum or the root of that of their squares."""
    dtype, axes, score = made.out.dtype, made.out.axes, made.score
    live = e.apply("isfinite", made.where or e.fold("sum", score, made.indices), dtype="bool")
    if made.where is not None:
        score = e.select(made.where, score, Literal(0.0), dtype)
    scale = e.full(1, [i for i in axes if i not in made.indices], dtype)
    score = e.apply("divide", score, scale, dtype=dtype, like=axes)
    if made.kind == "l1norm":
        total = e.apply(
            "add", e.fold("sum", score, made.indices), dict(made.options).get("eps", Literal(0)), dtype=dtype
        )
    else:
        square = e.apply("multiply", score, score, dtype=dtype, like=axes)
        total = e.apply("sqrt", e.fold("sum", square, made.indices), dtype=dtype)
    quotient = e.apply("divide", score, total, dtype=dtype, like=axes)
    e.emit(Apply(made.out, "select", (live, quotient, Literal(0.0))))


def _sparse(e: Emitter, made: Normalised) -> None:
    """Powers of what the scores exceed a threshold by, which is a function of the scores that do."""
    dtype, axes, number = made.out.dtype, made.out.axes, Literal(1.0)
    tame = e.apply("isfinite", made.score, dtype="bool")
    below = e.select(tame, made.score, Literal(0.0), dtype)
    z = e.select(tame, e.apply("maximum", below, Literal(-2.0), dtype=dtype), Literal(0.0), dtype)
    support = e.apply("greater", z, number, dtype="bool")
    tau = e.fold("sum", e.select(support, z, Literal(0.0), dtype), made.indices)
    if made.kind == "entmax":
        apart = e.apply("power", e.apply("subtract", z, tau, dtype=dtype, like=axes), Literal(2.0), dtype=dtype)
        spread = e.fold("sum", e.select(support, apart, Literal(0.0), dtype), made.indices)
        tau = e.apply("subtract", tau, spread, dtype=dtype)
    above = e.apply("less", tau, z, dtype="bool", like=axes)
    base = e.select(above, e.apply("subtract", z, tau, dtype=dtype, like=axes), number, dtype)
    weights = e.select(above, e.apply("power", base, number, dtype=dtype), Literal(0.0), dtype)
    e.emit(Apply(made.out, "select", (e.apply("not", tame, dtype="bool"), number, weights)))


def _function(e: Emitter, made: Apply, x: Register) -> None:
    """The functions that the back end composes of others."""
    dtype, out = x.dtype, made.out
    match made.function:
        case "silu":
            e.emit(Apply(out, "multiply", (x, e.apply("sigmoid", x, dtype=dtype))))
        case "softplus":
            e.emit(replace(made, arguments=(e.apply("negate", x, dtype=dtype),)))
        case "leaky_relu":
            side, scaled = (
                e.apply("greater", x, Literal(0), dtype="bool"),
                e.apply("multiply", x, Literal(0.5), dtype=dtype),
            )
            e.emit(Apply(out, "select", (side, x, scaled)))
        case "gelu":
            far = e.apply("equal", x, Literal(inf), dtype="bool")
            found = e.apply("gelu", e.select(far, Literal(0.0), x, dtype), dtype=dtype)
            e.emit(Apply(out, "select", (far, x, found)))


def _log_sum_exp(e: Emitter, made: LogSumExp) -> None:
    source = made.source
    live = e.apply("greater", source, LOWEST, dtype="bool", like=source.axes)
    if made.where is not None:
        live = e.apply("and", live, made.where, dtype="bool", like=source.axes)
    admitted = e.apply("select", live, source, LOWEST, dtype=source.dtype, like=source.axes)
    e.emit(LogSumExp(made.out, admitted, None))


def _plain(e: Emitter, made: Attend) -> None:
    """The attention in plain operations, which has the gradients that the kernel lacks."""
    dtype, axes = made.out.dtype, (*made.batch, *made.rows, *made.group)
    query = e.apply("multiply", made.query, Literal(1.0), dtype=dtype)
    shown = {*made.query.axes, *made.key.axes} - {*made.bond}
    score = e.emit(Contract(e.register((i for i in axes if i in shown), dtype), query, made.key))
    if made.bias is not None:
        score = e.apply("add", score, made.bias, dtype=dtype, like=axes)
    where = _admitted(e, made)
    found = [i for i in axes if i in {*score.axes, *(() if where is None else where.axes)}]
    score = e.whole(score, tuple(found))
    weights = e.register(score.axes, dtype)
    _softmax(e, Normalised(weights, "softmax", made.group, score, where))
    e.emit(Contract(made.out, weights, made.value))
    if made.greatest is not None and made.total is not None:
        e.emit(Fill(made.greatest, 0))
        _log_sum_exp(e, LogSumExp(made.total, score, where))


def _admitted(e: Emitter, made: Attend) -> Register | None:
    if not made.causal:
        return made.where
    (row,), (key,) = made.rows, made.group
    below = e.apply("less_equal", e.iota(key), e.iota(row), dtype="bool", like=(row, key))
    return below if made.where is None else e.apply("and", made.where, below, dtype="bool")


# The backward pass ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Recorded(Sweep):
    """The backward pass of autograd: a sweep whose terms add up as they come, in the operations that torch takes."""

    def add(self, register: Register, bar: Register) -> None:
        Sweep.add(self, register, bar)
        found = self.bars.get(register.name, [])
        if len(found) > 1:
            into, term = sorted(found, key=lambda r: len(r.axes), reverse=True)
            if set(term.axes) <= set(into.axes):
                both = self.e.emit(Added(self.e.register(into.axes, into.dtype), into, term))  # type: ignore[arg-type]
            else:
                both = self.e.total(found, register.axes)
            found[:] = [both]

    def rule(self, made: Any, bar: Register) -> Terms:
        e = self.e
        match made:
            case Widened(source=source):
                yield source, e.emit(Widened(e.register(source.axes, source.dtype), bar))  # type: ignore[arg-type]
            case Flash():
                yield from _flash_back(e, made, bar)
            case Normalised(kind="softmax", score=score, out=out):
                if bar.axes != score.axes:  # it takes a cotangent of every entry
                    bar = e.emit(Widened(e.register(score.axes, bar.dtype), bar))  # type: ignore[arg-type]
                yield score, e.emit(SoftmaxBack(e.register(score.axes, bar.dtype), out, bar))  # type: ignore[arg-type]
            case LogSumExp(source=source, out=out):  # in one expression, which holds all that it makes to its end
                less = e.apply("subtract", source, out, dtype=out.dtype, like=source.axes)
                weights = e.apply("exp", less, dtype=out.dtype)
                yield source, e.apply("multiply", bar, weights, less, source, dtype=out.dtype, like=source.axes)
            case Powers(score=score, out=out):
                yield score, e.pulled([bar, out], out.axes, score.axes)
            case Apply(function="where" | "select", arguments=(Register() as p, *sides)):
                for number, side in enumerate(sides):
                    if isinstance(side, Register) and side.name in self.active:
                        zero: list[Operand] = [Literal(0.0), Literal(0.0)]
                        zero[number] = bar
                        yield side, e.pulled([e.select(p, *zero, dtype=bar.dtype)], made.out.axes, side.axes)
            case Contract(out=out, a=a, b=b):
                for operand, other in ((a, b), (b, a)):
                    yield operand, self._of_product(out, operand, other, bar)
            case Apply(function="multiply", arguments=(Register() as a, Register() as b)):
                for operand, other in ((a, b), (b, a)):
                    yield operand, self._spread(made.out, operand, other, bar)
            case Apply(function="divide", arguments=(Register() as above, Register() as below)):
                yield above, e.pulled([e.apply("divide", bar, below, dtype=bar.dtype)], made.out.axes, above.axes)
                if below.name in self.active:
                    yield below, self._of_divisor(made, above, below, bar)
            case Apply(arguments=arguments) if sum(isinstance(a, Register) for a in arguments) == 1:
                (only,) = (a for a in arguments if isinstance(a, Register))
                yield only, e.pulled([self._of_one(made, only, bar)], made.out.axes, only.axes)
            case _:
                yield from _by_rule(e, made, bar)

    def _of_product(self, out: Register, operand: Register, other: Register, bar: Register) -> Register:
        """A matrix product for a matrix product, also an outer one, else one entry by entry that is summed."""
        shared = {*operand.axes} & {*other.axes}
        if shared <= {*out.axes}:
            return self._spread(out, operand, other, bar)
        kept = tuple(i for i in operand.axes if i in out.axes or i in shared)
        return self.e.emit(Contract(self.e.register(kept, out.dtype), self.e.whole(bar, out.axes), other))

    def _spread(self, out: Register, operand: Register, other: Register, bar: Register) -> Register:
        axes = tuple(dict.fromkeys((*out.axes, *operand.axes, *other.axes)))
        product = self.e.apply("multiply", bar, other, dtype=bar.dtype, like=axes)
        return self.e.pulled([product], axes, operand.axes)

    def _of_divisor(self, made: Apply, above: Register, below: Register, bar: Register) -> Register:
        """−ȳ ((a / b) / b) in one expression, which holds all that it makes to its end."""
        e, dtype = self.e, bar.dtype
        once = e.apply("divide", above, below, dtype=dtype, like=made.out.axes)
        twice, less = e.apply("divide", once, below, dtype=dtype), e.apply("negate", bar, dtype=dtype)
        found = e.apply("multiply", less, twice, once, above, dtype=dtype, like=made.out.axes)
        return e.pulled([found], made.out.axes, below.axes)

    def _of_one(self, made: Apply, only: Register, bar: Register) -> Register:
        """Of a function of one array and numbers, in one operation; where it is linear nothing is kept for it."""
        e, function = self.e, made.function
        if function in ("add", "subtract"):
            return bar
        if function in ("negate", "multiply") or (function == "divide" and made.arguments[0] == only):
            return e.apply("multiply", bar, Literal(2.0), dtype=bar.dtype)
        kept = made.out if function in OF_VALUES else only
        return e.emit(Slope(e.register(made.out.axes, bar.dtype), function, bar, kept))  # type: ignore[arg-type]


def _by_rule(e: Emitter, made: Any, bar: Register) -> Terms:
    """By the rules of adjoints; what has none there, and one in torch, as a product with value and operand."""
    try:
        yield from list(terms(e, made, bar))
    except RefusalError:
        for operand in sorted(reads(made), key=lambda r: r.name):
            if operand.dtype.startswith("float"):
                yield operand, e.pulled([bar, made.out, operand], (*made.out.axes, *operand.axes), operand.axes)


def _flash_back(e: Emitter, made: Flash, bar: Register) -> Terms:
    operands = (made.query, made.key, made.value)
    outs = tuple(e.register((*(i for i in made.batch if i not in x.axes), *x.axes), x.dtype) for x in operands)
    kept = (*operands, *(() if made.mask is None else (made.mask,)), made.out, bar)
    e.body.append(FlashBack(made, outs, kept))  # type: ignore[arg-type]
    for operand, out in zip(operands, outs, strict=True):  # the kernel takes all of them in the whole batch
        yield operand, e.pulled([out], out.axes, operand.axes)
