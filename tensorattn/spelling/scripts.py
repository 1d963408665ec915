"""TeX's scripts → index groups, bars and binders: what stands raised or lowered at a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tensorattn.source import Span
from tensorattn.spelling import letters, macros, operands
from tensorattn.spelling.naming import Named, starts_name, take_name
from tensorattn.spelling.tex import Cursor, Group, Node, contents
from tensorattn.spelling.unicode import refused_run

if TYPE_CHECKING:
    from tensorattn.spelling.latex import Formula

_ARITHMETIC = frozenset({"+", "-", "*"})


class Scripts:
    """Reads scripts into the pieces of `formula`; `indices` are the names that stand as indices anywhere."""

    def __init__(self, formula: Formula) -> None:
        self.formula, self.writer = formula, formula.writer
        self.indices: set[str] = set()

    # Index groups

    def attach(self, cursor: Cursor, owner: Named) -> bool:
        """All scripts behind a name. Whether there were any."""
        start = cursor.at
        while (node := cursor.peek()) is not None:
            if node.text in ("^", "_"):
                self._script(cursor, owner)
            elif node.text in letters.PRIMES and cursor.at > start:
                name = owner.text
                hint = f"the prime of an index stands inside, {name}_{{i'}}, that of a name before: {name}'_{{i}}"
                self.writer.complain("E-SYNTAX", "a prime stands after a script", cursor.take().span, hint)
            elif node.kind == "char" and letters.script(node.text):
                self._raised(cursor)
            else:
                break
        return cursor.at > start

    def _script(self, cursor: Cursor, owner: Named) -> None:
        mark = cursor.take()
        argument = cursor.argument()
        if argument is None:
            self.writer.complain("E-SYNTAX", f"nothing follows `{mark.text}`", mark.span, f"write {mark.text}{{ij}}")
            return
        if argument.text == "<":
            what = "`<…>` belongs to the plain notation, and this text is LaTeX"
            self.writer.complain("E-BRACE", what, argument.span, f"write {mark.text}{{…}}, e.g. M_{{ij}}")
            return
        inside = contents(argument)
        span = Span(mark.span.start, argument.span.end)
        if not inside.nodes:
            return
        owned = self.writer.text(Span(owner.span.start, mark.span.start)).strip()
        refused = no_indices(mark.text, inside.nodes, owner, owned, self.writer.text(_within(argument)))
        if refused:
            code, what, hint = refused
            self.writer.complain(code, what, span, hint)
            return
        self.group(mark.text, mark.span, inside, argument.span.end)
        self.formula.doubts.script(owned, mark.text, argument, cursor)

    def group(self, mark: str, span: Span, inside: Cursor, end: int) -> None:
        """`^<…>` or `_<…>`."""
        self.writer.put(f"{mark}<", span)
        if inside.sees(","):
            what, hint = (
                "a comma before the first index is a derivative to some",
                "leave it out; ta.grad takes derivatives",
            )
            self.writer.complain("E-SYNTAX", what, inside.nodes[0].span, hint)
        chunks, put = _chunks(inside), _Separator(self.writer.put)
        for chunk in chunks:
            if _has_arithmetic(chunk):
                put(chunk.place)
                self._affine(chunk)
            else:
                while chunk.peek() is not None:
                    put(chunk.place)
                    self._slot(chunk, len(chunks) > 1 or _ends_with_comma(inside))
        self.writer.put(">", Span(inside.end, end))

    def _slot(self, chunk: Cursor, commas: bool) -> None:
        node = chunk.peek()
        assert node is not None
        # `\bar{D}_{ij}` gathers, for no bar has a script
        gathers = (after := chunk.peek(2)) is not None and after.text in ("^", "_")
        if node.text in (r"\bar", r"\overline") and not gathers:
            self._bar(chunk)
        elif node.text == "(":
            self._merge(chunk)
        elif operands.is_digit(node):
            number = self._integer(chunk)
            if starts_name(chunk.peek()):
                named = self.writer.text(chunk.peek().span)  # type: ignore[union-attr]
                what, hint = (
                    f"`{number}{named}` may be one slot or two",
                    rf"write {number}\cdot {named} or {number},{named}",
                )
                self.writer.complain("E-SEP", what, Span(chunk.behind - len(number), chunk.place + len(named)), hint)
            elif not commas or chunk.peek() is not None or len(chunk.nodes) > len(number):
                what = f"`{number}` may be a label, a position or a factor"
                hint = rf"a position stands between commas, {{{number},d}}; a label in the name, \mathrm{{x{number}}}"
                self.writer.complain("E-LABEL", what, Span(chunk.behind - len(number), chunk.behind), hint)
        elif macros.SIGNS.get(node.text) == "..." or node.text == ".":
            self._dots(chunk)
        elif node.kind == "char" and letters.script(node.text):
            self.writer.complain(*_spanned(refused_run("^", ["?"], node.text), chunk.take().span))
        elif starts_name(node):
            self._index(chunk)
        else:
            self._refuse(chunk)

    def _index(self, chunk: Cursor) -> None:
        """A name, or a gather."""
        named = take_name(chunk, self.writer)
        if named is None:
            return
        if named.under and not chunk.sees("^", "_"):  # `{\bar\nu}`, `\mathbf{\bar n}`, a combining overline
            self.writer.put(f"bar({named.under})", named.span)
            self.indices.add(named.under)
            return
        self.writer.put(named.text, named.span)
        if not self.attach(chunk, named):
            self.indices.add(named.text)

    def _integer(self, chunk: Cursor) -> str:
        digits, start = "", chunk.place
        while (node := chunk.peek()) is not None and operands.is_digit(node):
            digits += chunk.take().text
        self.writer.put(digits, Span(start, chunk.behind))
        return digits

    def _dots(self, chunk: Cursor) -> None:
        start, dots = chunk.place, ""
        while (node := chunk.peek()) is not None and node.text == ".":
            dots += chunk.take().text
        if not dots:
            chunk.take()
        elif dots != "...":
            self.writer.complain(
                "E-SYNTAX", f"`{dots}` is no index", Span(start, chunk.behind), r"batch axes are \ldots"
            )
        self.writer.put("...", Span(start, chunk.behind))

    def _merge(self, chunk: Cursor) -> None:
        r"""`(h,d)`."""
        opened, inside = chunk.take(), []
        while (node := chunk.peek()) is not None and node.text != ")":
            inside.append(chunk.take())
        end = chunk.take().span.end if chunk.peek() is not None else chunk.end
        span = Span(opened.span.start, end)
        if not any(node.text == "," for node in inside):
            label = self.writer.text(Span(opened.span.end, end - 1)).strip()
            hint = rf"a label belongs to the name: \mathrm{{x{label}}}; two axes merged into one are written (h,d)"
            self.writer.complain("E-LABEL", f"`({label})` is a label, which names no axis", span, hint)
            return
        self.writer.put("(", opened.span)
        merged = Cursor(tuple(inside), end - 1)
        self.names(merged)
        if merged.peek() is not None:
            what, hint = (
                "a merged axis holds plain index names",
                "write (h,d); an axis with arithmetic is one slot, {t,h+d}",
            )
            self.writer.complain("E-SYNTAX", what, Span(merged.place, end - 1), hint)
        self.writer.put(")", Span(end - 1, end))

    def _bar(self, chunk: Cursor) -> None:
        r"""`\bar\nu`, `\bar{\nu\rho}`, `\bar{\nu:\nu\le\mu}`."""
        macro = chunk.take()
        node = chunk.peek()
        if node is None:
            hint = r"write \bar\nu or \bar{\nu\rho}"
            self.writer.complain("E-OVERLINE", "a bar stands over nothing", macro.span, hint)
            return
        self.writer.put("bar(", macro.span)
        if isinstance(node, Group):
            inside = contents(chunk.take())
            self.names(inside)
            if inside.sees(":", r"\colon"):
                self.writer.put(" : ", inside.take().span)
                self.formula.expression(inside)
            elif inside.peek() is not None:
                what, hint = "a bar holds plain index names", r"a condition stands after a colon: \bar{\nu:\nu\le\mu}"
                self.writer.complain("E-SYNTAX", what, Span(inside.place, inside.end), hint)
        elif starts_name(node):
            named = take_name(chunk, self.writer)
            if named is not None:
                self.writer.put(named.under or named.text, named.span)
                self.indices.add(named.under or named.text)
        else:
            chunk.take()
            self.writer.complain(
                "E-OVERLINE", "a bar stands over no index", macro.span, r"write \bar\nu or \bar{\nu\rho}"
            )
        self.writer.put(")", Span(chunk.behind, chunk.behind))

    def names(self, inside: Cursor) -> list[Named]:
        """Index names with or without commas, as far as they go."""
        found: list[Named] = []
        put = _Separator(self.writer.put, " ")
        while inside.sees(",") or starts_name(inside.peek()):
            if inside.sees(","):
                inside.take()
                continue
            put(inside.place)
            named = take_name(inside, self.writer)
            if named is None:
                continue
            if named.under:
                hint = f"write {named.under}; a bar stands over an index in a script, W^{{\\mu\\bar\\nu}}"
                self.writer.complain("E-OVERLINE", "a bar stands over a name in a list of names", named.span, hint)
            self.writer.put(named.text, named.span)
            self.indices.add(named.text)
            found.append(named)
        return found

    # Arithmetic

    def _affine(self, chunk: Cursor) -> None:
        """`i-j+3`."""
        start, waiting = chunk.place, True
        while (node := chunk.peek()) is not None:
            sign = macros.SIGNS.get(node.text)
            if sign in _ARITHMETIC:
                self.writer.put(sign, chunk.take().span)
                waiting = True
                continue
            if not waiting:
                text = self.writer.text(Span(start, chunk.end)).strip()
                hint = r"a slot with arithmetic stands between commas, {h,i-j}; a factor is written 2\cdot i"
                self.writer.complain("E-SEP", f"`{text}` may be one slot or several", Span(start, chunk.end), hint)
            waiting = False
            if operands.is_digit(node):
                self._integer(chunk)
            elif node.text in macros.LINES:
                operands.extent(self.formula, chunk)
            elif starts_name(node):
                self._index(chunk)
            else:
                self._refuse(chunk)

    def _refuse(self, chunk: Cursor) -> None:
        node = chunk.take()
        self.writer.put("i", node.span)  # the rest can be read on
        if node.kind == "macro":
            self.formula.refuse_macro(node)
            return
        what = f"`{self.writer.text(node.span)}` is no index"
        hint = r"indices are letters, \mathrm{seq}, \bar\nu, 0 beside a comma, i-j, (h,d) or D_{ij}"
        self.writer.complain("E-SYNTAX", what, node.span, hint)

    def _raised(self, cursor: Cursor) -> None:
        """Raised or lowered letters of Unicode."""
        start, names, mark = cursor.place, [], ""
        while (node := cursor.peek()) is not None and node.kind == "char" and (sign := letters.script(node.text)):
            if mark and sign[0] != mark:
                break
            mark = sign[0]
            names.append(Named(sign[1], cursor.take().span))
        span = Span(start, cursor.behind)
        if refused := refused_run(mark, [n.text for n in names], self.writer.text(span)):
            self.writer.complain(*_spanned(refused, span))
            return
        self.writer.put(f"{mark}<", Span(start, start))
        put = _Separator(self.writer.put)
        for named in names:
            put(named.span.start)
            self.writer.put(named.text, named.span)
            self.indices.add(named.text)
        self.writer.put(">", Span(cursor.behind, cursor.behind))

    # Binders

    def binder(self, inside: Cursor) -> None:
        r"""`_{j:j\le i;\mathrm{sink}=s_h}` as `[j : j <= i; sink=s_<h>]`."""
        self.writer.put("[", Span(inside.place, inside.place))
        self.names(inside)
        while inside.sees("=", "+"):  # the parts of `cat`
            self.writer.apart(inside.peek().text, inside.take().span)  # type: ignore[union-attr]
            self.writer.put(" ", Span(inside.place, inside.place))
            self.names(inside)
        if inside.sees(":", r"\colon"):
            self.writer.apart(":", inside.take().span)
            self.formula.expression(inside, stops=(";",))
        if inside.sees(";"):
            self.writer.put(";", inside.take().span)
            self._options(inside)
        if inside.peek() is not None:
            what = "a binder holds index names, then a condition, then options"
            hint = r"write \mathrm{softmax}_{j:j\le i;\mathrm{sink}=s_{h}}"
            self.writer.complain("E-AXIS", what, Span(inside.place, inside.end), hint)
        self.writer.put("]", Span(inside.end, inside.end))

    def _options(self, inside: Cursor) -> None:
        while True:
            start = inside.at
            silent = starts_name(inside.peek())
            named = take_name(inside, self.writer) if silent else None
            if named is not None and inside.sees("="):
                self.writer.apart(named.text, named.span)
                self.writer.put("=", inside.take().span)
            else:
                inside.at = start
            self.formula.expression(inside, stops=(",",))
            if not inside.sees(","):
                return
            self.writer.put(",", inside.take().span)


class _Separator:
    """Puts a sign between the parts of a list, not before the first."""

    def __init__(self, put: Callable[[str, Span], None], sign: str = ", ") -> None:
        self.put, self.sign, self.started = put, sign, False

    def __call__(self, at: int) -> None:
        if self.started:
            self.put(self.sign, Span(at, at))
        self.started = True


def no_indices(mark: str, nodes: tuple[Node, ...], owner: Named, owned: str, shown: str) -> tuple[str, str, str] | None:
    """Code, message and repair of a script that is a transpose, a power or a label.

    `owner`: the name that bears it; `owned`: all that stands before it, as written.
    """
    if all(node.text in macros.PRIME_MACROS for node in nodes):
        hint = f"the prime of an index stands inside, {owner.text}_{{i'}}, that of a name before: {owner.text}'_{{i}}"
        return "E-SYNTAX", "a prime stands after a script", hint
    if mark == "^" and "".join(shown.split()) in macros.TRANSPOSES:
        what = f"`^{shown}` would be a transpose, but index notation has none: the order of indices says it"
        return "E-MATRIX", what, "write the indices, e.g. Q_{id} K_{jd}; for an index named T write ^{T,}"
    name = owner.text.rstrip("'")
    if mark == "^" and len(nodes) == 1 and nodes[0].text in ("*", r"\ast", r"\star", "+", "-", r"\dagger"):
        hint = rf"a mark belongs to the name: \mathrm{{{name}star}}"
        return "E-SYMBOL", f"`^{shown}` is no index", hint
    if nodes[0].text in ("(", "[") and not any(node.text == "," for node in nodes):
        label = "".join(c for c in shown if c.isalnum())
        hint = rf"a label belongs to the name: \mathrm{{{name}{label}}}; two axes merged into one are written {{(h,d)}}"
        return "E-LABEL", f"`{mark}{{{shown}}}` is a label, which names no axis", hint
    signless = nodes[1:] if macros.SIGNS.get(nodes[0].text) in ("+", "-") else nodes
    number = "".join(node.text for node in signless) if all(operands.is_digit(node) for node in signless) else ""
    if mark == "^" and number:
        hint = rf"a power: \left({owned}\right)^{{{shown}}}"
        if len(signless) == len(nodes):
            hint += rf", a label: \mathrm{{{name}{number}}}, a fixed slot: {owned}^{{{number},}}"
        return "E-POWER", f"`^{{{shown}}}` is neither an index nor a power here", hint
    if number:
        hint = (
            rf"a label belongs to the name: \mathrm{{{name}{number}}}; a fixed slot has a comma: {owned}_{{{shown},}}"
        )
        return "E-LABEL", f"`_{{{shown}}}` may be a label or a position", hint
    indices = all(starts_name(n) or isinstance(n, Group) or n.text == "," or n.text in letters.PRIMES for n in nodes)
    if mark == "^" and owner.text == "e" and not owner.plain and not indices:
        return "E-POWER", "`e^{…}` with more than indices would be a power", rf"write \exp\left({shown}\right)"
    return None


def _within(node: Node) -> Span:
    return node.inside if isinstance(node, Group) else node.span


def _spanned(refused: tuple[str, str, str] | None, span: Span) -> tuple[str, str, Span, str]:
    code, what, hint = refused or ("E-SYNTAX", "a raised sign cannot stand here", "write it with ^ or _")
    return code, what, span, hint


def _has_arithmetic(chunk: Cursor) -> bool:
    depth = 0
    for node in chunk.nodes:
        depth += (node.text == "(") - (node.text == ")")
        if depth == 0 and (macros.SIGNS.get(node.text) in _ARITHMETIC or node.text in macros.LINES):
            return True
    return False


def _ends_with_comma(inside: Cursor) -> bool:
    return bool(inside.nodes) and inside.nodes[-1].text == ","


def _chunks(inside: Cursor) -> list[Cursor]:
    """The stretches between the commas that stand in no parenthesis."""
    chunks: list[Cursor] = []
    depth, start = 0, 0
    nodes = inside.nodes
    for at, node in enumerate((*nodes, None)):
        text = node.text if node is not None else ","
        depth += (text == "(") - (text == ")")
        if node is None or (text == "," and depth <= 0):
            if at > start:
                chunks.append(Cursor(nodes[start:at], nodes[at].span.start if at < len(nodes) else inside.end))
            start = at + 1
    return chunks
