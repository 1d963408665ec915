"""Predicted peaks of whole calls against measured ones: the workloads of the benchmarks, and torch's normalisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_numpy, peak_bytes_torch
from benchmarks.workload import Workload
from benchmarks.workloads import find
from tests.test_backward_cost import measured, predicted
from tests.test_cost import PEAKS

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

ENTRIES = 2_500_000  # of the weights: large enough that 25 % is more than 1 MB for most
CASES = [
    ("W1", "dense"), ("W1", "flattened"), ("W2", "dense"), ("W2", "flattened"), ("W2-softcap", "streamed"),
    ("W2-narrow", "flattened"), ("W3", "dense"), ("W3", "flattened"), ("W4", "dense"), ("W4", "flattened"),
    ("W4-symmetric", "streamed"), ("W4-long", "streamed"), ("W5", "flattened"), ("W5", "streamed"),
    ("W6", "flattened"), ("W7", "flattened"), ("W7", "factored"), ("W7-pairs", "flattened"), ("W7-pairs", "factored"),
    ("W8", "auto"), ("W8-ordered", "flattened"), ("W8-ordered", "factored"), ("W8-ordered", "streamed"),
    ("W9", "dense"), ("W9", "streamed"), ("W10", "flattened"), ("W10", "streamed"),
]  # fmt: skip
BOTH = [
    ("W1", "flattened"), ("W2", "flattened"), ("W2", "streamed"), ("W2-softcap", "streamed"),
    ("W2-narrow", "flattened"), ("W3", "flattened"), ("W3", "streamed"), ("W4", "flattened"), ("W4", "streamed"),
    ("W4-symmetric", "streamed"), ("W4-long", "streamed"), ("W5", "streamed"), ("W6", "flattened"),
    ("W7", "factored"), ("W7-pairs", "factored"), ("W8-ordered", "factored"), ("W9", "streamed"),
    ("W10", "streamed"),
]  # fmt: skip


def shrunk(workload: Workload) -> dict[str, int]:
    """The full sizes with fewer positions."""
    sizes = dict(workload.sizes["full"])
    while workload.score_entries(sizes) > ENTRIES:
        sizes |= {index: int(sizes[index] * 0.85) for index in ("mu", "nu", "rho", "sigma") if index in sizes}
    return sizes


def near(peak: int, found: float) -> bool:
    """Whether a peak is predicted to 25 % or 1 MB; one that is small, to 80 %."""
    return abs(peak - found) <= max(0.25 * found, min(0.8 * found, 1e6))


def compare(compiled: ta.Compiled, arrays: dict[str, np.ndarray], sizes: dict[str, int], library: str) -> None:
    """The predicted peak of a call is the measured one."""
    given = arrays if library == "numpy" else {name: torch.from_numpy(a) for name, a in arrays.items()}
    compiled(given)
    found = (
        peak_bytes_numpy(lambda: compiled(given))
        if library == "numpy"
        else peak_bytes_torch(lambda: (compiled(given),))
    )
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    peak = compiled.cost(sizes, backend=library, dtypes=dtypes).at({}).peak_bytes
    assert near(peak, found), (peak, found)


def prepared(name: str, plan: str) -> tuple[ta.Compiled, dict[str, np.ndarray], dict[str, int]]:
    """A workload with fewer positions: the function, its inputs and its sizes."""
    workload = find(name)
    sizes = shrunk(workload)
    compiled = ta.compile(workload.text(sizes), plan=plan)
    rng = np.random.default_rng(0)
    arrays = {name: workload.inputs[name].make(sizes, rng) for name in compiled.inputs}
    return compiled, arrays, {name: size for name, size in sizes.items() if name in compiled.program.indices}


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("name", "plan"), CASES, ids=lambda value: value)
def test_the_workloads(name: str, plan: str, library: str) -> None:
    compare(*prepared(name, plan), library)


@pytest.mark.parametrize(("name", "plan"), BOTH, ids=lambda value: value)
def test_both_passes_of_the_workloads(name: str, plan: str) -> None:
    compiled, arrays, sizes = prepared(name, plan)
    inputs = {name: torch.from_numpy(array).requires_grad_() for name, array in arrays.items()}
    compiled(inputs).sum().backward()
    found = measured(lambda: compiled(inputs), list(inputs.values()))
    assert near(predicted(compiled, sizes).at({}).peak_bytes, found)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [pytest.param(c, id=c[0].replace("\n", "; ")) for c in PEAKS])
def test_dense_plans_of_torch(case: tuple[str, dict[str, tuple[int, ...]]], dtype: str) -> None:
    text, shapes = case
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    compiled = ta.compile(text, plan="dense")
    sizes = {index: int(size) for index, size in ta.check(compiled.program, shapes).sizes.items()}
    compare(compiled, arrays, sizes, "torch")
