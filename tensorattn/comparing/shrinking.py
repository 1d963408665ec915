"""A difference → a small counterexample: the smallest sizes that still differ, entries 0, 1 or small integers."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from tensorattn.comparing.sizing import Variable, choose
from tensorattn.comparing.trials import STYLES, Inputs, Outcome, Pair, Sizes, draw
from tensorattn.comparing.verdict import Counterexample

Compare = Callable[[Sizes, Inputs], Outcome | None]
DRAWS = 6  # at each candidate of sizes
MOST_EVALUATIONS = 400
TINY = (0.0, 1.0, -1.0, 2.0)


def counterexample(
    pair: Pair, sizes: Sizes, inputs: Inputs, compare: Compare, rng: np.random.Generator
) -> Counterexample:
    """A small one, from sizes and inputs at which the programs differ."""
    sizes, inputs = _smaller_sizes(pair, sizes, inputs, compare, rng)
    inputs = _smaller_values(sizes, inputs, compare)
    outcome = compare(sizes, inputs)
    assert outcome is not None
    assert outcome.entry is not None
    names = {**pair.sizes_of(1, sizes), **pair.sizes_of(0, sizes)}
    first = {n: names[n] for n in pair.sizes_of(0, sizes)}
    return Counterexample(inputs, first | names, pair.output, pair.axes, outcome.entry, outcome.first, outcome.second)


def _differs(compare: Compare, sizes: Sizes, inputs: Inputs) -> bool:
    outcome = compare(sizes, inputs)
    return outcome is not None and outcome.differs


def _smaller_sizes(
    pair: Pair, sizes: Sizes, inputs: Inputs, compare: Compare, rng: np.random.Generator
) -> tuple[Sizes, Inputs]:
    """Greedy: all sizes 1, all 2, then one size after the other down to 1."""
    wanted = dict(sizes)

    def attempt(new: dict[Variable, int]) -> tuple[Sizes, Inputs] | None:
        chosen = choose(pair.domain, lambda v: new[v])
        if chosen is None or sum(chosen.values()) >= sum(sizes.values()):
            return None
        for number in range(DRAWS):
            drawn = draw(pair, chosen, STYLES[(number + 3) % len(STYLES)], rng)
            if _differs(compare, chosen, drawn):
                return chosen, drawn
        return None

    for new in (dict.fromkeys(wanted, n) for n in (1, 2)):
        found = attempt(new)
        if found is not None:
            sizes, inputs = found
            break
    for variable in pair.domain.variables:
        for smaller in range(1, sizes[variable]):
            found = attempt({**sizes, variable: smaller})
            if found is not None:
                sizes, inputs = found
                break
    return sizes, inputs


def _smaller_values(sizes: Sizes, inputs: Inputs, compare: Compare) -> Inputs:
    """Greedy: whole inputs rounded, zero or one; then entry after entry."""
    left = MOST_EVALUATIONS
    for simpler in (_whole, _entries):
        for name in inputs:
            for array in simpler(inputs, name):
                if not left:
                    return inputs
                left -= 1
                if _differs(compare, sizes, {**inputs, name: array}):
                    inputs = {**inputs, name: array}
                    if simpler is _whole:
                        break
    return inputs


def _whole(inputs: Inputs, name: str) -> Iterator[np.ndarray]:
    array = inputs[name]
    yield np.zeros_like(array)
    yield np.ones_like(array)
    if array.dtype.kind == "f":
        yield np.round(array)
        yield np.ceil(array)


def _entries(inputs: Inputs, name: str) -> Iterator[np.ndarray]:
    """Arrays with one entry simpler; the caller keeps those that work, so each starts from the kept one."""
    kept = np.array(inputs[name])
    for place in np.ndindex(kept.shape):
        for number in TINY if kept.dtype.kind == "f" else TINY[:1]:
            if kept[place] == number:
                break
            changed = np.array(kept)
            changed[place] = number
            yield changed
