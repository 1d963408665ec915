"""Text of an `.attn` file of the library → `Entry`.

The file begins with comment lines `# field: text`; a line `#   more` goes on with the field before it. `shapes` holds
`name axes` separated by `;`, each with `: positive`, `: truth` or `: below index` where its entries are not any real
numbers. `sizes` and `example` hold `index number` separated by `,`.
"""

from __future__ import annotations

from tensorattn.errors import NotationError
from tensorattn.library.entry import KINDS, Entry, InputShape

VERSION = "1"
FIELDS = ("notation", "title", "source", "shapes", "sizes", "example", "equals", "notes")


def read_entry(name: str, text: str) -> Entry:
    """The entry of one formula file.

    Raises:
        NotationError: a field is unknown, the title or source is missing, or the notation's version is another.
    """
    fields = _fields(name, text)
    if fields.get("notation") != VERSION:
        raise NotationError(
            "E-SYNTAX",
            f"`{name}.attn` is written in notation {fields.get('notation', 'unknown')}",
            hint=f"this version reads notation {VERSION}: begin the file with `# notation: {VERSION}`",
        )
    return Entry(
        name=name,
        text=text,
        title=fields.get("title", ""),
        source=fields.get("source", ""),
        equals=fields.get("equals", ""),
        notes=fields.get("notes", ""),
        shapes=tuple(_shape(part) for part in _parts(fields.get("shapes", ""), ";")),
        sizes=tuple(_size(part) for part in _parts(fields.get("sizes", ""), ",")),
        example_sizes=tuple(_size(part) for part in _parts(fields.get("example", ""), ",")),
    )


def _fields(name: str, text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    last = ""
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        if line.startswith("#  ") and last:
            fields[last] += " " + line[1:].strip()
            continue
        last, _, content = (part.strip() for part in line[1:].partition(":"))
        if last not in FIELDS:
            raise NotationError("E-SYNTAX", f"`{name}.attn`: no field `{last}`", facts=["fields: " + ", ".join(FIELDS)])
        fields[last] = content
    return fields


def _parts(text: str, separator: str) -> list[str]:
    return [part.strip() for part in text.split(separator) if part.strip()]


def _shape(text: str) -> InputShape:
    names, _, kind = (part.strip() for part in text.partition(":"))
    name, *axes = names.split()
    word, _, below = (kind or "normal").partition(" ")
    for known in KINDS:
        if word == known:
            return InputShape(name, tuple(axes), known, below.strip() or None)
    raise NotationError("E-SYNTAX", f"no kind of entries `{word}`", facts=["kinds: " + ", ".join(KINDS)])


def _size(text: str) -> tuple[str, int]:
    index, size = text.split()
    return index, int(size)
