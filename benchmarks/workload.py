"""A workload as a value: a formula, its sizes and inputs, an independent meaning, what it costs, and who competes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Arrays = Mapping[str, Any]
Sizes = Mapping[str, int]
Function = Callable[[Arrays], Any]


class RefusedError(Exception):
    """Why a peer does not run; a result like any other."""


@dataclass(frozen=True, slots=True)
class Input:
    """Standard normal entries over these axes, divided by the square root of the sizes of the indices in `over`."""

    axes: str
    over: str = ""
    slopes: bool = False  # the negative powers of two that ALiBi gives to its heads, instead of random entries

    def make(self, sizes: Sizes, rng: np.random.Generator) -> np.ndarray:
        """The array in float32."""
        shape = tuple(sizes[index] for index in self.axes.split())
        if self.slopes:
            return np.exp2(-8 * np.arange(1, shape[0] + 1) / shape[0]).astype(np.float32)
        scale = math.prod(sizes[index] for index in self.over.split())
        return (rng.standard_normal(shape, dtype=np.float32) / math.sqrt(scale)).astype(np.float32)


@dataclass(frozen=True, slots=True)
class Einsums:
    """A workload as einsums around one softmax: what peers that know einsum and softmax can say.

    `terms`: (einsum, operands), each broadcast to the letters of `score` and added; the last `barred` letters of
    `score` are normalised together; `value` is an einsum of the weights and these operands. `divide` is an index whose
    root divides the first term.
    """

    score: str
    barred: int
    terms: tuple[tuple[str, str], ...]
    value: tuple[str, str]
    divide: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """One way to compute a workload. `make` prepares what its user would prepare once and returns the function.

    `predicted_bytes` keeps a peer from being tried that surely takes more memory than there is.
    """

    name: str
    make: Callable[[Workload, Sizes], Function]
    backend: str = "torch"
    needs: tuple[str, ...] = ()
    predicted_bytes: Callable[[Workload, Sizes], int] = lambda workload, sizes: 0


@dataclass(frozen=True, slots=True)
class Workload:
    """`dense(arrays, rows)`: the output at these positions of the row index in float64 NumPy, written independently.

    `sizes` has the levels `full`, `small`, `check` (where dense float64 is compared in full) and, where it runs on a
    GPU, `gpu`. `score` names the indices of the largest array that a dense computation holds. `flops` and `exps` are
    those of the best algorithm known, forward.
    """

    name: str
    title: str
    formula: str
    inputs: Mapping[str, Input]
    sizes: Mapping[str, Sizes]
    dense: Callable[[Mapping[str, np.ndarray], np.ndarray, Sizes], np.ndarray]
    row_axis: int
    score: str
    flops: Callable[[Sizes], int]
    exps: Callable[[Sizes], int]
    peers: tuple[Peer, ...] = ()
    torch: Callable[[Arrays, Sizes], Any] | None = None
    einsums: Einsums | None = None
    backend: str = "torch"
    row: str = "mu"
    compiles_only: bool = field(default=False)

    def text(self, sizes: Sizes) -> str:
        """The formula; window widths and the like are sizes that it writes out."""
        return self.formula.format(**sizes)

    def arrays(self, level: str, seed: int = 0) -> dict[str, np.ndarray]:
        """The inputs in float32."""
        rng = np.random.default_rng(seed)
        return {name: given.make(self.sizes[level], rng) for name, given in self.inputs.items()}

    def score_entries(self, sizes: Sizes) -> int:
        """Entries of the largest array of a dense computation."""
        return math.prod(sizes[index] for index in self.score.split())


def normalised(score: np.ndarray, axes: int | tuple[int, ...]) -> np.ndarray:
    """Softmax over these axes; a row of −∞ is 0."""
    peak = score.max(axis=axes, keepdims=True)
    weights = np.exp(score - np.where(np.isfinite(peak), peak, 0))
    total = weights.sum(axis=axes, keepdims=True)
    return weights / np.where(total == 0, 1, total)


def product(*indices: str) -> Callable[[Sizes], int]:
    """sizes → the product of the sizes of these indices; a number stands for itself.

    >>> product("mu nu", "2")({"mu": 3, "nu": 5})
    30
    """
    names = " ".join(indices).split()
    return lambda sizes: math.prod(int(name) if name.isdigit() else sizes[name] for name in names)
