"""Einsum strings → tree: NumPy's and torch's letters, einops' words between spaces."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, count
from typing import Literal, NoReturn

from tensorattn import tree as t
from tensorattn.errors import NotationError, suggest
from tensorattn.names import CONSTANTS
from tensorattn.program import Program
from tensorattn.resolving import BARE, resolve
from tensorattn.scanning import LONGEST_TEXT, MOST_AXES, RESERVED, WORD
from tensorattn.source import Source, Span
from tensorattn.spelling.letters import GREEK_LETTERS

Style = Literal["letters", "words"]
MOST_OPERANDS = 500

_LETTER = "A-Za-z" + "".join(GREEK_LETTERS)
_PIECE = re.compile(
    r"(?P<space>\s+)|(?P<batch>\.\.\.|…)|(?P<arrow>->|→)|(?P<comma>,)|(?P<open>\()|(?P<close>\))"
    rf"|(?P<word>[{_LETTER}][{_LETTER}0-9_]*)|(?P<other>.)",
    re.DOTALL,
)
_EINSUM = re.compile(rf"[\s{_LETTER}0-9_.…,()>→-]+")
_WORDS = re.compile(rf"[{_LETTER}0-9_]\s+[{_LETTER}0-9_]|[{_LETTER}][0-9_]")  # what only the words of einops have
_WRITTEN = 'e.g. "ij,jk->ik" or "batch row, row column -> batch column"'


@dataclass(frozen=True, slots=True)
class Term:
    """The axes of one operand, or of the result, and where they stand."""

    slots: tuple[t.SlotNode, ...]
    span: Span

    @property
    def names(self) -> tuple[t.Name, ...]:
        return tuple(n for slot in self.slots for n in _names(slot))

    @property
    def batch(self) -> t.BatchSlot | None:
        return next((s for s in self.slots if isinstance(s, t.BatchSlot)), None)


def from_einsum(
    subscripts: str, names: str | Sequence[str] | None = None, *, result: str = BARE, style: Style | None = None
) -> Program:
    """The program of an einsum string.

    Letters as NumPy and torch read them (spaces mean nothing; without `->` the result has the letters that occur once,
    in alphabetical order), or the words of einops, which spaces separate; `...` stands for leading batch axes, `(h d)`
    for one axis read as two. Which of both is seen from the string: words if two stand in one operand. A letter in one
    operand that the result lacks is summed, a letter twice in one operand is its diagonal.

    `names`: of the operands, in order, `"q k"` or a sequence; one name twice is one input. Default: A, B, ….
    `result`: the name of the result. `style`: `"letters"` or `"words"`, where the string could be either.

    >>> print(from_einsum("bhid,bhjd->bhij", "q k", result="s"))
    s_<b h i j> = q_<b h i d> k_<b h j d>
    >>> print(from_einsum("ij->i"))
    out_i = sum[j](A_<i j>)

    Raises: NotationError.
    """
    if not isinstance(subscripts, str):
        what = f"an einsum string is a text, not {type(subscripts).__name__}"
        raise NotationError("E-EINSUM", what, hint=f"write subscripts, {_WRITTEN}; arrays are given at the call")
    if style not in (None, "letters", "words"):
        raise NotationError("E-EINSUM", f"there is no style {style!r}", hint='it is "letters" or "words"')
    return read_einsum(Source(subscripts, None, "einsum"), names, result, style)


def read_einsum(
    source: Source, names: str | Sequence[str] | None = None, result: str = BARE, style: Style | None = None
) -> Program:
    """`from_einsum` of a source. Raises: NotationError."""
    reader = _Reader(source, style)
    operands, left = reader.terms()
    called = _operand_names(source, names, operands, left)
    _check_name(source, result)
    target = t.Reference(t.Name(result, left.span), left.slots, 0, left.span, bool(left.slots))
    if result in called:
        what = f"`{result}` names an operand and the result"
        raise NotationError("E-EINSUM", what, hint="give the result a name of its own: result=…")
    references = [
        t.Reference(t.Name(name, term.span), term.slots, 0, term.span, bool(term.slots))
        for name, term in zip(called, operands, strict=True)
    ]
    whole = operands[0].span | operands[-1].span
    body: t.Tree = references[0]
    if len(references) > 1:
        body = t.ProductNode(tuple(references), ("*",) + (" ",) * (len(references) - 1), whole)
    lone = _lone(operands, left)
    if lone:
        body = t.Binding("sum", lone, None, (), body, whole)
    return resolve(source, (t.StatementNode(target, body, Span(0, len(source.text))),))


def looks_like_einsum(text: str) -> bool:
    """Whether a text can only be an einsum string: an arrow, and nothing that a formula has."""
    return bool(re.search("->|→", text)) and bool(_EINSUM.fullmatch(text))


def _lone(operands: Sequence[Term], left: Term) -> tuple[t.Name, ...]:
    """The axes that stand once and are not in the result: a formula says their sum."""
    kept = {n.text for n in left.names}
    found: dict[str, list[t.Name]] = {}
    for name in chain.from_iterable(term.names for term in operands):
        found.setdefault(name.text, []).append(name)
    return tuple(names[0] for text, names in found.items() if len(names) == 1 and text not in kept)


def _names(slot: t.SlotNode) -> tuple[t.Name, ...]:
    match slot:
        case t.SplitSlot(names=names):
            return names
        case t.AffineSlot() if slot.plain is not None:
            return (slot.plain,)
        case _:
            return ()


# names of operands ----------------------------------------------------------------------------------------------------


def _operand_names(
    source: Source, names: str | Sequence[str] | None, operands: Sequence[Term], left: Term
) -> tuple[str, ...]:
    if names is None:
        return _invented({n.text for term in (*operands, left) for n in term.names}, len(operands))
    called = tuple(names.replace(",", " ").split()) if isinstance(names, str) else tuple(names)
    if len(called) != len(operands):
        what = f"{len(operands)} operand(s) stand in the einsum string, {len(called)} name(s) are given"
        facts = [f"operands: {', '.join(source.text[o.span.start : o.span.end] or '(a scalar)' for o in operands)}"]
        facts.append(f"names: {', '.join(map(str, called)) or 'none'}")
        raise NotationError(
            "E-EINSUM",
            what,
            source=source,
            spans=[o.span for o in operands],
            facts=facts,
            hint="give one name for each operand, in order; one name twice is one input",
        )
    axes = {n.text for term in (*operands, left) for n in term.names}
    for name, term in zip(called, operands, strict=True):
        _check_name(source, name, term)
        if not term.slots and name in axes:
            what = f"the scalar `{name}` has the name of an axis"
            hint = f'rename it, e.g. "{_invented({*axes, *called}, 1)[0]}"'
            raise NotationError("E-NAME", what, source=source, spans=[term.span], hint=hint)
    return called


def _check_name(source: Source, name: object, term: Term | None = None) -> None:
    spans = [term.span] if term is not None else []
    if not isinstance(name, str) or not re.fullmatch(WORD, name):
        hint = "a name is letters, digits and primes, e.g. q or W1"
        raise NotationError("E-EINSUM", f"{name!r} is no name of a tensor", source=source, spans=spans, hint=hint)
    if name in RESERVED:
        hint = f"choose another name; reserved are: {', '.join(sorted(RESERVED))}"
        raise NotationError("E-RESERVED", f"`{name}` is a reserved word", source=source, spans=spans, hint=hint)
    if term is not None and name in CONSTANTS and len(term.names) >= CONSTANTS[name]:
        what = f"`{name}` with {len(term.names)} indices is a constant of the notation, not an input"
        raise NotationError("E-NAME", what, source=source, spans=spans, hint=f'rename the operand, e.g. "{name}1"')


def _invented(axes: set[str], number: int) -> tuple[str, ...]:
    """A, B, … without the names of axes."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    names = (name for name in chain(letters, (f"A{n}" for n in count(1))) if name not in axes)
    return tuple(next(names) for _ in range(number))


