"""`python -m benchmarks.chained`: chained attention (W12) beside mixle 0.8.2, in one run.

A process for each peer, both alive, one of them working, in a new order each round. The expectation step is the same
public call of both: `seq_update` of an accumulator. The statistics are compared before anything is timed.
"""

from __future__ import annotations

import importlib.util
import json
import random
import sys
import tracemalloc
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np
import rich_click as click
from rich.console import Console
from rich.table import Table

from benchmarks import measuring

PEERS = {"tensorattn": "tensorattn.latent", "mixle": "mixle.stats.latent.chained_attention"}
TOLERANCE = 1e-8
STEPS = 10
MOST = 30  # steps of mixle's fit; on the study's data its likelihood falls after 7 to 9


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes; `aim`: how many times as fast as mixle an expectation step should be."""

    symbols: int
    length: int
    count: int
    hops: int
    aim: float

    def __str__(self) -> str:
        return f"S={self.symbols} N={self.length} n={self.count} L={self.hops}"


FULL = (Case(8, 10, 2000, 2, 5.0), Case(64, 64, 500, 2, 50.0))
SMALL = (Case(4, 5, 30, 2, 5.0), Case(9, 7, 20, 3, 50.0))


@dataclass(frozen=True, slots=True)
class Data:
    """Observations of a chain whose keys are permutations, and the chain."""

    keys: np.ndarray
    emission: np.ndarray
    permutations: np.ndarray
    rows: list[tuple[np.ndarray, np.ndarray, int, int]]


def data(case: Case, seed: int = 0) -> Data:
    """The same in every process."""
    from tensorattn.latent import ChainedAttentionDistribution

    rng = np.random.default_rng(seed)
    permutations = np.array([rng.permutation(case.symbols) for _ in range(case.hops)])
    emission = np.full((case.symbols, case.symbols), 0.1 / (case.symbols - 1))
    np.fill_diagonal(emission, 0.9)
    keys = np.eye(case.symbols)[permutations]
    rows = ChainedAttentionDistribution(keys, emission, 0.1).sampler(rng).sample(case.count, length=case.length)
    return Data(keys, emission, permutations, rows)


class Bench:
    """A peer on a case."""

    def __init__(self, peer: str, case: Case) -> None:
        self.module: Any = import_module(PEERS[peer])
        self.data, self.case = data(case), case
        self.model = self.module.ChainedAttentionDistribution(self.data.keys, self.data.emission, 0.1)
        self.rows = self.model.dist_to_encoder().seq_encode(self.data.rows)
        self.weights = np.ones(case.count)

    def estimator(self, **settings: Any) -> Any:
        sizes = (self.case.hops, self.case.symbols, self.case.symbols)
        return self.module.ChainedAttentionEstimator(*sizes, sigma2=0.1, **settings)

    def step(self, model: Any, estimator: Any) -> Any:
        """The accumulator of one expectation step."""
        accumulator = estimator.accumulator_factory().make()
        accumulator.seq_update(self.rows, self.weights, model)
        return accumulator

    def statistics(self) -> list[Any]:
        """Of one expectation step at the true model, and the log-likelihoods of some moment steps."""
        found = self.step(self.model, self.estimator()).value()
        return [np.asarray(part) for part in found[:5]] + [np.array(self.moment_steps())]

    def moment_steps(self) -> list[float]:
        """Log-likelihoods of steps of EM with the moment step, from mixle's start."""
        settings = {"mstep": "moment"} if self.module.__name__.startswith("tensorattn") else {}
        estimator = self.estimator(**settings)
        start = estimator.accumulator_factory().make()
        start.seq_initialize(self.rows, self.weights, np.random.RandomState(0))
        model, found = estimator.estimate(None, start.value()), []
        for _ in range(STEPS):
            sums = self.step(model, estimator).value()
            found.append(float(sums[3]))
            model = estimator.estimate(None, sums)
        return found

    def whole_fit(self) -> dict[str, float]:
        """mixle's way until the likelihood falls, ours until it stands still: seconds, log-likelihood, keys found."""
        began = perf_counter()
        if self.module.__name__.startswith("tensorattn"):
            fit = self.module.fit(self.rows, self.estimator(), 600, 1e-2, rng=0, accelerate=True)
            tables, best = fit.model.keys, fit.log_likelihood[-1]
        else:
            tables, best = self._until_it_falls()
        seconds = perf_counter() - began
        right = float((tables.argmax(axis=2) == self.data.permutations).mean())
        return {"seconds": seconds, "log_likelihood": best, "keys_right": right}

    def _until_it_falls(self) -> tuple[np.ndarray, float]:
        estimator = self.estimator()
        start = estimator.accumulator_factory().make()
        start.seq_initialize(self.rows, self.weights, np.random.RandomState(0))
        model, best = estimator.estimate(None, start.value()), -np.inf
        tables = model.key_tables
        for _ in range(MOST):
            sums = self.step(model, estimator).value()
            if sums[3] < best + 1e-6:
                break
            tables, best = model.key_tables, float(sums[3])
            model = estimator.estimate(None, sums)
        return tables, best

    def time(self, what: str, least: float) -> list[float]:
        """Milliseconds of calls, for `least` seconds and once at least."""
        estimator, found, began = self.estimator(), [], perf_counter()
        while not found or perf_counter() - began < least:
            start = perf_counter()
            self.step(self.model, estimator) if what == "step" else self.moment_steps()
            found.append((perf_counter() - start) * 1e3)
        return found

    def memory(self) -> int:
        """Peak bytes of an expectation step above what was there."""
        estimator = self.estimator()
        self.step(self.model, estimator)
        tracemalloc.start()
        self.step(self.model, estimator)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak


