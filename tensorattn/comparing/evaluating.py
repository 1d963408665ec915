"""The verdict where normal forms differ: floats look for a difference, finite fields make sure that there is none."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log2

import numpy as np

from tensorattn.comparing.residues import BITS, InexactError
from tensorattn.comparing.shrinking import counterexample
from tensorattn.comparing.sizing import choose
from tensorattn.comparing.trials import (
    MOST_TUPLES,
    STYLES,
    Inputs,
    Outcome,
    Pair,
    Sizes,
    compare_exactly,
    compare_floats,
    degree,
    draw,
    fractions,
    residues,
)
from tensorattn.comparing.verdict import Verdict

PALETTES = ((2, 3, 5), (1, 2, 3), (2, 3), (1, 1), (1, 2), (0, 1, 2), (2, 3, 4), (2, 2), (0, 0))
ATTEMPTS = 12  # at sizes that fit, of one palette
EXACT_DRAWS = 3


@dataclass(frozen=True, slots=True)
class Trial:
    """Sizes at which both programs take inputs, with such inputs."""

    pair: Pair
    sizes: Sizes
    inputs: Inputs


def by_evaluation(pairs: Sequence[Pair], rng: np.random.Generator | None) -> Verdict:
    """The verdict from values at several sizes and inputs; `pairs`: one for each number of batch axes."""
    rng = np.random.default_rng(0) if rng is None else rng
    trials: list[Trial] = []
    entries = draws = 0
    for pair, sizes in _sizes(pairs, rng):
        for style in STYLES:
            inputs = draw(pair, sizes, style, rng)
            outcome = compare_floats(pair, sizes, inputs)
            if outcome is None:
                break
            if outcome.differs:
                return _different(pair, sizes, inputs, rng)
            draws, entries = draws + 1, entries + outcome.compared
            if style == "gentle":
                trials.append(Trial(pair, sizes, inputs))
    if not trials:
        return Verdict(False, "no sizes and positions were found that both programs take")
    exact = _exactly(trials, rng)
    if exact is not None:
        return exact
    if not entries:
        return Verdict(False, "no draw gave a finite value in both programs, so nothing could be compared")
    return Verdict(
        True, f"no difference in float64 at {draws} random inputs of {len(trials)} choices of sizes; this is no proof"
    )


def _sizes(pairs: Sequence[Pair], rng: np.random.Generator) -> Iterator[tuple[Pair, Sizes]]:
    """Sizes that fit both programs, small enough to visit every tuple; each choice once."""
    seen: set[object] = set()
    for pair in pairs:
        for palette in PALETTES:
            for _ in range(ATTEMPTS):
                order = {v: int(rng.permuted(palette)[0]) for v in pair.domain.variables}
                sizes = choose(pair.domain, order.__getitem__)
                if sizes is None or pair.tuples(sizes) > MOST_TUPLES:
                    continue
                if (known := (id(pair), tuple(sizes.items()))) not in seen:
                    seen.add(known)
                    yield pair, sizes
                break


def _different(pair: Pair, sizes: Sizes, inputs: Inputs, rng: np.random.Generator) -> Verdict:
    def compare(sizes: Sizes, inputs: Inputs) -> Outcome | None:
        return compare_floats(pair, sizes, inputs)

    found = counterexample(pair, sizes, inputs, compare, rng)
    return Verdict(False, "the values differ", found)


def _exactly(trials: Sequence[Trial], rng: np.random.Generator) -> Verdict | None:
    """The verdict of finite fields; None where they cannot tell."""
    smallest, rational = float(BITS), True
    for trial in trials:
        pair, sizes = trial.pair, trial.sizes
        for _ in range(EXACT_DRAWS):
            try:
                outcome = compare_exactly(pair, sizes, residues(trial.inputs, rng), rng.bytes(16))
            except InexactError:
                return None
            if outcome.differs:
                return _exact_difference(trial, rng)
        bits = _bits(pair, sizes)
        rational = rational and bits is not None
        smallest = min(smallest, bits if bits is not None else BITS)
    drawn = f"at {EXACT_DRAWS} random inputs of each of {len(trials)} choices of sizes"
    if rational:
        missed = f"a difference at one of these would be missed with probability below 2^-{int(EXACT_DRAWS * smallest)}"
        return Verdict(True, f"equal values in a finite field {drawn}; {missed}")
    functions = "exp as a homomorphism and other functions as random ones"
    return Verdict(True, f"equal values in a finite field, with {functions}, {drawn}")


def _bits(pair: Pair, sizes: Sizes) -> float | None:
    """−log2 of the probability that two different rational functions agree at a random input (Schwartz–Zippel)."""
    first = degree(pair.first, pair.output, pair.sizes_of(0, sizes))
    second = degree(pair.second, pair.other, pair.sizes_of(1, sizes))
    if first is None or second is None:
        return None
    return BITS - log2(max(first[0] + second[1], second[0] + first[1], 1))


def _exact_difference(trial: Trial, rng: np.random.Generator) -> Verdict | None:
    """A difference too small for floats, shown in fractions; None where a function has no exact value."""
    pair = trial.pair

    def compare(sizes: Sizes, inputs: Inputs) -> Outcome | None:
        try:
            return compare_exactly(pair, sizes, fractions(inputs), None)
        except InexactError:
            return None

    for _ in range(EXACT_DRAWS):
        inputs = draw(pair, trial.sizes, "integers", rng)
        outcome = compare(trial.sizes, inputs)
        if outcome is None:
            return None
        if outcome.differs:
            return Verdict(False, "the exact values differ", counterexample(pair, trial.sizes, inputs, compare, rng))
    return None
