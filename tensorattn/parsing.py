"""Text → tree, through the grammar of grammar/tensorattn.lark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorattn import spelling
from tensorattn import tree as t
from tensorattn.errors import NotationError
from tensorattn.explaining import misused_words, syntax_error
from tensorattn.ir import COMPARISONS
from tensorattn.scanning import check_length, scan
from tensorattn.source import Source, Span

if TYPE_CHECKING:
    from lark import Lark, Token, Tree

# How many arguments the functions take that do not take one; the keys of `uniform` are a seed and positions.
ARGUMENTS = {"maximum": (2, 2), "minimum": (2, 2), "where": (3, 3), "leaky_relu": (1, 2), "uniform": (1, 32)}
_OPENING = {"UPPER_OPEN", "LOWER_OPEN", "LPAR", "LBRACKET"}
_CLOSING = {"CLOSE", "RPAR", "RBRACKET"}
_GOES_ON = {"SIGN", "PLUS", "TIMES", "OVER", "POWER", "COMPARISON", "EQUALS", "COMMA", "COLON", "AND", "OR", "NOT"}


class _Lines:
    """Drops the newlines that end nothing: inside brackets and after what asks for more."""

    always_accept = ("NEWLINE",)

    def process(self, stream: Iterator[Token]) -> Iterator[Token]:
        depth, last = 0, "NEWLINE"
        for token in stream:
            if token.type == "NEWLINE" and (depth or last in _GOES_ON):
                continue
            depth += (token.type in _OPENING) - (token.type in _CLOSING)
            last = token.type
            yield token


def grammar_text(name: str = "tensorattn.lark") -> str:
    """The grammar file: inside the installed package, else beside it in a checkout."""
    folder = files("tensorattn") / "grammar"
    if not folder.is_dir():
        folder = Path(__file__).parent.parent / "grammar"
    return (folder / name).read_text(encoding="utf-8")


@cache
def _parser() -> Lark:
    from lark import Lark

    return Lark(
        grammar_text(),
        parser="lalr",
        lexer="contextual",
        postlex=_Lines(),
        propagate_positions=True,
        maybe_placeholders=False,
    )


def parse_tree(source: Source) -> tuple[t.StatementNode, ...]:
    """The statements of a text. Raises: NotationError, the first complaint in reading order, the others listed."""
    raise_first(check_length(source))
    reading = spelling.read(source)
    read, complaints = _parse(reading.canonical if reading else source)
    if reading is not None:
        complaints = reading.merged(complaints)
        reading.relocate(read)
    statements: tuple[t.StatementNode, ...] = ()
    if read is not None and not (reading and reading.complaints):
        definitions = read.find_data("definition") if reading else ()
        reader = _Reader(source, complaints, frozenset(str(node.children[0].children[0]) for node in definitions))
        nodes = [node for node in read.children if not is_token(node, "NEWLINE", "SEMICOLON")]
        statements = tuple(reader.statement(node) for node in nodes)
    raise_first(complaints)
    if not statements:
        raise NotationError(
            "E-SYNTAX",
            "the program is empty",
            source=source,
            spans=[Span(0, 0)],
            hint="write a formula, e.g. y_i = A_<i j> x_j",
        )
    return statements


def _parse(source: Source) -> tuple[Tree[Any] | None, list[NotationError]]:
    """The grammar's tree of a canonical text, None where it has none, and what the text is refused for."""
    from lark.exceptions import UnexpectedInput

    complaints = scan(source)
    if any(c.code == "E-LIMIT" for c in complaints):
        return None, complaints
    try:
        read = _parser().parse(source.text)
    except UnexpectedInput as error:
        refused = syntax_error(source, error)
        explained = any(refused.spans[0].end >= c.spans[0].start for c in complaints)
        return None, complaints if explained else [*complaints, refused]
    return read, [*complaints, *misused_words(source, read)]


def raise_first(complaints: list[NotationError]) -> None:
    """Raises the first complaint in reading order with the others attached; `E-RECUR` goes before `E-REDEF`."""
    if not complaints:
        return
    ranked = sorted(complaints, key=lambda e: e.span or Span(0, 0))
    recursion = next((e for e in ranked if e.code == "E-RECUR"), None)
    if recursion is not None and ranked[0].code == "E-REDEF":
        ranked.insert(0, ranked.pop(ranked.index(recursion)))
    first, others, seen = ranked[0], [], {(ranked[0].code, ranked[0].spans)}
    for other in ranked[1:]:
        if (other.code, other.spans) not in seen:
            seen.add((other.code, other.spans))
            others.append(other)
    first.others = tuple(others)
    raise first


