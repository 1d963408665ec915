"""Pictures: where each hop of one observation attends, and which keys each symbol chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from tensorattn.latent import accepting
from tensorattn.latent.distribution import ChainedAttentionDistribution
from tensorattn.latent.rows import Array


@dataclass(frozen=True, slots=True, eq=False)
class Panel:
    """One heat map: `values` (rows, columns) from 0 to 1, the labels of both axes, and the cell to mark."""

    title: str
    values: Array
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_title: str
    column_title: str
    marked: tuple[int, int] | None = None


def attention_panels(
    model: ChainedAttentionDistribution, x: Any, symbols: Sequence[str] | None = None
) -> tuple[Panel, ...]:
    """For each hop its weights at an observation, from the query or the positions (rows) to the positions (columns).

    Marked is the step of the most probable path given the target.
    """
    found, path = model.attention(x), model.decode(x).positions
    keys, values, query = x[:3]
    keep = x[4] if len(x) == 5 else [True] * len(keys)
    names = _names(model, symbols)
    columns = tuple(
        f"{names[int(k)]}→{names[int(v)]}" if kept else "–" for k, v, kept in zip(keys, values, keep, strict=True)
    )
    first = Panel(
        "hop 1", found.first[None], (names[int(query)],), columns, "query", "position (key→value)", _cell(0, path[0])
    )
    later = tuple(
        Panel(f"hop {hop}", weights, columns, columns, "from position", "position (key→value)",
              _cell(path[hop - 2], path[hop - 1]))
        for hop, weights in enumerate(found.later, start=2)
    )  # fmt: skip
    return (first, *later)


def key_panels(model: ChainedAttentionDistribution, symbols: Sequence[str] | None = None) -> tuple[Panel, ...]:
    """For each hop the share of each key symbol (columns) in the choice of a query symbol (rows) among all keys."""
    names = tuple(_names(model, symbols))
    shares = np.exp(model.log_affinity) / model.num_symbols
    return tuple(
        Panel(f"hop {hop}", table, names, names, "query symbol", "key symbol") for hop, table in enumerate(shares, 1)
    )


def draw_attention(model: ChainedAttentionDistribution, x: Any, symbols: Sequence[str] | None = None) -> Any:
    """The weights of every hop at one observation as a matplotlib figure; `symbols`: their names.

    Raises: ImportError without matplotlib; what `model.decode` raises.
    """
    return _draw(attention_panels(model, x, symbols))


def draw_keys(model: ChainedAttentionDistribution, symbols: Sequence[str] | None = None) -> Any:
    """The learned choices of every hop as a matplotlib figure. Raises: ImportError without matplotlib."""
    return _draw(key_panels(model, symbols))


def _cell(row: int, column: int) -> tuple[int, int] | None:
    return None if column < 0 else (int(row), int(column))


def _names(model: ChainedAttentionDistribution, symbols: Sequence[str] | None) -> list[str]:
    names = [str(s) for s in (range(model.num_symbols) if symbols is None else symbols)]
    if len(names) != model.num_symbols:
        raise accepting.refused(
            f"`symbols` has {len(names)} names for {model.num_symbols} symbols", hint="give one name a symbol"
        )
    return names


def _draw(panels: Sequence[Panel]) -> Any:
    try:
        figures = import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError("pictures need matplotlib: pip install 'tensorattn[plot]'") from error
    sizes = [0.4 * max(len(panel.rows), 2) + 1.2 for panel in panels]
    width = 0.45 * max(len(panel.columns) for panel in panels) + 2.5
    figure = figures.Figure(figsize=(width, sum(sizes)), layout="constrained")
    axes = figure.subplots(len(panels), 1, squeeze=False, gridspec_kw={"height_ratios": sizes})[:, 0]
    image = None
    for axis, panel in zip(axes, panels, strict=True):
        image = axis.imshow(panel.values, vmin=0, vmax=1, cmap="Blues", aspect="auto")
        axis.set_title(panel.title, loc="left", fontsize=9)
        axis.set_xticks(range(len(panel.columns)), panel.columns, fontsize=8)
        axis.set_yticks(range(len(panel.rows)), panel.rows, fontsize=8)
        axis.set_xlabel(panel.column_title, fontsize=8)
        axis.set_ylabel(panel.row_title, fontsize=8)
        if panel.marked is not None:
            axis.scatter(panel.marked[1], panel.marked[0], marker="o", s=60, facecolors="none", edgecolors="tab:red")
    figure.colorbar(image, ax=list(axes), shrink=0.6, label="weight")
    return figure
