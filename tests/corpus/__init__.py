"""Formulas found in papers, notes and code, each with inputs and its value in plain NumPy, or with the error it gets.

An accepted entry: `formula` (statements), `inputs` (name -> axes; an axis that is a number is a literal size),
`extents` (the sizes used), `sizes` (those no input fixes), `dtypes` (see `SAMPLERS`; normal floats by default),
`consts`, `output` and `output_shape`, `reference_numpy` (an expression, or code that sets `out`; the input `as` is
called `as_` there).

A refused entry: `inputs` as the caller declares them, the `error` code, the `fix`, and `carets`: line, first column and
the column after the last one, from 1, in the statements joined by newlines.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

Entry = dict[str, object]


def load(name: str) -> list[Entry]:
    """The entries of `accept` or `refuse`."""
    text = (Path(__file__).parent / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def printed() -> dict[str, str]:
    """What the sources of the accepted entries print: LaTeX, code or words."""
    return json.loads((Path(__file__).parent / "printed.json").read_text(encoding="utf-8"))


def formula(entry: Entry) -> str:
    return "\n".join(entry["formula"])


def shape(axes: list[str], entry: Entry) -> tuple[int, ...]:
    """The lengths of an input's axes."""
    return tuple(int(axis) if axis.isdigit() else entry["extents"][axis] for axis in axes)


def make_inputs(entry: Entry, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Random inputs by name."""
    kinds, constants = entry.get("dtypes", {}), entry.get("consts", {})
    return {
        name: np.asarray(constants[name]) if name in constants else sample(kinds.get(name, ""), shape(axes, entry), rng)
        for name, axes in entry["inputs"].items()
    }


def sample(kind: str, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """One array: `int:n` integers below n; `adj`, `radj`, `radj3` graphs with a loop at every node; `mask` booleans."""
    if kind.startswith("int:"):
        return rng.integers(0, int(kind[4:]), size=shape)
    return SAMPLERS[kind](shape, rng)


def _graph(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    return (rng.random(shape) < 0.5) | np.eye(shape[-1], dtype=bool)


def _graph_with_loops_in_the_first_relation(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    edges = rng.random(shape) < 0.5
    edges[0] |= np.eye(shape[-1], dtype=bool)
    return edges


def _mask(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    keep = rng.random(shape) < 0.6
    keep[..., 0] = True
    return keep


SAMPLERS = {
    "": lambda shape, rng: rng.normal(size=shape),
    "small": lambda shape, rng: rng.normal(size=shape) * 0.5,
    "pos": lambda shape, rng: rng.random(shape) + 0.5,
    "unit": lambda shape, rng: rng.random(shape) * 0.5 + 0.4,
    "adj": _graph,
    "radj": _graph_with_loops_in_the_first_relation,
    "radj3": _graph,
    "mask": _mask,
}


def softmax(x: np.ndarray, axis: int | tuple[int, ...]) -> np.ndarray:
    """Over one axis, or jointly over several."""
    shares = np.exp(x - x.max(axis=axis, keepdims=True))
    return shares / shares.sum(axis=axis, keepdims=True)


def reference(entry: Entry, inputs: dict[str, np.ndarray]) -> np.ndarray:
    """The entry's value by NumPy alone."""
    given = {"as_" if name == "as" else name: array for name, array in inputs.items()}
    names = {"np": np, "E": np.einsum, "sm": softmax, **given}
    code = entry["reference_numpy"]
    if "\n" in code or code.startswith("out ="):
        exec(compile(code, entry["id"], "exec"), names)
        return np.asarray(names["out"])
    return np.asarray(eval(compile(code, entry["id"], "eval"), names))
