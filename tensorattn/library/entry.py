"""`Entry`: one formula of the library with its source, its shapes and small valid inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, assert_never

if TYPE_CHECKING:
    import numpy as np

    from tensorattn.program import Program

Kind = Literal["normal", "positive", "truth", "below"]
KINDS: tuple[Kind, ...] = ("normal", "positive", "truth", "below")


@dataclass(frozen=True, slots=True)
class InputShape:
    """The axes of one input and what its entries are: `normal`, `positive`, `truth`, or integers `below` a size."""

    name: str
    axes: tuple[str, ...]
    kind: Kind = "normal"
    below: str | None = None

    def draw(self, rng: np.random.Generator, sizes: Mapping[str, int]) -> Any:
        """A small valid array; a Python number where there are no axes."""
        shape = tuple(sizes[axis] for axis in self.axes)
        match self.kind:
            case "normal":
                return rng.normal(size=shape) if shape else float(rng.normal())
            case "positive":
                return rng.uniform(0.5, 1.5, size=shape) if shape else float(rng.uniform(0.5, 1.5))
            case "truth":
                return rng.random(size=shape) < 0.7
            case "below":
                return rng.integers(0, sizes[self.below or ""], size=shape)
        assert_never(self.kind)

    def __str__(self) -> str:
        kind = f"below {self.below}" if self.kind == "below" else self.kind
        return " ".join((self.name, *self.axes)) + ("" if kind == "normal" else f": {kind}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One formula of the library.

    `text` is the whole `.attn` file and `formula` its lines without comments; `shapes` are the inputs in order and
    `sizes` the index sizes that no input fixes (the `sizes=` of `tensorattn.compile`).
    """

    name: str
    text: str
    title: str
    source: str
    equals: str = ""
    notes: str = ""
    shapes: tuple[InputShape, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    example_sizes: tuple[tuple[str, int], ...] = ()

    @property
    def program(self) -> Program:
        """The parsed formula (parsed at the first use)."""
        return _parsed(self.formula)

    @property
    def formula(self) -> str:
        """The statements alone, without the comments."""
        return "\n".join(line for line in self.text.splitlines() if line.strip() and not line.startswith("#"))

    def example(self, rng: np.random.Generator) -> dict[str, Any]:
        """Small valid inputs by name.

        Example:
            >>> import numpy as np, tensorattn as ta
            >>> {n: a.shape for n, a in ta.formulas["self_attention"].example(np.random.default_rng(0)).items()}
            {'x': (5, 3)}
        """
        sizes = dict(self.example_sizes) | dict(self.sizes)
        return {shape.name: shape.draw(rng, sizes) for shape in self.shapes}


@lru_cache(maxsize=256)
def _parsed(formula: str) -> Program:
    from tensorattn import parse  # here, so that importing the library parses and imports nothing

    return parse(formula)
