"""The derivatives of weights, from the weights: ds = J·bar, where J is made of the weights alone or of a row sum.

Sources: softmax, sparsemax (Martins and Astudillo 2016, eq. 14), entmax (Peters, Niculae and Martins 2019, eq. 14).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensorattn.adjoining.emitting import Emitter
from tensorattn.adjoining.functions import made_of
from tensorattn.differentiating import normalisers as formulas
from tensorattn.ir import Expr, Tensor
from tensorattn.kernel import Normalised
from tensorattn.parts import Literal, Operand, Register


def normalised(e: Emitter, made: Normalised, bar: Register) -> Iterator[tuple[Register, Register]]:
    """What the cotangent of the weights gives to the score and to the options; to those of an exposed row that is no
    number, nothing."""
    if not made.exposed:
        yield from _by_kind(e, made, bar)
        return
    finite = e.apply("isfinite", made.out, dtype="bool", like=made.score.axes)
    tame, score = e.fold("all", finite, made.indices), made.score
    if any(isinstance(option, Register) for _, option in made.options):
        bar = e.select(tame, bar, Literal(0.0), bar.dtype)
        made = replace(
            made,
            out=e.select(tame, made.out, Literal(0.0), made.out.dtype),
            score=e.select(tame, made.score, Literal(1.0), made.out.dtype),
        )
    for operand, term in _by_kind(e, made, bar):
        own = operand == made.score
        yield (score, e.select(tame, term, Literal(0.0), term.dtype)) if own else (operand, term)


def _by_kind(e: Emitter, made: Normalised, bar: Register) -> Iterator[tuple[Register, Register]]:
    options = dict(made.options)
    match made.kind:
        case "softmax":
            yield from _softmax(e, made, bar, options.get("sink"))
        case "sparsemax":
            yield made.score, _sparse(e, made, bar, _support(e, made))
        case "entmax":
            yield from _entmax(e, made, bar, options["alpha"])
        case "l1norm":
            yield from _l1norm(e, made, bar, options.get("eps", Literal(0.0)))
        case "l2norm":
            yield made.score, _l2norm(e, made, bar)


def _times(e: Emitter, *factors: Operand, made: Normalised) -> Register:
    return e.apply("multiply", *factors, dtype=made.out.dtype, like=made.score.axes)


def _mean(e: Emitter, made: Normalised, bar: Register, weights: Register) -> Register:
    """Σ weights · bar along the group."""
    kept = [i for i in made.score.axes if i not in made.indices]
    return e.pulled([bar, weights], made.score.axes, kept)


def _softmax(e: Emitter, made: Normalised, bar: Register, sink: Operand | None) -> Iterator[tuple[Register, Register]]:
    mean = _mean(e, made, bar, made.out)
    yield made.score, _times(e, made.out, e.apply("subtract", bar, mean, dtype=bar.dtype), made=made)
    if isinstance(sink, Register):
        rest = e.apply("subtract", Literal(1.0), e.fold("sum", made.out, made.indices), dtype=bar.dtype)
        free = [i for i in made.score.axes if i not in made.indices]
        yield sink, e.pulled([mean, rest, Literal(-1.0)], free, sink.axes)


def _support(e: Emitter, made: Normalised) -> Register:
    positive = e.apply("greater", made.out, Literal(0), dtype="bool")
    return e.cast(positive, made.out.dtype)


def _sparse(e: Emitter, made: Normalised, bar: Register, slopes: Register) -> Register:
    """slopes · (bar − Σ slopes·bar / Σ slopes): the weights of a row sum to 1."""
    count = e.fold("sum", slopes, made.indices)
    none = e.apply("equal", count, Literal(0), dtype="bool")
    mean = e.apply(
        "divide", _mean(e, made, bar, slopes), e.select(none, Literal(1.0), count, bar.dtype), dtype=bar.dtype
    )
    return _times(e, slopes, e.apply("subtract", bar, mean, dtype=bar.dtype), made=made)


def _entmax(e: Emitter, made: Normalised, bar: Register, alpha: Operand) -> Iterator[tuple[Register, Register]]:
    dtype = made.out.dtype
    inside = e.apply("greater", made.out, Literal(0), dtype="bool")
    base = e.select(inside, made.out, Literal(1.0), dtype)
    known = alpha.value if isinstance(alpha, Literal) else None
    if isinstance(known, (int, float)):
        exponent: Operand = Literal(2.0 - known)
    else:
        alpha = alpha if isinstance(alpha, Register) else e.scalar(alpha, dtype)
        exponent = e.apply("subtract", Literal(2.0), alpha, dtype=dtype)
    slopes = e.apply("power", base, exponent, dtype=dtype, like=made.score.axes)
    yield made.score, _sparse(e, made, bar, e.select(inside, slopes, Literal(0.0), dtype))
    if known is None:
        yield alpha, _by_exponent(e, made, bar, alpha)  # type: ignore[arg-type, misc]


def _by_exponent(e: Emitter, made: Normalised, bar: Register, alpha: Register) -> Register:
    """Σ bar·∂W/∂α, by the formula that gradient programs have."""

    def value(node: Expr, *arguments: Operand) -> Register:
        return made_of(e, node, arguments, bar.dtype)  # type: ignore[return-value]

    a, b, c, d, f = (Tensor(str(n)) for n in range(5))
    t = e.apply("subtract", alpha, Literal(1.0), dtype=bar.dtype)
    u = value(formulas.surprise(a), made.out)
    bend = value(formulas.bend(a, b), u, e.apply("multiply", t, u, dtype=bar.dtype, like=made.score.axes))
    means = (_mean(e, made, made.out, x) for x in (u, bend))
    above, below = formulas.by_exponent(a, b, c, d, f)
    arguments = (t, u, bend, *means)
    factors = (value(above, *arguments), value(below, *arguments))
    return e.pulled([bar, made.out, *factors], made.score.axes, alpha.axes)


def _admitted(e: Emitter, made: Normalised) -> Register:
    if made.where is None:
        return made.score
    return e.select(made.where, made.score, Literal(0.0), made.out.dtype)


def _over(e: Emitter, made: Normalised, value: Register, total: Register) -> Register:
    """The value over a row's total, 0 where that is 0 and where excluded."""
    zero = e.apply("equal", total, Literal(0), dtype="bool")
    safe = e.select(zero, Literal(1.0), total, total.dtype)
    quotient = e.apply("divide", value, safe, dtype=total.dtype, like=made.score.axes)
    found = e.select(zero, Literal(0.0), quotient, total.dtype)
    if made.where is None or not set(made.indices) & set(value.axes):
        return found
    return e.select(made.where, found, Literal(0.0), total.dtype)


