"""What a run found, as values, and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import Rates, summary


@dataclass(slots=True)
class Measured:
    """One peer on one workload in one direction with a number of threads; filled while it is measured.

    `why` says why it does not run; then there are no times. `error` is relative to the largest entry of the result.
    """

    workload: str
    backend: str
    peer: str
    direction: str
    threads: int
    times: list[float] = field(default_factory=list)
    first_ms: float | None = None
    peak_bytes: int | None = None
    error: float | None = None
    why: str = ""

    @property
    def runs(self) -> bool:
        """Whether it can be timed."""
        return not self.why

    @property
    def min_ms(self) -> float | None:
        """The shortest time in milliseconds."""
        return min(self.times) * 1e3 if self.times else None

    @property
    def group(self) -> tuple[str, str, str, int]:
        """What is compared with one another: workload, library of the arrays, direction, threads."""
        return (self.workload, self.backend, self.direction, self.threads)


@dataclass(frozen=True, slots=True)
class Run:
    """All that one run found. `rates`: threads → library → gemm, exp, exp2 a second."""

    machine: dict[str, Any]
    rates: dict[int, dict[str, dict[str, float]]]
    measured: tuple[Measured, ...]
    options: dict[str, Any]

    def rate(self, threads: int, backend: str) -> Rates:
        """The rates of a library with so many threads."""
        return Rates(**self.rates[threads][backend])

    def groups(self) -> dict[tuple[str, str, str, int], list[Measured]]:
        """The measured, by what is compared with one another, in the order of the run."""
        found: dict[tuple[str, str, str, int], list[Measured]] = {}
        for entry in self.measured:
            found.setdefault(entry.group, []).append(entry)
        return found


def write(run: Run, path: str | Path) -> None:
    """The run as JSON; a file that is there stays whole until it is replaced."""
    entries = [asdict(entry) | (summary(entry.times) if entry.times else {}) for entry in run.measured]
    content = {"machine": run.machine, "options": run.options, "rates": run.rates, "measured": entries}
    new = Path(f"{path}.new")
    new.write_text(json.dumps(content, indent=1) + "\n")
    new.replace(path)


def read(path: str | Path) -> Run:
    """The run that `write` wrote."""
    content = json.loads(Path(path).read_text())
    names = Measured.__slots__
    measured = tuple(Measured(**{name: entry[name] for name in names}) for entry in content["measured"])
    rates = {int(threads): found for threads, found in content["rates"].items()}
    return Run(content["machine"], rates, measured, content["options"])
