"""Texts of programs to print: the corpus, the library, hand-written ones and random ones."""

from __future__ import annotations

import random

import tensorattn as ta
from tests import corpus
from tests.strategies import Builder
from tests.test_showing import NASTY


def known_texts() -> list[str]:
    """Hand-written ones, the corpus and the library."""
    library = [str(entry.program) for entry in ta.formulas.values()]
    return [*NASTY, *(corpus.formula(e) for e in corpus.load("accept")), *library]


def random_texts(count: int, start: int = 0) -> list[str]:
    """The same ones in every process."""
    return [Builder(random.Random(start + number)).example().text for number in range(count)]
