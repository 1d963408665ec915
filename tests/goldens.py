"""Golden texts: compared with a file of tests/golden, or written to it with `--update-golden`."""

from __future__ import annotations

from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "golden"


def agree(name: str, text: str, config: pytest.Config) -> None:
    """The text is what the golden file holds; with `--update-golden` it becomes that."""
    path = FOLDER / name
    if config.getoption("--update-golden"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.read_text(encoding="utf-8") == text, f"see {path}; pytest --update-golden writes it anew"
