"""The statements of a gradient program while it is made: their names, and the names of their indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count

from tensorattn.combining import fresh
from tensorattn.differentiating.contexts import Context
from tensorattn.ir import (
    BATCH,
    Add,
    Constant,
    Expr,
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
    highest_number,
    substitute,
    walk,
)
from tensorattn.keys import indices_of
from tensorattn.names import CONSTANTS
from tensorattn.program import Program
from tensorattn.scanning import RESERVED


class Book:
    """Statements by the statement of the program they belong to: what is computed again, and what is derived."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.taken = {*program.inputs, *program.defined, *CONSTANTS, *RESERVED}
        self.indices = set(program.indices)
        self.bare = _bare(program)
        self.definitions = {s.name: s for s in program.statements}
        self.forward: dict[str, list[Statement]] = {s.name: [] for s in program.statements}
        self.backward: list[Statement] = []
        self.ranks: dict[str, int] = {}
        self._numbers = count(1 + max((highest_number(s.body) for s in program.statements), default=0))
        self._copies: dict[tuple[str, int], str] = {}

    # names ---------------------------------------------------------------------------------------------------------

    def name(self, wanted: str, *, scalar: bool = False) -> str:
        """The name, or with the first number that makes it new; it must not read as an index."""
        known = self.taken | (self.indices if scalar else self.bare)
        found = fresh(wanted, known) if wanted in known else wanted
        self.taken.add(found)
        return found

    def inner_name(self, wanted: str) -> str:
        """A name for what no user asked for."""
        return self.name(wanted, scalar=True)

    def identity(self, index: Index) -> Index:
        """Another index of the same name."""
        return index if index.name == BATCH else Index(index.name, next(self._numbers))

    def copy_name(self, name: str, number: int) -> str:
        """The name of the `number`th other index of the same size: new to the program."""
        known = self._copies.get((name, number))
        if known is None:
            known = self._copies[name, number] = self.index_name(name)
        return known

    def index_name(self, stem: str) -> str:
        """A new index name."""
        used = {*self.indices, *self.taken}
        found = fresh(stem, used) if stem in used else stem
        self.indices.add(found)
        return found

    # statements ----------------------------------------------------------------------------------------------------

    def made(self, name: str, axes: Sequence[tuple[Index, ...]], upper: int, body: Expr) -> Statement:
        """A statement in which every index that is read beside another one has a name of its own."""
        own = [index for axis in axes for index in axis]
        names = self._named_axes(own, body)
        body = self._sized(body, names)
        for term in _terms(body):
            self._name_apart(term, own, names)
        numbers = count(1)
        new: dict[Index, Index] = {i: Index(names[i]) for i in own}
        for index in dict.fromkeys(indices_of(body)):
            if index not in new:
                new[index] = index if index.name == BATCH else Index(names[index], next(numbers))
        return Statement(
            name, tuple(tuple(new[i] for i in axis) for axis in axes), substitute(body, lambda i: new.get(i, i)), upper
        )

    def _named_axes(self, own: Sequence[Index], body: Expr) -> dict[Index, str]:
        """Names for axes: their own, but for one that something inside binds whose size nothing but the name fixes."""
        bound = {i.name for i in set(indices_of(body)) - set(own) - _tied(body) if i.name != BATCH}
        names: dict[Index, str] = {}
        for index in own:
            found, number = index.name, 0
            while found in bound:
                number += 1
                found = self.copy_name(index.name, number)
            names[index] = found
        return names

    def _sized(self, body: Expr, names: dict[Index, str]) -> Expr:
        """The body in which something fixes the sizes of axes that have other names than their own.

        `sum[j](delta_<j1 j>)` is 1 and says that |j1| = |j|.
        """
        open_ = [i for i, name in names.items() if name != i.name and i not in _tied(body)]
        if not open_:
            return body
        own = {i: self.identity(i) for i in open_}
        ones = tuple(Reduce("sum", (j,), Constant("delta", (i, j))) for i, j in own.items())
        factors, summed = (body.factors, body.summed) if isinstance(body, Product) else ((body,), ())
        return Product((*factors, *ones), summed)

    def _name_apart(self, term: Expr, own: list[Index], names: dict[Index, str]) -> None:
        """Names for the indices of a term, other ones than those of the axes and of one another."""
        inside = list(dict.fromkeys(indices_of(term)))
        tied = _tied(term)
        inside.sort(key=lambda i: i in tied)  # those whose size nothing else fixes keep their names
        used = {names[i] for i in (*own, *(i for i in inside if i in names))}
        for index in inside:
            if index in names:
                continue
            found, number = index.name, 0
            while found in used and index in tied and index.name != BATCH:
                number += 1
                found = self.copy_name(index.name, number)
            names[index] = found
            used.add(found)

    def derived(self, context: Context, axes: Iterable[Index], wanted: str) -> Context:
        """The cotangent as a statement, read in its place; where it is one tensor already, itself."""
        axes = tuple(axes)
        body = context.written(axes, self)
        kept = tuple(i for i in batch_first(axes) if i in body.free)
        if isinstance(body, Tensor):
            return Context((body,), axes)
        name = self.inner_name(wanted)
        self.backward.append(self.made(name, [(i,) for i in kept], 0, body))
        guards = context.guards if context.selects(axes) else ()
        return Context((Tensor(name, kept),), axes, guards)

    def admitted(self, guard: Expr, index: Index) -> tuple[Expr, ...]:
        """Factors that are 1 together where a predicate admits an entry along an index, and bring the predicate.

        Equal weights and their number: where a sum is no matter, a normaliser is what a predicate may stand in.
        """
        shares = Normalise("l1norm", (index,), Number(1), guard)
        count = Reduce("sum", (index,), Number(1), guard)
        found = []
        for node, wanted in ((shares, "admitted"), (count, "admittedCount")):
            axes = batch_first(sorted(node.free))
            name = self.inner_name(wanted)
            self.backward.append(self.made(name, [(i,) for i in axes], 0, node))
            found.append(Tensor(name, axes))
        return tuple(found)


def _tied(node: Expr) -> set[Index]:
    """The indices whose sizes plain slots of tensors fix."""
    return {s for n in walk(node) if isinstance(n, Tensor) for s in n.slots if isinstance(s, Index)}


def _terms(body: Expr) -> tuple[Expr, ...]:
    if isinstance(body, Map) and body.function == "negate":
        return _terms(body.arguments[0])
    return tuple(t for term in body.terms for t in _terms(term)) if isinstance(body, Add) else (body,)


def _bare(program: Program) -> set[str]:
    """Index names that stand bare somewhere: a tensor of that name would be ambiguous."""
    return {n.index.name for s in program.statements for n in walk(s.body) if isinstance(n, Position)}


def batch_first(axes: Iterable[Index]) -> tuple[Index, ...]:
    """Axes in the order in which a tensor can have them."""
    return tuple(sorted(axes, key=lambda i: i.name != BATCH))


def read(statement: Statement) -> Tensor:
    """A statement read over its own indices."""
    slots: tuple[Slot, ...] = tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in statement.axes)
    return Tensor(statement.name, slots, statement.upper)
