"""Matrix formulas, plain, in Unicode or in LaTeX → what they say, by precedence: sums, products, scripts."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NoReturn

from tensorattn.errors import NotationError
from tensorattn.parsing import raise_first
from tensorattn.scanning import DEEPEST_BRACKETS, GREEK, MOST_DIGITS, check_length
from tensorattn.source import Source, Span
from tensorattn.spelling import tex
from tensorattn.spelling.letters import GREEK_LETTERS, GREEK_MACROS, PRIMES, script
from tensorattn.spelling.matrix import nodes as n
from tensorattn.spelling.matrix import words

_CLOSING = {"(": ")", "[": "]"}
_GOES_ON = frozenset({*words.OPERATORS, "+", "-", "−", "=", "(", "[", "^", "_"})
_CONVENTION = "axes are declared, so a matrix formula has names, products, sums, ^T and functions"


def parse_matrix(source: Source, known: Collection[str] | None) -> tuple[n.Assignment, ...]:
    """The statements of a matrix formula. `known`: the declared names; None where nothing is declared.

    Raises: NotationError.
    """
    raise_first(check_length(source))
    complaints: list[NotationError] = []

    def complain(code: str, what: str, span: Span, hint: str) -> None:
        complaints.append(NotationError(code, what, source=source, spans=[span], hint=hint))

    nodes = tex.groups(tex.tokens(source.text, complain), complain)
    raise_first(complaints)
    return _Parser(source, nodes, known).program()


class _Parser:
    """A cursor over the nodes of the text; groups are entered and left."""

    def __init__(self, source: Source, nodes: tuple[tex.Node, ...], known: Collection[str] | None) -> None:
        self.source, self.cursor = source, tex.Cursor(nodes, len(source.text))
        self.is_tex = tex.is_tex(source.text)
        self.known, self.guesses = set(known or ()), known is None
        self.functions: set[str] = set()  # names that a statement before defines as functions of others
        self.depth = 0

    def refuse(self, code: str, what: str, span: Span, hint: str) -> NoReturn:
        raise NotationError(code, what, source=self.source, spans=[span], hint=hint)

    def text(self, span: Span) -> str:
        return self.source.text[span.start : span.end]

    # statements -------------------------------------------------------------------------------------------------------

    def program(self) -> tuple[n.Assignment, ...]:
        found: list[n.Assignment] = []
        while True:
            while self.cursor.peek() is not None and self._separates():
                self.cursor.take()
            if self.cursor.peek() is None:
                break
            found.append(self.statement())
            if self.cursor.peek() is not None and not self._ends():
                self._stray()
        if not found:
            hint = "write a formula, e.g. Y = softmax(Q K^T / sqrt(d_k)) V"
            self.refuse("E-SYNTAX", "the matrix formula is empty", Span(0, 0), hint)
        return tuple(found)

    def _separates(self) -> bool:
        """Whether the next node only separates statements."""
        node = self.cursor.peek()
        assert node is not None
        return node.kind in ("row", "display") or node.text in (";", ",", ".")

    def _ends(self) -> bool:
        """Whether a statement ends before the next node."""
        node = self.cursor.peek()
        if node is None or self.depth:
            return node is None
        if node.kind in ("row", "display") or node.text in (";", ","):
            return True
        if node.text == ".":
            after = self.cursor.peek(1)
            return after is None or after.kind in ("row", "display") or after.spaced
        return self._new_line()

    def _new_line(self) -> bool:
        """Whether a newline that ends a statement stands before the next node; in LaTeX none does."""
        if self.is_tex or not self.cursor.at:
            return False
        before = self.cursor.nodes[self.cursor.at - 1]
        gap = self.source.text[before.span.end : self.cursor.place]
        return "\n" in gap and before.text not in _GOES_ON

    def statement(self) -> n.Assignment:
        start = self.cursor.place
        target, parameters = None, ()
        if self._defines():
            target, parameters = self.target()
            if self.guesses:
                self.known.update(word.text for word in parameters)
        body = self.expression()
        if target is not None:
            self.known.add(target.text)
            if parameters:
                self.functions.add(target.text)
        return n.Assignment(target, parameters, body, Span(start, self.cursor.behind))

    def _defines(self) -> bool:
        """Whether an equals sign stands in this statement."""
        at, depth = self.cursor.at, 0
        try:
            while (node := self.cursor.peek()) is not None:
                if not depth and self.cursor.at > at and self._ends():
                    return False
                depth += (node.text in _CLOSING) - (node.text in _CLOSING.values())
                if node.text in ("=", "\\coloneqq", "≔"):
                    return True
                self.cursor.take()
        finally:
            self.cursor.at = at
        return False

    def target(self) -> tuple[n.Word, tuple[n.Word, ...]]:
        start = self.cursor.at
        first = self.cursor.peek()
        assert first is not None
        if self.cursor.sees("=", "\\coloneqq", "≔"):
            self.refuse("E-SYNTAX", "nothing stands left of `=`", first.span, "write a name: Y = …")
        word = self.named()
        parameters: list[n.Word] = []
        if self.cursor.sees("("):
            self.cursor.take()
            while not self.cursor.sees(")"):
                parameters.append(self.named())
                if self.cursor.sees(","):
                    self.cursor.take()
            self.cursor.take()
        if self.cursor.sees(":"):
            self.cursor.take()
        if not self.cursor.sees("=", "\\coloneqq", "≔"):
            begin = self.cursor.nodes[start].span.start
            what = "the left side of `=` is one name, or a function of names"
            self.refuse("E-SYNTAX", what, Span(begin, self.cursor.place), "write Y = … or f(Q, K, V) = …")
        self.cursor.take()
        return word, tuple(parameters)

    def named(self) -> n.Word:
        """A name, whole: on the left side nothing is multiplied."""
        node = self.cursor.peek()
        if node is None or (word := self.word(whole=True)) is None:
            span = node.span if node is not None else Span(self.cursor.end, self.cursor.end)
            self.refuse("E-SYNTAX", "a name is expected here", span, "write a name, e.g. Y = … or f(Q, K, V) = …")
        return self.scripted(word)

    # sums and products ------------------------------------------------------------------------------------------------

    def expression(self) -> n.Formula:
        """`A - B + c`."""
        start = self.cursor.place
        sign, terms = 1, []
        if self.cursor.sees("+", "-", "−"):
            sign = 1 if self.cursor.take().text == "+" else -1
        terms.append((sign, self.product()))
        while not self._ends() and self.cursor.sees("+", "-", "−"):
            sign = 1 if self.cursor.take().text == "+" else -1
            terms.append((sign, self.product()))
        if len(terms) == 1 and terms[0][0] > 0:
            return terms[0][1]
        return n.Sum(tuple(terms), Span(start, self.cursor.behind))

    def product(self) -> n.Formula:
        """`A B / c ⊙ D`."""
        start = self.cursor.place
        factors, operators = [self.factor()], [""]
        while not self._ends():
            node = self.cursor.peek()
            assert node is not None
            if node.text in words.UNCLEAR and node.kind != "group":
                what = f"`{node.text}` has no one meaning in a matrix formula"
                self.refuse("E-SYMBOL", what, node.span, words.UNCLEAR[node.text])
            operator = words.OPERATORS.get(node.text, "") if node.kind != "group" else ""
            if operator:
                self.cursor.take()
            elif node.text in ("+", "-", "−", ",", ")", "]", "=", "|") and node.kind != "group":
                break
            factors.append(self.factor())
            operators.append(operator)
        self._one_reading(factors, operators)
        span = Span(start, self.cursor.behind)
        return factors[0] if len(factors) == 1 else n.Chain(tuple(factors), tuple(operators), span)

    def _one_reading(self, factors: list[n.Formula], operators: list[str]) -> None:
        for at in range(2, len(factors)):
            if operators[at] == "" and operators[at - 1] == "/":
                a, b = (self.text(f.span) for f in factors[at - 1 : at + 1])
                span = factors[at - 1].span | factors[at].span
                self.refuse("E-DIV", "`a / b c` has two readings", span, f"… / ({a} {b}), or (… / {a}) {b}")

    # factors ----------------------------------------------------------------------------------------------------------

    def factor(self) -> n.Formula:
        """An atom with transposes and powers behind it."""
        start = self.cursor.place
        found = self.atom()
        while (node := self.cursor.peek()) is not None and node.kind != "group":
            span = Span(start, node.span.end)
            if node.text in ("ᵀ", "⊤", "⊺"):
                self.cursor.take()
                found = n.Transpose(found, span)
            elif node.text == "." and self._transposed_by_attribute():
                self.cursor.take()
                found = n.Transpose(found, Span(start, self.cursor.take().span.end))
            elif node.text == "^":
                self.cursor.take()
                found = self.raised(found, start)
            elif node.text == "*" and self._doubled_star():
                self.cursor.take()
                self.cursor.take()
                found = n.Power(found, self.atom(), Span(start, self.cursor.behind))
            elif node.text == "_" or (raised := script(node.text) if len(node.text) == 1 else None) is not None:
                hint = "a script belongs to a name: give the bracket a name of its own"
                if node.text != "_" and raised is not None and raised[0] == "^" and raised[1].isdigit():
                    hint = "write a power of a scalar as x**2"
                self.refuse("E-LABEL", "a script stands behind what is no name", node.span, hint)
            else:
                break
        return found

    def _transposed_by_attribute(self) -> bool:
        after, behind = self.cursor.peek(1), self.cursor.peek(2)
        if after is None or after.spaced or after.text != "T":
            return False
        return behind is None or behind.spaced or behind.kind == "group" or not behind.text.isalnum()

    def _doubled_star(self) -> bool:
        after = self.cursor.peek(1)
        return after is not None and after.text == "*" and not after.spaced

    def raised(self, base: n.Formula, start: int) -> n.Formula:
        """What `^` says: a transpose or a power. Labels were taken with the name."""
        node = self.cursor.argument()
        if node is None:
            hint = "write A^T for a transpose, x^2 for a power of a scalar"
            self.refuse("E-SYNTAX", "`^` stands before nothing", Span(self.cursor.behind - 1, self.cursor.behind), hint)
        if _plain(node) in words.TRANSPOSES:
            return n.Transpose(base, Span(start, node.span.end))
        if node.kind != "group" and not node.text.isdigit():
            if node.text == "(":
                self.cursor.at -= 1
                exponent = self.atom()
                return n.Power(base, exponent, Span(start, self.cursor.behind))
            hint = "write A^T for a transpose; the script of a name stands directly behind it"
            self.refuse("E-LABEL", f"`^{node.text}` is neither a transpose nor a power here", node.span, hint)
        if node.kind == "group":
            return n.Power(base, self.inside(node), Span(start, node.span.end))
        digits = self._digits(node)
        return n.Power(base, n.Literal(int(digits), node.span), Span(start, self.cursor.behind))

    def _digits(self, first: tex.Node) -> str:
        """In plain text an exponent is all digits, in LaTeX one."""
        digits = first.text
        while not self.is_tex and (after := self.cursor.peek()) and not after.spaced and after.text.isdigit():
            digits += self.cursor.take().text
        return digits[:MOST_DIGITS]

    # atoms ------------------------------------------------------------------------------------------------------------

    def atom(self) -> n.Formula:
        node = self.cursor.peek()
        if node is None or self._ends():
            end = self.cursor.behind if self.cursor.at else self.cursor.place
            self.refuse("E-SYNTAX", "the formula ends where a factor is expected", Span(end, end), _CONVENTION)
        self.depth += 1
        if self.depth > DEEPEST_BRACKETS:
            what = f"brackets are nested more than {DEEPEST_BRACKETS} deep"
            self.refuse("E-LIMIT", what, node.span, "use a statement for an inner part")
        try:
            return self._atom(node)
        finally:
            self.depth -= 1

    def _atom(self, node: tex.Node) -> n.Formula:
        if node.kind == "group":
            self.cursor.take()
            return self.inside(node)
        if node.text.isascii() and (node.text.isdigit() or (node.text == "." and self._is_number())):
            return self.number()
        if node.text in _CLOSING:
            self.cursor.take()
            return self.bracketed(node)
        if node.text == "|":
            return self.extent(node)
        if node.text in words.FRACTIONS:
            self.cursor.take()
            above, below = self.argument(node), self.argument(node)
            return n.Chain((above, below), ("", "/"), Span(node.span.start, self.cursor.behind))
        if node.text in ("\\sqrt", "√"):
            self.cursor.take()
            return self.root(node)
        word = self.word()
        if word is None:
            self._stray()
        return self.applied(word)

    def inside(self, node: tex.Node) -> n.Formula:
        """What stands in a group, as a formula."""
        assert isinstance(node, tex.Group)
        if not node.nodes:
            self.refuse("E-SYNTAX", "the braces are empty", node.span, "remove them, or write a factor")
        outer, self.cursor = self.cursor, tex.contents(node)
        self.depth += 1
        if self.depth > DEEPEST_BRACKETS:
            what = f"brackets are nested more than {DEEPEST_BRACKETS} deep"
            self.refuse("E-LIMIT", what, node.span, "use a statement for an inner part")
        found = self.expression()
        if self.cursor.peek() is not None:
            self._stray()
        self.depth -= 1
        self.cursor = outer
        return found

    def argument(self, macro: tex.Node) -> n.Formula:
        """The next group or token, as TeX takes it."""
        node = self.cursor.argument()
        if node is None:
            hint = f"write {macro.text}{{…}}"
            self.refuse("E-SYNTAX", f"`{macro.text}` lacks an argument", macro.span, hint)
        if isinstance(node, tex.Group):
            return self.inside(node)
        outer, self.cursor = self.cursor, tex.contents(node)
        found = self.atom()
        self.cursor = outer
        return found

    def bracketed(self, opening: tex.Node) -> n.Formula:
        found = self.expression()
        self.close(opening)
        return found

    def close(self, opening: tex.Node) -> None:
        if not self.cursor.sees(_CLOSING[opening.text]):
            if self.cursor.peek() is not None and not self.cursor.sees(*_CLOSING.values(), ",", "="):
                self._stray()
            hint = f"close it with `{_CLOSING[opening.text]}`"
            self.refuse("E-SYNTAX", f"`{opening.text}` is not closed", opening.span, hint)
        self.cursor.take()

    def root(self, node: tex.Node) -> n.Formula:
        if self.cursor.sees("["):
            where = self.cursor.take().span
            self.refuse("E-POWER", "a root other than the square root", where, "write a power: x**(1/3)")
        body = self.factor() if node.text == "√" else self.argument(node)
        return n.Apply(n.Word("sqrt", node.span), (body,), (), Span(node.span.start, self.cursor.behind))

    def extent(self, node: tex.Node) -> n.Formula:
        """`|i|`."""
        self.cursor.take()
        word = self.word(whole=True)
        if word is None or not self.cursor.sees("|"):
            self.refuse(
                "E-SYNTAX", "`|` begins the size of an axis", node.span, "write |i|; abs(x) is the absolute value"
            )
        self.cursor.take()
        return n.Extent(word.text, Span(node.span.start, self.cursor.behind))

    def _is_number(self) -> bool:
        after = self.cursor.peek(1)
        return after is not None and not after.spaced and after.text.isascii() and after.text.isdigit()

    def number(self) -> n.Literal:
        first = self.cursor.peek()
        assert first is not None
        found = re.compile(r"([0-9]+(\.[0-9]+)?|\.[0-9]+)([eE][+-]?[0-9]+)?").match(self.source.text, first.span.start)
        assert found is not None
        stop = min(found.end(), self.cursor.end)
        digits = self.source.text[first.span.start : stop]
        while (node := self.cursor.peek()) is not None and node.span.start < stop:
            self.cursor.take()
        span = Span(first.span.start, stop)
        is_whole = digits.isdigit()
        if is_whole and len(digits) > MOST_DIGITS or float(digits) == float("inf"):
            self.refuse("E-LIMIT", f"the number {digits[:20]} is too large", span, "declare it as a scalar input")
        return n.Literal(int(digits) if is_whole else float(digits), span)

    # names ------------------------------------------------------------------------------------------------------------

    def word(self, whole: bool = False) -> n.Word | None:
        """The next name without its scripts, None where none begins. `whole`: a run of letters is one name."""
        node = self.cursor.peek()
        if node is None or node.kind == "group":
            return None
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
        if node.text in words.MARKS or node.text in words.STYLES:
            self.cursor.take()
            inner = self.cursor.argument()
            shown = _plain(inner) if inner is not None else ""
            shown = GREEK_MACROS.get(shown, shown)
            if not re.fullmatch("[A-Za-z][A-Za-z0-9]*", shown):
                what = f"`{node.text}` holds no name"
                self.refuse("E-SYMBOL", what, Span(start, self.cursor.behind), f"write {node.text}{{W}}")
            name = shown + words.MARKS.get(node.text, "")
            return n.Word(name + self._primes(), Span(start, self.cursor.behind))
        if words.function_of(node.text[1:]):
            self.cursor.take()
            return n.Word(node.text[1:], Span(start, self.cursor.behind))
        return None

    def applied(self, word: n.Word) -> n.Formula:
        """A name with its scripts, and what it is applied to."""
        function = words.function_of(word.text) if word.text not in self.known else None
        scripted = self.scripted(word)
        opening = self.cursor.peek()
        braced = opening is not None and opening.kind == "group" and function is not None
        opens = opening is not None and opening.kind != "group" and opening.text in _CLOSING
        touching = opens and opening is not None and not opening.spaced and len(word.text) > 1
        if (
            function is None
            and not (touching and scripted.text not in self.known)
            and not self._defined(scripted, opens)
        ):
            return scripted
        if not opens and not braced:
            hint = f"write {word.text}(…)"
            self.refuse(
                "E-CALL", f"the function `{word.text}` has no brackets that show how far it reaches", word.span, hint
            )
        assert opening is not None
        self.cursor.take()
        axes = self._axes_of(scripted) if scripted.scripts else ()
        if braced:
            arguments: list[n.Formula] = [self.inside(opening)]
        else:
            arguments = [self.expression()]
            while self.cursor.sees(","):
                self.cursor.take()
                arguments.append(self.expression())
            self.close(opening)
        called = word if function is not None else scripted
        return n.Apply(called, tuple(arguments), axes, Span(word.span.start, self.cursor.behind))

    def _defined(self, word: n.Word, opens: bool) -> bool:
        return opens and word.text in self.functions

    def _axes_of(self, word: n.Word) -> tuple[n.Word, ...]:
        return (n.Word(word.scripts.lstrip("_^"), word.span),)

    def scripted(self, word: n.Word) -> n.Word:
        """The name with the labels behind it; a transpose and a power are no labels."""
        lower = upper = ""
        while (node := self.cursor.peek()) is not None and node.kind != "group":
            if node.text == "_" or (node.text == "^" and self._labels()):
                self.cursor.take()
                label = self.label(node)
            elif (
                (found := script(node.text) if len(node.text) == 1 else None) and found[1] != "T" and self._label(found)
            ):
                self.cursor.take()
                label = found[1]
                node = tex.Token("char", found[0], node.span)
            else:
                break
            if node.text == "_":
                lower += label
            else:
                upper += label
        scripts = (f"_{lower}" if lower else "") + (f"^{upper}" if upper else "")
        return n.Word(word.text + lower + upper, Span(word.span.start, self.cursor.behind), scripts)

    def _label(self, found: tuple[str, str]) -> bool:
        return found[0] == "_" or not found[1].isdigit()

    def _labels(self) -> bool:
        """Whether what follows `^` is a label: letters that are no transpose, or anything in parentheses in braces."""
        node = self.cursor.peek(1)
        if node is None or _plain(node) in words.TRANSPOSES:
            return False
        shown = _plain(node)
        if node.kind == "group" and re.fullmatch(r"\([A-Za-z0-9]+\)", shown):
            return True
        return bool(re.fullmatch(r"[A-Za-z][A-Za-z0-9]*", GREEK_MACROS.get(shown, shown)))

    def label(self, mark: tex.Node) -> str:
        """The label behind `_` or `^`."""
        node = self.cursor.argument()
        if node is None:
            self.refuse("E-SYNTAX", f"`{mark.text}` stands before nothing", mark.span, "write W_q or W^{q}")
        if not self.is_tex and node.kind == "char" and node.text.isalnum():
            shown = node.text
            while (after := self.cursor.peek()) and not after.spaced and after.kind == "char" and after.text.isalnum():
                shown += self.cursor.take().text
        else:
            shown = _plain(node).strip("()")
        shown = GREEK_MACROS.get(shown, shown)
        if not re.fullmatch("[A-Za-z0-9]+", shown):
            what = f"`{self.text(mark.span | node.span)}` is no label of a name"
            self.refuse("E-LABEL", what, mark.span | node.span, "a label is letters and digits, e.g. W_q or W^{q}")
        return shown

    def _stray(self) -> NoReturn:
        """Raises what is wrong with the next node."""
        node = self.cursor.peek()
        assert node is not None
        shown = self.text(node.span)
        if node.text in words.UNCLEAR:
            what = f"`{shown}` has no one meaning in a matrix formula"
            self.refuse("E-SYMBOL", what, node.span, words.UNCLEAR[node.text])
        if node.kind == "macro":
            what = f"`{shown}` means nothing in a matrix formula"
            self.refuse("E-SYMBOL", what, node.span, r"write a name of several letters as \mathrm{…}")
        if node.text in (")", "]", "}"):
            self.refuse("E-SYNTAX", f"`{shown}` closes nothing", node.span, "remove it, or open the bracket")
        if node.text in ("=", "+", "-", "−", ",", "|", "/", "*", "^", "_") or node.text in words.OPERATORS:
            self.refuse("E-SYNTAX", f"`{shown}` stands where a factor is expected", node.span, _CONVENTION)
        self.refuse("E-CHAR", f"the character {shown[:1]!r} means nothing in a matrix formula", node.span, _CONVENTION)


def _plain(node: tex.Node) -> str:
    r"""The letters of a token or a group, without braces and styles: `{\text{head}}` is `head`."""
    if isinstance(node, tex.Group):
        return "".join(_plain(part) for part in node.nodes)
    if node.text in words.STYLES:
        return ""
    return node.text