_benches: dict[tuple[str, Case], Bench] = {}


def ask(peer: str, case: Case, what: str, *arguments: Any) -> Any:
    """In the process of a peer: what a method of its bench returns."""
    if (peer, case) not in _benches:
        _benches[peer, case] = Bench(peer, case)
    return getattr(_benches[peer, case], what)(*arguments)


@dataclass(frozen=True, slots=True)
class Result:
    """What was measured of one peer on one case; times in milliseconds."""

    case: str
    peer: str
    step_ms: list[float]
    steps_ms: list[float]
    peak_bytes: int
    fit: dict[str, float]
    error: float


def run(cases: tuple[Case, ...], repeat: int, least: float = 0.2) -> list[Result]:
    """All peers that are installed on these cases. Raises: ValueError where their statistics differ."""
    peers = [peer for peer, module in PEERS.items() if importlib.util.find_spec(module.split(".")[0])]
    pools = {peer: ProcessPoolExecutor(1, get_context("spawn")) for peer in peers}
    try:
        return [result for case in cases for result in _compare(case, pools, repeat, least)]
    finally:
        for pool in pools.values():
            pool.shutdown()


def _compare(case: Case, pools: dict[str, ProcessPoolExecutor], repeat: int, least: float) -> list[Result]:
    def asked(peer: str, what: str, *arguments: Any) -> Any:
        return pools[peer].submit(ask, peer, case, what, *arguments).result()

    statistics = {peer: asked(peer, "statistics") for peer in pools}
    errors = {peer: _difference(found, statistics["tensorattn"]) for peer, found in statistics.items()}
    if max(errors.values()) > TOLERANCE:
        raise ValueError(f"the statistics differ at {case}: {errors}")
    order = random.Random(str(case))
    steps = {peer: asked(peer, "time", "steps", least) for peer in pools}
    times: dict[str, list[float]] = {peer: [] for peer in pools}
    for _ in range(repeat):
        for peer in order.sample(list(pools), len(pools)):
            times[peer] += asked(peer, "time", "step", least)
            print(f"{case} {peer}: {min(times[peer]):.2f} ms a step", file=sys.stderr, flush=True)
    return [
        Result(
            str(case), peer, times[peer], steps[peer], asked(peer, "memory"),
            asked(peer, "whole_fit"), errors[peer],
        )
        for peer in pools
    ]  # fmt: skip


def _difference(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max() / max(1.0, np.abs(b).max())) for a, b in zip(found, expected, strict=True))


def show(results: list[Result], cases: tuple[Case, ...], console: Console) -> None:
    """A table for every case, and the aims."""
    for case in cases:
        entries = [result for result in results if result.case == str(case)]
        table = Table("peer", "E-step ms, min", "median", f"{STEPS} steps ms", "extra MB", "whole fit s",
                      "log-likelihood", "keys right", title=f"W12 {case}")  # fmt: skip
        for entry in entries:
            table.add_row(
                entry.peer, f"{min(entry.step_ms):.2f}", f"{median(entry.step_ms):.2f}", f"{min(entry.steps_ms):.1f}",
                f"{entry.peak_bytes / 1e6:.1f}", f"{entry.fit['seconds']:.2f}",
                f"{entry.fit['log_likelihood']:.1f}", f"{entry.fit['keys_right']:.0%}",
            )  # fmt: skip
        console.print(table)
        by_name = {entry.peer: entry for entry in entries}
        if "mixle" in by_name:
            ratio = min(by_name["mixle"].step_ms) / min(by_name["tensorattn"].step_ms)
            console.print(f"time of mixle over ours: {ratio:.0f}, aim {case.aim:g}")
        else:
            console.print("mixle is not installed: make benchmark-mixle")


@click.command()
@click.option("--repeat", default=7, show_default=True, type=click.IntRange(1), help="Rounds.")
@click.option("--small", is_flag=True, help="Small sizes: whether everything runs, not how fast.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write everything measured.")
def main(repeat: int, small: bool, json_path: Path | None) -> None:
    """Compare an expectation step, ten steps and a whole fit of chained attention with mixle."""
    cases = SMALL if small else FULL
    before = measuring.machine()
    results = run(cases, repeat, 0.0 if small else 0.2)
    show(results, cases, Console(width=None if sys.stdout.isatty() else 120))
    click.echo(f"load before {before['load']}, after {measuring.machine()['load']}")
    if json_path is not None:
        whole = {"machine": before, "results": [asdict(result) for result in results]}
        json_path.write_text(json.dumps(whole, indent=1))


if __name__ == "__main__":
    main(prog_name="python -m benchmarks.chained")
