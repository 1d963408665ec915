"""R15 by rows: what sees an index i through one integer map σ only is computed for each symbol σ may give, then read.

    b_i = lse_j(G[σ_i, key_j] + m_j)   is   b_i = B[σ_i],  B_s = lse_j(G[s, key_j] + m_j):

one row for each of S symbols in the place of one for each of N positions. A product that sums such rows over i sums
its other factors by symbol first. Rows of symbols that do not occur are read by nobody; so that they have no part in
gradients either, the table is set to 0 there.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from functools import partial
from itertools import product

from tensorattn.combining import fresh
from tensorattn.ir import (
    AT,
    Add,
    Affine,
    Concatenate,
    Expr,
    Index,
    Map,
    Normalise,
    Number,
    Position,
    Product,
    Reduce,
    Slot,
    Statement,
    Tensor,
    Top,
    highest_number,
    rebuild,
    substitute,
    walk,
)
from tensorattn.keys import indices_of
from tensorattn.predicates import bringing, brings
from tensorattn.program import Program
from tensorattn.rewriting.fusing import fuse
from tensorattn.rewriting.lookups import Lookup, lookup_of
from tensorattn.rewriting.scatters import Scatters, scatters
from tensorattn.rewriting.sums import merge_sums
from tensorattn.rewriting.terms import Term, product_of, term_of

SINGULAR = ("log", "sqrt", "power", "reciprocal")  # of symbols that do not occur they may have no derivative


class Rows:
    """The rows of a program by symbol, as statements of their own; `changed`: the statements that read some."""

    def __init__(self, program: Program, sizes: Mapping[str, int]) -> None:
        self.program, self.sizes = program, dict(sizes)
        self.taken = {t.name for t in program.tensors} | set(program.defined)
        self.made: list[Statement] = []
        self.axes: dict[str, tuple[str, ...]] = {}
        self.masked: Set[str] = set()
        self.changed: set[str] = set()

    def rewritten(self, outputs: tuple[str, ...]) -> Program:
        """The program with every part that pays by symbol in a statement before the one it stood in."""
        program, before = self.program, -1
        while before < len(self.axes):  # what reads a part that has become a reading of rows sees them from then on
            before = len(self.axes)
            program = self._round(program, outputs)
        if not self.axes:
            return program
        self.masked = bringing(program)
        statements: list[Statement] = []
        for statement in program.statements:
            self.made = []
            body = self._by_symbol(statement.body)
            statements += [*self.made, replace(statement, body=body)]
        return replace(program, statements=tuple(statements))

    def _round(self, program: Program, outputs: tuple[str, ...]) -> Program:
        statements: list[Statement] = []
        for statement in program.statements:
            self.made = []
            body = self._apart(statement.body)
            if self.made:
                self.changed.add(statement.name)
            statements += [*self.made, replace(statement, body=body)]
        lookups = frozenset(s.name for s in statements if self._reads(s.body))
        return fuse(Program(tuple(statements)), outputs, lookups) if lookups else Program(tuple(statements))

    def _reads(self, node: Expr) -> bool:
        """Whether it only reads rows, or multiplies some."""
        if isinstance(node, Product) and not node.summed:
            return any(self._reads(factor) for factor in node.factors)
        return isinstance(node, Tensor) and node.name in self.axes

    def _apart(self, node: Expr) -> Expr:
        """The largest parts first; what is inside them afterwards."""
        found: tuple[Index, Lookup] | None = None
        if any(map(_is_heavy, walk(node))):
            for index in dict.fromkeys(i for i in indices_of(node) if i in node.free):
                lookup = lookup_of(node, index)
                if lookup is not None and self._pays(node, index, self._along(lookup)):
                    found = index, lookup
                    break
        if found is None:
            return rebuild(node, self._apart)
        return self._stated(node, *found)

    def _pays(self, node: Expr, index: Index, symbols: str) -> bool:
        if not self.sizes.get(symbols, 1 << 62) < self.sizes.get(index.name, 0):
            return False
        names = [symbols, *(i.name for i in node.free)]  # of the axes of a statement: each another
        if len(set(names)) < len(names):
            return False
        return not any(_runs_along(part, index) or _is_singular(part, index) for part in walk(node))

    def _along(self, lookup: Lookup) -> str:
        """The name of an index along the axis that is looked up in; that of rows has one."""
        return self.axes[lookup.table][lookup.axis] if lookup.table in self.axes else lookup.name

    def _stated(self, node: Expr, index: Index, lookup: Lookup) -> Expr:
        """The part as a statement over the symbols, read where the map says."""
        name = fresh("Rows", {*self.taken, *self.axes})
        order = [i for i in dict.fromkeys(indices_of(node)) if i in node.free]
        new = {i: Index(self._along(lookup) if i == index else i.name) for i in order}
        number = highest_number(node) + 1
        counted = Index(index.name, number)
        occurs = Map("less", (Number(0), _count(lookup.places, index, counted, index)))

        def looked_up(part: Expr) -> Expr:
            if isinstance(part, Tensor) and index in part.free:
                slots: tuple[Slot, ...] = tuple(
                    index if isinstance(s, Affine) and index in s.free else s for s in part.slots
                )
                return Map("where", (occurs, replace(part, slots=slots, slot_spans=()), Number(0)))
            return rebuild(part, looked_up)

        body = substitute(looked_up(node), lambda i: new.get(i, i))
        self.axes[name] = tuple(new[i].name for i in order)
        inner = self._apart(body)
        self.made.append(Statement(name, tuple((new[i],) for i in order), inner))
        return Tensor(name, tuple(Affine(((1, lookup.places),)) if i == index else i for i in order))

    # sums over positions of rows -----------------------------------------------------------------------------------

    def _by_symbol(self, node: Expr) -> Expr:
        node = rebuild(node, self._by_symbol)
        if isinstance(node, Reduce) and scatters(node) is not None:
            return self._placed(node)
        if not isinstance(node, Product) or any(brings(f, self.masked) for f in node.factors):
            return node
        numbers, left = highest_number(node), list(node.summed)
        while left:
            index = min(left, key=partial(self._waits, node))
            left.remove(index)
            rows = [(f, p) for f in node.factors if (p := self._places(f, index)) is not None]
            places = rows[0][1] if rows else None
            if places is not None and all(p == places for _, p in rows):
                numbers += 1
                symbol = self._symbol(rows[0][0], index, numbers)
                there = Map(AT, (places, Position(symbol)))
                node = _unmasked(_summed(node, index, there, [f for f, _ in rows], symbol))
        return node

    def _placed(self, node: Reduce) -> Expr:
        """`Σ_{n i: p = σ_i} R[σ_i] x_i` as `Σ_{s: p = s} Σ_n R[s] Σ_{i: σ_i = s} x_i`, a term at a time."""
        terms = _terms(node.body)
        found = [self._term(replace(node, body=product_of(term.factors, term.summed))) for term in terms]
        if all(f is None for f in found):
            return node
        made: list[Expr] = []
        for new, term in zip(found, terms, strict=True):
            whole = new or replace(node, body=product_of(term.factors, term.summed))
            made.append(whole if term.sign > 0 else Map("negate", (whole,)))
        return made[0] if len(made) == 1 else Add(tuple(made))

    def _term(self, node: Reduce) -> Expr | None:
        found = scatters(node)
        body = node.body if isinstance(node.body, Product) else Product((node.body,))
        if found is None:
            return None
        for index, (p, places) in product(node.indices, found.places):
            rows = [f for f in body.factors if self._places(f, index) == places]
            rest = Scatters(tuple(c for c in found.places if c[0] != p), found.where)
            masked = any(index in f.free and brings(f, self.masked) for f in body.factors)
            if not rows or masked or index in rest.free:
                continue
            symbol = self._symbol(rows[0], index, highest_number(node) + 1)
            same = Map("equal", (Position(p), Position(symbol)))
            there = Map("equal", (Position(symbol), places))
            inner = _summed(replace(body, summed=(*body.summed, index)), index, there, rows, symbol)
            *others, by_symbol = inner.factors
            summed = tuple(i for i in inner.summed if i != symbol)
            inner = replace(inner, factors=(*others, self._own(by_symbol)), summed=summed)
            left = tuple(i for i in node.indices if i != index)
            if rest.condition is None:
                whole = product_of(inner.factors, (*inner.summed, *left))
                return Reduce("sum", (symbol,), self._own(whole), same)
            whole = self._placed(Reduce("sum", left, product_of(inner.factors, inner.summed), rest.condition))
            return Reduce("sum", (symbol,), self._own(whole), same)
        return None

    def _own(self, sums: Expr) -> Tensor:
        """Sums as a statement, so that they stand below no predicate of what reads them."""
        name = fresh("Sums", {*self.taken, *self.axes})
        order = tuple(i for i in dict.fromkeys(indices_of(sums)) if i in sums.free)
        self.taken.add(name)
        self.masked = {*self.masked, name}
        self.made.append(Statement(name, tuple((i,) for i in order), sums))
        return Tensor(name, order)

    def _waits(self, node: Product, index: Index) -> bool:
        """Whether what is summed by symbol would hold rows of another index: that one is summed first."""
        others = [f for f in node.factors if index in f.free and self._places(f, index) is None]
        return any(self._places(f, i) is not None for f in others for i in node.summed if i != index)

    def _places(self, factor: Expr, index: Index) -> Tensor | None:
        """The map at which rows are read, where that is all that they see of the index."""
        if not isinstance(factor, Tensor) or factor.name not in self.axes or index not in factor.free:
            return None
        slots = [s for s in factor.slots if index in ({s} if isinstance(s, Index) else s.free)]
        match slots:
            case [Affine(terms=((1, Tensor() as places),), constant=0)]:
                return places
        return None

    def _symbol(self, rows: Expr, index: Index, number: int) -> Index:
        """An index over the symbols: named like the axis of the rows."""
        assert isinstance(rows, Tensor)
        axis = next(n for n, s in enumerate(rows.slots) if isinstance(s, Affine) and index in s.free)
        return Index(self.axes[rows.name][axis], number)


def _summed(node: Product, index: Index, there: Expr, rows: list[Expr], symbol: Index) -> Product:
    """`Σ_i R[σ_i] x_i` as `Σ_s R[s] Σ_{i: σ_i = s} x_i`: symbols without a position are excluded. `there`: σ_i = s."""

    def at(factor: Expr) -> Expr:
        assert isinstance(factor, Tensor)
        return replace(
            factor, slots=tuple(symbol if isinstance(s, Affine) and index in s.free else s for s in factor.slots)
        )

    others = tuple(f for f in node.factors if f not in rows and index in f.free)
    rest = tuple(f for f in node.factors if f not in rows and index not in f.free)
    body: Expr = Number(1) if not others else others[0] if len(others) == 1 else Product(others)
    by_symbol = Reduce("sum", (index,), body, there)
    summed = tuple(symbol if i == index else i for i in node.summed)
    return replace(node, factors=(*rest, *map(at, rows), by_symbol), summed=summed)


def _unmasked(node: Product) -> Product:
    """The product with no predicate of the sum by symbol, its last factor: positions had none."""
    *others, by_symbol = node.factors
    return replace(node, factors=(*others, Add((by_symbol, Number(0)))))


def _terms(node: Expr) -> list[Term]:
    """The terms of a sum of products; a sum of one term is that term."""
    if isinstance(node, Add):
        return [term for part in node.terms for term in _terms(part)]
    term = term_of(merge_sums(_unwrapped(node)))
    return [term]


def _unwrapped(node: Expr) -> Expr:
    """A product whose factors that are sums of one term are that term."""
    match node:
        case Map(function="negate", arguments=(inner,)):
            return Map("negate", (_unwrapped(inner),))
        case Product(factors=factors):
            return replace(node, factors=tuple(map(_unwrapped, factors)))
        case Add(terms=(only,)):
            return _unwrapped(only)
    return node


def _count(places: Tensor, index: Index, counted: Index, symbol: Index) -> Expr:
    """How many positions have a symbol; positions out of range have none."""
    there = substitute(places, lambda i: counted if i == index else i)
    return Reduce("sum", (counted,), Number(1), Map("equal", (Position(symbol), there)))


def _is_heavy(part: Expr) -> bool:
    """Whether it takes more than a reading; the counts that guard rows do not."""
    if isinstance(part, Reduce):
        return scatters(part) is None
    return isinstance(part, Normalise) or (isinstance(part, Product) and bool(part.summed))


def _runs_along(part: Expr, index: Index) -> bool:
    along = part.indices if isinstance(part, (Normalise, Top)) else ()
    return index in ((part.index, *part.parts) if isinstance(part, Concatenate) else along)


def _is_singular(part: Expr, index: Index) -> bool:
    return isinstance(part, Map) and part.function in SINGULAR and index in part.free
