"""One peer in one process: it answers lines of JSON on its standard input with lines of JSON.

`{"do": "prepare"}`: first call, checks; `{"do": "time"}`: some calls; `{"do": "memory"}`; `{"do": "rates"}`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from time import perf_counter
from typing import Any, TextIO

import numpy as np

from benchmarks import checking, measuring
from benchmarks.peers import peers_of
from benchmarks.workload import Function, Peer, RefusedError, Workload
from benchmarks.workloads import find

DIRECTIONS = ("forward", "backward")
SHARE = 0.85  # of the memory at hand


class Bench:
    """A peer on a workload, with its inputs, ready to be called in each direction."""

    def __init__(self, workload: Workload, peer: Peer, level: str, gradients: bool) -> None:
        self.workload, self.peer, self.level = workload, peer, level
        self.sizes = workload.sizes[level]
        self.gradients = gradients and workload.backend == "torch" and not workload.compiles_only
        self.function: Function | None = None
        self.small: Function | None = None  # the same for the sizes at which it is checked in full
        self.arrays: dict[str, np.ndarray] = {}

    def open(self) -> None:
        """Makes the function and its inputs. Raises: RefusedError."""
        missing = [name for name in self.peer.needs if importlib.util.find_spec(name) is None]
        if missing:
            raise RefusedError(f"not installed: {', '.join(missing)}")
        self.guard(1)
        self.arrays = self.workload.arrays(self.level)
        self.tensors = {d: self._tensors(d == "backward") for d in self.directions}
        self.function = self.peer.make(self.workload, self.sizes)

    @property
    def directions(self) -> tuple[str, ...]:
        return DIRECTIONS if self.gradients else DIRECTIONS[:1]

    def guard(self, factor: int) -> None:
        """Raises: RefusedError where the peer would take more memory than there is."""
        needed = factor * self.peer.predicted_bytes(self.workload, self.sizes)
        there = measuring.available_bytes()
        if needed > SHARE * there:
            raise RefusedError(f"out of memory: needs about {needed / 1e9:.1f} GB of {there / 1e9:.1f} GB")

    def _tensors(self, gradients: bool) -> dict[str, Any]:
        if self.workload.backend == "numpy" or self.workload.compiles_only:
            return dict(self.arrays)
        import torch

        return {name: torch.from_numpy(a).requires_grad_(gradients) for name, a in self._own(gradients).items()}

    def _own(self, gradients: bool) -> dict[str, np.ndarray]:
        return {name: a.copy() for name, a in self.arrays.items()} if gradients else self.arrays

    def run(self, direction: str) -> tuple[Any, ...]:
        """One call: the output, and the gradients of every input."""
        assert self.function is not None
        tensors = self.tensors[direction]
        if self.workload.backend == "numpy" or self.workload.compiles_only:
            return (self.function(tensors),)
        import torch

        if direction == "forward":
            with torch.no_grad():
                return (self.function(tensors),)
        output = self.function(tensors)
        return (output, *torch.autograd.grad(output, list(tensors.values()), checking.cotangent(output)))

    def prepare(self) -> dict[str, Any]:
        """Per direction: the time of the first call and the error, or why it does not run."""
        start = perf_counter()
        self.open()
        found: dict[str, Any] = {}
        for direction in self.directions:
            found[direction] = attempt(lambda direction=direction, start=start: self._first(direction, start))
            start = perf_counter()
        return found

    def _first(self, direction: str, start: float) -> dict[str, Any]:
        if direction == "backward":
            self.guard(2)
        results = self.run(direction)
        first = perf_counter() - start
        if self.workload.compiles_only:
            return {"first_ms": first * 1e3, "error": 0.0}
        output = results[0] if self.workload.backend == "numpy" else results[0].detach().numpy()
        sampled = checking.check_sampled(self.workload, self.level, self.arrays, output)
        if self.small is None:
            self.small = self.peer.make(self.workload, self.workload.sizes["check"])
        full = checking.check_small(self.workload, self.small, direction == "backward")
        return {"first_ms": first * 1e3, "error": max(sampled, full)}

    def memory(self) -> dict[str, Any]:
        """Per direction: peak bytes above inputs and results of a call."""
        self.open()
        return {direction: attempt(lambda direction=direction: self._peak(direction)) for direction in self.directions}

    def _peak(self, direction: str) -> dict[str, Any]:
        if direction == "backward":
            self.guard(2)
        self.run(direction)  # plans and code, made once, are no working memory of a call
        if self.workload.backend == "numpy":
            return {"peak_bytes": measuring.peak_bytes_numpy(lambda: self.run(direction)[0])}
        return {"peak_bytes": measuring.peak_bytes_torch(lambda: self.run(direction))}


def attempt(action: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The answer, or why there is none: a peer may fail in any way, and how it fails is a result."""
    try:
        return action()
    except RefusedError as refused:
        return {"why": str(refused)}
    except MemoryError:
        return {"why": "out of memory"}
    except Exception as error:
        first = (str(error).strip().splitlines() or [""])[0]
        if any(words in first for words in ("enough memory", "out of memory", "allocate memory")):
            return {"why": f"out of memory: {first.partition('memory: ')[2] or first}"[:100]}
        return {"why": f"{type(error).__name__}: {first[:160]}"}


def answer(bench: Bench, request: dict[str, Any]) -> dict[str, Any]:
    """The reply to one request."""
    match request["do"]:
        case "prepare":
            return attempt(bench.prepare)
        case "memory":
            return attempt(bench.memory)
        case "time":
            return {
                d: measuring.sample(lambda d=d: bench.run(d), **request.get("sample", {}))
                for d in request["directions"]
            }
        case other:
            raise ValueError(f"no such request: {other}")


def rates(request: dict[str, Any]) -> dict[str, Any]:
    """The rates of NumPy and torch in this process."""
    given = {key: request[key] for key in ("repeat", "gemm", "tile") if key in request}
    return {"numpy": asdict(measuring.numpy_rates(**given)), "torch": asdict(measuring.torch_rates(**given))}


def bench_of(job: dict[str, Any]) -> Bench:
    """The bench of a job."""
    workload = replace(find(job["workload"]), backend=job["backend"])
    (peer,) = [peer for peer in peers_of(workload) if peer.name == job["peer"]]
    return Bench(workload, peer, job["level"], job["gradients"])


def limit_threads(count: int) -> None:
    """Limits torch; the environment has limited the libraries below it before they were loaded."""
    import torch

    torch.set_num_threads(count)


def limit_memory() -> None:
    """Makes an allocation beyond what the machine has fail, instead of this or another process being killed."""
    import resource

    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (int(SHARE * measuring.available_bytes()), hard))


def serve(requests: TextIO, replies: TextIO, threads: int) -> None:
    """Answers until the input ends."""
    bench = None
    for line in requests:
        request = json.loads(line)
        if request["do"] == "rates":
            limit_threads(threads)
            reply = rates(request)
        elif request["do"] == "open":
            bench, reply = bench_of(request["job"]), {}
            if bench.workload.backend == "torch":
                limit_threads(threads)
        else:
            assert bench is not None
            reply = answer(bench, request)
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def main() -> None:
    """Serves; what peers print goes to standard error."""
    warnings.simplefilter("ignore")
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    limit_memory()
    serve(sys.stdin, replies, int(sys.argv[1]))


if __name__ == "__main__":
    main()
