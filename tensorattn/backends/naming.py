"""Names of the formula → identifiers of the generated code: the one place where they are made."""

from __future__ import annotations

import builtins
import keyword
from collections.abc import Iterable

RESERVED = frozenset({*keyword.kwlist, *keyword.softkwlist, *dir(builtins)})


def identifier(name: str) -> str:
    """A Python identifier of ASCII letters and digits for any name; not yet unique (`Names` sees to that)."""
    spelt = "".join(_spell(character) for character in name) or "x"
    return spelt if spelt[0].isalpha() else "x" + spelt


def _spell(character: str) -> str:
    if character.isascii() and character.isalnum():
        return character
    if character in "'′":
        return "prime"
    return "" if character in "_. " else f"u{ord(character):x}"


class Names:
    """Hands out identifiers: the same one for the same (kind, name), never one twice, never a reserved one."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken = set(RESERVED).union(reserved)
        self._known: dict[tuple[str, str], str] = {}

    def keep(self, kind: str, name: str) -> str:
        """As `of`, but an identifier that is free is kept as it is, underscores included."""
        if (kind, name) not in self._known and name.isidentifier() and name.isascii() and name not in self._taken:
            self._taken.add(name)
            self._known[kind, name] = name
        return self.of(kind, name)

    def of(self, kind: str, name: str) -> str:
        """The identifier of a name of this kind (`input`, `register`, `size`, `local`)."""
        known = self._known.get((kind, name))
        if known is not None:
            return known
        stem = chosen = identifier(name)
        count = 2
        while chosen in self._taken:
            chosen, count = f"{stem}x{count}", count + 1
        self._taken.add(chosen)
        self._known[kind, name] = chosen
        return chosen
