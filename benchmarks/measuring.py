"""Time, peak memory above inputs and results, the machine's own rates, and what the machine is."""

from __future__ import annotations

import gc
import itertools
import os
import platform
import statistics
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

Thunk = Callable[[], Any]
GEMM = 1536
TILE = 1 << 20  # float32 entries: 4 MB, which stays in cache


@dataclass(frozen=True, slots=True)
class Rates:
    """Floating-point operations of a matrix product, and exponentials, a second."""

    gemm: float
    exp: float
    exp2: float

    def floor_seconds(self, flops: int, exps: int) -> float:
        """The time of so many of both, one after the other, at full rate."""
        return flops / self.gemm + exps / self.exp


def seconds(action: Thunk) -> float:
    """The wall-clock time of one call."""
    start = perf_counter()
    result = action()
    elapsed = perf_counter() - start
    del result
    return elapsed


def sample(action: Thunk, budget: float = 0.2, most: int = 50) -> list[float]:
    """Times of single calls: at least one, more while they fit in the budget."""
    times = [seconds(action)]
    while len(times) < most and sum(times) + times[-1] < budget:
        times.append(seconds(action))
    return times


def peak_bytes_numpy(action: Thunk) -> int:
    """Peak of NumPy's allocations during a call, less its result."""
    gc.collect()
    tracemalloc.start()
    try:
        result = action()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return max(0, peak - result.nbytes)


def alive_bytes_torch(action: Callable[[], Any]) -> tuple[Any, list[int]]:
    """The result of a call, and what torch had allocated at each moment of it beyond the bytes at its start: a sum over
    the profiler's memory events."""
    from torch.profiler import ProfilerActivity, profile

    gc.collect()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = action()
    recorded = profiler.profiler
    assert recorded is not None
    events = [e for e in recorded.kineto_results.events() if e.name() == "[memory]"]
    changes = (event.nbytes() for event in sorted(events, key=lambda e: e.start_ns()))
    return result, list(itertools.accumulate(changes, initial=0))


def peak_bytes_torch(action: Callable[[], tuple[Any, ...]]) -> int:
    """Peak of torch's allocations during a call, less its results."""
    results, alive = alive_bytes_torch(action)
    kept = {r.untyped_storage().data_ptr(): r.untyped_storage().nbytes() for r in results if r is not None}
    return max(0, max(alive) - sum(kept.values()))


def numpy_rates(repeat: int = 7, gemm: int = GEMM, tile: int = TILE) -> Rates:
    """What NumPy reaches on this machine with the threads it has."""
    a = np.ones((gemm, gemm), np.float32)
    x = np.linspace(-8, 0, tile, dtype=np.float32)
    out, product = np.empty_like(x), np.empty_like(a)
    actions = (lambda: np.matmul(a, a, out=product), lambda: np.exp(x, out=out), lambda: np.exp2(x, out=out))
    return _rates(actions, repeat, gemm, tile)


def torch_rates(repeat: int = 7, gemm: int = GEMM, tile: int = TILE) -> Rates:
    """What torch reaches on this machine with the threads it has."""
    import torch

    a = torch.ones(gemm, gemm)
    x = torch.linspace(-8, 0, tile)
    out, product = torch.empty_like(x), torch.empty_like(a)
    actions = (lambda: torch.mm(a, a, out=product), lambda: torch.exp(x, out=out), lambda: torch.exp2(x, out=out))
    return _rates(actions, repeat, gemm, tile)


def _rates(actions: tuple[Thunk, Thunk, Thunk], repeat: int, gemm: int, tile: int) -> Rates:
    best = [min(seconds(action) for _ in range(repeat + 1)) for action in actions]
    return Rates(2 * gemm**3 / best[0], tile / best[1], tile / best[2])


def available_bytes() -> int:
    """Memory that can be had without swapping."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.exists():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    (line,) = [line for line in meminfo.read_text().splitlines() if line.startswith("MemAvailable")]
    return int(line.split()[1]) * 1024


def machine() -> dict[str, Any]:
    """The machine in words and numbers, with its load now."""
    cpuinfo = Path("/proc/cpuinfo")
    models = (
        [line.split(":")[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")]
        if cpuinfo.exists()
        else []
    )
    return {
        "processor": models[0] if models else platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": [round(number, 2) for number in os.getloadavg()],
    }


def summary(times: list[float]) -> dict[str, float]:
    """Minimum and median in milliseconds, and how many times."""
    return {"min_ms": min(times) * 1e3, "median_ms": statistics.median(times) * 1e3, "calls": len(times)}
