"""IR → text in a spelling. `read(show(p)) == p`, and showing is a fixed point.

What needs a bracket, a bar or a binder is decided here, once; how it looks is the spelling's.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensorattn.bracketing import (
    Range,
    brackets_of,
    count_in,
    is_divisor,
    is_enclosable,
    is_implicit,
    with_names_apart,
    without_early_sums,
)
from tensorattn.ir import (
    COMPARISONS,
    Add,
    Affine,
    Concatenate,
    Constant,
    Expr,
    Extent,
    Index,
    Map,
    Normalise,
    Number,
    Position,
    Product,
    Reduce,
    Slot,
    Split,
    Statement,
    Tensor,
    Top,
    walk,
)
from tensorattn.program import Program
from tensorattn.spelling.marks.ascii import (
    AND,
    ATOM,
    COMPARISON,
    NOT,
    OR,
    PRODUCT,
    SUM,
    UNIT,
    Ascii,
    Item,
    Part,
    Text,
)

_COMPARISONS = frozenset(COMPARISONS.values())
Names = frozenset[str]
NONE: Names = frozenset()


def show(program: Program, spelling: Ascii | None = None) -> str:
    """The program, one statement a line; the canonical ASCII text where no spelling is given."""
    return Printer(spelling or Ascii(), program.defined).program(program.statements)


def show_slot(slot: Slot) -> str:
    """A slot in ASCII."""
    return Printer(Ascii(), ()).item(slot).text


def show_expression(expr: Expr) -> str:
    """An expression by itself, in ASCII."""
    return Printer(Ascii(), ()).expression(expr)


class Printer:
    """Writes in one spelling what stands in a program that defines these names."""

    def __init__(self, spelling: Ascii, defined: Sequence[str]) -> None:
        self.spelling = spelling
        self.defined = frozenset(defined)
        marked = [name for name in defined if name.endswith("bar")] if spelling.moves_bars else []
        self.unbarred = frozenset(name.removesuffix("bar") for name in marked)

    def program(self, statements: Sequence[Statement]) -> str:
        return self.spelling.program([(self._left(s), self._text(s.body, NONE)) for s in statements])

    def expression(self, expr: Expr) -> str:
        return self._write(expr, OR, NONE)

    def _left(self, statement: Statement) -> str:
        slots = tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in statement.axes)
        return self._reference(statement.name, slots, statement.upper)

    # tensors --------------------------------------------------------------------------------------------------------

    def _reference(
        self, name: str, slots: tuple[Slot, ...], upper: int, bar: tuple[Index, ...] = (), where: str = ""
    ) -> str:
        """`name^<…>_<…>`; `bar`: the indices, contiguous in one group, that stand under a bar."""
        groups = [self._items(listed, bar, where) for listed in (slots[:upper], slots[upper:])]
        return self.spelling.reference(name, *groups)

    def _items(self, slots: tuple[Slot, ...], bar: tuple[Index, ...], where: str) -> list[Item]:
        barred = Item(self.spelling.bar([i.name for i in bar], where), "bar") if bar else None
        found = [barred if bar and s == bar[0] else None if s in bar else self.item(s) for s in slots]
        return [item for item in found if item is not None]

    def item(self, slot: Slot) -> Item:
        match slot:
            case Index(name=name):
                return Item(self.spelling.index(name), "index", name)
            case Split(indices=indices):
                return Item(self.spelling.split([i.name for i in indices]), "split")
            case Affine():
                return Item(self._affine(slot), "arithmetic" if _is_arithmetic(slot) else "place")

    def _affine(self, slot: Affine) -> str:
        out = ""
        for coefficient, atom in slot.terms:
            size = abs(coefficient)
            sign = "-" if coefficient < 0 else "+" if out else ""
            out += sign + (self.spelling.coefficient(size) if size != 1 else "") + self._write(atom, ATOM, NONE)
        if slot.constant or not slot.terms or _needs_zero(slot):
            out += ("-" if slot.constant < 0 else "+" if out else "") + str(abs(slot.constant))
        return out

    def _constant(self, kind: str) -> str:
        names = self.spelling.constants.get(kind, (kind,))
        return next((n for n in names if n not in self.defined), kind)

    # expressions ----------------------------------------------------------------------------------------------------

    def _write(self, expr: Expr, level: int, blocked: Names) -> str:
        """An expression that stands at a place of this level; over `blocked` names no bar is written."""
        return self.spelling.at(level, self._text(expr, blocked))

    def _all(self, exprs: Sequence[Expr], level: int, blocked: Names) -> list[str]:
        return [self._write(e, level, blocked) for e in exprs]

    def _text(self, expr: Expr, blocked: Names) -> Text:
        spelling = self.spelling
        match expr:
            case Number(value=value):
                return Text(spelling.number(value), ATOM if value >= 0 else SUM)
            case Extent(name=name):
                return Text(spelling.extent(name), ATOM)
            case Position(index=index):
                return Text(spelling.index(index.name), ATOM)
            case Tensor(name=name, slots=slots, upper=upper):
                return Text(self._reference(name, slots, upper), ATOM)
            case Constant(kind=kind, indices=indices, upper=upper):
                return Text(self._reference(self._constant(kind), indices, upper), ATOM)
            case Add(terms=terms):
                return Text(self._sum(terms, blocked), SUM)
            case Product():
                return self._product(without_early_sums(expr), blocked)
            case Map():
                return self._map(expr, blocked)
            case Normalise():
                return Text(self._term((expr,), (), blocked), ATOM)
            case Reduce(kind=kind, indices=indices, body=body, where=where):
                return spelling.bind(kind, self._binder(indices, where, "", NONE), self._text(body, blocked))
            case Top(indices=indices, count=count, body=body, where=where):
                binder = self._binder(indices, where, self._write(count, OR, NONE), NONE)
                return spelling.bind("top", binder, self._text(body, blocked))
            case Concatenate(index=index, parts=parts, arguments=arguments):
                return Text(spelling.cat(index.name, [p.name for p in parts], self._all(arguments, OR, blocked)), ATOM)

    def _binder(self, indices: tuple[Index, ...], where: Expr | None, options: str, blocked: Names) -> str:
        condition = "" if where is None else self._write(where, OR, blocked)
        return self.spelling.binder([i.name for i in indices], condition, options)

    def _sum(self, terms: tuple[Expr, ...], blocked: Names) -> str:
        out = ""
        for term in terms:
            negative = isinstance(term, Map) and term.function == "negate"
            word = self._write(term.arguments[0] if negative else term, PRODUCT, blocked)  # type: ignore[union-attr]
            if negative:
                out += f" - {word}" if out else f"-{word}"
            else:
                out += f" + {word}" if out else word
        return out

    def _map(self, expr: Map, blocked: Names) -> Text:
        function, arguments, spelling = expr.function, expr.arguments, self.spelling
        if function == "negate":
            return Text(f"-{self._write(arguments[0], PRODUCT, blocked)}", SUM)
        if function == "reciprocal":
            return Text(spelling.reciprocal(self._text(arguments[0], blocked)), PRODUCT)
        if function == "power":
            base, exponent = arguments
            negative = isinstance(exponent, Map) and exponent.function == "negate"
            size = exponent.arguments[0] if negative else exponent  # type: ignore[union-attr]
            sign = "-" if negative else ""
            placed = any(isinstance(part, Position) for part in walk(size))
            return Text(spelling.power(self._text(base, blocked), sign, self._text(size, blocked), placed), UNIT)
        if function in _COMPARISONS:
            return Text(spelling.signs[function].join(self._all(arguments, SUM, blocked)), COMPARISON)
        if function in ("and", "or"):
            level = {"and": AND, "or": OR}[function]
            return Text(spelling.words[function].join(self._all(arguments, level + 1, blocked)), level)
        if function == "not":
            return Text(spelling.words["not"] + self._write(arguments[0], NOT, blocked), NOT)
        return Text(spelling.call(function, self._all(arguments, OR, blocked)), ATOM)

    # products -------------------------------------------------------------------------------------------------------

    def _product(self, expr: Product, blocked: Names) -> Text:
        bars = self._bars(expr.factors, expr.summed, blocked)
        explicit = tuple(i for i in expr.summed if not is_implicit(expr, i, bars))
        if (apart := with_names_apart(expr, explicit, blocked)) is not expr:
            return self._product(apart, blocked)
        kept = tuple(i for i in expr.summed if i not in explicit)
        term = Text(self._term(expr.factors, kept, blocked), PRODUCT if len(expr.factors) > 1 else UNIT)
        if not explicit:
            return term
        return self.spelling.bind("sum", self.spelling.binder([i.name for i in explicit], "", ""), term)

    def _term(self, factors: tuple[Expr, ...], summed: tuple[Index, ...], blocked: Names) -> str:
        bars = self._bars(factors, summed, blocked)
        parts = []
        for number in range(len(factors)):
            others = frozenset(n for k, f in enumerate(factors) if k != number for n in _normalised(f))
            parts.append(self._part(factors, number, number in bars, blocked | others))
        return self._run(parts, (0, len(parts)), brackets_of(factors, summed), factors, summed)

    def _part(self, factors: tuple[Expr, ...], number: int, as_bar: bool, blocked: Names) -> Part:
        factor = factors[number]
        if is_divisor(factors, number):
            return Part(self._text(factor.arguments[0], blocked), over=True)  # type: ignore[union-attr]
        if isinstance(factor, Normalise):
            return Part(self._normaliser(factor, as_bar, blocked))
        return Part(self._text(factor, blocked), bare=_is_bare(factor))

    def _run(
        self,
        parts: Sequence[Part],
        span: Range,
        brackets: tuple[Range, ...],
        factors: tuple[Expr, ...],
        summed: tuple[Index, ...],
    ) -> str:
        """The factors low … high - 1, those of each bracket within as one part."""
        inside = [r for r in brackets if r != span and span[0] <= r[0] and r[1] <= span[1]]
        outermost = {r[0]: r for r in inside if not any(r != o and o[0] <= r[0] and r[1] <= o[1] for o in inside)}
        shown: list[Part] = []
        ends: list[int] = []
        at = span[0]
        while at < span[1]:
            if at in outermost:
                inner = self._run(parts, outermost[at], brackets, factors, summed)
                shown.append(Part(Text(inner, PRODUCT), group=True))
                at = outermost[at][1]
            else:
                shown.append(parts[at])
                at += 1
            ends.append(at)
        return self.spelling.product(shown, lambda n: is_enclosable(factors, summed, (span[0], ends[n - 1])))

    def _normaliser(self, factor: Normalise, as_bar: bool, blocked: Names) -> Text:
        own = frozenset(i.name for i in factor.indices)
        if as_bar and self._can_bar(factor, blocked):
            tensor = factor.score
            assert isinstance(tensor, Tensor)
            where = self._write(factor.where, OR, blocked | own) if factor.where is not None else ""
            return Text(self._reference(tensor.name, tensor.slots, tensor.upper, factor.indices, where), ATOM)
        kind, options = factor.kind, dict(factor.options)
        if kind == "softmax" and options.get("sink") == Number(0):
            kind, options = "softmax1", {}
        inside = blocked | own
        values = [(name, self._write(value, OR, inside)) for name, value in options.items()]
        shown = ", ".join(v if kind == "entmax" else self.spelling.option(n, v) for n, v in values)
        binder = self._binder(factor.indices, factor.where, shown, inside)
        return self.spelling.bind(kind, binder, self._text(factor.score, inside))

    # bars -----------------------------------------------------------------------------------------------------------

    def _bars(self, factors: tuple[Expr, ...], summed: tuple[Index, ...], blocked: Names) -> frozenset[int]:
        """The factors that print as a barred tensor."""
        found = {n for n, f in enumerate(factors) if self._can_bar(f, blocked) and not _clashes(n, factors)}
        while True:
            groups = frozenset(i for n in found for i in factors[n].indices)  # type: ignore[union-attr]
            kept = {n for n in found if not _contracted_early(n, factors, summed, groups)}
            if kept == found:
                return frozenset(found)
            found = kept

    def _can_bar(self, factor: Expr, blocked: Names) -> bool:
        if not isinstance(factor, Normalise) or factor.kind != "softmax" or factor.options:
            return False
        if not isinstance(factor.score, Tensor) or factor.score.name in self.unbarred:
            return False
        slots, group = factor.score.slots, factor.indices
        if not set(group) <= set(slots) or blocked & {i.name for i in group}:
            return False
        at = slots.index(group[0])
        contiguous = slots[at : at + len(group)] == group and not at < factor.score.upper < at + len(group)
        return (
            contiguous
            and all(count_in(factor.score, i.name) == 1 for i in group)
            and not (factor.where and _normalised(factor.where) & {i.name for i in group})
        )


def _is_arithmetic(slot: Affine) -> bool:
    sums = len(slot.terms) > 1 or bool(slot.terms and slot.constant) or _needs_zero(slot)
    return sums or slot.constant < 0 or any(c != 1 for c, _ in slot.terms)


def _needs_zero(slot: Affine) -> bool:
    """A lone position or scalar as an affine slot: without `+0` it would read as a plain slot, which fixes a size."""
    if len(slot.terms) != 1 or slot.constant:
        return False
    ((coefficient, atom),) = slot.terms
    return coefficient == 1 and (isinstance(atom, Position) or (isinstance(atom, Tensor) and not atom.slots))


def _is_bare(factor: Expr) -> bool:
    return isinstance(factor, Position) or (isinstance(factor, Tensor) and not factor.slots)


def _normalised(expr: Expr) -> Names:
    return frozenset(i.name for n in walk(expr) if isinstance(n, Normalise) for i in n.indices)


def _clashes(number: int, factors: tuple[Expr, ...]) -> bool:
    own = {i.name for i in factors[number].indices}  # type: ignore[union-attr]
    return any(own & _normalised(f) for n, f in enumerate(factors) if n != number)


def _contracted_early(
    number: int, factors: tuple[Expr, ...], summed: tuple[Index, ...], barred: frozenset[Index]
) -> bool:
    factor = factors[number]
    assert isinstance(factor, Normalise)
    for index in factor.free - set(factor.indices):  # also of the condition
        carried = any(n != number and index in f.free and f.free & set(factor.indices) for n, f in enumerate(factors))
        if index in summed and index not in barred and not carried:
            return True
    return False
