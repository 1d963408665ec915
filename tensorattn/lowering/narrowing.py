"""Kernel → kernel: loops run only where their predicates can admit anything (dead tiles are skipped).

In a round of a loop the axes that are cut run over a tile; what a predicate says of another axis then bounds it
(`intervals`). Outside these bounds every weight is 0, so that nothing there needs to be computed: a loop over the axis
starts and stops at them, an axis that is held whole is cut to them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from tensorattn.ir import Index
from tensorattn.kernel import (
    Apply,
    Arrange,
    Attempt,
    Cast,
    Contract,
    Fold,
    IfFinite,
    Instruction,
    LogSumExp,
    Normalised,
    Slice,
    Stream,
    Weigh,
)
from tensorattn.lowering.intervals import constraints, filled, interval
from tensorattn.lowering.liveness import makes, outside_reads, reads
from tensorattn.lowering.pointwise import is_pointwise
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Bound, Carry, Edge, Literal, Narrowed, Register

WEIGHERS = (Weigh, Normalised, LogSumExp)


def narrowed(body: tuple[Instruction, ...]) -> tuple[Instruction, ...]:
    """The body with the stretches over which its loops run."""
    makers = {r.name: i for i in _every(body) for r in makes(i) if not isinstance(i, Stream)}
    return tuple(_in_loop(i, makers, ()) if isinstance(i, Stream) else i for i in body)


def _every(body: Iterable[Instruction]) -> Iterator[Instruction]:
    for instruction in body:
        yield instruction
        if isinstance(instruction, Stream):
            yield from _every(instruction.body)


def _in_loop(stream: Stream, makers: Mapping[str, Instruction], around: tuple[Index, ...]) -> Stream:
    body = tuple(_in_loop(i, makers, (*around, stream.axis)) if isinstance(i, Stream) else i for i in stream.body)
    stream = replace(stream, body=body)
    if around and (found := _bounds(stream, stream.axis, makers, around)):
        stream = replace(stream, live=found)
    held = {i for r in outside_reads(body) for i in r.axes} - {stream.axis, *around}
    inner = [i for i in _every(body) if isinstance(i, Stream)]
    held -= {i.axis for i in inner} | {n.axis for i in inner for n in i.narrowed}  # an axis is cut once
    held -= {i for s in stream.stacked for i in s.part.axes}
    held -= {i for c in stream.carry if not is_sum(stream, c) for i in c.part.axes}
    cuts = [_bounds(stream, axis, makers, (*around, stream.axis)) for axis in sorted(held)]
    cuts = [cut for cut in cuts if cut is not None and _depends(cut, stream.axis)]
    return _cut(stream, cuts)


def _depends(cut: Narrowed, axis: Index) -> bool:
    """Whether a bound depends on the tile of this loop: else an outer loop is the place for it."""
    edges = (what for bound in (*cut.low, *cut.high) for _, what in bound.terms)
    return any(isinstance(what, Edge) and what.axis == axis for what in edges)


def _bounds(stream: Stream, axis: Index, makers: Mapping[str, Instruction], cut: tuple[Index, ...]) -> Narrowed | None:
    """Where along the axis the weights in this loop can be other than 0."""
    every = list(_every(stream.body))
    weighers = [i for i in every if isinstance(i, WEIGHERS) and _runs_over(i, axis)]
    weighers = weighers or [i for i in every if _is_masked(i, axis, makers)]
    wheres = [_where(weigher, makers) for weigher in weighers]
    zero = {r for w, where in zip(weighers, wheres, strict=True) for r in _zero(w, where)}
    if not weighers or not _is_neutral(stream.body, axis, zero):
        return None
    if axis == stream.axis and any(s.part.name not in zero for s in stream.stacked):
        return None  # a result that is not 0 where the loop does not run
    if any(axis in c.part.axes and c.part.name not in zero for c in stream.carry):
        return None  # another sum along the axis that is not 0 outside
    common = set.intersection(*(set(constraints(where, makers)) for where in wheres))
    ordered = [c for c in constraints(wheres[0], makers) if c in common]
    low, high = interval(ordered, axis, frozenset(cut))
    low, high = (tuple(b for b in bounds if _moves(b, axis)) for bounds in (low, high))
    return Narrowed(axis, low, high) if low or high else None


def _moves(bound: Bound, axis: Index) -> bool:
    """Whether a bound can lie inside the axis."""
    return bool(bound.terms) or not bound.constant.symbols - {axis.name} or bound.divisor != 1


def _runs_over(weigher: Instruction, axis: Index) -> bool:
    match weigher:
        case Weigh(indices=indices) | Normalised(indices=indices):
            return axis in indices
        case LogSumExp(out=out, source=source, where=where):
            known = {*source.axes, *(where.axes if where is not None else ())}
            return axis in known - set(out.axes)
    return False


def _is_masked(instruction: Instruction, axis: Index, makers: Mapping[str, Instruction]) -> bool:
    """Whether it makes something 0 where a predicate that bounds the axis excludes."""
    where = _where(instruction, makers) if isinstance(instruction, Apply) else None
    return where is not None and axis in where.axes and bool(constraints(where, makers))


def _where(weigher: Instruction, makers: Mapping[str, Instruction]) -> Register | None:
    """Where it can be other than 0."""
    match weigher:
        case Apply(function="select", arguments=(Register() as where, Register(), Literal(value=0))):
            return where
        case Apply(function="exp" | "exp2", arguments=(Register() as score,)):
            return filled(score, makers)
        case Weigh(where=where, score=score) | Normalised(where=where, score=score):
            return where or filled(score, makers)
        case LogSumExp(where=where, source=score):
            return where or filled(score, makers)
    return None


def is_sum(stream: Stream, carry: Carry) -> bool:
    """Whether a part is only added to the state, so that it may be one of a stretch."""
    uses = [i for i in (*stream.body, *stream.merge) if carry.state in reads(i)]
    merged = stream.merged[stream.carry.index(carry)]
    return uses == [Apply(merged, "add", (carry.state, carry.part))]


def _zero(weigher: Instruction, where: Register | None) -> tuple[str, ...]:
    """The registers that are 0 where the weigher's predicate excludes."""
    name = where.name if where is not None else ""
    return (name,) if isinstance(weigher, LogSumExp) else (name, weigher.out.name)  # type: ignore[union-attr]


