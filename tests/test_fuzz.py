"""Mutated formulas: only our errors come out, soon, and what is accepted prints and reads back."""

from __future__ import annotations

import random
import sys
import time
import warnings
from collections.abc import Callable

import pytest

import tensorattn as ta
from tensorattn.reading import _parse
from tests import corpus, seeds, spelled

SEEDS = range(20)
MUTANTS = 100  # a seed
SLOWEST_SECONDS = 1
PIECES = [
    *"^_<>()[]|:;,.+-*/=!0129 \n#'ij",
    "^<",
    "_<",
    "bar(",
    ")>",
    "...",
    "softmax[j](",
    "sum[j : ",
    "and ",
    "not ",
    "or ",
    "cat[a = m + j](",
    "**",
    "<=",
    "==",
    "_i",
    "^mu",
    "_<i j>",
    "|d|",
    "delta_<i j>",
    "1e-6",
    "exp(",
    "top[j; 2](",
    "y_i = ",
    "{",
    "\\",
    "é",
    "\t",
    "\r\n",
    "$",
]
PIECES_OF_SPELLINGS = [
    *PIECES,
    *r"\bar \bar{ \frac \sqrt{ \sum_{j} \sum_{j=1}^{i} \left( \right) \mathrm{ \mu \\ & $$ \[ \] {% %} % } ^T".split(),
    *r"\begin{align} \end{align} ^{(q)} e^{ \tilde \mathbf{ \prime _{0,i} (h,d) \text{ \land \{ \} _{ ^{ \cal".split(),
    *r"\vec{x} \circ \% ν̅ ᵢ ₙ ᵀ ² ⟨ ⟩ √( ∑[ ′ ≤ · μ 𝓰 ά µ ∧ ¬ …".split(),
    *"\u0305\u0303\u200b\u20d7\u00a0",
]


def mutant(dice: random.Random, texts: list[str], pieces: list[str] = PIECES) -> str:
    text = dice.choice(texts)
    for _ in range(dice.randint(1, 4)):
        at, to = sorted((dice.randint(0, len(text)), dice.randint(0, len(text))))
        match dice.randrange(6):
            case 0:
                text = text[:at] + text[at + 1 :]
            case 1:
                text = text[:at] + dice.choice(pieces) + text[at:]
            case 2:
                text = text[:at] + dice.choice(pieces) + text[at + 1 :]
            case 3:
                text = text[:at] + text[at : at + 8] + text[at:]
            case 4:
                text = text[:at] + text[to:]
            case _:
                other = dice.choice(texts)
                text = text[:at] + other[dice.randint(0, len(other)) :]
    return text


def refusal(call: Callable[[], object]) -> ta.TensorattnError | None:
    """The error of a call, if it is one of ours; any other comes out."""
    try:
        call()
    except ta.TensorattnError as error:
        return error
    return None


def texts_of_spellings() -> list[str]:
    """The corpus in three spellings, and formulas as they were printed."""
    plain = [corpus.formula(entry) for entry in corpus.load("accept")]
    return [
        *plain,
        *(spelled.unicode(text) for text in plain),
        *(spelled.latex(text) for text in plain),
        *(entry["text"] for entry in seeds.load()),
        *corpus.printed().values(),
    ]


def read(text: str) -> bool:
    """Whether the text is a formula; then it prints and reads back and can be checked, else its error is whole."""
    error = refusal(lambda: ta.parse(text))
    if error is not None:
        assert error.source is None or error.source.text == text
        assert error.hint, text
        assert str(error).startswith(error.code), text
        assert all(0 <= s.start <= s.end <= len(text) + 1 for s in error.spans), text
        return False
    program = ta.parse(text)
    printed = str(program)
    assert ta.parse(printed) == program, text
    assert str(ta.parse(printed)) == printed, text
    late = refusal(lambda: ta.check(program))
    assert late is None or late.hint, text
    return True


def run(dice: random.Random, number: int, texts: list[str], pieces: list[str] = PIECES) -> int:
    """How many of so many mutants are formulas. Raises: AssertionError where one breaks a promise."""
    accepted = 0
    for _ in range(number):
        text = mutant(dice, texts, pieces)
        started = time.process_time()
        accepted += read(text)
        assert time.process_time() - started < SLOWEST_SECONDS, text
    _parse.cache_clear()
    return accepted


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_mutants(seed: int) -> None:
    texts = [corpus.formula(entry) for entry in corpus.load("accept")]
    assert 0 < run(random.Random(seed), MUTANTS, texts) < MUTANTS  # the mutations are neither harmless nor hopeless


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_mutants_of_every_spelling(seed: int) -> None:
    assert run(random.Random(seed), MUTANTS, texts_of_spellings(), PIECES_OF_SPELLINGS) < MUTANTS


def main() -> None:
    """`python -m tests.test_fuzz 1000000 7`: so many mutants of every spelling, from this seed."""
    number, seed = (int(argument) for argument in sys.argv[1:])
    warnings.simplefilter("ignore")
    texts, accepted, broken, dice = texts_of_spellings(), 0, 0, random.Random(seed)
    for done in range(1, number + 1):
        try:
            accepted += run(dice, 1, texts, PIECES_OF_SPELLINGS)
        except AssertionError as error:
            broken += 1
            print(f"broken: {error}", flush=True)
        if done % 10_000 == 0 or done == number:
            print(f"{done} mutants, {accepted} of them formulas, {broken} broken", flush=True)
    sys.exit(broken > 0)


if __name__ == "__main__":
    main()
