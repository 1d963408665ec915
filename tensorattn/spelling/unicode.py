"""Unicode → canonical: Greek letters, raised and lowered letters, overlines, operators. ASCII stays as it stands."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tensorattn.source import Source, Span
from tensorattn.spelling import letters as known
from tensorattn.spelling.origins import Reading, Writer

_PLAIN = re.compile(r"[ \t\r\n\f0-9.+\-*/=,:;|!&@$%~`\"?{}\\]+|#[^\n]*")
_INDEX_FOLLOWS = re.compile(r"[\^_]")


def read_unicode(source: Source) -> Reading:
    """The canonical pieces of a Unicode text."""
    return _Reader(source).read()


@dataclass(slots=True)
class _Word:
    """A run of letters, digits and primes with the marks above them."""

    span: Span
    letters: list[str]
    tail: str
    marks: list[str]
    greek: bool

    @property
    def stem(self) -> str:
        others = "".join(mark for mark in self.marks if mark != "bar")
        return "".join(self.letters) + others + self.tail

    @property
    def name(self) -> str:
        return "".join(self.letters) + "".join(self.marks) + self.tail


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source, self.text, self.at = source, source.text, 0
        self.writer = Writer(source)
        self.open: list[str] = []

    def read(self) -> Reading:
        while self.at < len(self.text) and not self.writer.is_full:
            self._next()
        return self.writer.reading()

    def _next(self) -> None:
        character = self.text[self.at]
        plain = _PLAIN.match(self.text, self.at)
        if plain:
            self._emit(plain.group(), plain.end())
        elif character in "^_":
            self._script()
        elif character in "()[]<>⟨⟩":
            self._bracket(character)
        elif self._begins_word(self.at):
            self._word()
        elif known.script(character) is not None:
            self._raised(known.script(character))  # type: ignore[arg-type]
        else:
            self._sign(character)

    def _emit(self, text: str, end: int) -> None:
        self.writer.put(text, Span(self.at, end))
        self.at = end

    def _complain(self, code: str, what: str, hint: str, end: int) -> None:
        self.writer.complain(code, what, Span(self.at, end), hint)
        if self.writer.pieces and self.writer.pieces[-1].text in ("^", "_"):
            self.writer.put("i", Span(self.at, end))  # the rest can be read on
        self.writer.put(" ", Span(end, end))  # the words on both sides do not join
        self.at = end

    # Brackets and scripts

    def _bracket(self, character: str) -> None:
        group = self.open[-1:] == ["<"]
        if character == "⟨" or (character == "⟩" and not group):
            what = f"`{character}` stands where no index group is {'opened' if character == '⟨' else 'closed'}"
            hint = "index groups are written x^⟨μ ν⟩ and x_⟨i j⟩; a comparison is written with < or >"
            self._complain("E-CHAR", what, hint, self.at + 1)
            return
        if character in "([":
            self.open.append(character)
        elif self.open and (character in ")]" or (character in ">⟩" and group)):
            self.open.pop()
        self._emit(">" if character == "⟩" else character, self.at + 1)

    def _script(self) -> None:
        following = self.text[self.at + 1 : self.at + 2]
        if following in ("<", "⟨"):
            self._emit(self.text[self.at], self.at + 1)
            self.open.append("<")
            self._emit("<", self.at + 1)
            return
        mark, start = self.text[self.at], self.at
        self.at += 1
        word = self._read_word() if self._begins_word(self.at) else None
        if word is None:
            self.writer.put(mark, Span(start, start + 1))
        elif not self._sound(word):
            self.writer.put(f"{mark}i", word.span)
        elif "bar" in word.marks:
            self.writer.put(f"{mark}<", Span(start, start + 1))
            self._bar(word)
            self.writer.put(">", Span(self.at, self.at))
        else:
            self.writer.put(mark, Span(start, start + 1))
            self._put_name(word)

    def _raised(self, first: tuple[str, str]) -> None:
        """A run of raised, or of lowered, signs: one letter is one index."""
        start, mark = self.at, first[0]
        run: list[_Word] = []
        while self.at < len(self.text):
            sign = known.script(self.text[self.at])
            if sign is None or sign[0] != mark:
                break
            begin = self.at
            self.at += 1
            marks, tail = self._marks(), self._primes()
            run.append(_Word(Span(begin, self.at), [sign[1]], tail, marks, True))
        names = [word.letters[0] for word in run]
        shown = self.text[start : self.at]
        if refused := refused_run(mark, names, shown, self._owner(start)):
            code, what, hint = refused
            self.writer.complain(code, what, Span(start, self.at), hint)
            self.writer.put(f"{mark}<i>", Span(start, self.at))
            return
        self.writer.put(f"{mark}<", Span(start, start))
        for number, word in enumerate(run):
            self.writer.put(" " if number else "", Span(word.span.start, word.span.start))
            if self._sound(word) and "bar" in word.marks:
                self._bar(word)
            else:
                self.writer.put(word.name, word.span)
        self.writer.put(">", Span(self.at, self.at))

    def _owner(self, at: int) -> str:
        """The name that stands right before."""
        found = re.search(r"[^\W\d_]\w*$", self.text[max(at - 20, 0) : at])
        return found.group() if found else "x"

    # Words

    def _begins_word(self, at: int) -> bool:
        return at < len(self.text) and known.word_of(known.parts(self.text[at])[0]) is not None

    def _word(self) -> None:
        word = self._read_word()
        if not self._sound(word):
            return
        follows = self.text[self.at : self.at + 1]
        is_tensor = _INDEX_FOLLOWS.match(follows) or (follows and known.script(follows) is not None)
        if "bar" in word.marks and self.open[-1:] == ["<"] and not is_tensor:
            self._bar(word)
        else:
            self._put_name(word)

    def _read_word(self) -> _Word:
        start, names, marks, tail, greek = self.at, [], [], "", False
        while self.at < len(self.text):
            base, *over = known.parts(self.text[self.at])
            name = known.word_of(base)
            if name is not None and not tail.endswith("'"):
                names.append(tail + name)
                tail = ""
                greek = greek or not base.isascii()
            elif base.isascii() and base.isdigit() and not over and not tail.endswith("'"):
                tail += base
            else:
                break
            self.at += 1
            marks += [known.MARKS.get(mark, mark) for mark in over] + self._marks()
            tail += self._primes()
        return _Word(Span(start, self.at), names, tail, marks, greek)

    def _marks(self) -> list[str]:
        """The combining marks that stand here, ours by name."""
        start = self.at
        while self.at < len(self.text) and known.is_combining(self.text[self.at]):
            self.at += 1
        return [known.MARKS.get(mark, mark) for mark in self.text[start : self.at]]

    def _primes(self) -> str:
        start = self.at
        while self.text[self.at : self.at + 1] in known.PRIMES:
            self.at += 1
        return "".join(known.PRIMES[prime] for prime in self.text[start : self.at])

    def _sound(self, word: _Word) -> bool:
        """Whether a word is one name; else it is complained of."""
        shown, count = self.writer.text(word.span), len(word.letters)
        foreign = [mark for mark in word.marks if len(mark) == 1]
        if "\u20d7" in foreign:
            what, hint = "an arrow hides the index that the vector has", f"write the index: {word.letters[0]}_⟨i c⟩"
            self.writer.complain("E-VEC", what, word.span, hint)
        elif foreign:
            what = f"the mark U+{ord(foreign[0]):04X} in `{shown}` means nothing here"
            self.writer.complain("E-CHAR", what, word.span, "an overline, a macron, a tilde or a hat may stand there")
        elif word.marks.count("bar") > 1 or (word.marks and count > 1):
            parts = " ".join(re.sub(r"\W", "", letter) for letter in word.letters)
            what = f"a mark over `{shown}` is not over one letter"
            hint = f"write bar({parts}) for one softmax over all, bar({parts.replace(' ', ') bar(')}) for one each"
            self.writer.complain("E-OVERLINE", what, word.span, hint)
        elif word.greek and count > 1:
            apart = re.sub(r"(?<=.)(?=[^\W\d_])", " ", shown)
            what = f"`{shown}` is a run of letters that may be one name or several"
            joined = "".join(word.letters) + word.tail
            self.writer.complain("E-RUN", what, word.span, f"{apart} ({count} names) or {joined} (one name)")
        else:
            return True
        return False

    def _bar(self, word: _Word) -> None:
        self.writer.put("bar(", Span(word.span.start, word.span.start))
        self.writer.put(word.stem, word.span)
        self.writer.put(")", Span(word.span.end, word.span.end))

    def _put_name(self, word: _Word) -> None:
        self.writer.put(word.name, word.span)

    # Signs

    def _sign(self, character: str) -> None:
        rest = self.text[self.at + 1 : self.at + 40].lstrip(" \t")
        if character in known.OPERATORS:
            said = known.OPERATORS[character]
            self._emit(f" {said} " if said.isalpha() else said, self.at + 1)
        elif character in known.PRIMES:
            self._emit(known.PRIMES[character], self.at + 1)
        elif character == "√" and rest.startswith("("):
            self._emit("sqrt", self.at + 1)
        elif character == "∑" and rest.startswith("["):
            self._emit("sum", self.at + 1)
        elif character == "√":
            self._complain("E-SYMBOL", "`√` has no brackets that show how far it reaches", "write √(…)", self.at + 1)
        elif character == "∑":
            self._complain("E-AXIS", "`∑` names no axis", "name the indices it runs over: ∑[j](…)", self.at + 1)
        else:
            self._complain(*refused_sign(character), self.at + 1)


def refused_run(mark: str, names: list[str], shown: str, owner: str = "x") -> tuple[str, str, str] | None:
    """Code, message and repair for raised or lowered signs that are no indices."""
    if mark == "^" and "T" in names:
        what = "`ᵀ` would be a transpose, but index notation has none: the order of indices says it"
        return "E-MATRIX", what, "write the indices, e.g. Q_⟨i d⟩ K_⟨j d⟩; for an index named T write ^⟨T⟩"
    signs = "".join(n.replace("−", "-") for n in names)
    if not all(name.isalpha() for name in names):
        label = f", a label: {owner}{signs}" if signs.isdigit() and owner.isascii() and owner.isalpha() else ""
        if mark == "^":
            hint = f"a power: {owner}**({signs}){label}"
            return "E-POWER", f"`{shown}` is neither an index nor a power here", hint
        slots = " ".join(signs) if signs.isdigit() else re.sub(r"(?<=[^+-])(?=[^\W\d_])", ", ", signs)
        return "E-LABEL", f"`{shown}` may be a label or a position", f"a slot: {owner}_<{slots}>{label}"
    if not all(name.isascii() for name in names):
        return (
            "E-CHAR",
            f"`{shown}` holds a letter that names no index",
            f"write {mark}⟨…⟩ with letters of one alphabet",
        )
    if known.reads_as_word(names):
        hint = (
            f"{mark}⟨{' '.join(names)}⟩ ({len(names)} indices); the word belongs to the name, {owner}word, or in ⟨word⟩"
        )
        return "E-LABEL", f"`{shown}` reads as a word, but each letter is an index", hint
    return None


def refused_sign(character: str) -> tuple[str, str, str]:
    """Code, message and repair for a character that no spelling knows."""
    if character in known.REPAIRS:
        return "E-SYMBOL", f"`{character}` has no meaning here", known.REPAIRS[character]
    shown = f"the character {character!r} (U+{ord(character):04X})"
    if known.is_styled(character):
        plain = known.plain(character)
        return "E-CHAR", f"{shown} is a letter of another alphabet, not `{plain}`", f"write {plain} if that is meant"
    hint = "write names with Latin or Greek letters, operators as + - * / < <= == and or not"
    if not character.isprintable() or character.isspace():
        hint = "it is invisible: remove it, or write a plain space"
    return "E-CHAR", f"{shown} means nothing here", hint
