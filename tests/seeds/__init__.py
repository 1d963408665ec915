r"""Formulas of four texts about attention, as they were printed, each with what becomes of it.

`source`: which text, `text`: the formula with its delimiters, and one of
`value`: the result, by NumPy from `inputs` (name -> axes of `sizes`), with `axes` (the order of the result's axes);
`reads`: the program in the plain notation;
`error`: the code, the `caret` (the text under the carets), what the message holds of the `repair`, and `repaired`: the
formula that the text means, in its own spelling;
`matrix`: in the place of `inputs` where the formula is one of matrices: only these declared axes make it a program,
and without them there is an `error`.
"""

from __future__ import annotations

import json
from pathlib import Path

Entry = dict[str, object]


def load() -> list[Entry]:
    """All formulas, in order."""
    text = (Path(__file__).parent / "formulas.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def table() -> str:
    """What becomes of every formula, as a table for the page of the spellings."""
    rows = ["| formula | what happens |", "|---|---|"]
    for entry in load():
        shown = " ".join(str(entry["text"]).split()).replace("|", "\\|")
        rows.append(f"| `{shown}` | {_fate(entry)} |")
    return "\n".join(rows)


def _fate(entry: Entry) -> str:
    if "matrix" in entry:
        declared = ", ".join(f'"{name}": "{axes}"' for name, axes in entry["matrix"].items())
        return f"`{entry['error']}`; with `axes={{{declared}}}` read, and right"
    if "value" in entry:
        return "read, and right"
    if "reads" in entry:
        return f"read: `{entry['reads']}`"
    return f"`{entry['error']}`: write `{entry['repaired']}`"
