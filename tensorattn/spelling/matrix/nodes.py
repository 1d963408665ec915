"""What a matrix formula says, before its axes have names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tensorattn.source import Span


@dataclass(frozen=True, slots=True)
class Word:
    """A matrix, vector, scalar or size. `text` is its whole name, of `W^{q}` the name `Wq` with `scripts` `^q`."""

    text: str
    span: Span
    scripts: str = ""

    @property
    def base(self) -> str:
        """The name without its scripts and primes."""
        stem = self.text.rstrip("'")
        return stem[: len(stem) - len(self.scripts.replace("_", "").replace("^", ""))]


@dataclass(frozen=True, slots=True)
class Literal:
    value: int | float
    span: Span


@dataclass(frozen=True, slots=True)
class Extent:
    """`|i|`: the size of a declared axis."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True)
class Transpose:
    body: "Formula"
    span: Span


@dataclass(frozen=True, slots=True)
class Power:
    base: "Formula"
    exponent: "Formula"
    span: Span


@dataclass(frozen=True, slots=True)
class Apply:
    """`softmax(…)`, `exp(…)`, or a function that a statement defines; `axes`: a script of the function's name."""

    function: Word
    arguments: tuple["Formula", ...]
    axes: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Chain:
    """Factors and what stands before each: "" (nothing), `·`, `*`, `@`, `/` or `⊙`; before the first: ""."""

    factors: tuple["Formula", ...]
    operators: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Sum:
    """Signed terms."""

    terms: tuple[tuple[int, "Formula"], ...]
    span: Span


Formula = Union[Word, Literal, Extent, Transpose, Power, Apply, Chain, Sum]


@dataclass(frozen=True, slots=True)
class Assignment:
    """`target = body` or `target(parameters) = body`; no target in a bare expression."""

    target: Word | None
    parameters: tuple[Word, ...]
    body: Formula
    span: Span
