"""`python -m benchmarks [W1 W4 …]`: tensorattn and its peers in one run, as tables, JSON and a picture."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import rich_click as click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import plotting, reporting, results, running
from benchmarks.workloads import all_workloads, select


def _threads(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    if value is None:
        return tuple(sorted({1, os.cpu_count() or 1}))
    parts = value.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise click.BadParameter(f"{value!r} is no list of positive integers like 1,2")
    return tuple(int(part) for part in parts)


@click.command()
@click.argument("names", nargs=-1, metavar="[WORKLOAD]...")
@click.option("--backend", type=click.Choice(["numpy", "torch"]), help="The library of the arrays, for every workload.")
@click.option("--exact", is_flag=True, help="The workloads of these names only, without their variants.")
@click.option("--small", is_flag=True, help="Small sizes: whether everything runs, not how fast.")
@click.option(
    "--repeat", default=7, show_default=True, type=click.IntRange(1), help="Rounds; each gives a call or more."
)
@click.option("--threads", callback=_threads, metavar="1,2", help="Numbers of threads; default: one, and all.")
@click.option("--no-backward", is_flag=True, help="Forward only.")
@click.option("--limit", default=120.0, show_default=True, help="Seconds for one peer on one workload.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write everything measured.")
@click.option("--plot", "plot_path", type=click.Path(path_type=Path), help="Draw times and memory.")
@click.option("--list", "listing", is_flag=True, help="Name the workloads and end.")
def main(
    names: tuple[str, ...], backend: str | None, exact: bool, small: bool, repeat: int, threads: tuple[int, ...],
    no_backward: bool, limit: float, json_path: Path | None, plot_path: Path | None, listing: bool,
) -> None:  # fmt: skip
    """Compare tensorattn with its peers. `W4` is W4 with its variants; no name is all of them.

    Interrupted, it shows what it has found; the JSON is written after every workload.
    """
    if listing:
        for workload in all_workloads():
            click.echo(f"{workload.name:14} {workload.backend:6} {workload.title}")
        return
    try:
        chosen = select(names, backend, variants=not exact)
    except KeyError as error:
        raise click.UsageError(f"there is no workload {error.args[0]}; see --list") from None
    options = running.Options("small" if small else "full", repeat, threads, not no_backward, limit)
    found = _with_progress(chosen, options, json_path)
    wide = None if sys.stdout.isatty() else 140
    reporting.show(found, Console(width=wide))
    if plot_path is not None:
        try:
            plotting.draw(found, plot_path)
        except plotting.PlotError as reason:
            raise click.ClickException(f"no picture: {reason}") from None


def _with_progress(
    chosen: tuple[running.Workload, ...], options: running.Options, json_path: Path | None
) -> results.Run:
    def keep(found: results.Run) -> None:
        if json_path is not None:
            results.write(found, json_path)

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("rates of this machine", total=running.steps(chosen, options))
        found = running.run(chosen, options, lambda text: progress.update(task, advance=1, description=text), keep)
    return found


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, it shows what it has found, too
    main(prog_name="python -m benchmarks")
