"""A run as a picture: for each comparison the time and the extra memory of every peer, on logarithmic axes."""

from __future__ import annotations

import importlib.util
import math
from pathlib import Path
from typing import Any

from benchmarks.aims import OWN
from benchmarks.results import Measured, Run


class PlotError(Exception):
    """Why no picture was drawn."""


def bars(run: Run) -> dict[str, list[tuple[str, float, float]]]:
    """Comparison → (peer, milliseconds, extra MB), the fastest first; what does not run has no bar."""
    found = {}
    for (name, backend, direction, threads), entries in run.groups().items():
        lines = [(e.peer, e.min_ms, (e.peak_bytes or 0) / 1e6) for e in _running(entries) if e.min_ms is not None]
        if lines:
            found[f"{name} {direction}, {backend}, {threads} threads"] = sorted(lines, key=lambda line: line[1])
    return found


def _running(entries: list[Measured]) -> list[Measured]:
    return [entry for entry in entries if entry.min_ms is not None]


def draw(run: Run, path: str | Path) -> None:
    """Writes the picture, in the format of the name's ending. Raises: PlotError without matplotlib or times."""
    if importlib.util.find_spec("matplotlib") is None:
        raise PlotError("matplotlib is not installed: pip install --group bench")
    found = bars(run)
    if not found:
        raise PlotError("nothing was timed")
    from matplotlib.figure import Figure

    heights = [len(lines) for lines in found.values()]
    figure = Figure(figsize=(11, 0.9 * len(found) + 0.32 * sum(heights)), layout="constrained")
    axes = figure.subplots(len(found), 2, squeeze=False, gridspec_kw={"height_ratios": heights}, sharey="row")
    for (title, lines), (time, memory) in zip(found.items(), axes, strict=True):
        _bars(time, [line[0] for line in lines], [line[1] for line in lines], title, "ms")
        _bars(memory, [line[0] for line in lines], [max(line[2], 1e-3) for line in lines], "", "extra MB")
    figure.savefig(path)


def _bars(axis: Any, names: list[str], values: list[float], title: str, unit: str) -> None:
    from matplotlib.ticker import NullFormatter

    colours = ["tab:blue" if name.startswith(OWN) else "tab:gray" for name in names]
    drawn = axis.barh(names, values, color=colours)
    axis.bar_label(drawn, fmt="%.3g", padding=2, fontsize=7)
    axis.set_xscale("log")
    # whole decades: a bar's length means the same in every comparison, and the labels have room
    axis.set_xlim(10 ** math.floor(math.log10(min(values)) - 0.1), 10 ** math.ceil(math.log10(max(values)) + 0.3))
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.invert_yaxis() if not axis.yaxis_inverted() else None
    axis.set_title(title, fontsize=9, loc="left")
    axis.set_xlabel(unit, fontsize=8)
    axis.tick_params(labelsize=8)
