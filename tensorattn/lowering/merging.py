"""The monoid (m, l, o) that a streamed softmax carries: how two parts merge, and the results at the end.

Source: Milakov and Gimelshein 2018 (online softmax).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Instruction, Literal, Operand, Register
from tensorattn.lowering.rescaling import LOG2_E

EXP = {"e": "exp", "2": "exp2"}


class Maker:
    """Registers of the loop, named after the weights they replace."""

    def __init__(self, stem: str, dtype: str) -> None:
        self.stem, self.dtype = stem, dtype

    def __call__(self, name: str, axes: Iterable[Index], dtype: str | None = None) -> Register:
        return Register(f"{name}_{self.stem}", tuple(axes), dtype or self.dtype)


def merge(
    make: Maker, greatest: tuple[Register, Register], sums: list[tuple[Register, Register]], exp: str
) -> tuple[list[Instruction], list[Register]]:
    """(m₁, l₁, o₁) ⊕ (m₂, l₂, o₂) with m = m₁ ∨ m₂ and both sides rescaled; two empty sides stay empty."""
    old, new = greatest
    high, none = make("high", old.axes), make("none", old.axes, "bool")
    shift, keep, add = make("shift", old.axes), make("keep", old.axes), make("add", old.axes)
    steps: list[Instruction] = [
        Apply(high, "maximum", (old, new)),
        Apply(none, "equal", (high, Literal(-inf))),
        Apply(shift, "select", (none, Literal(0.0), high)),
    ]
    for scale, side in ((keep, old), (add, new)):
        difference = make("d" + scale.name, old.axes)
        steps += [Apply(difference, "subtract", (side, shift)), Apply(scale, exp, (difference,))]
    merged = [high]
    for number, (state, part) in enumerate(sums):
        a, b, both = (make(f"{n}{number}", state.axes) for n in ("a", "b", "ab"))
        steps += [Apply(a, "multiply", (state, keep)), Apply(b, "multiply", (part, add)), Apply(both, "add", (a, b))]
        merged.append(both)
    return steps, merged


def quotients(
    make: Maker,
    results: list[Register],
    carried: tuple[Register, Register, list[Register]],
    sink: Operand | None,
    base: str,
) -> list[Instruction]:
    """The results: o / l, with the sink in l; a row with nothing admitted is 0."""
    greatest, total, sums = carried
    after: list[Instruction] = []
    if sink is not None:
        after += _with_sink(make, greatest, total, sums, sink, base)
        total, sums = after[-len(sums) - 1].out, [i.out for i in after[-len(sums) :]]  # type: ignore[union-attr]
    empty, safe = make("empty", total.axes, "bool"), make("safe", total.axes)
    after.append(Apply(empty, "equal", (total, Literal(0))))
    after.append(Apply(safe, "select", (empty, Literal(1), total)))
    for result, part in zip(results, sums, strict=True):
        divided = make("y" + result.name, union(part.axes, total.axes))
        after += [Apply(divided, "divide", (part, safe)), Arrange(result, divided)]
    return after


def _with_sink(
    make: Maker, greatest: Register, total: Register, sums: list[Register], sink: Operand, base: str
) -> list[Instruction]:
    """exp(sink) joins the denominator, as one more entry without a value."""
    axes = union(greatest.axes, sink.axes if isinstance(sink, Register) else ())
    high, none, shift = make("hs", axes), make("ns", axes, "bool"), make("ss", axes)
    keep, more, kd, md = make("ks", axes), make("es", axes), make("kd", axes), make("md", axes)
    scaled, joined = make("ls", axes), make("lj", axes)
    exp, steps = EXP[base], []
    if base == "2":
        axes_of_sink = sink.axes if isinstance(sink, Register) else ()
        steps.append(Apply(make("sink", axes_of_sink), "multiply", (sink, Literal(LOG2_E))))
        sink = steps[-1].out
    steps += [
        Apply(high, "maximum", (greatest, sink)),
        Apply(none, "equal", (high, Literal(-inf))),
        Apply(shift, "select", (none, Literal(0.0), high)),
        Apply(kd, "subtract", (greatest, shift)),
        Apply(keep, exp, (kd,)),
        Apply(md, "subtract", (sink, shift)),
        Apply(more, exp, (md,)),
        Apply(scaled, "multiply", (total, keep)),
        Apply(joined, "add", (scaled, more)),
    ]
    return steps + [Apply(make(f"os{n}", union(s.axes, axes)), "multiply", (s, keep)) for n, s in enumerate(sums)]


def union(first: Iterable[Index], second: Iterable[Index]) -> tuple[Index, ...]:
    return tuple(dict.fromkeys((*first, *second)))
