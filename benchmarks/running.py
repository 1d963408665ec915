"""Runs the peers: a process each, all alive at once, one of them working; rounds in a new random order each time."""

from __future__ import annotations

import json
import os
import random
import selectors
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from time import monotonic
from typing import Any

from benchmarks import measuring
from benchmarks.peers import peers_of
from benchmarks.results import Measured, Run
from benchmarks.workload import Workload

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")
Report = Callable[[str], None]


class WorkerError(Exception):
    """A process that gave no answer, and why."""


@dataclass(frozen=True, slots=True)
class Options:
    """`limit`: seconds that one peer may take to be ready, to be measured for memory, and to be timed,
    on one workload with one number of threads."""

    level: str = "full"
    repeat: int = 7
    threads: tuple[int, ...] = (1,)
    gradients: bool = True
    limit: float = 120
    seed: int = 0
    sample: dict[str, float] = field(default_factory=dict)


class Process:
    """A worker process, its time limit counted only while it works."""

    def __init__(self, threads: int, limit: float, caches: str) -> None:
        self.left = limit
        self.limit = limit
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", str(threads)], env=environment(threads, caches),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
        )  # fmt: skip

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The reply. Raises: WorkerError where none comes in time or the process ends."""
        assert self.process.stdin is not None
        start = monotonic()
        try:
            self.process.stdin.write((json.dumps(request) + "\n").encode())
            self.process.stdin.flush()
            line = self._line(start)
        except BrokenPipeError:
            line = b""
        self.left -= monotonic() - start
        if not line:
            raise WorkerError(self._ended())
        return json.loads(line)

    def _line(self, start: float) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(max(0.0, self.left - (monotonic() - start))):
                self.close()
                raise WorkerError(f"over {self.limit:g} s")
        return self.process.stdout.readline()

    def _ended(self) -> str:
        code = self.process.wait()
        if code < 0:
            return f"killed by signal {-code}"
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return f"exit {code}: {lines[-1][:160] if lines else ''}"

    def close(self) -> None:
        """Ends the process."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            assert stream is not None
            stream.close()


def environment(threads: int, caches: str) -> dict[str, str]:
    """The environment of a worker: the same number of threads in every library, compiled code in a folder of its own.

    So the first call of a peer that generates code is one that finds none from an earlier run.
    """
    folders = {"TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "KEOPS_CACHE_FOLDER": f"{caches}/keops"}
    return {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(threads)), **folders}


def run(
    workloads: Sequence[Workload], options: Options, report: Report = lambda text: None,
    keep: Callable[[Run], None] = lambda found: None,
) -> Run:  # fmt: skip
    """Everything asked for, with the machine and its rates before the first and after the last workload.

    `keep` is called with all that was found after every workload. An interrupt (KeyboardInterrupt) ends the run: what
    was found before is the result.
    """
    machine = measuring.machine()
    rates = {threads: _rates(threads, options) for threads in options.threads}
    found = Run(machine, rates, (), {"level": options.level, "repeat": options.repeat})
    try:
        for workload, threads in product(workloads, options.threads):
            measured = (*found.measured, *run_workload(workload, threads, options, report))
            now = {**machine, "load_after": measuring.machine()["load"]}
            found = replace(found, machine=now, measured=measured)
            keep(found)
    except KeyboardInterrupt:
        report("interrupted")
    return replace(found, machine={**machine, "load_after": measuring.machine()["load"]})


def steps(workloads: Sequence[Workload], options: Options) -> int:
    """How many reports a run makes."""
    peers = sum(len(peers_of(workload)) for workload in workloads)
    return peers * len(options.threads) * (options.repeat + 2)


def _rates(threads: int, options: Options) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory() as caches:
        process = Process(threads, options.limit, caches)
        try:
            return process.ask({"do": "rates", "repeat": options.repeat})
        finally:
            process.close()


