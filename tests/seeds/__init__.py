r"""Formulas of four texts about attention, as they were printed, each with what becomes of it.

`source`: which text, `text`: the formula with its delimiters, and one of
`value`: the result, by NumPy from `inputs` (name -> axes of `sizes`), with `axes` (the order of the result's axes);
`error`: the code, the `caret` (the text under the carets) and a part of the message that holds the `repair`;
`matrix`: true where the formula is one of matrices, which names no axes: only declared axes make it a program.
`with`: statements of the same text that stand before it.
"""

from __future__ import annotations

import json
from pathlib import Path

Entry = dict[str, object]


def load() -> list[Entry]:
    """All formulas, in order."""
    text = (Path(__file__).parent / "formulas.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]
