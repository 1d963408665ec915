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
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Carry, Literal, Register

LIMIT = {"float32": 30.0, "float64": 300.0}
LARGEST = {"float32": 1e37, "float64": 1e300}  # of what is carried
# A weight is at least e^-LIMIT, so that its product with a value underflows only where the value is below 1e-24 (in
# float64 below 1e-170). Where all values are that small, or no bound on them says otherwise, there is a maximum.
LEAST = {"float32": 1e-15, "float64": 1e-150}


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
    if stream.stacked or any(isinstance(i, (Stream, IfBounded)) for i in body):
        return None
    weighs = [i for i in body if isinstance(i, Weigh)]
    maxima = {w.greatest.name for w in weighs}
    sums = [c for c in stream.carry if c.part.name not in maxima]
    if not weighs or len(stream.carry) != len(sums) + len(maxima) or any(c.unit != 0 for c in sums):
        return None
    weights = {w.out.name: e ** LIMIT[w.out.dtype] for w in weighs}
    found = Magnitudes(body, (c.state.name for c in stream.carry), weights, frozenset(weighs[0].score.axes))
    limits = [(found.norm(w.score), 0.0, LIMIT[w.out.dtype] / (log(2) if w.base == "2" else 1)) for w in weighs]
    totals = {w.total.name for w in weighs}
    parts = [c.part for c in sums if c.part.name not in totals]
    limits += [(found.norm(p), LEAST[p.dtype] * e ** LIMIT[p.dtype], LARGEST[p.dtype]) for p in parts]
    values = {v.name for i in stream.body if isinstance(i, IfFinite) for v in i.values if v.dtype.startswith("float")}
    if any(bound is None for bound, *_ in limits) or not values - weights.keys() <= found.seen:
        return None
    needed = tuple(state for state in makes(stream) if state.name in later)
    states = {c.part.name: c.state for c in stream.carry}
    maxima = [(states[w.greatest.name], states.get(w.total.name)) for w in weighs]
    if any(total is None for greatest, total in maxima if greatest in needed):
        return None
    found_maxima = [i for greatest, total in maxima if greatest in needed and total for i in _maximum(greatest, total)]
    return IfBounded(needed, tuple(limits), (_plain(stream, body, sums), *found_maxima), (stream,))


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


def _plain(stream: Stream, body: Sequence[Instruction], sums: Sequence[Carry]) -> Stream:
    """The loop without a maximum: weights are e^score, and what is carried is added up."""
    steps = [step for i in body for step in (_weights(i) if isinstance(i, Weigh) else (i,))]
    steps = list(without_dead(tuple(steps), tuple(c.part for c in sums)))
    merged = tuple(replace(c.state, name=f"sum_{c.state.name}") for c in sums)
    merge = tuple(Apply(out, "add", (c.state, c.part)) for out, c in zip(merged, sums, strict=True))
    names = {r.name: replace(r, name=f"{r.name}p") for i in steps for r in makes(i)}
    steps, carry = renamed(tuple(steps), names), renamed(tuple(sums), names)
    return replace(stream, body=steps, carry=carry, merge=renamed(merge, names), merged=merged)


def _weights(weigh: Weigh) -> tuple[Instruction, ...]:
    exp, out = ("exp2" if weigh.base == "2" else "exp"), weigh.out
    total = Fold(weigh.total, "sum", out)
    if weigh.where is None:
        return Apply(out, exp, (weigh.score,)), total
    every = replace(out, name=f"{out.name}e")
    return Apply(every, exp, (weigh.score,)), Apply(out, "select", (weigh.where, every, Literal(0.0))), total
