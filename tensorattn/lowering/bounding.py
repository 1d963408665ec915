"""Kernel → kernel: a loop over tiles of softmax weights runs without a maximum where the scores are known to be small.

Where |score| ≤ LIMIT, e^score neither overflows nor vanishes, so that the weights need no maximum, no subtraction and
no rescaling of what is carried. A bound on all scores follows from the arrays outside the loop in O((F + B) c) work:
|Σᵢ aᵢ bᵢ| ≤ ‖a‖ ‖b‖ (Cauchy and Schwarz), a sum is at most the sum of the bounds, and |tanh| ≤ 1. A finite bound
proves that every entry it was made from is finite; NaN and infinities end in the loop with a maximum.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import e, inf, log

from tensorattn.kernel import Apply, Fold, IfBounded, IfFinite, Instruction, Kernel, Stream, Weigh
from tensorattn.lowering.liveness import makes, reads, without_dead
from tensorattn.lowering.magnitudes import Magnitudes
from tensorattn.lowering.rescaling import LOG2_E
from tensorattn.lowering.unifying import renamed
from tensorattn.lowering.unmasking import parted, unmasked
from tensorattn.parts import Carry, Limiting, Literal, Register

LIMIT = {"float32": 40.0, "float64": 300.0}
LARGEST = {"float32": 1e37, "float64": 1e300}  # of what is carried
# A weight is at least e^-LIMIT, so that its product with a value underflows only where the value is below 1e-20 (in
# float64 below 1e-170). Where all values are that small, or no bound on them says otherwise, there is a maximum.
LEAST = {"float32": 1e-11, "float64": 1e-150}


def bounded(kernel: Kernel) -> Kernel:
    """The kernel with a test before every loop whose scores can be bounded, and a plain loop for where they are."""
    return replace(kernel, body=_chosen(kernel.body, {o.register.name for o in kernel.outputs}))


def _chosen(body: Sequence[Instruction], results: set[str]) -> tuple[Instruction, ...]:
    found: list[Instruction] = []
    later = set(results)
    for instruction in reversed(body):
        if isinstance(instruction, Stream):
            ends = {r.name for r in _read_after(instruction)}
            inner = replace(instruction, body=_chosen(instruction.body, ends))
            instruction = _bounded(inner, later) or inner
        found.append(instruction)
        later |= {r.name for r in reads(instruction)}
    return tuple(reversed(found))


def _read_after(stream: Stream) -> Iterable[Register]:
    """What is read of the body of a loop after it has run."""
    yield from (c.part for c in stream.carry)
    yield from (s.part for s in stream.stacked)
    yield from stream.merged
    for step in stream.merge:
        yield from reads(step)


def _bounded(stream: Stream, later: set[str]) -> IfBounded | None:
    """A branch on whether the scores are small; None where no bound is known, or the loop has no such weights."""
    body = tuple(_opened(stream.body))
    if any(isinstance(i, (Stream, IfBounded)) for i in body):
        return None
    weighs = [i for i in body if isinstance(i, Weigh)]
    maxima = {w.greatest.name for w in weighs} & {c.part.name for c in stream.carry}
    if not weighs or (maxima and (stream.stacked or len(maxima) < len(weighs))):
        return None
    limits = _limits(stream, body, weighs)
    if limits is None:
        return None
    needed = tuple(state for state in makes(stream) if state.name in later)
    if not maxima:  # every round has all of a row
        return IfBounded(needed, limits, (_plain_rounds(stream, body),), (stream,))
    sums = [c for c in stream.carry if c.part.name not in maxima]
    if any(c.unit != 0 for c in sums):
        return None
    states = {c.part.name: c.state for c in stream.carry}
    carried = [(states[w.greatest.name], states.get(w.total.name)) for w in weighs]
    if any(total is None for greatest, total in carried if greatest in needed):
        return None
    found_maxima = [i for greatest, total in carried if greatest in needed and total for i in _maximum(greatest, total)]
    return IfBounded(needed, limits, (_plain(stream, body, sums), *found_maxima), (stream,))


def _limits(
    stream: Stream, body: Sequence[Instruction], weighs: Sequence[Weigh]
) -> tuple[tuple[Limiting, float, float], ...] | None:
    """What has to hold of the scores, and of what is summed with the weights; None where no bound is known."""
    weights = {w.out.name: e ** LIMIT[w.out.dtype] for w in weighs}
    states = [c.state.name for c in stream.carry]
    found = {w.out.name: Magnitudes(body, states, weights, frozenset(w.score.axes)) for w in weighs}
    limits = [
        (found[w.out.name].score(w.score), 0.0, LIMIT[w.out.dtype] / (log(2) if w.base == "2" else 1)) for w in weighs
    ]
    for w in weighs:
        for part in _sums(body, w):
            limits.append(
                (found[w.out.name].norm(part), LEAST[part.dtype] * e ** LIMIT[part.dtype], LARGEST[part.dtype])
            )
    values = {v.name for i in stream.body if isinstance(i, IfFinite) for v in i.values if v.dtype.startswith("float")}
    seen = weights.keys() | {name for each in found.values() for name in each.seen}
    return None if any(bound is None for bound, *_ in limits) or not values <= seen else tuple(limits)  # type: ignore[return-value]


def _sums(body: Sequence[Instruction], weigh: Weigh) -> list[Register]:
    """What the weights are summed to."""
    live, found = {weigh.out.name}, []
    for instruction in body:
        if any(r.name in live for r in reads(instruction)):
            for out in makes(instruction):
                if set(out.axes) & set(weigh.indices):
                    live.add(out.name)
                else:
                    found.append(out)
    return found


def _maximum(greatest: Register, total: Register) -> tuple[Instruction, ...]:
    """What stands for the maximum: 0, as the weights are e^score, and −∞ where nothing is admitted."""
    none = Register(f"none_{greatest.name}", total.axes, "bool")
    return (
        Apply(none, "equal", (total, Literal(0))),
        Apply(greatest, "select", (none, Literal(-inf), Literal(0.0))),
    )


def _opened(body: Sequence[Instruction]) -> Iterable[Instruction]:
    """The body for finite values."""
    for instruction in body:
        if isinstance(instruction, IfFinite):
            yield from _opened(instruction.fast)
        else:
            yield instruction


def _plain_rounds(stream: Stream, body: Sequence[Instruction]) -> Stream:
    """The loop in which every row is weighed without a maximum."""
    ends = (*(c.part for c in stream.carry), *(s.part for s in stream.stacked), *stream.merged)
    needed = (*ends, *(r for step in stream.merge for r in reads(step)))
    maxima = [step for i in body if isinstance(i, Weigh) for step in _maximum(i.greatest, i.total)]
    steps = _without_maximum(body, needed, maxima)
    names = {r.name: replace(r, name=f"{r.name}p") for i in steps for r in makes(i)}
    carry, stacked, merge = (renamed(part, names) for part in (stream.carry, stream.stacked, stream.merge))
    return replace(stream, body=renamed(tuple(steps), names), carry=carry, stacked=stacked, merge=merge)


def _without_maximum(
    body: Sequence[Instruction], ends: tuple[Register, ...], maxima: Sequence[Instruction] = ()
) -> list[Instruction]:
    """The body with weights e^score; `maxima`: what stands for the maxima, right after the sums it is made of."""
    steps = list(body)
    for weigh in [i for i in body if isinstance(i, Weigh)]:
        exp = _exponential(weigh)
        moved = unmasked(steps, weigh, exp, ends) or parted(steps, weigh, exp, ends)
        steps = moved or [step for i in steps for step in (_weights(weigh) if i is weigh else (i,))]
        own = [i for i in maxima if weigh.total in reads(i) or weigh.greatest in makes(i)]
        last = next(n for n, i in enumerate(steps) if weigh.total in makes(i)) + 1
        steps[last:last] = own
    return list(without_dead(tuple(map(_small, steps)), ends))


def _small(step: Instruction) -> Instruction:
    """A step on what is bounded: it stays finite by itself."""
    match step:
        case Apply(out=out, function="in_twos", arguments=(x,)):
            return Apply(out, "multiply", (x, Literal(LOG2_E)))
    return step


def _plain(stream: Stream, body: Sequence[Instruction], sums: Sequence[Carry]) -> Stream:
    """The loop without a maximum: weights are e^score, and what is carried is added up."""
    steps = _without_maximum(body, tuple(c.part for c in sums))
    merged = tuple(replace(c.state, name=f"sum_{c.state.name}") for c in sums)
    merge = tuple(Apply(out, "add", (c.state, c.part)) for out, c in zip(merged, sums, strict=True))
    names = {r.name: replace(r, name=f"{r.name}p") for i in steps for r in makes(i)}
    steps, carry = renamed(tuple(steps), names), renamed(tuple(sums), names)
    return replace(stream, body=steps, carry=carry, merge=renamed(merge, names), merged=merged)


def _weights(weigh: Weigh) -> tuple[Instruction, ...]:
    exp, out = _exponential(weigh), weigh.out
    total = Fold(weigh.total, "sum", out)
    if weigh.where is None:
        return Apply(out, exp, (weigh.score,)), total
    every = replace(out, name=f"{out.name}e")
    return Apply(every, exp, (weigh.score,)), Apply(out, "select", (weigh.where, every, Literal(0.0))), total


def _exponential(weigh: Weigh) -> str:
    return "exp2" if weigh.base == "2" else "exp"
