"""Text and spans: where in the user's text a thing stands, and the one place that draws carets."""

from __future__ import annotations

from dataclasses import dataclass
from unicodedata import combining


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Half-open range of characters in a source text."""

    start: int
    end: int

    def __or__(self, other: Span) -> Span:
        return Span(min(self.start, other.start), max(self.end, other.end))


@dataclass(frozen=True, slots=True)
class Source:
    """The text a program was read from; `name` is a file name or None, `spelling` None where it is found by itself."""

    text: str
    name: str | None = None
    spelling: str | None = None

    def line_of(self, offset: int) -> tuple[int, int, str]:
        """Line number (from 1), column (from 1) and the line that holds `offset`."""
        offset = min(max(offset, 0), len(self.text))
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return self.text.count("\n", 0, start) + 1, offset - start + 1, line

    def draw(self, spans: tuple[Span, ...]) -> str:
        """The lines that hold `spans`, each with a caret under every offending character."""
        marks: dict[int, tuple[str, set[int]]] = {}
        for span in spans:
            number, column, line = self.line_of(span.start)
            columns = marks.setdefault(number, (line, set()))[1]
            stop = min(column + max(span.end - span.start, 1), len(line) + 2)
            columns.update(range(column, max(stop, column + 1)))
        drawn = []
        for number in sorted(marks):
            line, columns = marks[number]
            head = f"{number:>4} | "
            wide = [c for c in range(1, max(columns, default=0) + 1) if not combining(line[c - 1 : c] or " ")]
            carets = "".join("^" if c in columns else " " for c in wide)
            shown = "".join(c if c.isprintable() else " " for c in line).rstrip()
            drawn += [head + shown, " " * len(head) + carets]
        return "\n".join(drawn)
