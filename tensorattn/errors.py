"""The errors: one base, one class per stage, each message in four parts (what, where, facts, repair)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from functools import partial

from tensorattn.source import Source, Span


class TensorattnError(ValueError):
    """Base of all errors: `.code` (`E-…`), `.span`, `.spans`, `.facts`, `.hint`, `.others` (further errors found)."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        source: Source | None = None,
        spans: Sequence[Span] = (),
        facts: Sequence[str] = (),
        hint: str | None = None,
    ) -> None:
        self.code, self.what, self.source = code, what, source
        self.spans, self.facts, self.hint = tuple(spans), tuple(facts), hint
        self.others: tuple[TensorattnError, ...] = ()
        super().__init__(what)

    @property
    def span(self) -> Span | None:
        """The first offending range of the source text, or None."""
        return self.spans[0] if self.spans else None

    def __str__(self) -> str:
        parts = [f"{self.code}: {self.what}"]
        if self.source is not None and self.spans:
            parts.append(self.source.draw(self.spans))
        parts += [f"  {fact}" for fact in self.facts]
        if self.hint:
            parts.append(f"  help: {self.hint}")
        if self.others:
            parts.append("  also: " + "; ".join(f"{e.code}: {e.what}" for e in self.others))
        return "\n".join(parts)

    def __reduce__(self) -> tuple[object, ...]:
        make = partial(type(self), source=self.source, spans=self.spans, facts=self.facts, hint=self.hint)
        return make, (self.code, self.what), {"others": self.others}


class NotationError(TensorattnError, SyntaxError):
    """The formula itself is refused. Also a `SyntaxError` with its place, so that tools draw the caret."""

    def __init__(self, code: str, what: str, **parts: object) -> None:
        TensorattnError.__init__(self, code, what, **parts)  # type: ignore[arg-type]
        self.msg = what
        if self.source is not None and self.spans:
            self.filename = self.source.name or "<formula>"
            self.lineno, self.offset, self.text = self.source.line_of(self.spans[0].start)
            self.end_lineno, self.end_offset, _ = self.source.line_of(self.spans[0].end)


class BindingError(TensorattnError):
    """Inputs missing, unknown or given twice."""


class ShapeError(TensorattnError):
    """Ranks, sizes or positions that contradict the formula."""


class DTypeError(TensorattnError):
    """A dtype that the place does not take."""


class PlanError(TensorattnError):
    """No plan of the kind asked for."""


class BudgetError(PlanError):
    """No plan within the memory asked for; the message names the smallest possible peak.

    `least`: that peak in bytes, where plans were made.
    """

    least: int = 0


class BackendError(TensorattnError):
    """Arrays of several libraries or devices, or of a library that is not supported."""


class NotationWarning(UserWarning):
    """A formula that is valid but reads like a slip; `strict=True` makes it a NotationError."""


def nearest(name: str, known: Sequence[str]) -> str | None:
    """The known name that is spelt most like this one, if any is near."""
    others = [k for k in known if k != name]
    near = [k for k in others if k.lower() == name.lower()] or get_close_matches(name, others, n=1, cutoff=0.6)
    return near[0] if near else None


def suggest(name: str, known: Sequence[str]) -> str | None:
    """`did you mean …?` where a spelling is near, else None."""
    near = nearest(name, known)
    return f"did you mean `{near}`?" if near else None
