"""Rows of a streamed softmax that hold NaN or +∞: all weights of such a row are NaN, but only the whole row says so.

Its sum Σ W v is NaN, unless predicates of other factors exclude all that is present in it: then it is 0, as in a dense
plan. The tiles before the NaN had finite weights, though, and where they left 0 nobody can tell a sum of nothing from
one that is 0. So where other predicates stand beside the weights and some row is spoilt, a second loop sums weights
that are NaN at each entry of such a row, and 0 elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, nan

from tensorattn.kernel import Apply, Attempt, Cast, Fold, IfFinite, Instruction, Normalised
from tensorattn.lowering.flow import Flow
from tensorattn.lowering.liveness import made_within, reads
from tensorattn.lowering.merging import Maker
from tensorattn.lowering.unifying import renamed
from tensorattn.parts import Literal, Register


def is_part_excluded(flow: Flow, weights: Normalised, chain: Iterable[int]) -> bool:
    """Whether a predicate other than that of the weights stands in the sums of them."""
    guards = [i for n in chain if isinstance(i := flow.body[n], IfFinite)]
    return any(_truth(flow, r) not in (None, weights.where) for guard in guards for r in reads(guard))


def _truth(flow: Flow, register: Register) -> Register | None:
    """The predicate that a register is, or is as a number; None where it is none."""
    made = flow.body[flow.makers[register.name]] if register.name in flow.makers else None
    if isinstance(made, Cast):
        return _truth(flow, made.source)
    return register if register.dtype == "bool" else None


@dataclass(frozen=True, slots=True)
class Spoilt:
    """What says of every row whether it is spoilt: `before` the branch, and as `weights` of its entries."""

    known: Register
    test: Register
    before: tuple[Instruction, ...]
    weights: tuple[Instruction, ...]

    def attempt(
        self,
        results: Sequence[Register],
        divided: Sequence[Instruction],
        loop: Sequence[Instruction],
        marks: Sequence[Register],
    ) -> Attempt:
        """The results as they are `divided`; where a row is spoilt, with the `marks` of the second `loop` in it."""
        marked, plain = _own(loop), _own(divided)
        again = (*(renamed(i, marked) for i in loop), *(renamed(i, plain) for i in divided))
        chosen = (
            Apply(r, "select", (self.known, plain[r.name], marked[mark.name]))
            for r, mark in zip(results, marks, strict=True)
        )
        return Attempt(tuple(results), self.test, tuple(divided), (*again, *chosen))


def _own(body: Iterable[Instruction]) -> dict[str, Register]:
    """New names for what a body makes, which stands twice."""
    return {r.name: replace(r, name=f"{r.name}n") for r in made_within(body)}


def spoiled(make: Maker, weights: Normalised, score: Register, below: Register) -> Spoilt:
    """Of weights of a score, in any units, with the denominators of their rows."""
    known, test = make("known", below.axes, "bool"), make("tame", (), "bool")
    spoil, gone = make("spoil", below.axes), make("gone", score.axes, "bool")
    where, out = weights.where, weights.out
    every = out if where is None else replace(out, name=f"{out.name}e")
    found: list[Instruction] = [
        Apply(gone, "equal", (score, Literal(-inf))),
        Apply(every, "select", (gone, Literal(0.0), spoil)),
    ]
    if where is not None:
        found.append(Apply(out, "select", (where, every, Literal(0.0))))
    before = (
        Apply(known, "equal", (below, below)),  # NaN is not equal to itself
        Fold(test, "all", known),
        Apply(spoil, "select", (known, Literal(0.0), Literal(nan))),
    )
    return Spoilt(known, test, before, tuple(found))
