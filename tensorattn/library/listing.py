"""The library → a page of documentation; `python -m tensorattn.library.listing > docs/library.md` writes it."""

from __future__ import annotations

from tensorattn.library import Entry, formulas

HEAD = """# Library of formulas

`tensorattn.formulas` maps a name to an entry: `.program`, `.text`, `.title`, `.source`, `.equals`, `.notes`, and
`.example(rng)` for small valid inputs. Every formula is tested on NumPy and torch against an independent computation.

```python
import numpy as np
import tensorattn as ta

entry = ta.formulas["joint_attention"]
y = ta.compile(entry.program, sizes=dict(entry.sizes))(entry.example(np.random.default_rng(0)))
```

This page is written from the formula files by `python -m tensorattn.library.listing`.
"""


def page() -> str:
    """The page `docs/library.md`: a table of all entries, then each with its formula, shapes and notes."""
    rows = [f"| [`{e.name}`](#{anchor(e)}) | {e.title} | {e.source} | {escaped(e.equals)} |" for e in formulas.values()]
    table = ["| name | what | source | equals |", "|---|---|---|---|", *rows]
    return "\n".join([HEAD, *table, "", *(section(e) for e in formulas.values())]).rstrip() + "\n"


def section(entry: Entry) -> str:
    """One entry: heading, formula, shapes, what it equals, notes."""
    lines = [f"## {entry.name}", "", f"{entry.title}. Source: {entry.source}.", "", "```text", entry.formula, "```", ""]
    if entry.shapes:
        lines += ["Inputs: " + "; ".join(f"`{shape}`" for shape in entry.shapes) + ".", ""]
    if entry.sizes:
        lines += ["Sizes to give: " + ", ".join(f"`|{i}| = {n}`" for i, n in entry.sizes) + ".", ""]
    if entry.equals:
        lines += [f"Equals: {entry.equals}.", ""]
    if entry.notes:
        lines += [entry.notes, ""]
    return "\n".join(lines)


def anchor(entry: Entry) -> str:
    """The heading's anchor as Markdown readers make it."""
    return entry.name.lower()


def escaped(text: str) -> str:
    """Text that may stand in a cell of a table."""
    return text.replace("|", "\\|")


if __name__ == "__main__":
    print(page(), end="")
