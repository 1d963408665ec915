"""The library: attention formulas by name, each with its source and what it equals elsewhere.

`formulas` is a read-only mapping; nothing is read or parsed before it is asked for.

Example:
    >>> import tensorattn as ta
    >>> ta.formulas["scaled_attention"].title
    'Scaled dot-product attention'
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib.resources import files

from tensorattn.errors import BindingError, suggest
from tensorattn.library.chaining import chain
from tensorattn.library.entry import Entry, InputShape
from tensorattn.library.reading import read_entry

__all__ = ["Entry", "Formulas", "InputShape", "UnknownFormulaError", "chain", "formulas"]

SUFFIX = ".attn"


class UnknownFormulaError(BindingError, KeyError):
    """No formula of this name in the library; also a `KeyError`."""


class Formulas(Mapping[str, Entry]):
    """The formulas by name, in alphabetical order."""

    def __getitem__(self, name: str) -> Entry:
        if name not in _names():
            raise UnknownFormulaError(
                "E-NAME",
                f"the library has no formula named `{name}`",
                facts=[f"it has {len(_names())}: " + ", ".join(_names())],
                hint=suggest(str(name), _names()),
            )
        return _entry(name)

    def __iter__(self) -> Iterator[str]:
        return iter(_names())

    def __len__(self) -> int:
        return len(_names())

    def __repr__(self) -> str:
        return f"<{len(self)} formulas: {', '.join(self)}>"


@lru_cache(maxsize=1)
def _names() -> tuple[str, ...]:
    folder = files(__name__)
    return tuple(sorted(f.name.removesuffix(SUFFIX) for f in folder.iterdir() if f.name.endswith(SUFFIX)))


@lru_cache(maxsize=256)
def _entry(name: str) -> Entry:
    return read_entry(name, (files(__name__) / (name + SUFFIX)).read_text(encoding="utf-8"))


formulas = Formulas()
