"""`parse`: a text in a spelling → `Program`."""

from __future__ import annotations

from functools import lru_cache

from tensorattn.errors import BindingError, NotationError, suggest
from tensorattn.program import Program
from tensorattn.source import Source
from tensorattn.spelling import SPELLINGS


def parse(text: str, *, name: str | None = None, spelling: str | None = None) -> Program:
    r"""The program of a text, plain (docs/language.md), in Unicode or in LaTeX (docs/spellings.md).

    `spelling`: `"ascii"`, `"unicode"` or `"latex"`; None finds it. `name`: a file name for messages.

    >>> str(parse("y^mu_n = W^<mu bar(nu rho)> v^<bar(nu rho)>_n"))
    'y^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n'

    >>> parse(r"y^{\mu}_{n} = W^{\mu\bar{\nu\rho}} v^{\nu\rho}_{n}") == parse("y^μₙ = W^⟨μ bar(ν ρ)⟩ v^⟨ν ρ⟩ₙ")
    True

    Raises: NotationError, the first in reading order, the others in its `.others`; its spans are those of `text`.
    BindingError `E-UNDEF` where there is no such spelling.
    """
    if not isinstance(text, str):
        raise NotationError(
            "E-SYNTAX", f"a formula is a text, not {type(text).__name__}", hint='ta.parse("y_i = A_<i j> x_j")'
        )
    if spelling is not None and spelling not in SPELLINGS:
        facts = [f"spellings: {', '.join(SPELLINGS)}"]
        hint = suggest(str(spelling), SPELLINGS) or "leave it out: the spelling is found"
        raise BindingError("E-UNDEF", f"there is no spelling {spelling!r}", facts=facts, hint=hint)
    return _parse(text, name, spelling)


@lru_cache(maxsize=512)
def _parse(text: str, name: str | None, spelling: str | None) -> Program:
    from tensorattn.resolving import resolve

    return resolve(Source(text, name, spelling))


def as_program(program: str | Program) -> Program:
    """A text or a program as a program. Raises: NotationError for anything else."""
    return program if isinstance(program, Program) else parse(program)
