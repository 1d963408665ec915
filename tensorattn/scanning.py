"""Text → complaints about single characters and words, before the grammar sees the text.

These rules concern what touches what (`M_ij`, `K^1`, `beta (x)`, `{`), which a grammar over tokens cannot say well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tensorattn.errors import NotationError
from tensorattn.ir import FUNCTIONS, NORMALISERS, REDUCTIONS
from tensorattn.source import Source, Span

GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi "
    "psi omega"
).split()
BINDERS = (*NORMALISERS, "softmax1", *REDUCTIONS, "top", "cat")
RESERVED = frozenset({*FUNCTIONS, *BINDERS, "bar", "and", "or", "not"})
LONGEST_TEXT = 100_000
DEEPEST_BRACKETS = 50
MOST_CONDITIONS = 500  # comparisons and logical words in one text
MOST_AXES = 60  # array libraries stop at 64
MOST_DIGITS = 15

OTHER_NAMES = {
    "ln": "log(…)", "log2": "log(…) / log(2)", "log10": "log(…) / log(10)", "log1p": "log(1 + …)",
    "expm1": "exp(…) - 1", "exp2": "2**(…)", "pow": "a**b", "power": "a**b", "square": "a**2", "rsqrt": "1 / sqrt(…)",
    "tan": "sin(…) / cos(…)", "swish": "silu(…)", "logistic": "sigmoid(…)", "logsumexp": "lse[j](…)",
}  # fmt: skip
BETWEEN_TWO = {"max": "maximum(a, b)", "min": "minimum(a, b)"}  # what the reduction of that name is not

WORD = r"[A-Za-z][A-Za-z0-9]*'*"
_TOKEN = re.compile(
    rf"(?P<comment>#[^\n]*)|(?P<open>[\^_]<|[(\[])|(?P<script>[\^_](?P<space>[ \t\r\n]*)(?P<index>{WORD}|[0-9]+|.|$))"
    rf"|(?P<word>leaky_relu(?![A-Za-z0-9'])|{WORD})|(?P<number>[0-9.]+)|(?P<close>[)\]>])|(?P<brace>[{{}}\\$])|(?P<other>.)",
    re.DOTALL,
)


def is_one_index(word: str) -> bool:
    """Whether a script without brackets names exactly one index: a letter or a Greek name, with digits and primes."""
    stem = word.rstrip("'").rstrip("0123456789")
    return len(stem) == 1 or stem.lower() in GREEK


def check_length(source: Source) -> list[NotationError]:
    """The complaint about a text that is too long."""
    if len(source.text) <= LONGEST_TEXT:
        return []
    what = f"the text has {len(source.text)} characters, more than {LONGEST_TEXT}"
    return [_error(source, Span(0, 1), "E-LIMIT", what, "split it into programs joined by `then`")]


LOOK_BACK = 80  # characters before a place that are read again: the name that stands there
_TOUCHED = re.compile(rf"[\^_](?:<[^<>]*>|{WORD})$")
_ARGUMENT = re.compile(rf"\(\s*({WORD}(?:\s*[+-]\s*[0-9]+)?)\s*\)")


def scan(source: Source) -> list[NotationError]:
    """All complaints about characters and words, in reading order."""
    if too_long := check_length(source):
        return too_long
    conditions = re.findall(r"\band\b|\bor\b|[<>=!]=", source.text)
    if len(conditions) > MOST_CONDITIONS:
        what = f"the text has {len(conditions)} conditions, more than {MOST_CONDITIONS}"
        return [_error(source, Span(0, 1), "E-LIMIT", what, "pass a boolean tensor")]
    found: list[NotationError] = []
    stack: list[str] = []  # open brackets, and each `not` whose operand has not ended
    last = ""
    for match in _TOKEN.finditer(source.text):
        kind = str(match.lastgroup if match.lastgroup not in ("space", "index") else "script")
        _nest(stack, kind, match.group(), last)
        last = last if match.group().isspace() or kind == "comment" else match.group()
        if len(stack) > DEEPEST_BRACKETS:
            what = f"brackets or `not` are nested more than {DEEPEST_BRACKETS} deep"
            return [
                *found,
                NotationError(
                    "E-LIMIT",
                    what,
                    source=source,
                    spans=[Span(*match.span())],
                    hint="use a statement for an inner part",
                ),
            ]
        found.extend(_complaints(source, match, kind, "<" in stack[-1:]))
    return found


def _nest(stack: list[str], kind: str, text: str, last: str) -> None:
    """Opens or closes what this token opens or closes."""
    if kind == "open":
        stack.append(text[-1])
    elif text == "not":
        stack.append(text)
    elif (
        kind == "close"
        or text in ("and", "or", ",", ":", ";")
        or (text == "\n" and last != "not" and {*stack} == {"not"})
    ):
        if text == ">" and "<" not in stack[-1:]:
            return  # a comparison
        while stack and stack[-1] == "not":
            stack.pop()
        if kind == "close" and stack:
            stack.pop()


def _complaints(source: Source, match: re.Match[str], kind: str, in_slots: bool) -> Iterator[NotationError]:
    text, span = match.group(), Span(*match.span())
    if kind == "brace":
        yield _error(
            source,
            span,
            "E-BRACE",
            f"`{text}` is not part of the plain notation",
            f"write index groups as ^<…> and _<…>, e.g. M_<i j>; `{text}` belongs to LaTeX",
        )
    elif kind == "other" and not text.isascii():
        yield _foreign(source, span, text)
    elif kind == "other" and text not in "+-*/=,:;|<>!. \t\r\n\f":
        yield _error(
            source,
            span,
            "E-CHAR",
            f"the character {text!r} means nothing here",
            "remove it; products are written with a space or `*`, powers with `**`",
        )
    elif kind == "number" and sum(c.isdigit() for c in text) > MOST_DIGITS and "." not in text:
        yield _error(
            source, span, "E-LIMIT", f"the integer has more than {MOST_DIGITS} digits", "pass it as a scalar input"
        )
    elif kind == "script":
        yield from _script(source, match)
    elif kind == "word":
        yield from _word(source, match, in_slots)
    elif text == "(":
        yield from _argument(source, match.start())


def _script(source: Source, match: re.Match[str]) -> Iterator[NotationError]:
    mark, index, span = match.group()[0], match.group("index"), Span(*match.span())
    name, last = _name_before(source.text, match.start()), Span(span.end - 1, span.end)
    if (mistake := _script_mistake(name, mark, index, spaced=bool(match.group("space")))) is not None:
        code, message, hint = mistake
        yield _error(source, last if code == "E-BRACE" else span, code, message, hint)
    elif not index.isascii():
        yield _foreign(source, last, index)
    elif not re.fullmatch(WORD, index):
        hint = f"write {mark}i or {mark}<i j>"
        yield _error(source, span, "E-SYNTAX", f"`{mark}` must be followed by an index or `<`", hint)
    elif index in RESERVED:
        yield reserved_name(source, Span(span.start + 1, span.end), index)
    elif not is_one_index(index):
        message = f"`{mark}{index}` is a run of letters without brackets"
        yield _error(source, span, "E-RUN", message, _run_fixes(name, mark, index))


def _script_mistake(name: str, mark: str, index: str, *, spaced: bool) -> tuple[str, str, str] | None:
    """The code, message and repair of what another notation writes in the place of an index."""
    if mark == "^" and (index[:1].isdigit() or index in ("(", "-", "+")):
        return "E-POWER", f"`^{index}` is neither an index nor a power here", _power_fixes(name or "x", index)
    if index[:1].isdigit():
        hint = f"a fixed slot is written {mark}<{index}>, a label belongs to the name: {name or 'x'}{index}"
        return "E-SYNTAX", f"`{mark}{index}`: a digit is not an index", hint
    if spaced:
        message = f"no space may stand between `{mark}` and its index"
        return "E-SYNTAX", message, f"write {mark}{index} or {mark}<…>"
    if mark == "^" and index == "T":
        message = "`^T` would be a transpose, but index notation has none: the order of indices says it"
        return "E-MATRIX", message, "write the indices, e.g. Q_<i d> K_<j d>; for an index named T write ^<T>"
    if index and index in "{}":
        return "E-BRACE", f"`{index}` is not part of the plain notation", f"write {mark}<…>, e.g. M_<i j>"
    return None


def _power_fixes(shown: str, index: str) -> str:
    if not index[:1].isdigit():
        return f"a power is written {shown}**(…), indices {shown}^<…>"
    if re.fullmatch(WORD, shown):
        return f"a label: {shown}{index}, a power: {shown}**{index}, or a fixed slot: {shown}_<{index}>"
    return f"a power: {shown}**{index}"


def _run_fixes(name: str, mark: str, index: str) -> str:
    letters = " ".join(re.findall(r"[A-Za-z][0-9]*'*", index))
    return (
        f"{name}{mark}<{letters}> ({letters.count(' ') + 1} indices) or {name}{mark}<{index}> (one index named {index})"
    )


def _word(source: Source, match: re.Match[str], in_slots: bool) -> Iterator[NotationError]:
    word, span, rest = match.group(), Span(*match.span()), source.text[match.end() :]
    follows = rest.lstrip(" \t")[:1]
    if word in RESERVED:
        used_as_name = (
            rest[:1] in ("^", "_")
            or re.match(r"[ \t]*[\^_]<", rest)
            or (in_slots and (word != "bar" or follows != "("))
        )
        bound = re.match(rf"_({WORD})[ \t]*\(", rest) if word in BINDERS else None
        if bound:
            hint = f"the indices stand in square brackets: {word}[{bound.group(1)}](…)"
            yield _error(source, span, "E-RESERVED", f"`{word}` is a reserved word and takes no script", hint)
        elif used_as_name:
            yield reserved_name(source, span, word)
        elif word in BINDERS and follows == "(" and not in_slots:
            yield no_axis(source, span, word)
    elif follows == "(" and not in_slots:
        before = _token_before(source.text, match.start())
        if before not in ("^", "_"):
            hint = f"{word} * (…) for a product; functions are: {', '.join(FUNCTIONS)}"
            if meant := OTHER_NAMES.get(word.lower()) or next((w for w in RESERVED if w == word.lower()), None):
                hint = f"{meant} if that is meant; {hint}"
            yield _error(source, span, "E-CALL", f"`{word} (` reads like a call, but `{word}` is not a function", hint)
    elif follows == "[" and word not in BINDERS:
        what, hint = f"`{word}[` reads like a binder, but `{word}` is none", f"binders are: {', '.join(BINDERS)}"
        if not re.match(r"\s*\[[^\]]*\][ \t]*\(", rest):
            hint = f"the indices of a tensor are written {word}_<i j>; {hint}"
        yield _error(source, span, "E-CALL", what, hint)


def _argument(source: Source, start: int) -> Iterator[NotationError]:
    """`x_i(t)` without a space: a function of t to its author, a product with the position t to the grammar."""
    inside = _ARGUMENT.match(source.text, start)
    if inside and _TOUCHED.search(source.text, max(start - LOOK_BACK, 0), start):
        what = "a name in brackets that touch the factor before reads like the argument of a function"
        hint = "write it among the indices; a product has a `*` between"
        yield _error(source, Span(start, inside.end()), "E-CALL", what, hint)


def _token_before(text: str, offset: int) -> str:
    return text[offset - 1 : offset]


def _name_before(text: str, offset: int) -> str:
    found = re.search(rf"({WORD})([\^_](<[^<>]*>|{WORD}))?[ \t]*$", text[max(offset - LOOK_BACK, 0) : offset])
    return found.group(0).strip() if found else ""


def reserved_name(source: Source, span: Span, word: str) -> NotationError:
    """The complaint about a reserved word used as a name."""
    hint = f"choose another name; reserved are: {', '.join(sorted(RESERVED))}"
    return _error(
        source, span, "E-RESERVED", f"`{word}` is a reserved word and names neither a tensor nor an index", hint
    )


def no_axis(source: Source, span: Span, word: str) -> NotationError:
    """The complaint about a binder that names no index."""
    form = "cat[a = m + j](x_m, z_j)" if word == "cat" else f"{word}[j](…)"
    hint = f"name the indices it runs over: {form}"
    if word in BETWEEN_TWO:
        hint += f"; of two numbers it is {BETWEEN_TWO[word]}"
    return _error(source, span, "E-AXIS", f"`{word}` names no axis", hint)


def _foreign(source: Source, span: Span, character: str) -> NotationError:
    what = f"the character {character!r} (U+{ord(character):04X}) is not part of the plain notation"
    hint = "write the ASCII spelling, e.g. mu for μ, <…> for ⟨…⟩, `bar(nu)` for an overline"
    if not character.isprintable():
        hint = "it is invisible: remove it, or write a plain space"
    return _error(source, span, "E-CHAR", what, hint)


def _error(source: Source, span: Span, code: str, what: str, hint: str) -> NotationError:
    return NotationError(code, what, source=source, spans=[span], hint=hint)
