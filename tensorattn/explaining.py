"""What is wrong where the grammar refuses a text, in our words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tensorattn.errors import NotationError
from tensorattn.scanning import BINDERS, RESERVED, WORD, no_axis, reserved_name
from tensorattn.source import Source, Span

if TYPE_CHECKING:
    from lark import Token, Tree


def misused_words(source: Source, read: Tree[Token]) -> Iterator[NotationError]:
    """The reserved words that the grammar took for names, where they could be nothing else."""
    for token in read.scan_values(lambda token: str(token) in RESERVED):
        if token.type == "NAME":
            yield _misused(source, token)


def _misused(source: Source, token: Any) -> NotationError:
    span, before = Span(token.start_pos, token.end_pos), source.text[: token.start_pos].rstrip(" \t")
    if str(token) in ("and", "or") and before.endswith("\n"):
        what, hint = _begins_with(str(token))
        return NotationError("E-SYNTAX", what, source=source, spans=[span], hint=hint)
    return reserved_name(source, span, str(token))


def _begins_with(operator: str) -> tuple[str, str]:
    hint = "end the line before with the operator; a newline ends a statement"
    return f"a line begins with the operator `{operator}`", hint


def syntax_error(source: Source, error: Any) -> NotationError:
    """A grammar error in our words."""
    token = getattr(error, "token", None)
    offset = getattr(error, "pos_in_stream", None)
    if token is not None and token.type != "$END":
        span, shown, kind = Span(token.start_pos, token.end_pos), str(token), token.type
    else:
        at = offset if offset is not None and token is None else len(source.text.rstrip())
        span, shown, kind = Span(at, at + 1), source.text[at : at + 1], "$END" if token is not None else "CHARACTER"
    before = source.text[: span.start].rstrip(" \t")
    if (known := _in_a_wrong_place(source, span, kind, before)) is not None:
        return known
    expected: set[str] = set(getattr(error, "expected", None) or getattr(error, "allowed", None) or ())
    what, hint = _explain(shown, kind, before, expected)
    is_name = shown in RESERVED and kind not in ("AND", "OR", "NOT") and "LPAR" not in expected
    code = "E-RESERVED" if is_name else "E-SYNTAX"
    return NotationError(code, what, source=source, spans=[span], hint=hint)


def _in_a_wrong_place(source: Source, span: Span, kind: str, before: str) -> NotationError | None:
    """What has a code of its own: `...` where a name stands, a binder without one, a reserved word that is defined."""
    if kind == "ELLIPSIS":
        hint = "it stands before all slots of a tensor; to sum or normalise over batch axes give them names"
        what = "`...` cannot stand here: it is never barred, summed, split or merged"
        return NotationError("E-BATCH", what, source=source, spans=[span], hint=hint)
    binder = re.search(rf"({WORD})[ \t]*\[\s*$", before)
    if kind == "RBRACKET" and binder and binder.group(1) in BINDERS:
        return no_axis(source, Span(*binder.span(1)), binder.group(1))
    defined = re.search(rf"(?:^|[;\n])[ \t]*(leaky_relu|{WORD})$", before)
    if kind == "EQUALS" and defined and defined.group(1) in RESERVED:
        return reserved_name(source, Span(*defined.span(1)), defined.group(1))
    return None


def _explain(shown: str, kind: str, before: str, expected: set[str]) -> tuple[str, str]:
    open_bracket = _innermost_open(before)
    wanted = expected - {"NEWLINE"}
    if wanted in ({"LPAR"}, {"LBRACKET"}):
        return _incomplete_call(before, wanted)
    if kind in ("$END", "NEWLINE"):
        if open_bracket:
            return f"the text ends inside `{open_bracket}`", "close the bracket"
        return "the formula stops here, but more must follow", "finish the statement, or remove the operator"
    if before.endswith("\n") and kind in ("SIGN", "TIMES", "OVER", "COMPARISON", "POWER", "AND", "OR", "PLUS"):
        return _begins_with(shown)
    if kind == "NUMBER" and (before[-1:].isalnum() or before[-1:] in ">)'|"):
        return f"the number {shown} follows a factor", "write the number first (2 x_i) or with `*`"
    if kind == "EQUALS":
        hint = "the left side is one name with plain indices, y_<i j> = …; a comparison is written =="
        return "`=` cannot stand here", hint
    if kind == "SIGN":
        hint = "put a signed factor in brackets: a * (-b); a signed slot comes after a comma"
        return f"`{shown}` cannot stand here", hint
    if shown in RESERVED:
        hint = "a function is called, `exp(x)`; a binder names its indices, `softmax[j](x)`; nothing else has its name"
        return f"the reserved word `{shown}` cannot stand here", hint
    if kind in ("CLOSE", "RPAR", "RBRACKET") and not open_bracket:
        return f"`{shown}` closes nothing", "remove it, or open the bracket"
    if open_bracket and shown in (")", "]", ">"):
        what = f"`{shown}` stands where `{open_bracket}` is still open or incomplete"
        return what, "finish what the bracket holds, then close it"
    if before[-1:] == "=" and shown in ("<", ">"):
        return f"`={shown}` is no comparison", f"write {shown}="
    hint = "products are written with a space or `*`, indices as x^<…>_<…>, binders as softmax[j](…)"
    if shown == "|" or re.search(rf"\|[ \t]*({WORD})?$", before):
        hint = "`|i|` is the size of an index; the absolute value is abs(x), a norm sqrt(x_<i d> x_<i d>)"
    return f"`{shown}` cannot stand here", hint


def _incomplete_call(before: str, expected: set[str]) -> tuple[str, str]:
    """A function, a binder or `bar` without the bracket that has to follow it."""
    word = re.search(rf"(leaky_relu|{WORD}|\])$", before.rstrip())
    name = word.group() if word else ""
    if expected == {"LBRACKET"}:
        example = "cat[a = m + j](x_m, z_j)" if name == "cat" else f"{name}[j](x_<i j>)"
        return f"`{name}` must be followed by its indices in square brackets", f"write {example}"
    if name == "]":
        return "a binder must be followed by its body in brackets", "write softmax[j](x_<i j>)"
    return f"`{name}` must be followed by its argument in brackets", f"write {name}(…)"


def _innermost_open(before: str) -> str | None:
    stack: list[str] = []
    pairs = {")": "(", "]": "[", ">": "<"}
    for position, character in enumerate(before):
        if character in "([" or (character == "<" and before[position - 1 : position] in ("^", "_")):
            stack.append(character)
        elif character in pairs and stack and stack[-1] == pairs[character]:
            stack.pop()
    return stack[-1] if stack else None
