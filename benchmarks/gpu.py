"""`python -m benchmarks.gpu`: the large sizes in bfloat16 on one GPU, in one process and within a given time.

Prints, as each workload ends, the floors of its matrix products and exponentials, and the ratios against its peers.
`--tiny --device cpu` runs all of it at tiny sizes without a GPU.
"""

from __future__ import annotations

import gc
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

import rich_click as click
from rich.console import Console
from rich.table import Table

from benchmarks import checking
from benchmarks.peers import PLANS, peers_of
from benchmarks.worker import attempt
from benchmarks.workload import Function, Peer, RefusedError, Workload
from benchmarks.workloads import select

GEMM_RATE, EXP_RATE = 788e12, 3.9e12  # an H200: bfloat16 FLOP/s, exponentials a second
BACKWARD_GEMMS = 3.5  # forward + backward over forward: 7 matrix products instead of 2
TOLERANCE = 0.05  # bfloat16 has 8 bits, weights and scores are rounded too
COMPILED = ("FlexAttention, compiled", "torch.compile")
SLOW = ("KeOps", "einx", "opt_einsum + softmax", "checkpointed loop over mu")
FIRST = ("tensorattn", "SDPA", "flattened SDPA", "two SDPA calls", "hand-factored torch", "windowed torch")


@dataclass(frozen=True, slots=True)
class Options:
    """`seconds` for the whole run; `calls` timed at least, more within `budget` seconds; `all_peers`: slow ones too."""

    device: str
    level: str = "gpu"
    seconds: float = 440
    calls: int = 7
    budget: float = 0.5
    all_peers: bool = True
    gradients: bool = True


@dataclass(slots=True)
class Found:
    """A peer in one direction: milliseconds, extra bytes, error, or why it does not run."""

    workload: str
    peer: str
    direction: str
    min_ms: float | None = None
    median_ms: float | None = None
    peak_bytes: int | None = None
    error: float | None = None
    why: str = ""
    times: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Floors:
    """Milliseconds of the matrix products and of the exponentials at the rates of the device."""

    gemm_ms: float
    exp_ms: float

    @property
    def ms(self) -> float:
        """The two overlap at best."""
        return max(self.gemm_ms, self.exp_ms)


def floors(workload: Workload, level: str, direction: str) -> Floors:
    """The floors of a workload in one direction."""
    sizes = workload.sizes[level]
    times = BACKWARD_GEMMS if direction == "backward" else 1
    repeats = 2 if direction == "backward" else 1  # the weights are computed again
    return Floors(times * workload.flops(sizes) / GEMM_RATE * 1e3, repeats * workload.exps(sizes) / EXP_RATE * 1e3)


class Device:
    """Where it runs: placing, waiting, memory."""

    def __init__(self, name: str) -> None:
        import torch

        self.name, self.torch = name, torch
        self.is_cuda = name.startswith("cuda")

    def place(self, array: Any) -> Any:
        """An array as a bfloat16 tensor on the device."""
        return self.torch.from_numpy(array).to(self.name, self.torch.bfloat16)

    def seconds(self, action: Callable[[], Any]) -> float:
        """The time of one call, by the device's own clock."""
        if not self.is_cuda:
            start = perf_counter()
            action()
            return perf_counter() - start
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        action()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3

    def peak_bytes(self, action: Callable[[], tuple[Any, ...]]) -> int | None:
        """Peak of the device's memory above what was there, less the results; None on a CPU."""
        if not self.is_cuda:
            action()
            return None
        self.torch.cuda.synchronize()
        self.torch.cuda.reset_peak_memory_stats()
        before = self.torch.cuda.memory_allocated()
        results = action()
        self.torch.cuda.synchronize()
        kept = sum(r.untyped_storage().nbytes() for r in results)
        return max(0, self.torch.cuda.max_memory_allocated() - before - kept)

    def free_bytes(self) -> int:
        """Memory that can be had."""
        return self.torch.cuda.mem_get_info()[0] if self.is_cuda else 1 << 30

    def clear(self) -> None:
        """Gives back the device's memory that nobody holds."""
        if self.is_cuda:
            gc.collect()
            self.torch.cuda.empty_cache()

    def rates(self) -> tuple[float, float]:
        """FLOP/s of a bfloat16 product and exponentials a second, as measured now."""
        size, count = (8192, 1 << 28) if self.is_cuda else (128, 1 << 12)
        a = self.torch.ones(size, size, dtype=self.torch.bfloat16, device=self.name)
        x = self.torch.linspace(-8, 0, count, dtype=self.torch.float32, device=self.name)
        gemm = min(self.seconds(lambda: a @ a) for _ in range(8))
        exp = min(self.seconds(lambda: x.exp_()) for _ in range(8))
        return 2 * size**3 / gemm, count / exp


