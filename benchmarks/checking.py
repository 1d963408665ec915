"""A peer's output against float64: in full at a small size, with gradients, and by sampled rows at the full size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from benchmarks.workload import Arrays, Function, RefusedError, Sizes, Workload

TOLERANCE = 2e-4  # of the largest entry; float32 sums of up to a million terms
ROWS = 3


def error(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest difference relative to the largest entry. Raises: RefusedError where shapes differ."""
    if found.shape != expected.shape:
        raise RefusedError(f"wrong: shape {found.shape} instead of {expected.shape}")
    return float(np.abs(found.astype(np.float64) - expected).max() / max(np.abs(expected).max(), 1e-30))


def require(found: np.ndarray, expected: np.ndarray, what: str, tolerance: float = TOLERANCE) -> float:
    """The error. Raises: RefusedError where it exceeds the tolerance or is no number."""
    value = error(found, expected)
    if not value <= tolerance:
        raise RefusedError(f"wrong: {what} is off by {value:.1e} of its largest entry")
    return value


def dense_rows(
    workload: Workload, arrays: Mapping[str, np.ndarray], sizes: Sizes, count: int | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Positions of the row index, and the output there in float64: all of them, or `count` spread over them."""
    length = sizes[workload.row]
    rows = np.arange(length) if count is None else np.unique(np.linspace(length - 1, 0, count).astype(int))
    return rows, workload.dense({name: a.astype(np.float64) for name, a in arrays.items()}, rows, sizes)


def check_sampled(workload: Workload, level: str, arrays: Mapping[str, np.ndarray], found: np.ndarray) -> float:
    """The error of sampled rows of an output at this level. Raises: RefusedError."""
    rows, expected = dense_rows(workload, arrays, workload.sizes[level], ROWS)
    return require(found.take(rows, axis=workload.row_axis), expected, "a sampled row")


def check_small(
    workload: Workload,
    function: Function,
    gradients: bool,
    tolerance: float = TOLERANCE,
    place: Callable[[np.ndarray], Any] | None = None,
) -> float:
    """The error at the small size in full, with the gradients where asked. Raises: RefusedError.

    `place` makes a tensor of an array, of some dtype on some device; the meaning is that of the rounded inputs.
    """
    arrays, sizes = workload.arrays("check", seed=1), workload.sizes["check"]
    what = "the output at a small size"
    if workload.backend == "numpy":
        return require(function(arrays), dense_rows(workload, arrays, sizes)[1], what, tolerance)
    import torch

    tensors = {name: (place or torch.from_numpy)(a) for name, a in arrays.items()}
    exact = {name: t.cpu().double() for name, t in tensors.items()}
    expected = dense_rows(workload, {name: t.numpy() for name, t in exact.items()}, sizes)[1]
    output, slopes = _gradients(function, tensors, gradients)
    worst = require(output, expected, what, tolerance)
    for name, slope in _dense_gradients(workload, exact).items() if gradients else ():
        worst = max(worst, require(slopes[name], slope, f"the gradient of {name}", 5 * tolerance))
    return worst


def _gradients(function: Function, tensors: Arrays, gradients: bool) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """The output, and where asked the gradients of every input."""
    import torch

    given = {name: t.detach().clone().requires_grad_(gradients) for name, t in tensors.items()}
    with torch.set_grad_enabled(gradients):
        output = function(given)
    slopes = torch.autograd.grad(output, list(given.values()), cotangent(output)) if gradients else ()
    named = {name: slope.double().cpu().numpy() for name, slope in zip(given, slopes, strict=False)}
    return output.detach().double().cpu().numpy(), named


def _dense_gradients(workload: Workload, tensors: Arrays) -> dict[str, np.ndarray]:
    """Gradients of the hand-written dense torch in float64, whose own output is checked as every peer's is."""
    assert workload.torch is not None
    written, sizes = workload.torch, workload.sizes["check"]
    return _gradients(lambda a: written(a, sizes), tensors, True)[1]


def cotangent(output: Any) -> Any:
    """A fixed pattern that weighs the entries of an output differently.

    It is an input of the backward pass: made once, so that neither its time nor its memory counts as a peer's.
    """
    return _pattern(tuple(output.shape), output.dtype, output.device)


@lru_cache(maxsize=2)
def _pattern(shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    import torch

    return torch.linspace(-1, 1, prod(shape), dtype=dtype, device=device).reshape(shape)
