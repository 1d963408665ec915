"""The adjoint of a branch, a branch on the same values with both sides adjoined: on finite values one for each operand.

A product below a predicate keeps its excluded operands from doing harm: where some are not finite, they count as 0. Its
adjoint does the same, for the cotangent is exactly 0 wherever the predicate excludes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tensorattn.adjoining.emitting import Emitter
from tensorattn.kernel import Apply, Arrange, Attempt, Cast, Contract, IfFinite, Instruction
from tensorattn.lowering.liveness import made_within, makes, outside_reads, reads, without_dead
from tensorattn.lowering.masks import POLES
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Literal, Register

if TYPE_CHECKING:
    from tensorattn.adjoining import Sweep

Body = tuple[Instruction, ...]


def branched(sweep: Sweep, made: IfFinite, bar: Register) -> Iterator[tuple[Register, Register]]:
    """What the cotangent of the result gives to each operand."""
    fast, product = made.fast, _is_product(made.fast)
    for operand in () if product else sorted(outside_reads(fast), key=lambda r: r.name):
        maker = sweep.makers.get(operand.name)
        if not isinstance(maker, Apply) or maker.function not in POLES:
            continue
        if _side(sweep, made.safe, made.out, bar, operand, operand) is None:
            fast = (maker, *fast)  # a value that is used where it is finite: its slope, too
    for operand in sorted(reads(made) | outside_reads(fast), key=lambda r: r.name):
        if operand.name not in sweep.active:
            continue
        safe = _cleaned(sweep, fast, operand) if product else made.safe
        out = sweep.e.register(operand.axes, operand.dtype)
        sides = [_side(sweep, side, made.out, bar, operand, out) for side in (fast, safe)]
        if sides == [None, None]:
            continue
        zero = Emitter(f"{out.name}z")
        zero.full(0, out.axes, out.dtype)
        none = (replace(zero.body[0], out=out),)
        yield operand, sweep.e.emit(IfFinite(out, made.values, sides[0] or none, sides[1] or none))


def _is_product(body: Body) -> bool:
    """Whether the body multiplies what it reads, and does nothing else but scale and sum it."""
    scaling = ("multiply", "divide", "negate")
    plain = [isinstance(i, (Arrange, Cast)) for i in body]
    products = [isinstance(i, Contract) or (isinstance(i, Apply) and i.function in scaling) for i in body]
    return any(products) and all(map(any, zip(plain, products, strict=True)))


def _cleaned(sweep: Sweep, body: Body, but: Register) -> Body:
    """The body on operands with 0 in place of what is not finite, in all but the one in which it is linear."""
    sweep.e.count += 1
    e = Emitter(f"{sweep.e.stem}{sweep.e.count}_")
    clean = {}
    for operand in sorted(outside_reads(body), key=lambda r: r.name):
        if operand.dtype.startswith("float") and operand != but:
            finite = e.apply("isfinite", operand, dtype="bool", like=operand.axes)
            clean[operand.name] = e.select(finite, operand, Literal(0.0), operand.dtype)
    return (*e.body, *(renamed(i, clean) for i in body))


def _side(sweep: Sweep, body: Body, result: Register, bar: Register, operand: Register, out: Register) -> Body | None:
    """One side run again and adjoined, down to the cotangent of the operand; None where it does not depend on it."""
    e, _, inner = _again(sweep, body, [(result, bar)], [operand], known=result.name)
    found = inner.of(operand)
    if found is None:
        return None
    live = without_dead(tuple(e.body), (found,))
    last = live[-1] if live else None
    if last is not None and getattr(last, "out", None) == found and found.axes == out.axes and _is_plain(last):
        return (*live[:-1], replace(last, out=out))
    return (*live, Arrange(out, found))


def _again(
    sweep: Sweep, body: Body, bars: Iterable[tuple[Register, Register]], operands: Iterable[Register], known: str = ""
) -> tuple[Emitter, dict[str, Register], Sweep]:
    """A body run again under names of its own, and adjoined from the cotangents of results to those of operands.

    `known`: a result whose value is at hand, so that what makes it is not run again.
    """
    from tensorattn.adjoining import Sweep, activity

    sweep.e.count += 1
    stem = f"{sweep.e.stem}{sweep.e.count}_"
    own = {r.name: r if r.name == known else replace(r, name=f"{stem}{r.name}") for r in made_within(body)}
    again = tuple(renamed(i, own) for i in body)
    e = Emitter(f"{stem}a", [i for i in again if known not in {r.name for r in makes(i)}])
    inner = Sweep(e, activity(again, frozenset(r.name for r in operands)), {})
    for result, bar in bars:
        inner.add(own[result.name], bar)
    inner.back(again)
    return e, own, inner


def _is_plain(instruction: Instruction) -> bool:
    return not isinstance(instruction, IfFinite) and len(makes(instruction)) == 1


def attempted(sweep: Sweep, made: Attempt) -> Iterator[tuple[Register, Register]]:
    """What the cotangents of the results give to all operands: an attempt with the same test, both sides adjoined."""
    bars = [(out, bar) for out in made.outs if (bar := sweep.of(out)) is not None]
    if not bars:
        return
    operands = sorted((r for r in reads(made) if r.name in sweep.active), key=lambda r: r.name)
    sides = [_again(sweep, side, bars, operands) for side in (made.fast, made.fallback)]
    found = [[inner.of(operand) for operand in operands] for _, _, inner in sides]
    taken = [n for n in range(len(operands)) if any(terms[n] is not None for terms in found)]
    outs = tuple(sweep.e.register(operands[n].axes, operands[n].dtype) for n in taken)
    test = sides[0][1].get(made.test.name, made.test)
    bodies = []
    for (e, _, _), terms, results in zip(sides, found, ((*outs, test), outs), strict=True):
        for n, out in zip(taken, outs, strict=True):
            term = terms[n]
            e.emit(Arrange(out, e.full(0, out.axes, out.dtype) if term is None else term))
        bodies.append(without_dead(tuple(e.body), results))
    if outs:
        sweep.e.body.append(Attempt(outs, test, *bodies))
    yield from ((operands[n], out) for n, out in zip(taken, outs, strict=True))