@dataclass(slots=True)
class Case:
    """One workload on the device: its inputs, and rows of its output in float64."""

    workload: Workload
    device: Device
    options: Options
    tensors: dict[str, Any]
    rows: Any
    expected: Any

    @classmethod
    def of(cls, workload: Workload, device: Device, options: Options) -> Case:
        """Inputs rounded to bfloat16 before anybody sees them."""
        tensors = {name: device.place(a) for name, a in workload.arrays(options.level).items()}
        seen = {name: t.float().cpu().numpy() for name, t in tensors.items()}
        rows, expected = checking.dense_rows(workload, seen, workload.sizes[options.level], count=1)
        return cls(workload, device, options, tensors, rows, expected)

    def measure(self, peer: Peer, direction: str) -> dict[str, Any]:
        """Checks, then times. Raises: RefusedError; whatever the peer raises."""
        sizes, gradients = self.workload.sizes[self.options.level], direction == "backward"
        needed = peer.predicted_bytes(self.workload, sizes) * (2 if gradients else 1) // 2  # predicted for float32
        if needed > self.device.free_bytes():
            raise RefusedError(f"out of memory: needs about {needed / 1e9:.1f} GB")
        small = peer.make(self.workload, self.workload.sizes["check"])
        checking.check_small(self.workload, small, gradients, TOLERANCE, self.device.place)
        run = self._runner(peer.make(self.workload, sizes), gradients)
        output = run()[0]
        row = output.detach().index_select(self.workload.row_axis, self._positions(output))
        error = checking.require(row.float().cpu().numpy(), self.expected, "a sampled row", TOLERANCE)
        del output, row
        peak = self.device.peak_bytes(run)
        times = list(self._times(run))
        return {
            "min_ms": min(times) * 1e3, "median_ms": statistics.median(times) * 1e3, "peak_bytes": peak, "error": error,
            "times": times,
        }  # fmt: skip

    def _positions(self, output: Any) -> Any:
        return self.device.torch.from_numpy(self.rows).to(output.device)

    def _runner(self, function: Function, gradients: bool) -> Callable[[], tuple[Any, ...]]:
        torch = self.device.torch
        if not gradients:

            def forward() -> tuple[Any, ...]:
                with torch.no_grad():
                    return (function(self.tensors),)

            return forward
        tensors = {name: t.detach().requires_grad_() for name, t in self.tensors.items()}

        def both() -> tuple[Any, ...]:
            output = function(tensors)
            return (output, *torch.autograd.grad(output, list(tensors.values()), checking.cotangent(output)))

        return both

    def _times(self, run: Callable[[], Any]) -> Iterator[float]:
        total, count = 0.0, 0
        while count < self.options.calls or (total < self.options.budget and count < 50):
            elapsed = self.device.seconds(run)
            total, count = total + elapsed, count + 1
            yield elapsed
            if total > 10:
                return


def competitors(workload: Workload, options: Options) -> list[Peer]:
    """tensorattn and the fused peers first, what compiles for long last."""
    left_out = SLOW if options.all_peers else (*SLOW, *COMPILED, *(f"tensorattn, {plan}" for plan in PLANS))
    chosen = [peer for peer in peers_of(workload) if peer.name not in left_out]
    return sorted(chosen, key=lambda peer: (peer.name not in FIRST, peer.name in COMPILED))