def run_workload(workload: Workload, threads: int, options: Options, report: Report) -> list[Measured]:
    """All peers of a workload with one number of threads."""
    with tempfile.TemporaryDirectory() as caches, Comparison(workload, threads, options, report, caches) as comparison:
        comparison.prepare()
        for _ in range(options.repeat):
            comparison.round()
    return list(comparison.entries.values())


class Comparison:
    """The processes of all peers of a workload, and what they answered."""

    def __init__(self, workload: Workload, threads: int, options: Options, report: Report, caches: str) -> None:
        self.workload, self.threads, self.options, self.caches = workload, threads, options, caches
        self.names = [peer.name for peer in peers_of(workload)]
        self.report = lambda name, doing: report(f"{workload.name} · {name} · {threads} threads{doing}")
        self.order = random.Random(f"{options.seed} {workload.name} {threads}")
        self.alive: dict[str, Process] = {}
        self.entries = {
            (name, direction): Measured(workload.name, workload.backend, name, direction, threads)
            for name in self.names
            for direction in directions(workload, options)
        }

    def __enter__(self) -> Comparison:
        return self

    def __exit__(self, *raised: object) -> None:
        for process in self.alive.values():
            process.close()

    def prepare(self) -> None:
        """First calls and checks; then memory, in a process of its own."""
        for name in self._shuffled(self.names):
            self.report(name, ": first call and check")
            process = self._process()
            self._fill(name, self._asked(process, name, "prepare"))
            if not any(entry.runs for entry in self._of(name)):
                process.close()
                continue
            process.left = self.options.limit
            self.alive[name] = process
            if not self.workload.compiles_only:
                self.report(name, ": memory")
                self._memory(name)

    def round(self) -> None:
        """Some calls of every peer, in a new order; a peer whose time is up keeps the times it has."""
        for name in self._shuffled(list(self.alive)):
            self.report(name, "")
            process = self.alive[name]
            entries = [entry for entry in self._of(name) if entry.runs]
            if any(entry.times for entry in entries) and process.left < 0.1 * process.limit:
                continue
            request = {"do": "time", "directions": [e.direction for e in entries], "sample": self.options.sample}
            try:
                found = process.ask(request)
            except WorkerError as failed:
                self.alive.pop(name).close()
                for entry in entries:
                    entry.why = "" if entry.times else str(failed)
                continue
            for entry in entries:
                entry.times += found[entry.direction]

    def _process(self) -> Process:
        return Process(self.threads, self.options.limit, self.caches)

    def _shuffled(self, names: list[str]) -> list[str]:
        return self.order.sample(names, len(names))

    def _of(self, name: str) -> list[Measured]:
        return [entry for (peer, _), entry in self.entries.items() if peer == name]

    def _asked(self, process: Process, name: str, what: str) -> dict[str, Any]:
        """The answer of a process that is given its job first, or why there is none."""
        job = {
            "workload": self.workload.name, "backend": self.workload.backend, "peer": name,
            "level": self.options.level, "gradients": self.options.gradients,
        }  # fmt: skip
        try:
            process.ask({"do": "open", "job": job})
            return process.ask({"do": what})
        except WorkerError as failed:
            return {"why": str(failed)}

    def _fill(self, name: str, found: dict[str, Any]) -> None:
        for entry in self._of(name):
            answer = found if "why" in found else found[entry.direction]
            entry.why = answer.get("why", "")
            entry.first_ms = answer.get("first_ms")
            entry.error = answer.get("error")

    def _memory(self, name: str) -> None:
        process = self._process()
        found = self._asked(process, name, "memory")
        process.close()
        for entry in self._of(name):
            entry.peak_bytes = found.get(entry.direction, {}).get("peak_bytes")


def directions(workload: Workload, options: Options) -> tuple[str, ...]:
    """What is measured of a workload."""
    if options.gradients and workload.backend == "torch" and not workload.compiles_only:
        return ("forward", "backward")
    return ("forward",)
