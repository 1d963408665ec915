"""The monoid (m, l, o) that a streamed softmax carries: how two parts merge, and the results at the end.

Source: Milakov and Gimelshein 2018 (online softmax).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Instruction
from tensorattn.lowering.rescaling import LOG2_E
from tensorattn.parts import Literal, Operand, Register

EXP = {"e": "exp", "2": "exp2"}


class Maker:
    """Registers of the loop, named after the weights they replace."""

    def __init__(self, stem: str, dtype: str) -> None:
        self.stem, self.dtype = stem, dtype

    def __call__(self, name: str, axes: Iterable[Index], dtype: str | None = None) -> Register:
        return Register(f"{name}_{self.stem}", tuple(axes), dtype or self.dtype)


def merge(
    make: Maker, greatest: tuple[Register, Register], sums: list[tuple[Register, Register]], exp: str, *, floored: bool
) -> tuple[list[Instruction], list[Register]]:
    """(m₁, l₁, o₁) ⊕ (m₂, l₂, o₂) with m = m₁ ∨ m₂ and both sides rescaled; two empty sides stay empty.

    `floored`: m₂ is no less than m₁, its floor, so that the second side has the unit m already.
    """
    old, new = greatest
    high, none, shift = make("high", old.axes), make("none", old.axes, "bool"), make("shift", old.axes)
    steps: list[Instruction] = [] if floored else [Apply(high, "maximum", (old, new))]
    high = new if floored else high
    steps += [Apply(none, "equal", (high, Literal(-inf))), Apply(shift, "select", (none, Literal(0.0), high))]
    scales = []
    for name, side in (("keep", old),) if floored else (("keep", old), ("add", new)):
        difference, scale = make(f"d{name}", old.axes), make(name, old.axes)
        steps += [Apply(difference, "subtract", (side, shift)), Apply(scale, exp, (difference,))]
        scales.append(scale)
    merged = [high]
    for number, pair in enumerate(sums):
        sides = list(pair)
        for side, scale in enumerate(scales):
            scaled = make(f"{'ab'[side]}{number}", pair[0].axes)
            steps.append(Apply(scaled, "multiply", (sides[side], scale)))
            sides[side] = scaled
        merged.append(make(f"ab{number}", pair[0].axes))
        steps.append(Apply(merged[-1], "add", tuple(sides)))
    return steps, merged


@dataclass(frozen=True, slots=True)
class Ratio:
    """The steps that make the denominator `below`, 1 in empty rows, and those that divide by it."""

    before: list[Instruction]
    after: list[Instruction]
    below: Register

    @property
    def steps(self) -> list[Instruction]:
        return [*self.before, *self.after]


def quotients(
    make: Maker,
    results: list[Register],
    carried: tuple[Register, Register, list[Register]],
    sink: Operand | None,
    base: str,
) -> Ratio:
    """The results: o / l, with the sink in l; a row with nothing admitted is 0."""
    greatest, total, sums = carried
    before: list[Instruction] = []
    after: list[Instruction] = []
    alone = None
    if sink is not None:
        alone = make("alone", total.axes, "bool")  # with the sink, which may be NaN: the row is 0 all the same
        before.append(Apply(alone, "equal", (total, Literal(0))))
        before += _with_sink(make, greatest, total, sums, sink, base)
        total, sums = before[-len(sums) - 1].out, [i.out for i in before[-len(sums) :]]  # type: ignore[union-attr]
    empty, safe = make("empty", total.axes, "bool"), make("safe", total.axes)
    before.append(Apply(empty, "equal", (total, Literal(0))))
    before.append(Apply(safe, "select", (empty, Literal(1), total)))
    for result, part in zip(results, sums, strict=True):
        divided = make("y" + result.name, union(part.axes, total.axes))
        after.append(Apply(divided, "divide", (part, safe)))
        if alone is not None:
            chosen = make("c" + result.name, divided.axes)
            after.append(Apply(chosen, "select", (alone, Literal(0.0), divided)))
            divided = chosen
        after.append(Arrange(result, divided))
    return Ratio(before, after, safe)


def _with_sink(
    make: Maker, greatest: Register, total: Register, sums: list[Register], sink: Operand, base: str
) -> list[Instruction]:
    """exp(sink) joins the denominator, as one more entry without a value."""
    axes = union(greatest.axes, sink.axes if isinstance(sink, Register) else ())
    high, none, shift = make("hs", axes), make("ns", axes, "bool"), make("ss", axes)
    keep, more, kd, md = make("ks", axes), make("es", axes), make("kd", axes), make("md", axes)
    scaled, joined = make("ls", axes), make("lj", axes)
    far, fd = make("fs", sink.axes if isinstance(sink, Register) else (), "bool"), make("fd", axes)
    exp, steps = EXP[base], []
    if base == "2":
        steps.append(_in_twos(make, sink))
        sink = steps[-1].out
    steps += [
        Apply(high, "maximum", (greatest, sink)),
        Apply(none, "equal", (high, Literal(-inf))),
        Apply(shift, "select", (none, Literal(0.0), high)),
        Apply(kd, "subtract", (greatest, shift)),
        Apply(keep, exp, (kd,)),
        Apply(md, "subtract", (sink, shift)),
        Apply(far, "equal", (sink, Literal(inf))),  # ∞ − ∞: the sink has everything
        Apply(fd, "select", (far, Literal(0.0), md)),
        Apply(more, exp, (fd,)),
        Apply(scaled, "multiply", (total, keep)),
        Apply(joined, "add", (scaled, more)),
    ]
    return steps + [Apply(make(f"os{n}", union(s.axes, axes)), "multiply", (s, keep)) for n, s in enumerate(sums)]


def _in_twos(make: Maker, sink: Operand) -> Apply:
    """The sink in units of ln 2; data may be as large as numbers are, and stays finite."""
    if isinstance(sink, Register):
        return Apply(make("sink", sink.axes), "in_twos", (sink,))
    return Apply(make("sink", ()), "multiply", (sink, Literal(LOG2_E)))


def union(first: Iterable[Index], second: Iterable[Index]) -> tuple[Index, ...]:
    return tuple(dict.fromkeys((*first, *second)))