# the string -----------------------------------------------------------------------------------------------------------


class _Reader:
    """The pieces of one einsum string, read from left to right."""

    def __init__(self, source: Source, style: Style | None) -> None:
        self.source = source
        if len(source.text) > LONGEST_TEXT:
            what = f"the einsum string has {len(source.text)} characters, more than {LONGEST_TEXT}"
            raise NotationError("E-LIMIT", what, source=source, spans=[Span(0, 1)], hint="split the contraction")
        if not source.text.strip():
            self.refuse("E-EINSUM", "the einsum string is empty", Span(0, 0), f"write subscripts, {_WRITTEN}")
        self.words = style == "words" or (style is None and bool(_WORDS.search(source.text)))

    def refuse(self, code: str, what: str, *where: Span | str) -> NoReturn:
        """Raises; `where`: the spans, then what to write instead."""
        *spans, hint = where
        raise NotationError(code, what, source=self.source, spans=spans, hint=str(hint))

    def terms(self) -> tuple[tuple[Term, ...], Term]:
        """The operands and the result."""
        sides: list[list[list[re.Match[str]]]] = [[[]]]
        ends: list[list[int]] = [[]]  # where each term ends
        arrow = None
        for piece in _PIECE.finditer(self.source.text):
            kind = piece.lastgroup
            if kind == "arrow" and arrow is not None:
                self.refuse("E-EINSUM", "two arrows", arrow, Span(*piece.span()), "write one `->`, before the result")
            if kind in ("arrow", "comma"):
                ends[-1].append(piece.start())
            if kind == "arrow":
                arrow = Span(*piece.span())
                sides.append([[]])
                ends.append([])
            elif kind == "comma" and arrow is not None:
                self.refuse(
                    "E-EINSUM",
                    "the result is one array",
                    Span(*piece.span()),
                    "write one result; its axes are separated by spaces or by nothing",
                )
            elif kind == "comma":
                sides[-1].append([])
            elif kind != "space":
                sides[-1][-1].append(piece)
        ends[-1].append(len(self.source.text))
        if len(sides[0]) > MOST_OPERANDS:
            what = f"{len(sides[0])} operands, more than {MOST_OPERANDS}"
            self.refuse("E-LIMIT", what, Span(0, 1), "contract some of them first")
        operands = tuple(self.term(pieces, end) for pieces, end in zip(sides[0], ends[0], strict=True))
        left = self.term(sides[1][0], ends[1][0]) if arrow is not None else self.implicit(operands)
        self.check_result(operands, left)
        return operands, left

    def term(self, pieces: list[re.Match[str]], end: int) -> Term:
        """One operand or the result."""
        slots: list[t.SlotNode] = []
        group: list[t.Name] | None = None
        opened = end
        for piece in pieces:
            span = Span(*piece.span())
            match piece.lastgroup:
                case "batch" if slots or group is not None:
                    hint = "write `...` first; an operand with other axes before it takes a name for each batch axis"
                    self.refuse("E-BATCH", "`...` stands behind an axis: it stands for leading axes", span, hint)
                case "batch":
                    slots.append(t.BatchSlot(span))
                case "open" if group is None:
                    group, opened = [], span.start
                case "close" if group and len({n.text for n in group}) < len(group):
                    hint = "name each part of a merged axis once"
                    self.refuse("E-LHSDUP", "an axis repeats within one group", Span(opened, span.end), hint)
                case "close" if group:
                    slots.append(t.SplitSlot(tuple(group), Span(opened, span.end)))
                    group = None
                case "word":
                    names = tuple(self.axes(piece))
                    if group is not None:
                        group.extend(names)
                    else:
                        slots.extend(t.AffineSlot((t.AffineTerm(1, n),), n.span) for n in names)
                case _:
                    self.stray(piece, span)
        if group is not None:
            self.refuse("E-EINSUM", "a parenthesis is not closed", Span(opened, opened + 1), "write (h d)")
        start = pieces[0].start() if pieces else end
        if len(slots) > MOST_AXES:
            what = f"an array of {len(slots)} axes, more than the {MOST_AXES} that array libraries hold"
            self.refuse("E-LIMIT", what, Span(start, end), "merge axes: (i j)")
        return Term(tuple(slots), Span(start, pieces[-1].end() if pieces else end))

    def axes(self, piece: re.Match[str]) -> Iterator[t.Name]:
        """The axes of a word: its letters, or itself."""
        word, start = piece.group(), piece.start()
        if not self.words:
            for at, letter in enumerate(word, start):
                yield t.Name(GREEK_LETTERS.get(letter, letter), Span(at, at + 1))
            return
        word = GREEK_LETTERS.get(word, word)
        if not word.isascii():
            hint = "write Greek letters apart, or their names: mu nu"
            self.refuse("E-CHAR", f"{word} is a run with Greek letters", Span(*piece.span()), hint)
        if "_" in word:
            hint = f"write {word.replace('_', '')}; names are letters and digits"
            self.refuse("E-CHAR", f"`_` is no part of the name of an axis, as in {word}", Span(*piece.span()), hint)
        if word in RESERVED:
            hint = f"choose another name; reserved are: {', '.join(sorted(RESERVED))}"
            self.refuse("E-RESERVED", f"`{word}` is a reserved word and names no index", Span(*piece.span()), hint)
        yield t.Name(word, Span(start, piece.end()))

    def stray(self, piece: re.Match[str], span: Span) -> NoReturn:
        """Raises what is wrong with a character that begins no axis."""
        text = piece.group()
        if text == "1" or text == "0" or text.isdecimal():
            hint = "take the axis of size 1 out of the array before, e.g. x[:, 0], or give it a name"
            self.refuse("E-EINSUM", f"`{text}` is no axis: axes have names", span, hint)
        if text in "()":
            self.refuse("E-EINSUM", f"`{text}` does not fit", span, "a merged axis is written (h d), not nested")
        if text in "[]":
            self.refuse("E-EINSUM", f"`{text}` is no part of an einsum string", span, "what the result lacks is summed")
        hint = f"an einsum string has axes, commas, `...` and one `->`, {_WRITTEN}"
        if text in "^_=<>{}\\":
            hint += '; formulas are read by ta.parse("y_i = A_<i j> x_j")'
        self.refuse("E-CHAR", f"the character {text!r} means nothing in an einsum string", span, hint)

    def implicit(self, operands: tuple[Term, ...]) -> Term:
        """The result that a string without an arrow has: `...`, then what occurs once, in alphabetical order."""
        end = Span(len(self.source.text), len(self.source.text))
        if self.words:
            hint = "write `->` and the axes of the result; only letters as in NumPy imply one"
            self.refuse("E-EINSUM", "the result is missing", end, hint)
        names = [n for term in operands for n in term.names]
        counts = Counter(n.text for n in names)
        once = [n for n in names if counts[n.text] == 1]
        batch = next((b for term in operands if (b := term.batch)), None)
        slots = [t.AffineSlot((t.AffineTerm(1, n),), n.span) for n in sorted(once, key=lambda n: n.text)]
        return Term((*((batch,) if batch else ()), *slots), end)

    def check_result(self, operands: tuple[Term, ...], left: Term) -> None:
        """What holds of the result: each axis once, each from an operand, and `...` on both sides or on none."""
        known = dict.fromkeys(n.text for term in operands for n in term.names)
        places: dict[str, list[Span]] = {}
        for name in left.names:
            places.setdefault(name.text, []).append(name.span)
        for name, spans in places.items():
            if len(spans) > 1:
                hint = f"name each axis once; a diagonal matrix is a formula: D_<{name} k> = a_{name} delta_<{name} k>"
                self.refuse("E-LHSDUP", f"the axis {name} repeats in the result", *spans, hint)
            if name not in known:
                near = suggest(name, list(known))
                hint = near or "use it in an operand; an einsum string cannot broadcast"
                self.refuse("E-UNDETERMINED", f"the axis {name} of the result stands in no operand", *spans, hint)
        batches = [b.span for term in operands if (b := term.batch)]
        if left.batch and not batches:
            hint = "remove it, or write `...` where an operand has batch axes"
            self.refuse("E-BATCH", "`...` stands in the result and in no operand", left.batch.span, hint)
        if batches and not left.batch:
            hint = "write `...` in the result too; to sum batch axes give them names"
            self.refuse("E-BATCH", "`...` stands in an operand and not in the result", *batches, hint)
