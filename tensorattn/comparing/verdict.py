"""The answer of a comparison: whether two programs are one function, why, and where they differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, eq=False)
class Counterexample:
    """Inputs at which two programs differ: small sizes, plain numbers, and both values at the first differing entry.

    `sizes`: of the indices of the first program, and of those that only the second has. `entry`: the place in the
    output. `first`, `second`: the values there; None where that program refuses the inputs.
    """

    inputs: Mapping[str, Any]
    sizes: Mapping[str, int]
    output: str
    axes: tuple[str, ...]
    entry: tuple[int, ...]
    first: Any
    second: Any

    def __str__(self) -> str:
        lines = ["sizes   " + ", ".join(f"|{n}| = {s}" for n, s in self.sizes.items())] if self.sizes else []
        lines += [f"{name:<7} = {_written(array)}" for name, array in self.inputs.items()]
        place = ", ".join(f"{axis} = {n}" for axis, n in zip(self.axes, self.entry, strict=True))
        lines.append(f"{self.output}{f' at {place}' if place else ''}: {self.first} and {self.second}")
        return "\n".join(lines)


@dataclass(frozen=True, slots=True, eq=False)
class Verdict:
    """Whether two programs are the same function, and the reason. True exactly if they are."""

    equal: bool
    reason: str
    counterexample: Counterexample | None = None

    def __bool__(self) -> bool:
        return self.equal

    def __str__(self) -> str:
        head = f"{'equal' if self.equal else 'different'}: {self.reason}"
        if self.counterexample is None:
            return head
        return "\n".join([head, *(f"  {line}" for line in str(self.counterexample).splitlines())])


def _written(array: Any) -> str:
    """An array as nested lists of short numbers."""
    if not getattr(array, "ndim", 0):
        return _number(array.item() if hasattr(array, "item") else array)
    return f"[{', '.join(map(_written, array))}]" if array.size else f"an empty array {array.shape}"


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
