"""The aims: a ratio against a peer, a share of its memory, or a share of the machine's own rate, on a workload."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.results import Measured, Run
from benchmarks.workloads import find

OWN = "tensorattn"


@dataclass(frozen=True, slots=True)
class Aim:
    """Be `ratio` times as fast as `peer` (its time over ours), in at most `memory` of its extra bytes (or 8 MB)."""

    workloads: str
    peer: str
    forward: float | None = None
    backward: float | None = None
    memory: float | None = None


@dataclass(frozen=True, slots=True)
class Floor:
    """Reach this share of the time that the machine's rates allow, with exp or exp2 as the rate of exponentials."""

    workloads: str
    backend: str
    rate: str
    share: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """An aim beside what was found; `found` is None where one of the two does not run.

    `most`: what a program with nothing but its products and exponentials, at the machine's rates, would reach.
    """

    text: str
    aim: float
    found: float | None
    met: bool
    most: float | None = None


AIMS = (
    Aim("W1", "SDPA", 0.98, 0.98),
    Aim("W2 W2-softcap W2-narrow", "FlexAttention, compiled", 1.0),
    Aim("W2 W2-narrow W3", "SDPA", None, 2.0, 0.10),
    Aim("W4 W4-long", "flattened SDPA", 1.1, 1.4, 0.05),
    Aim("W6", "flattened SDPA", 0.95, None, 0.05),
    Aim("W10", "flattened SDPA", 1.5, None, 0.05),
    Aim("W4-symmetric", "flattened SDPA", 2.0, 2.5, 0.05),
    Aim("W4", "dense torch", 2.3, 2.0, 0.05),
    Aim("W6 W10", "dense torch", 3.0, 2.5, 0.05),
    Aim("W4-symmetric", "dense torch", 4.0, 3.5, 0.05),
    Aim("W2 W3 W5 W7 W8 W9", "dense torch", 3.0, 3.0, 0.05),
    Aim("W7 W7-pairs", "hand-factored torch", 1.0, 1.0),
    Aim("W7", "dense torch", 50.0),
    Aim("W8", "two SDPA calls", 0.95, 0.95),
    Aim("W1 W4", "KeOps", 10.0, 10.0),
    Aim("WN-W1 WN-W4 WN-W6 WN-W8", "np.einsum + softmax", 1.6, None, 0.05),
    Aim("W1 W4 W6 W8", "np.einsum + softmax", 2.4, None, 0.05),  # with --backend numpy
    Aim("W11-W1 W11-W4 W11-W6", "dense torch", 1 / 1.3),
)
FLOORS = (
    Floor("W1 W4 W6", "torch", "exp", 0.90),
    Floor("W4", "torch", "exp2", 0.75),
    Floor("WN-W1 WN-W4 WN-W6", "numpy", "exp", 0.65),
)
SMALL_BYTES = 8 << 20
SMALL_MS = 0.1


def judge(run: Run) -> list[Verdict]:
    """Every aim that the run can say something about."""
    found: list[Verdict] = []
    for (name, backend, direction, threads), entries in run.groups().items():
        where = f"{name} {direction}, {threads} threads"
        known = {entry.peer: entry for entry in entries}
        own = known.get(OWN)
        if own is None:
            continue
        for aim in AIMS:
            if name in aim.workloads.split() and aim.peer in known:
                found += _against(run, aim, own, known[aim.peer], where)
        if direction == "forward":
            found += _floors(run, own, name, backend, threads, where)
            found += _overheads(known, where)
    return found


def ratio(own: Measured, peer: Measured) -> float | None:
    """The peer's time over ours; None where one of them does not run."""
    if own.min_ms is None or peer.min_ms is None:
        return None
    return peer.min_ms / own.min_ms


def _against(run: Run, aim: Aim, own: Measured, peer: Measured, where: str) -> list[Verdict]:
    wanted = aim.forward if own.direction == "forward" else aim.backward
    found = []
    if wanted is not None:
        value, text = ratio(own, peer), f"{where}: time of {peer.peer} over ours"
        found.append(Verdict(text, wanted, value, _met(own, peer, value, wanted), _most(run, peer)))
    if aim.memory is not None and own.peak_bytes is not None and peer.peak_bytes:
        share = own.peak_bytes / peer.peak_bytes
        met = share <= aim.memory or own.peak_bytes <= SMALL_BYTES
        found.append(Verdict(f"{where}: our extra memory over that of {peer.peer}", aim.memory, share, met))
    return found


def _met(own: Measured, peer: Measured, value: float | None, wanted: float) -> bool:
    """Against a peer that does not run it is enough to run."""
    return value >= wanted if value is not None else own.min_ms is not None and not peer.runs


def _most(run: Run, peer: Measured) -> float | None:
    """The peer's time over the floor: a product has two in its gradient; weights that are kept need no exp again.

    Small calls take their time for something else.
    """
    if peer.min_ms is None or find(peer.workload).compiles_only:
        return None
    passes = 1 if peer.direction == "forward" else 3
    floor = floor_ms(run, peer.workload, peer.backend, peer.threads, "exp2", products=passes)
    return peer.min_ms / floor if floor > SMALL_MS else None


def _floors(run: Run, own: Measured, name: str, backend: str, threads: int, where: str) -> list[Verdict]:
    found = []
    for aim in FLOORS:
        if name not in aim.workloads.split() or aim.backend != backend or own.min_ms is None:
            continue
        share = floor_ms(run, name, backend, threads, aim.rate) / own.min_ms
        found.append(
            Verdict(f"{where}: share of the machine's rate with {aim.rate}", aim.share, share, share >= aim.share)
        )
    return found


def floor_ms(run: Run, name: str, backend: str, threads: int, rate: str = "exp", *, products: int = 1) -> float:
    """The time of the workload's operations at the rates measured in the same run, in milliseconds.

    `products`: how often those of the forward pass are made.
    """
    workload, rates = find(name), run.rate(threads, backend)
    sizes = workload.sizes[run.options["level"]]
    exps = workload.exps(sizes) / (rates.exp if rate == "exp" else rates.exp2)
    return (products * workload.flops(sizes) / rates.gemm + exps) * 1e3


def _overheads(known: dict[str, Measured], where: str) -> Sequence[Verdict]:
    """What a call costs beside its array operations, against what opt_einsum's expressions cost."""
    names = (OWN, "tensorattn, array code alone", "opt_einsum + softmax", "opt_einsum, operations alone")
    times = [known[name].min_ms if name in known else None for name in names]
    if None in times:
        return ()
    ours, bare, theirs, operations = (time or 0.0 for time in times)
    if theirs <= operations:
        return ()
    share = max(0.0, ours - bare) / (theirs - operations)
    return (Verdict(f"{where}: our overhead over that of opt_einsum", 1 / 3, share, share <= 1 / 3),)
