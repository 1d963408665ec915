"""`parse`: a text in a spelling → `Program`."""

from __future__ import annotations

from functools import lru_cache

from tensorattn.errors import NotationError
from tensorattn.program import Program
from tensorattn.source import Source


def parse(text: str, *, name: str | None = None) -> Program:
    """The program of a text in the canonical notation (docs/language.md). `name`: a file name for messages.

    >>> str(parse("y^mu_n = W^<mu bar(nu rho)> v^<bar(nu rho)>_n"))
    'y^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n'

    Raises: NotationError, the first in reading order, the others in its `.others`.
    """
    if not isinstance(text, str):
        raise NotationError(
            "E-SYNTAX", f"a formula is a text, not {type(text).__name__}", hint='ta.parse("y_i = A_<i j> x_j")'
        )
    return _parse(text, name)


@lru_cache(maxsize=512)
def _parse(text: str, name: str | None) -> Program:
    from tensorattn.resolving import resolve

    return resolve(Source(text, name))


def as_program(program: str | Program) -> Program:
    """A text or a program as a program. Raises: NotationError for anything else."""
    return program if isinstance(program, Program) else parse(program)