class _Reader:
    """Lark's tree → ours; complaints that need the tree are collected."""

    def __init__(self, source: Source, complaints: list[NotationError], defined: frozenset[str]) -> None:
        self.source, self.complaints, self.defined = source, complaints, defined

    def complain(self, code: str, what: str, spans: list[Span], hint: str) -> None:
        self.complaints.append(NotationError(code, what, source=self.source, spans=spans, hint=hint))

    def statement(self, node: Tree[Any]) -> t.StatementNode:
        if node.data == "definition":
            target, _, body = node.children
            return t.StatementNode(self.reference(target), self.expression(body), span_of(node))
        return t.StatementNode(None, self.expression(node.children[0]), span_of(node))

    def expression(self, node: Any) -> t.Tree:
        if not hasattr(node, "data"):  # the only bare token is a number
            value = _number(str(node))
            if value == inf:
                self.complain(
                    "E-LIMIT",
                    f"the number {node} is larger than a float can hold",
                    [span_of(node)],
                    "pass it as a scalar input",
                )
            return t.NumberNode(value, span_of(node))
        return getattr(self, node.data)(node)

    def disjunction(self, node: Tree[Any]) -> t.Tree:
        return self._logical("or", node)

    def conjunction(self, node: Tree[Any]) -> t.Tree:
        return self._logical("and", node)

    def negation(self, node: Tree[Any]) -> t.Tree:
        return t.Call("not", (self.expression(node.children[1]),), span_of(node))

    def _logical(self, function: str, node: Tree[Any]) -> t.Tree:
        return t.Call(function, tuple(self.expression(c) for c in node.children[::2]), span_of(node))

    def comparison(self, node: Tree[Any]) -> t.Tree:
        sides = [self.expression(c) for c in node.children[::2]]
        made = tuple(
            t.Call(COMPARISONS[str(op)], (a, b), span_of(node))
            for a, op, b in zip(sides, node.children[1::2], sides[1:], strict=False)
        )
        return made[0] if len(made) == 1 else t.Call("and", made, span_of(node))

    def sum(self, node: Tree[Any]) -> t.Tree:
        terms, sign = [], 1
        for child in node.children:
            if is_token(child, "SIGN"):
                sign = -1 if child == "-" else 1
            else:
                terms.append((sign, self.expression(child)))
        return t.SumNode(tuple(terms), span_of(node))

    def product(self, node: Tree[Any]) -> t.Tree:
        units, operators, pending = [], [], "*"
        for child in node.children:
            if is_token(child, "TIMES", "OVER"):
                pending = str(child)
                continue
            units.append(self.expression(child))
            operators.append(pending)
            pending = " "
        for n in range(1, len(units)):
            if operators[n] == " " and operators[n - 1] == "/" and n > 1:
                spans = [units[n - 1].span, units[n].span]
                text = [self.source.text[s.start : s.end] for s in spans]
                hint = f"… / ({text[0]} {text[1]}), or … / {text[0]} * {text[1]}"
                self.complain("E-DIV", "`a / b c` has two readings", [spans[0] | spans[1]], hint)
        return t.ProductNode(tuple(units), tuple(operators), span_of(node))

    def power(self, node: Tree[Any]) -> t.Tree:
        base, exponent = self.expression(node.children[0]), self.expression(node.children[-1])
        if is_token(node.children[2], "SIGN") and node.children[2] == "-":
            exponent = t.SumNode(((-1, exponent),), exponent.span)
        return t.PowerNode(base, exponent, span_of(node))

    def bracket(self, node: Tree[Any]) -> t.Tree:
        return t.Bracket(self.expression(node.children[1]), span_of(node))

    def extent(self, node: Tree[Any]) -> t.ExtentNode:
        return t.ExtentNode(name_of(node.children[1]), span_of(node))

    def call(self, node: Tree[Any]) -> t.Tree:
        function, given = str(node.children[0]), node.children[2:-1:2]
        arguments = tuple(t.BatchSlot(span_of(c)) if is_token(c, "ELLIPSIS") else self.expression(c) for c in given)
        batch = [a.span for a in arguments if isinstance(a, t.BatchSlot)]
        if batch and (function != "uniform" or len(batch) > 1 or isinstance(arguments[0], t.BatchSlot)):
            what = "`...` as an argument is the positions of all batch axes: in `uniform`, once, after the seed"
            self.complain("E-BATCH", what, batch, "write uniform(seed, ..., i)")
        wanted = ARGUMENTS.get(function, (1, 1))
        if not wanted[0] <= len(arguments) <= wanted[1]:
            between = "or" if wanted[1] == wanted[0] + 1 else "to"
            number = str(wanted[0]) if wanted[0] == wanted[1] else f"{wanted[0]} {between} {wanted[1]}"
            self.complain(
                "E-CALL",
                f"`{function}` takes {number} argument(s), not {len(arguments)}",
                [span_of(node)],
                f"write {function}({', '.join('abc'[: wanted[0]])})",
            )
        return t.Call(function, arguments, span_of(node))

    def binding(self, node: Tree[Any]) -> t.Tree:
        kind, _, binder, *_ = node.children
        names, where, options = self._binder(binder)
        return t.Binding(str(kind), names, where, options, self.expression(node.children[5]), span_of(node))

    def _binder(self, node: Any) -> tuple[tuple[t.Name, ...], t.Tree | None, tuple[tuple[str | None, t.Tree], ...]]:
        names, *rest = node.children
        where = self.expression(rest[1]) if rest and is_token(rest[0], "COLON") else None
        found = [c for c in rest if getattr(c, "data", None) in ("named_option", "plain_option")]
        options = tuple(
            (str(o.children[0]) if o.data == "named_option" else None, self.expression(o.children[-1])) for o in found
        )
        return self.names(names), where, options

    def concatenation(self, node: Tree[Any]) -> t.Tree:
        opened = next(n for n, c in enumerate(node.children) if is_token(c, "RBRACKET"))
        name, *parts = [name_of(c) for c in node.children[:opened] if is_token(c, "NAME")]
        arguments = tuple(self.expression(c) for c in node.children[opened + 2 : -1 : 2])
        if len(arguments) != len(parts):
            self.complain(
                "E-CALL",
                f"`cat` names {len(parts)} parts but has {len(arguments)} arguments",
                [span_of(node)],
                "name one part an argument",
            )
            arguments = (*arguments, *arguments * len(parts))[: len(parts)]
        return t.CatNode(name, tuple(parts), arguments, span_of(node))

    def names(self, node: Tree[Any]) -> tuple[t.Name, ...]:
        found = tuple(name_of(c) for c in node.children if is_token(c, "NAME"))
        repeated = [n for n in found if sum(m.text == n.text for m in found) > 1]
        if repeated:
            self.complain(
                "E-LHSDUP",
                f"`{repeated[0].text}` repeats within one group",
                [n.span for n in repeated],
                "name each index once",
            )
        return found

    def reference(self, node: Tree[Any]) -> t.Reference:
        name, *scripts = node.children
        upper: tuple[t.SlotNode, ...] = ()
        lower: tuple[t.SlotNode, ...] = ()
        seen: set[str] = set()
        for script in scripts:
            kind = "upper" if script.data.startswith("upper") else "lower"
            slots = self.slots(script)
            if kind in seen:
                self.complain(
                    "E-DOUBLE",
                    f"`{name}` has two {kind} groups",
                    [span_of(script)],
                    f"write one group: {name}{'^' if kind == 'upper' else '_'}<…>",
                )
            seen.add(kind)
            upper, lower = (upper + slots, lower) if kind == "upper" else (upper, lower + slots)
        self._check_batch(upper, lower)
        named = self._with_bar(name_of(name), upper + lower)
        return t.Reference(named, upper + lower, len(upper), span_of(node), bool(scripts))

    def _with_bar(self, name: t.Name, slots: tuple[t.SlotNode, ...]) -> t.Name:
        """The bar of `\\bar W` moves to the index where its softmax is meant: barred, `W` is what `Wbar` names."""
        barred = f"{name.text}bar"
        if barred not in self.defined or not any(isinstance(slot, t.BarSlot) for slot in slots):
            return name
        if name.text in self.defined:
            what = f"with a barred index `{name.text}` could be itself or `{barred}`: statements define both"
            self.complain("E-NAME", what, [name.span], "rename one of them")
        return t.Name(barred, name.span)

    def _gather(self, node: Tree[Any]) -> t.Reference:
        name, script = node.children[0], node.children[1:]
        upper = node.data == "upper_gather"
        slots = self._group(script)
        return t.Reference(name_of(name), slots, len(slots) if upper else 0, span_of(node), True)

    def _check_batch(self, upper: tuple[t.SlotNode, ...], lower: tuple[t.SlotNode, ...]) -> None:
        batches = [s for s in (*upper, *lower) if isinstance(s, t.BatchSlot)]
        home = upper or lower
        if batches and (len(batches) > 1 or home[0] is not batches[0]):
            self.complain(
                "E-BATCH",
                "`...` stands once, before all slots of the upper group (of the lower one if there is no upper)",
                [b.span for b in batches],
                "write k^<... mu>_i or k_<... mu i>",
            )

    def slots(self, script: Tree[Any]) -> tuple[t.SlotNode, ...]:
        return self._group(script.children)

    def _group(self, children: list[Any]) -> tuple[t.SlotNode, ...]:
        if len(children) == 1:  # ^mu
            token = children[0]
            name = t.Name(str(token)[1:], Span(token.start_pos + 1, token.end_pos))
            return (t.AffineSlot((t.AffineTerm(1, name),), name.span),)
        listed = children[1].children
        slots = tuple(self.slot(c) for c in listed if not is_token(c, "COMMA"))
        commas = sum(is_token(c, "COMMA") for c in listed)
        arithmetic = [
            s
            for s in slots
            if isinstance(s, t.AffineSlot)
            and (len(s.terms) != 1 or s.signed or (s.terms[0].coefficient != 1 and s.terms[0].atom is not None))
        ]
        if arithmetic and len(slots) > 1 and commas < len(slots) - 1:
            text = ", ".join(self.source.text[s.span.start : s.span.end] for s in slots)
            self.complain(
                "E-SEP",
                "a group with arithmetic needs commas between its slots",
                [s.span for s in arithmetic],
                f"write <{text}>",
            )
        for a, b in pairwise(slots):
            if a.span.end == b.span.start and self.source.text[a.span.start : a.span.end].isdigit():
                number, place = (self.source.text[s.span.start : s.span.end] for s in (a, b))
                self.complain(
                    "E-SEP",
                    f"`{number}{place}` could be one slot or two",
                    [a.span | b.span],
                    f"write {number}*{place} (one slot) or {number}, {place} (two slots)",
                )
        return slots

    def slot(self, node: Any) -> t.SlotNode:
        if is_token(node, "ELLIPSIS"):
            return t.BatchSlot(span_of(node))
        if node.data == "split":
            return t.SplitSlot(self.names(node.children[1]), span_of(node))
        if node.data == "barred":
            where = self.expression(node.children[4]) if len(node.children) > 4 else None
            return t.BarSlot(self.names(node.children[2]), where, span_of(node))
        terms, sign = [], 1
        for child in node.children:
            if is_token(child, "SIGN"):
                sign = -1 if child == "-" else 1
            else:
                terms.append(self._affine_term(child, sign))
        return t.AffineSlot(tuple(terms), span_of(node), signed=node.data == "signed_affine")

    def _affine_term(self, node: Any, sign: int) -> t.AffineTerm:
        *factor, place = node.children
        coefficient = sign * (int(factor[0]) if factor else 1)
        if is_token(place, "INTEGER"):
            return t.AffineTerm(coefficient * int(place), None)
        if is_token(place, "NAME"):
            return t.AffineTerm(coefficient, name_of(place))
        return t.AffineTerm(coefficient, self.extent(place) if place.data == "extent" else self._gather(place))


def is_token(node: Any, *kinds: str) -> bool:
    return getattr(node, "type", None) in kinds


def name_of(token: Any) -> t.Name:
    return t.Name(str(token), span_of(token))


def span_of(node: Any) -> Span:
    """Where a token or a tree stands."""
    if hasattr(node, "data"):
        return Span(node.meta.start_pos, node.meta.end_pos)
    return Span(node.start_pos, node.end_pos)


def _number(text: str) -> int | float:
    return int(text) if text.isdigit() else float(text)
