"""`parse`: a text in a spelling → `Program`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

from tensorattn.errors import BindingError, NotationError, suggest
from tensorattn.program import Program
from tensorattn.source import Source
from tensorattn.spelling import SPELLINGS
from tensorattn.spelling.einsum import looks_like_einsum

Axes = Mapping[str, str | Sequence[str]]


def parse(text: str, *, name: str | None = None, spelling: str | None = None, axes: Axes | None = None) -> Program:
    r"""The program of a text, plain (docs/language.md), in Unicode or in LaTeX (docs/spellings.md).

    `spelling`: `"ascii"`, `"unicode"`, `"latex"`, `"einsum"` or `"matrix"`; None finds it. `name`: a file name for
    messages. `axes`: the names of the axes of each input of a matrix formula, which names none (docs/matrix.md).

    >>> str(parse("y^mu_n = W^<mu bar(nu rho)> v^<bar(nu rho)>_n"))
    'y^mu_n = W^<mu bar(nu rho)> v^<nu rho>_n'

    >>> parse(r"y^{\mu}_{n} = W^{\mu\bar{\nu\rho}} v^{\nu\rho}_{n}") == parse("y^μₙ = W^⟨μ bar(ν ρ)⟩ v^⟨ν ρ⟩ₙ")
    True

    >>> print(parse("Y = softmax(Q K^T / sqrt(d_k)) V", axes={"Q": "mu i", "K": "nu i", "V": "nu n"}))
    Y_<mu n> = softmax[nu](Q_<mu i> K_<nu i> / sqrt(|i|)) V_<nu n>

    Raises: NotationError, the first in reading order, the others in its `.others`; its spans are those of `text`.
    BindingError where there is no such spelling, or axes are declared of what is no input.
    """
    if not isinstance(text, str):
        raise NotationError(
            "E-SYNTAX", f"a formula is a text, not {type(text).__name__}", hint='ta.parse("y_i = A_<i j> x_j")'
        )
    if spelling is not None and spelling not in SPELLINGS:
        facts = [f"spellings: {', '.join(SPELLINGS)}"]
        hint = suggest(str(spelling), SPELLINGS) or "leave it out: the spelling is found"
        raise BindingError("E-UNDEF", f"there is no spelling {spelling!r}", facts=facts, hint=hint)
    if axes is not None or spelling == "matrix":
        return _parse_matrix(text, name, spelling, axes)
    if spelling == "einsum" or (spelling is None and looks_like_einsum(text)):
        from tensorattn.spelling.einsum import read_einsum

        return read_einsum(Source(text, name, "einsum"))
    return _parse(text, name, spelling)


def _parse_matrix(text: str, name: str | None, spelling: str | None, axes: Axes | None) -> Program:
    from tensorattn.spelling.matrix import read_matrix, without_axes

    if spelling not in (None, "matrix"):
        what = f"axes are declared, and the spelling is {spelling}, which names its axes itself"
        raise BindingError("E-MATRIX", what, hint='leave out the axes, or write spelling="matrix"')
    source = Source(text, name, "matrix")
    if axes is None:
        raise without_axes(source)
    return read_matrix(source, axes)


@lru_cache(maxsize=512)
def _parse(text: str, name: str | None, spelling: str | None) -> Program:
    from tensorattn.resolving import resolve

    source = Source(text, name, spelling)
    try:
        return resolve(source)
    except NotationError as error:
        refused = error
    from tensorattn.spelling.matrix import explained

    raise explained(source, refused)


def as_program(program: str | Program) -> Program:
    """A text or a program as a program. Raises: NotationError for anything else."""
    return program if isinstance(program, Program) else parse(program)
