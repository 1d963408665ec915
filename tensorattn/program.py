"""`Program`: statements in order, and the source they came from."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import TYPE_CHECKING, Literal

from tensorattn.errors import BindingError, suggest
from tensorattn.ir import BATCH, Index, Statement, Tensor, walk
from tensorattn.source import Source

if TYPE_CHECKING:
    from tensorattn.spelling.contraction import Einsum


@dataclass(frozen=True, eq=False)
class Program:
    """A resolved program, a value: compared by meaning (up to spans, echoes, brackets and names of summed indices).

    `str(p)` is the canonical ASCII text; it reads back as an equal program.
    """

    statements: tuple[Statement, ...]
    source: Source | None = field(default=None, repr=False)

    @cached_property
    def defined(self) -> tuple[str, ...]:
        """Names of the statements, in order."""
        return tuple(s.name for s in self.statements)

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """Names of the inputs, in order of first use."""
        known = set(self.defined)
        return tuple(dict.fromkeys(t.name for t in self.tensors if t.name not in known))

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor read, in reading order."""
        return tuple(n for s in self.statements for n in walk(s.body) if isinstance(n, Tensor))

    @cached_property
    def indices(self) -> tuple[str, ...]:
        """Names of the indices, in order of first occurrence, without `...`."""
        from tensorattn.keys import indices_of

        found = (i.name for s in self.statements for i in (*s.indices, *indices_of(s.body)))
        return tuple(n for n in dict.fromkeys(found) if n != BATCH)

    def statement(self, name: str) -> Statement:
        """The statement of this name. Raises: BindingError `E-UNDEF`."""
        found = next((s for s in self.statements if s.name == name), None)
        if found is None:
            facts = [f"its statements: {', '.join(self.defined)}"]
            hint = suggest(name, self.defined) or "name a statement, which stands left of a `=`"
            raise BindingError("E-UNDEF", f"the program has no statement `{name}`", facts=facts, hint=hint)
        return found

    @property
    def batched(self) -> bool:
        """Whether `...` occurs."""
        return any(isinstance(slot, Index) and slot.name == BATCH for t in self.tensors for slot in t.slots)

    def rename(self, **names: str) -> Program:
        """The program with indices or tensors renamed, all at once: `p.rename(mu="i", k="key")`.

        Raises: BindingError `E-NAME` for a name that the program lacks, that is both, or that would merge two.
        """
        from tensorattn.combining import rename

        return rename(self, names)

    def bind(self, **programs: Program | str) -> Program:
        """The program with inputs replaced by the results of other programs, free of capture.

        Inputs of one name are one input. Raises: BindingError `E-UNDEF` (no such input), ShapeError `E-RANK`.
        """
        from tensorattn.combining import bind
        from tensorattn.reading import as_program

        return bind(self, {name: as_program(given) for name, given in programs.items()})

    def then(self, other: Program | str) -> Program:
        """`other` fed with the results of this program that bear the names of its inputs.

        Raises: BindingError `E-INPUT` where no result has the name of an input.
        """
        from tensorattn.combining import then
        from tensorattn.reading import as_program

        return then(self, as_program(other))

    def einsum(self, style: Literal["letters", "words"] | None = None) -> Einsum:
        """The last statement as an einsum string with the names of its operands; `str()` of it is the string.

        Letters, as NumPy and torch read them, where each index is one; else, or with `style="words"`, einops' words.
        `style="letters"` gives the other indices letters that are free. Statements that it reads are put in place.
        Raises: NotationError `E-EINSUM` with the first part that is no contraction.
        """
        from tensorattn.spelling.contraction import einsum

        return einsum(self, style)

    @cached_property
    def key(self) -> str:
        """What equality compares."""
        from tensorattn.keys import key

        return key(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Program) and self.key == other.key

    def __hash__(self) -> int:
        return int.from_bytes(sha256(self.key.encode()).digest()[:8], "big") >> 1

    def __repr__(self) -> str:
        return f"tensorattn.parse({str(self)!r})"

    def __str__(self) -> str:
        from tensorattn.showing import show

        return show(self)

    def unicode(self) -> str:
        """The program in Unicode: `W^⟨μ ν⟩ = k^μᵢ q^νⱼ Mᵢⱼ`; it reads back as an equal program."""
        from tensorattn.showing import show
        from tensorattn.spelling.marks.unicode import Unicode

        return show(self, Unicode())

    def latex(self) -> str:
        r"""The program in LaTeX, without `$`: `W^{\mu\nu} = k^{\mu}_{i} q^{\nu}_{j} M_{ij}`.

        It reads back as an equal program. Several statements stand in an `aligned` environment. For KaTeX,
        MathJax, or pdfLaTeX with amsmath.
        """
        from tensorattn.showing import show
        from tensorattn.spelling.marks.latex import Latex

        return show(self, Latex())

    def _repr_latex_(self) -> str:
        return f"$$\n{self.latex()}\n$$"

    def _repr_html_(self) -> str:
        from tensorattn.spelling.marks.html import display

        return display(self)

    def __reduce__(self) -> tuple[object, ...]:
        return _read, (str(self),)


def _read(text: str) -> Program:
    from tensorattn.resolving import resolve

    return resolve(Source(text))
