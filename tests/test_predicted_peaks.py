"""Predicted peaks of whole calls against measured ones: the workloads of the benchmarks, and torch's normalisers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_numpy, peak_bytes_torch
from benchmarks.workload import Workload
from benchmarks.workloads import find
from tests.test_cost import PEAKS

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

ENTRIES = 2_500_000  # of the weights: large enough that 25 % is more than 1 MB for most
CASES = [
    ("W1", "dense"), ("W2", "dense"), ("W2-narrow", "flattened"), ("W3", "dense"), ("W4", "dense"), ("W4", "flattened"),
    ("W5", "flattened"), ("W6", "flattened"), ("W7", "flattened"), ("W7-pairs", "flattened"), ("W7-pairs", "factored"),
    ("W8-ordered", "flattened"), ("W8-ordered", "streamed"), ("W9", "dense"), ("W9", "streamed"), ("W10", "flattened"),
]  # fmt: skip


def shrunk(workload: Workload) -> dict[str, int]:
    """The full sizes with fewer positions."""
    sizes = dict(workload.sizes["full"])
    while workload.score_entries(sizes) > ENTRIES:
        sizes |= {index: int(sizes[index] * 0.85) for index in ("mu", "nu", "rho", "sigma") if index in sizes}
    return sizes


def compare(compiled: ta.Compiled, arrays: dict[str, np.ndarray], sizes: dict[str, int], library: str) -> float:
    """The measured peak of a call, which is within 25 % or 1 MB of the predicted one."""
    given = arrays if library == "numpy" else {name: torch.from_numpy(a) for name, a in arrays.items()}
    compiled(given)
    measured = (
        peak_bytes_numpy(lambda: compiled(given))
        if library == "numpy"
        else peak_bytes_torch(lambda: (compiled(given),))
    )
    dtypes = {name: str(array.dtype) for name, array in arrays.items()}
    predicted = compiled.cost(sizes, backend=library, dtypes=dtypes).at({}).peak_bytes
    assert abs(predicted - measured) <= max(0.25 * measured, 1e6), (predicted, measured)
    return measured


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize(("name", "plan"), CASES, ids=lambda value: value)
def test_the_workloads(name: str, plan: str, library: str) -> None:
    workload = find(name)
    sizes = shrunk(workload)
    compiled = ta.compile(workload.text(sizes), plan=plan)
    rng = np.random.default_rng(0)
    arrays = {name: workload.inputs[name].make(sizes, rng) for name in compiled.inputs}
    own = {name: size for name, size in sizes.items() if name in compiled.program.indices}
    assert compare(compiled, arrays, own, library) > 3e6


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", [pytest.param(c, id=c[0].replace("\n", "; ")) for c in PEAKS])
def test_dense_plans_of_torch(case: tuple[str, dict[str, tuple[int, ...]]], dtype: str) -> None:
    text, shapes = case
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()}
    compiled = ta.compile(text, plan="dense")
    sizes = {index: int(size) for index, size in ta.check(compiled.program, shapes).sizes.items()}
    compare(compiled, arrays, sizes, "torch")