def _l1norm(e: Emitter, made: Normalised, bar: Register, eps: Operand) -> Iterator[tuple[Register, Register]]:
    total = e.fold("sum", _admitted(e, made), made.indices)
    if not (isinstance(eps, Literal) and eps.value == 0):
        total = e.apply("add", total, eps, dtype=total.dtype)
    mean = _mean(e, made, bar, made.out)
    less = e.apply("subtract", bar, mean, dtype=bar.dtype, like=made.score.axes)
    yield made.score, _over(e, made, e.whole(less, made.score.axes), total)
    if isinstance(eps, Register):
        free = tuple(i for i in made.score.axes if i not in made.indices)
        yield eps, e.pulled([_over(e, made, mean, total), Literal(-1.0)], free, eps.axes)


def _l2norm(e: Emitter, made: Normalised, bar: Register) -> Register:
    admitted = _admitted(e, made)
    square = e.fold("sum", e.apply("multiply", admitted, admitted, dtype=bar.dtype), made.indices)
    zero = e.apply("equal", square, Literal(0), dtype="bool")
    root = e.apply("sqrt", e.select(zero, Literal(1.0), square, bar.dtype), dtype=bar.dtype)
    norm = e.select(zero, Literal(0.0), root, bar.dtype)
    mean = _mean(e, made, bar, made.out)
    less = e.apply("subtract", bar, _times(e, made.out, mean, made=made), dtype=bar.dtype, like=made.score.axes)
    return _over(e, made, e.whole(less, made.score.axes), norm)
