"""The names of a matrix formula: runs of letters, macros, marks, and the labels behind a name."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NoReturn

from tensorattn.errors import NotationError
from tensorattn.scanning import GREEK
from tensorattn.source import Source, Span
from tensorattn.spelling import macros, tex
from tensorattn.spelling.letters import GREEK_LETTERS, GREEK_MACROS, PRIMES, script
from tensorattn.spelling.matrix import nodes as n
from tensorattn.spelling.matrix import words

TRANSPOSES = macros.TRANSPOSES | {"⊤", "ᵀ", "⊺"}
_STYLES = macros.WORDS | macros.BOLD | macros.ARROWS
MOST_WORDS = 300  # each as often as it stands
_LABEL = re.compile("[A-Za-z0-9]+")


class WordReader:
    """A cursor over the nodes of a text, and the names that are known there: None where they are to be guessed."""

    def __init__(self, source: Source, known: Collection[str] | None) -> None:
        self.source, self.cursor = source, tex.Cursor((), 0)
        self.is_tex = tex.is_tex(source.text)
        self.known, self.guesses = set(known or ()), known is None
        self.words = 0

    def refuse(self, code: str, what: str, span: Span, hint: str) -> NoReturn:
        raise NotationError(code, what, source=self.source, spans=[span], hint=hint)

    def text(self, span: Span) -> str:
        return self.source.text[span.start : span.end]

    def word(self, whole: bool = False) -> n.Word | None:
        """The next name without its scripts, None where none begins. `whole`: a run of letters is one name."""
        node = self.cursor.peek()
        if node is None or node.kind == "group":
            return None
        self.words += 1
        if self.words > MOST_WORDS:
            what = f"the formula has more than {MOST_WORDS} names"
            self.refuse("E-LIMIT", what, node.span, "split it into programs joined by `then`")
        if node.kind == "macro":
            return self.macro_word(node)
        if node.text in GREEK_LETTERS:
            self.cursor.take()
            return n.Word(GREEK_LETTERS[node.text] + self._primes(), Span(node.span.start, self.cursor.behind))
        if not (node.text.isascii() and node.text.isalpha()):
            return None
        run = self._run()
        length = len(run) if whole and not self.is_tex else self._length(run, node.span)
        for _ in range(length):
            self.cursor.take()
        return n.Word(run[:length] + self._primes(), Span(node.span.start, self.cursor.behind))

    def _run(self) -> str:
        """The letters, and in plain text digits, that stand together."""
        letters, ahead = "", 0
        while (node := self.cursor.peek(ahead)) is not None and node.kind == "char" and node.text.isascii():
            if not (node.text.isalpha() or (letters and not self.is_tex and node.text.isdigit())):
                break
            if letters and (node.spaced or self.cursor.nodes[self.cursor.at + ahead - 1].span.end != node.span.start):
                break
            letters += node.text
            ahead += 1
        return letters

    def _length(self, run: str, span: Span) -> int:
        """How many letters of a run are its first name."""
        letters = re.findall("[A-Za-z][0-9]*", run)
        if words.function_of(run) and run not in self.known:
            return len(run)
        apart = len(letters) > 1 and run not in GREEK and all(self._begins_known(letter) for letter in letters)
        if run in self.known:
            if apart and all(letter in self.known for letter in letters):
                what = f"`{run}` is a declared name, and so are all of {', '.join(letters)}"
                self.refuse(
                    "E-NAME", what, Span(span.start, span.start + len(run)), f"write {' '.join(letters)} or rename"
                )
            return len(run)
        if self.is_tex or apart or (self.guesses and run.isupper()):
            return len(letters[0])
        return len(run)

    def _begins_known(self, letter: str) -> bool:
        return any(name.startswith(letter) for name in self.known)

    def _primes(self) -> str:
        found = ""
        while (node := self.cursor.peek()) is not None and node.text in PRIMES and not node.spaced:
            found += PRIMES[self.cursor.take().text]
        return found

    def macro_word(self, node: tex.Node) -> n.Word | None:
        """A name in a macro: Greek, styled, marked, or a function."""
        start = node.span.start
        if node.text in GREEK_MACROS:
            self.cursor.take()
            return n.Word(GREEK_MACROS[node.text] + self._primes(), Span(start, self.cursor.behind))
        if node.text in macros.MARKS or node.text in _STYLES:
            self.cursor.take()
            inner = self.cursor.argument()
            shown = plain(inner) if inner is not None else ""
            shown = GREEK_MACROS.get(shown, shown)
            if not re.fullmatch("[A-Za-z][A-Za-z0-9]*", shown):
                what = f"`{node.text}` holds no name"
                self.refuse("E-SYMBOL", what, Span(start, self.cursor.behind), f"write {node.text}{{W}}")
            name = shown + macros.MARKS.get(node.text, "")
            return n.Word(name + self._primes(), Span(start, self.cursor.behind))
        if node.text not in words.UNCLEAR and words.function_of(node.text[1:]):
            self.cursor.take()
            return n.Word(node.text[1:], Span(start, self.cursor.behind))
        return None

    def scripted(self, word: n.Word) -> n.Word:
        """The name with the labels behind it; a transpose and a power are no labels."""
        lower = upper = ""
        while (node := self.cursor.peek()) is not None and node.kind != "group":
            if node.text == "_" or (node.text == "^" and self._labels()):
                self.cursor.take()
                label = self.label(node)
            elif (found := _lowered_or_raised(node.text)) is not None:
                self.cursor.take()
                mark, label = found
                node = tex.Token("char", mark, node.span)
            else:
                break
            if node.text == "_":
                lower += label
            else:
                upper += label
        scripts = (f"_{lower}" if lower else "") + (f"^{upper}" if upper else "")
        stem = word.text.rstrip("'")
        name = stem + lower + upper + word.text[len(stem) :]  # primes end a name
        return n.Word(name, Span(word.span.start, self.cursor.behind), scripts)

    def _labels(self) -> bool:
        """Whether what follows `^` is a label: letters that are no transpose, or anything in parentheses in braces."""
        node = self.cursor.peek(1)
        if node is None or plain(node) in TRANSPOSES:
            return False
        shown = plain(node)
        if node.kind == "group" and re.fullmatch(r"\([A-Za-z0-9]+\)", shown):
            return True
        return bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", GREEK_MACROS.get(shown, shown)))

    def label(self, mark: tex.Node) -> str:
        """The label behind `_` or `^`."""
        node = self.cursor.argument()
        if node is None:
            self.refuse("E-SYNTAX", f"`{mark.text}` stands before nothing", mark.span, "write W_q or W^{q}")
        if not self.is_tex and _LABEL.fullmatch(node.text):
            shown = node.text
            while (after := self.cursor.peek()) and not after.spaced and _LABEL.fullmatch(after.text):
                shown += self.cursor.take().text
        else:
            shown = plain(node).strip("()")
        shown = GREEK_MACROS.get(shown, shown)
        if not _LABEL.fullmatch(shown):
            what = f"`{self.text(mark.span | node.span)}` is no label of a name"
            hint = "a label is letters and digits, e.g. W_q or W^{q}; in a matrix formula names have no indices"
            self.refuse("E-LABEL", what, mark.span | node.span, hint)
        return shown


def _lowered_or_raised(sign: str) -> tuple[str, str] | None:
    """`("_", "k")` for ₖ; None for what is no label: a raised T, a raised digit, a sign on the line."""
    found = script(sign) if len(sign) == 1 else None
    if found is None or not _LABEL.fullmatch(found[1]) or (found[0] == "^" and (found[1] == "T" or found[1].isdigit())):
        return None
    return found


def plain(node: tex.Node) -> str:
    r"""The letters of a token or a group, without braces and styles: `{\text{head}}` is `head`."""
    if isinstance(node, tex.Group):
        return "".join(plain(part) for part in node.nodes)
    if node.text in _STYLES:
        return ""
    return node.text
