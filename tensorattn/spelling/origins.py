"""Where each character of the canonical text comes from in the text that the user pasted."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tensorattn.errors import NotationError
from tensorattn.source import Source, Span

MOST_COMPLAINTS = 50


@dataclass(frozen=True, slots=True)
class Piece:
    """Canonical text, and the range of the pasted text that it stands for (empty: a sign that was only implied)."""

    text: str
    span: Span


@dataclass(frozen=True)
class Reading:
    """A pasted text as canonical pieces, and what its reader complains of. Spans outside are those of the pasted text;
    this is the one place that knows of others."""

    source: Source
    pieces: tuple[Piece, ...]
    complaints: tuple[NotationError, ...] = ()

    @cached_property
    def canonical(self) -> Source:
        """The canonical text, under the name of the pasted one."""
        return Source("".join(p.text for p in self.pieces), self.source.name)

    @cached_property
    def _starts(self) -> list[int]:
        starts, at = [], 0
        for piece in self.pieces:
            starts.append(at)
            at += len(piece.text)
        return starts

    def origin(self, span: Span) -> Span:
        """The pasted range of a canonical one."""
        size = len(self.canonical.text)
        if not self.pieces or span.start >= size:
            end = len(self.source.text)
            return Span(end, end + span.end - span.start)
        start = self._place(span.start)[0]
        return Span(start, max(start, self._place(max(span.end - 1, span.start))[1]))

    def _place(self, offset: int) -> tuple[int, int]:
        """The pasted range of one canonical character: itself in a verbatim piece, else all of the piece."""
        number = bisect_right(self._starts, offset) - 1
        piece = self.pieces[number]
        if len(piece.text) != piece.span.end - piece.span.start:
            return piece.span.start, piece.span.end
        at = piece.span.start + offset - self._starts[number]
        return at, at + 1

    def merged(self, found: list[NotationError]) -> list[NotationError]:
        """The reader's complaints, and those about the canonical text that stand before them: the rest may follow."""
        first = min((c.spans[0] for c in self.complaints), default=None)
        moved = [self._moved(error) for error in found]
        return [*self.complaints, *(m for m in moved if first is None or m.spans[0] < first)]

    def _moved(self, error: NotationError) -> NotationError:
        """A complaint about the canonical text, as one about the pasted text."""
        return NotationError(
            error.code,
            error.what,
            source=self.source,
            spans=[self.origin(span) for span in error.spans],
            facts=error.facts,
            hint=error.hint,
        )

    def relocate(self, node: Any) -> None:
        """Moves the tokens and the trees of a parse to the pasted text, in place."""
        waiting = [] if node is None else [node]
        while waiting:
            place = waiting.pop()
            if hasattr(place, "data"):
                waiting.extend(place.children)
                place = place.meta
                if place.empty:
                    continue
            moved = self.origin(Span(place.start_pos, place.end_pos))
            place.start_pos, place.end_pos = moved.start, moved.end


@dataclass
class Writer:
    """Collects the pieces of a canonical text, and complaints, in reading order."""

    source: Source
    pieces: list[Piece] = field(default_factory=list)
    complaints: list[NotationError] = field(default_factory=list)
    is_full: bool = False  # there is no use in reading on

    def put(self, text: str, span: Span) -> None:
        """A piece that may touch the one before it."""
        if text:
            self.pieces.append(Piece(text, span))

    def apart(self, text: str, span: Span) -> None:
        """A piece after a space."""
        self.put(" ", Span(span.start, span.start))
        self.put(text, span)

    def complain(self, code: str, what: str, span: Span, hint: str, *facts: str) -> None:
        """A complaint about the pasted text."""
        if not self.is_full:
            error = NotationError(code, what, source=self.source, spans=[span], facts=facts, hint=hint)
            self.complaints.append(error)
        self.is_full = self.is_full or len(self.complaints) >= MOST_COMPLAINTS

    def text(self, span: Span) -> str:
        """What the user wrote there."""
        return self.source.text[span.start : span.end]

    def reading(self) -> Reading:
        """What was read."""
        return Reading(self.source, tuple(self.pieces), tuple(self.complaints))
