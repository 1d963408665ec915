"""The workloads, a module for each family, and how they are chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.workload import Workload
from benchmarks.workloads import nested, overhead, separable, trilinear, two_index, windowed

TORCH = (
    *two_index.WORKLOADS,
    *trilinear.WORKLOADS[:3],
    *windowed.WORKLOADS,
    *trilinear.WORKLOADS[3:],
    *separable.WORKLOADS,
    *nested.WORKLOADS,
    *trilinear.FOUR_WAY,
    *overhead.WORKLOADS,
)


def _halved(workload: Workload) -> Workload:
    """The workload for NumPy arrays with half the positions."""
    sizes = {
        level: {i: n // 2 if level == "full" and i in ("mu", "nu", "rho") else n for i, n in given.items()}
        for level, given in workload.sizes.items()
    }
    return replace(
        workload, name=f"WN-{workload.name}", title=f"{workload.title} (NumPy)", backend="numpy", sizes=sizes
    )


def all_workloads() -> tuple[Workload, ...]:
    """W1 … W11, and WN: some of them with NumPy arrays and half the positions."""
    return (*TORCH, *(_halved(workload) for workload in TORCH if workload.name in ("W1", "W4", "W6", "W8")))


def find(name: str) -> Workload:
    """The workload of this very name. Raises: KeyError."""
    return {workload.name: workload for workload in all_workloads()}[name]


def select(names: Sequence[str], backend: str | None = None, *, variants: bool = True) -> tuple[Workload, ...]:
    """The workloads asked for: `W4` is W4 with all its variants, `W4-long` that one, nothing is all of them.

    Without `variants` a name is that workload alone. `backend` gives the same workloads with arrays of that library.
    Raises: KeyError with a name that is no workload.
    """
    known = all_workloads()
    alike = _is if variants else _is_named
    for name in names:
        if not any(alike(workload.name, name) for workload in known):
            raise KeyError(name)
    chosen = tuple(w for w in known if not names or any(alike(w.name, name) for name in names))
    if backend is None:
        return chosen
    return tuple(replace(workload, backend=backend) for workload in chosen)


def _is(name: str, asked: str) -> bool:
    return _is_named(name, asked) or name.lower().startswith(f"{asked.lower()}-")


def _is_named(name: str, asked: str) -> bool:
    return name.lower() == asked.lower()
