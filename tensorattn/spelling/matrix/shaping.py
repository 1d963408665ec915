"""What a matrix formula says, with axes → the tree that the same formula in index form has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn, assert_never

from tensorattn import tree as t
from tensorattn.errors import NotationError, suggest
from tensorattn.source import Source, Span
from tensorattn.spelling.matrix import nodes as n
from tensorattn.spelling.matrix import words
from tensorattn.spelling.matrix.axes import Axes
from tensorattn.spelling.matrix.declaring import Declared
from tensorattn.spelling.matrix.products import Algebra
from tensorattn.spelling.matrix.trees import map_tree
from tensorattn.spelling.matrix.values import Value

SIZE = "|"  # before the name of a size that is not known yet


@dataclass(frozen=True, slots=True)
class Known:
    """A name that can be read: the kinds of its axes, and which of them are rows and columns."""

    kinds: tuple[int, ...]
    batch: bool = False
    rows: bool = False
    columns: bool = False
    flexible: bool = False


@dataclass(slots=True)
class Shaper:
    """Reads statements in order. `declared` is None where the axes are to be invented."""

    source: Source
    declared: Mapping[str, Declared] | None
    axes: Axes = field(default_factory=Axes)
    known: dict[str, Known] = field(default_factory=dict)
    functions: dict[str, n.Assignment] = field(default_factory=dict)
    used: dict[str, str] = field(default_factory=dict)  # names that were read, with their scripts
    sizes: set[str] = field(default_factory=set)  # the axes that names of sizes would name
    current: str = ""
    algebra: Algebra = field(init=False)

    def __post_init__(self) -> None:
        self.algebra = Algebra(self.source, self.axes)
        for name, of in (self.declared or {}).items():
            self.known[name] = self.kinds_of(tuple(map(self.axes.kind, of.axes)), of.batch)

    def kinds_of(self, kinds: tuple[int, ...], batch: bool = False) -> Known:
        return Known(kinds, batch, bool(kinds), len(kinds) > 1, len(kinds) == 1)

    @property
    def is_plain(self) -> bool:
        """Whether no name has a script, which could be an index."""
        return not any(self.used.values())

    def refuse(self, code: str, what: str, span: Span, hint: str, *facts: str) -> NoReturn:
        raise NotationError(code, what, source=self.source, spans=[span], hint=hint, facts=facts)

    def text(self, span: Span) -> str:
        return " ".join(self.source.text[span.start : span.end].split())

    def value(self, formula: n.Formula) -> Value:
        """A part of a formula as a value. Raises: NotationError."""
        match formula:
            case n.Word():
                return self.word(formula)
            case n.Literal(value=value, span=span):
                return Value(t.NumberNode(value, span), span)
            case n.Extent(name=name, span=span):
                return self.extent(name, span)
            case n.Transpose(body=body, span=span):
                return self.value(body).transposed(span)
            case n.Power():
                return self.power(formula)
            case n.Apply():
                return self.apply(formula)
            case n.Chain():
                return self.chain(formula)
            case n.Sum(terms=terms, span=span):
                values = [self.value(term) for _, term in terms]
                return self.algebra.added(values, [sign for sign, _ in terms], span)
        assert_never(formula)

    # names ------------------------------------------------------------------------------------------------------------

    def word(self, word: n.Word) -> Value:
        if word.text == self.current:
            hint = "a recurrence has no closed formula; give the result another name"
            self.refuse("E-RECUR", f"`{word.text}` is defined by itself", word.span, hint)
        known = self.known.get(word.text)
        if known is None and words.is_size(word):
            self.sizes |= size_names(word.text)
            return Value(t.ExtentNode(t.Name(SIZE + word.text, word.span), word.span), word.span)
        if known is None:
            known = self.known[word.text] = self.guessed(word)
        self.once(word)
        made = tuple(self.axes.fresh(kind) for kind in known.kinds)
        count = known.rows + known.columns
        last = iter(made[len(made) - count :])
        slots: list[t.SlotNode] = [t.BatchSlot(word.span)] if known.batch else []
        slots += [t.AffineSlot((t.AffineTerm(1, t.Name(str(axis), word.span)),), word.span) for axis in made]
        tree = t.Reference(t.Name(word.text, word.span), tuple(slots), 0, word.span, bool(slots))
        rows = next(last) if known.rows else None
        columns = next(last) if known.columns else None
        return Value(tree, word.span, rows, columns, made[: len(made) - count], known.batch, known.flexible)

    def once(self, word: n.Word) -> None:
        """Two spellings of one plain name, `W_q` and `W^q`, would be one input."""
        given = (self.declared or {}).get(word.text)
        before = self.used.setdefault(word.text, (given.scripts if given else "") or word.scripts)
        if before != word.scripts and before and word.scripts:
            what = f"`{self.text(word.span)}` and `{word.base}{before}` would both be called `{word.text}`"
            self.refuse("E-NAME", what, word.span, "write one of them in one way everywhere, or rename one")

    def guessed(self, word: n.Word) -> Known:
        """The axes of a name that is not declared: where all are invented, capitals are matrices."""
        if self.declared is None:
            first = word.base[0]
            count = 2 if first.isupper() else 0 if len(word.base) > 1 else 1
            return self.kinds_of(tuple(self.axes.kind(None) for _ in range(count)))
        near = suggest(word.text, list(self.known))
        hint = f'axes={{"{word.text}": "i j"}} for a matrix, "i" for a vector, "" for a scalar'
        if word.text in self.axes.named:
            hint = f"the size of the axis {word.text} is |{word.text}|; {hint}"
        self.refuse(
            "E-NAME",
            f"the axes of `{word.text}` are not declared",
            word.span,
            f"{near} Else {hint}" if near else hint,
            f"declared: {', '.join(self.known) or 'nothing'}",
        )

    # sizes ------------------------------------------------------------------------------------------------------------

    def extent(self, name: str, span: Span) -> Value:
        if name not in self.axes.named:
            hint = f"its axes are: {' '.join(self.axes.named) or 'none'}; the absolute value is abs(…)"
            self.refuse("E-NAME", f"`|{name}|` is the size of no declared axis", span, hint)
        return Value(t.ExtentNode(t.Name(name, span), span), span)

    def sized(self, value: Value) -> Value:
        """A term in which the names of sizes are the size of the axis that its products sum.

        Products inside functions count where one outside sums too: with two candidates it is refused.
        """
        open_ = [node for node in _extents(value.tree) if node.name.text.startswith(SIZE)]
        if not open_ or not value.summing:
            return value
        return replace(value, tree=self.resolve_sizes(value.tree, value.contracted))

    def resolve_sizes(self, tree: t.Tree, contracted: tuple[int, ...]) -> t.Tree:
        """The tree with every open size resolved. Raises: NotationError where it could be several, or none."""

        def change(node: t.ExtentNode) -> t.ExtentNode:
            if not node.name.text.startswith(SIZE):
                return node
            return replace(node, name=t.Name(self.size(node.name.text[1:], node.span, contracted), node.span))

        return map_tree(tree, lambda name: name, change)

    def size(self, name: str, span: Span, contracted: tuple[int, ...]) -> str:
        """Which size a name like d_k is: of the axis summed around it, or of the axis of that name."""
        by_sum = {self.axes.kind_of(a): a for a in contracted}
        by_name = [self.axes.named[x] for x in sorted(size_names(name)) if x in self.axes.named]
        found = list(dict.fromkeys([*by_sum, *by_name]))
        if len(found) == 1:
            kind = found[0]
            return str(self.axes.find(by_sum[kind])) if kind in by_sum else self.axes.names[kind]
        facts = []
        if by_sum:
            shown = ", ".join(self.axes.name_of(a) or "?" for a in by_sum.values())
            facts.append(f"axes summed by the products here: {shown}")
        if by_name:
            facts.append(f"axes of this name: {', '.join(self.axes.names[k] for k in by_name)}")
        known = [self.axes.names.get(k, "i") for k in found] or list(self.axes.named)[:3] or ["i"]
        choices = ", ".join(f"|{k}|" for k in known)
        what = f"`{self.text(span)}` could be the size of several axes"
        if not found:
            what = f"no product around `{self.text(span)}` says which size it is"
        self.refuse("E-MATRIX", what, span, f'write {choices}, or declare it as a scalar: "{name}": ""', *facts)

    # functions --------------------------------------------------------------------------------------------------------

    def power(self, node: n.Power) -> Value:
        base, exponent = self.value(node.base), self.value(node.exponent)
        if not (base.is_scalar and exponent.is_scalar):
            shown = self.text(node.base.span)
            hint = f"write {shown} {shown} for the matrix product, {shown} ⊙ {shown} (\\odot) for the square of entries"
            if isinstance(node.exponent, n.Sum):
                hint = "an inverse is no formula of indices: compute it before and declare it as an input"
            if isinstance(node.exponent, n.Literal) and isinstance(node.base, n.Word):
                hint += f"; a label is part of the name: {node.base.text}{node.exponent.value}"
            self.refuse("E-POWER", "a power of what is no scalar has several readings", node.span, hint)
        tree = t.PowerNode(base.unit(), exponent.unit(), node.span)
        return replace(
            base,
            tree=tree,
            span=node.span,
            contracted=(*base.contracted, *exponent.contracted),
            summing=base.summing or exponent.summing,
        )

    def apply(self, node: n.Apply) -> Value:
        name = words.function_of(node.function.text)
        if node.function.text in self.functions:
            return self.inlined(node, self.functions[node.function.text])
        if name is None:
            hint = f"declare `{node.function.text}` to multiply by it; functions are: softmax, exp, tanh, relu, …"
            hint = words.MANY_FUNCTIONS.get(node.function.text, hint)
            self.refuse("E-CALL", f"`{node.function.text}` is no function", node.function.span, hint)
        if name in words.JOINING:
            hint = "in index form: y_<i a> = cat[a = m + j](A_<i m>, B_<i j>)"
            self.refuse(
                "E-MATRIX", f"`{node.function.text}` does not say which axes it joins", node.function.span, hint
            )
        if name in words.WITHOUT_AN_AXIS:
            hint = f"in index form: y_i = {name}[j](A_<i j>)"
            self.refuse("E-AXIS", f"`{node.function.text}` names no axis", node.function.span, hint)
        first, *others = node.arguments
        if others:
            what, hint = (
                f"`{node.function.text}` takes one argument here",
                "options stand in index form: softmax[j; sink=s](…)",
            )
            self.refuse("E-CALL", what, others[0].span, hint)
        body = self.value(first)
        if not body.is_scalar:  # a product around the function does not say which size stands in it
            body = replace(body, tree=self.resolve_sizes(body.tree, body.contracted))
        if name in words.OVER_AN_AXIS:
            return self.normalised(node, name, body)
        tree = t.Call(name, (body.tree,), node.span)
        return replace(body, tree=tree, span=node.span, summing=False, repeated=body.early, doubled=frozenset())

    def normalised(self, node: n.Apply, name: str, body: Value) -> Value:
        """`softmax(A)`: over the last axis, or over the one that it names."""
        axis = body.columns if body.columns is not None else body.rows
        if node.axes:
            (named,) = node.axes
            axis, *others = [a for a in body.axes if self.axes.name_of(a) == named] or [None]
            if others:
                what = f"two axes of the argument are named `{named}`"
                hint = "leave the name out for the last axis; transpose for the other; or declare two names"
                self.refuse("E-AXIS", what, node.function.span, hint)
        if axis is None:
            shown = self.algebra.shape(body)
            hint = "the argument is a matrix or a vector; other axes are named in index form: softmax[j](…)"
            what = f"`{self.text(node.function.span)}` has no axis to run over"
            self.refuse("E-AXIS", what, node.function.span, hint, f"its argument is {shown}")
        binder = (t.Name(str(axis), node.function.span),)
        tree = t.Binding(name, binder, None, (), body.tree, node.span)
        early = frozenset(a for a in body.early if self.axes.find(a) != self.axes.find(axis))
        return replace(body, tree=tree, span=node.span, summing=False, repeated=early, doubled=frozenset())

    def inlined(self, node: n.Apply, function: n.Assignment) -> Value:
        """`f(A, B)` of `f(X, Y) = …`: its result where the arguments are its own parameters."""
        assert function.target is not None
        name, own = function.target.text, [p.text for p in function.parameters]
        given = [a.text if isinstance(a, n.Word) else "" for a in node.arguments]
        if given != own:
            hint = f"write its body with these arguments; {name}({', '.join(own)}) is its result"
            self.refuse("E-CALL", f"`{name}` is defined for {', '.join(own)} only", node.span, hint)
        return replace(self.word(replace(function.target, span=node.span)), span=node.span)

    # products ---------------------------------------------------------------------------------------------------------

    def chain(self, node: n.Chain) -> Value:
        values = [self.value(f) for f in node.factors]
        if "⊙" not in node.operators:
            return self.sized(replace(self.multiplied(values, node.operators), span=node.span))
        mixed = self.declared is not None and any(op not in ("⊙", "/") and not (a.is_scalar or b.is_scalar)
                    for op, a, b in zip(node.operators[1:], values, values[1:], strict=False))  # fmt: skip
        before = self.axes.copy()
        found = self._by_precedence(values, node.operators)
        if mixed:
            after = self.axes.copy()
            self.axes.become(before)
            try:
                self._entrywise_first(values, node.operators)
            except NotationError:
                pass
            else:
                hint = "put brackets around the product that comes first"
                what = "`⊙` beside a matrix product has two readings, and the axes fit both"
                self.refuse("E-MATRIX", what, node.span, hint)
            finally:
                self.axes.become(after)
        return self.sized(replace(found, span=node.span))

    def multiplied(self, values: list[Value], operators: tuple[str, ...] | list[str]) -> Value:
        """Factors from left to right."""
        found = values[0]
        for value, operator in zip(values[1:], operators[1:], strict=True):
            if operator == "/":
                found = self.algebra.divided(found, value)
            else:
                found = self.algebra.product(found, value, operator)
        return found

    def _by_precedence(self, values: list[Value], operators: tuple[str, ...]) -> Value:
        """Matrix products first, then ⊙."""
        groups: list[tuple[list[Value], list[str]]] = []
        for value, operator in zip(values, operators, strict=True):
            if operator == "⊙" or not groups:
                groups.append(([], []))
            groups[-1][0].append(value)
            groups[-1][1].append(operator)
        parts = [self.multiplied(*group) for group in groups]
        found = parts[0]
        for part in parts[1:]:
            found = self.algebra.entrywise(found, part)
        return found

    def _entrywise_first(self, values: list[Value], operators: tuple[str, ...]) -> None:
        """⊙ first, then matrix products: tried, to see whether the axes fit that too."""
        parts: list[Value] = []
        between: list[str] = []
        for value, operator in zip(values, operators, strict=True):
            if operator == "⊙":
                parts[-1] = self.algebra.entrywise(parts[-1], value)
            else:
                parts.append(value)
                between.append(operator)
        self.multiplied(parts, between)


def size_names(name: str) -> set[str]:
    """The axes that the name of a size names: `dk` is the size of `dk` or of `k`."""
    return {name, name[1:]} - {""} if name[:1] in "dD" else {name}


def _extents(tree: t.Tree) -> list[t.ExtentNode]:
    found = [tree] if isinstance(tree, t.ExtentNode) else []
    return [*found, *(e for part in t.parts(tree) for e in _extents(part))]
