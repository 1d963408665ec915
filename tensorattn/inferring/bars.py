"""The barred index that a posterior is asked of: its weights, and the statement that they stand in."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from tensorattn.errors import BindingError, suggest
from tensorattn.ir import Normalise, walk
from tensorattn.program import Program


@dataclass(frozen=True, slots=True)
class Bar:
    """The weights of a barred group, and the name of the statement that they stand in."""

    statement: str
    weights: Normalise

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(index.name for index in self.weights.indices)


def find(used: Program, program: Program, index: str | Sequence[str]) -> Bar:
    """The one bar over an index, or over the whole of a group, in what an output needs.

    `index`: `nu`, `nu rho` or `("nu", "rho")`; `y.nu` is the bar over nu in the statement y.
    Raises: BindingError `E-UNDEF` (no such bar), `E-INDEX` (several).
    """
    statement, wanted = _asked(index)
    if statement is not None:
        program.statement(statement)
    bars = [Bar(s.name, n) for s in used.statements for n in walk(s.body) if isinstance(n, Normalise)]
    found = [b for b in bars if set(wanted) <= set(b.names) and statement in (None, b.statement)]
    if not found:
        _missing(wanted, statement, bars, program)
    if len(found) > 1:
        _several(wanted, found, program)
    return found[0]


def _asked(index: str | Sequence[str]) -> tuple[str | None, tuple[str, ...]]:
    """The statement, if one is named, and the names of the indices."""
    parts = [index] if isinstance(index, str) else list(index) if isinstance(index, Sequence) else []
    names = [n for part in parts if isinstance(part, str) for n in re.split(r"[\s,]+", part.strip()) if n]
    if not names or not all(isinstance(part, str) for part in parts):
        hint = 'index="nu", or index="nu rho" for a group'
        raise BindingError("E-UNDEF", f"index={index!r} names no index", hint=hint)
    statement, dot, first = names[0].rpartition(".")
    return (statement if dot else None), (first, *names[1:])


def _missing(wanted: Sequence[str], statement: str | None, bars: Sequence[Bar], program: Program) -> NoReturn:
    shown = " ".join(wanted)
    there = f" in `{statement}`" if statement else " that the output depends on"
    listed = [f"bar({' '.join(b.names)}) in `{b.statement}`" for b in bars]
    facts = [f"bars there are: {', '.join(listed) or 'none'}"]
    hint = suggest(wanted[0], [n for b in bars for n in b.names]) or "name an index that a bar or normaliser runs over"
    if len(wanted) == 1 and wanted[0] not in program.indices and not bars:
        hint = "write the weights as a bar: W^<mu bar(nu)>"
    raise BindingError("E-UNDEF", f"there is no bar over {shown}{there}", facts=facts, hint=hint)


def _several(wanted: Sequence[str], found: Sequence[Bar], program: Program) -> NoReturn:
    shown = " ".join(wanted)
    statements = list(dict.fromkeys(b.statement for b in found))
    spans = tuple(b.weights.span for b in found if b.weights.span is not None)
    if len(statements) == len(found):
        hint = "say which statement: " + " or ".join(f'index="{s}.{shown}"' for s in statements)
    else:
        hint = "give the indices of the bars different names, or write the weights once, as a statement of their own"
    raise BindingError(
        "E-INDEX",
        f"{len(found)} bars run over {shown}",
        source=program.source if spans else None,
        spans=spans if program.source is not None else (),
        facts=[f"they stand in {', '.join(f'`{s}`' for s in statements)}"],
        hint=hint,
    )