def _is_neutral(body: Iterable[Instruction], axis: Index, zero: set[str]) -> bool:
    """Whether all that sums over the axis sums what is 0 outside; `zero` grows by what is made of such."""
    for instruction in body:
        match instruction:
            case Stream(body=inner, carry=carry, stacked=stacked):
                if not _is_neutral(inner, axis, zero):
                    return False
                if instruction.axis == axis and any(axis in c.part.axes for c in carry):
                    return False
                zero |= {c.state.name for c in carry if c.part.name in zero and is_sum(instruction, c)}
                zero |= {s.out.name for s in stacked if s.part.name in zero}
                continue
            case IfFinite(out=out, fast=fast, safe=safe):
                sides = set(zero), set(zero)
                if not (_is_neutral(fast, axis, sides[0]) and _is_neutral(safe, axis, sides[1])):
                    return False
                zero |= {out.name} & sides[0] & sides[1]
                continue
            case Attempt(fast=fast, fallback=fallback):
                if not (_is_neutral(fast, axis, set(zero)) and _is_neutral(fallback, axis, set(zero))):
                    return False
                continue
        if isinstance(instruction, (Slice, *WEIGHERS)):
            touches = isinstance(instruction, WEIGHERS) and axis in {i for r in reads(instruction) for i in r.axes}
            if touches and not _runs_over(instruction, axis) and axis not in instruction.out.axes:
                return False
            if isinstance(instruction, Slice) and instruction.source.name in zero:
                zero.add(instruction.out.name)
            continue
        out = instruction.out  # type: ignore[union-attr]
        if axis in (getattr(instruction, "along", None), getattr(instruction, "segment", None)):
            return False  # a running sum, or one by segment, makes the whole axis
        if _is_zero(instruction, zero):
            zero.update({out.name} if axis in out.axes else ())  # what is left of a sum is no zero
        elif axis in {i for r in reads(instruction) for i in r.axes} and not is_pointwise(instruction, axis):
            return False
    return True


def _is_zero(instruction: Instruction, zero: set[str]) -> bool:
    """Whether the result is 0, or a sum of zeros, where an operand is one of `zero`."""
    match instruction:
        case Contract(a=a, b=b):
            return a.name in zero or b.name in zero
        case Apply(function="multiply" | "and", arguments=arguments):
            return any(isinstance(a, Register) and a.name in zero for a in arguments)
        case Apply(function="divide" | "negate", arguments=(first, *_)):
            return isinstance(first, Register) and first.name in zero
        case Apply(function="select", arguments=(where, Register() as yes, Literal(value=0))):
            return yes.name in zero or (isinstance(where, Register) and where.name in zero)
        case Fold(kind="sum" | "any", source=source) | Cast(source=source) | Arrange(source=source):
            return source.name in zero
    return False


def _cut(stream: Stream, cuts: list[Narrowed]) -> Stream:
    """The loop with the axes it holds cut to where something can be admitted."""
    body = stream.body
    for cut in cuts:
        axis = cut.axis
        stem = f"{stream.axis.name}{stream.axis.number}"
        outside = sorted((r for r in outside_reads(body) if axis in r.axes), key=lambda r: r.name)
        new = {r.name: Register(f"{r.name}c{axis.name}{stem}", r.axes, r.dtype) for r in outside}
        body = (*(Slice(new[r.name], r, axis) for r in outside), *(renamed(i, new) for i in body))
    return replace(stream, body=body, narrowed=tuple(cuts))