def run_workload(workload: Workload, device: Device, options: Options, deadline: float) -> list[Found]:
    """Every peer in every direction until the deadline; what comes after it is listed as not reached."""
    case = Case.of(workload, device, options)
    found = []
    for peer in competitors(workload, options):
        for direction in ("forward", "backward") if options.gradients else ("forward",):
            entry = Found(workload.name, peer.name, direction)
            if monotonic() > deadline:
                entry.why = "not reached in the time given"
            else:
                answer = attempt(lambda peer=peer, direction=direction: case.measure(peer, direction))
                for name, value in answer.items():
                    setattr(entry, name, value)
            found.append(entry)
            device.clear()
    return found


def table(workload: Workload, found: list[Found], level: str) -> Table:
    """One workload: both directions, with the floors."""
    result = Table(title=f"{workload.name} {workload.title}", title_justify="left")
    for column in ("direction", "peer"):
        result.add_column(column)
    for column in ("min ms", "median ms", "× ours", "% of floor", "extra MB", "error"):
        result.add_column(column, justify="right")
    for direction in dict.fromkeys(entry.direction for entry in found):
        entries = [entry for entry in found if entry.direction == direction]
        floor = floors(workload, level, direction)
        result.add_row(direction, f"floors: GEMM {floor.gemm_ms:.3g}, exp {floor.exp_ms:.3g} ms", *[""] * 6)
        own = next(entry for entry in entries if entry.peer == "tensorattn")
        for entry in sorted(entries, key=lambda e: (e.min_ms is None, e.min_ms or 0)):
            result.add_row("", *_cells(entry, own, floor))
    return result


def _cells(entry: Found, own: Found, floor: Floors) -> list[str]:
    if entry.min_ms is None or entry.median_ms is None:
        return [f"{entry.peer}: {entry.why}", *["–"] * 6]
    peak = f"{entry.peak_bytes / 1e6:.4g}" if entry.peak_bytes is not None else "–"
    against = f"{entry.min_ms / own.min_ms:.2f}" if own.min_ms else "–"
    share = f"{100 * floor.ms / entry.min_ms:.3g}"
    return [entry.peer, f"{entry.min_ms:.4g}", f"{entry.median_ms:.4g}", against, share, peak, f"{entry.error:.0e}"]


def run(
    workloads: tuple[Workload, ...], options: Options, console: Console, json_path: Path | None = None
) -> list[Found]:
    """All workloads; each gets its part of the time that is left, and is printed and written when it ends."""
    device = Device(options.device)
    gemm, exp = device.rates()
    console.print(f"{options.device}: {gemm / 1e12:.3g} TFLOP/s bfloat16, {exp / 1e12:.3g} T exp/s measured")
    end, found = monotonic() + options.seconds, []
    for place, workload in enumerate(workloads):
        now = monotonic()
        deadline = now + (end - now) / (len(workloads) - place)
        entries = run_workload(workload, device, options, deadline)
        console.print(table(workload, entries, options.level))
        found += entries
        if json_path is not None:
            json_path.write_text(json.dumps([asdict(entry) for entry in found], indent=1) + "\n")
    return found


@click.command()
@click.argument("names", nargs=-1, metavar="[WORKLOAD]...")
@click.option("--device", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="Tiny sizes and nothing that compiles: whether it runs.")
@click.option("--seconds", default=440.0, show_default=True, help="For everything; what is not reached is listed.")
@click.option("--no-backward", is_flag=True, help="Forward only.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write everything measured.")
def main(
    names: tuple[str, ...], device: str, tiny: bool, seconds: float, no_backward: bool, json_path: Path | None
) -> None:
    """Compare tensorattn with its peers on a GPU."""
    try:
        chosen = tuple(w for w in select(names) if "gpu" in w.sizes and w.backend == "torch")
    except KeyError as error:
        raise click.UsageError(f"there is no workload {error.args[0]}") from None
    given = {"level": "check", "calls": 1, "budget": 0.0, "all_peers": False} if tiny else {}
    run(chosen, Options(device, seconds=seconds, gradients=not no_backward, **given), Console(width=140), json_path)


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.gpu")
