"""Mutated formulas: only our errors come out, soon, and what is accepted prints and reads back."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

import tensorattn as ta
from tensorattn.reading import _parse
from tests import corpus

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


def mutant(dice: random.Random, texts: list[str]) -> str:
    text = dice.choice(texts)
    for _ in range(dice.randint(1, 4)):
        at, to = sorted((dice.randint(0, len(text)), dice.randint(0, len(text))))
        match dice.randrange(6):
            case 0:
                text = text[:at] + text[at + 1 :]
            case 1:
                text = text[:at] + dice.choice(PIECES) + text[at:]
            case 2:
                text = text[:at] + dice.choice(PIECES) + text[at + 1 :]
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


def read(text: str) -> bool:
    """Whether the text is a formula; then it prints and reads back and can be checked, else its error is whole."""
    error = refusal(lambda: ta.parse(text))
    if error is not None:
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


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
@pytest.mark.parametrize("seed", SEEDS)
def test_mutants(seed: int) -> None:
    dice, texts = random.Random(seed), [corpus.formula(entry) for entry in corpus.load("accept")]
    accepted = 0
    for _ in range(MUTANTS):
        text = mutant(dice, texts)
        started = time.perf_counter()
        accepted += read(text)
        assert time.perf_counter() - started < SLOWEST_SECONDS, text
    assert 0 < accepted < MUTANTS  # the mutations are neither harmless nor hopeless
    _parse.cache_clear()
