"""A run as text: the machine and its rates, a table for each comparison, and the aims beside what was found."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.aims import OWN, floor_ms, judge, ratio
from benchmarks.results import Measured, Run
from benchmarks.workloads import find

BUSY = 0.5


def show(run: Run, console: Console) -> None:
    """Prints everything."""
    console.print(heading(run), highlight=False)
    for group, entries in run.groups().items():
        console.print(table(run, group, entries))
    verdicts = aims(run)
    if verdicts.row_count:
        console.print(verdicts)


def heading(run: Run) -> str:
    """The machine, its load, and its rates."""
    m = run.machine
    lines = [
        f"{m['processor']}, {m['cores']} cores, {m['memory_gb']} GB; {m['system']}; Python {m['python']}",
        f"load before {m['load']}, after {m['load_after']}",
        f"sizes: {run.options['level']}; rounds: {run.options['repeat']}",
    ]
    if m["load"][0] > BUSY:
        lines.append("The machine was not idle: these times say little.")
    for threads, libraries in run.rates.items():
        for library, found in libraries.items():
            gemm, exp, exp2 = (found[what] / 1e9 for what in ("gemm", "exp", "exp2"))
            lines.append(f"{library}, {threads} threads: {gemm:.0f} GFLOP/s, exp {exp:.2f} G/s, exp2 {exp2:.2f} G/s")
    return "\n".join(lines)


def table(run: Run, group: tuple[str, str, str, int], entries: list[Measured]) -> Table:
    """One comparison: the fastest first; below it what does not run, and why."""
    name, backend, direction, threads = group
    workload = find(name)
    what = "forward + backward" if direction == "backward" else "forward"
    title = f"{name} {workload.title}: {what}, {backend}, {threads} threads"
    found = Table(title=title, title_justify="left", caption=_caption(run, group, entries), caption_justify="left")
    found.add_column("peer", no_wrap=True)
    for column in ("min ms", "median ms", "calls", "× ours", "% of floor", "extra MB", "first ms", "error"):
        found.add_column(column, justify="right")
    own = next((entry for entry in entries if entry.peer == OWN), None)
    for entry in sorted((e for e in entries if e.min_ms is not None), key=lambda e: e.min_ms or 0):
        found.add_row(*row(run, entry, own), style="bold" if entry.peer == OWN else "")
    return found


def row(run: Run, entry: Measured, own: Measured | None) -> list[str]:
    """The cells of a peer that runs."""
    times = sorted(entry.times)
    median = times[len(times) // 2] * 1e3
    against = ratio(own, entry) if own is not None else None
    return [
        entry.peer, _number(times[0] * 1e3), _number(median), str(len(times)),
        f"{against:.2f}" if against is not None else "–", _share(run, entry),
        _number(entry.peak_bytes / 1e6) if entry.peak_bytes is not None else "–",
        _number(entry.first_ms) if entry.first_ms is not None else "–",
        f"{entry.error:.0e}" if entry.error is not None else "–",
    ]  # fmt: skip


def aims(run: Run) -> Table:
    """Every aim that this run can judge."""
    found = Table(title="aims", title_justify="left")
    found.add_column("what")
    for column in ("aim", "found", "met", "at most"):
        found.add_column(column, justify="right")
    for verdict in judge(run):
        value = f"{verdict.found:.2f}" if verdict.found is not None else "does not run"
        most = f"{verdict.most:.2f}" if verdict.most is not None else ""
        found.add_row(verdict.text, f"{verdict.aim:.2f}", value, "yes" if verdict.met else "no", most)
    return found


def _caption(run: Run, group: tuple[str, str, str, int], entries: list[Measured]) -> str:
    """The floor, and the peers that do not run."""
    failed = [f"does not run: {entry.peer}: {entry.why}" for entry in entries if entry.min_ms is None]
    return "\n".join([*_floor(run, group), *failed])


def _floor(run: Run, group: tuple[str, str, str, int]) -> list[str]:
    name, backend, _, threads = group
    sizes = find(name).sizes[run.options["level"]]
    flops, exps = find(name).flops(sizes), find(name).exps(sizes)
    if not flops:
        return []
    floor = floor_ms(run, name, backend, threads)
    return [f"{flops / 1e9:.3g} GFLOP, {exps / 1e6:.3g} M exp forward; at this machine's rates {floor:.3g} ms"]


def _share(run: Run, entry: Measured) -> str:
    if entry.direction != "forward" or entry.min_ms is None or find(entry.workload).compiles_only:
        return "–"
    return f"{100 * floor_ms(run, entry.workload, entry.backend, entry.threads) / entry.min_ms:.0f}"


def _number(value: float) -> str:
    """Three digits or more."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
