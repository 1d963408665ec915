"""R15, segment sums: a softmax over n that sees n through one integer map σ only is one over the symbols σ(n).

    Σ_n softmax_n(t_{σ(n)}) V_n  =  Σ_s softmax_s(t_s + log c_s) V̄_s,

c_s how many n have σ(n) = s, V̄_s the mean there: as many exponentials as there are symbols, and sums of the values by
segment. A symbol that does not occur has c = 0 and log c = -∞, the score of what is excluded; its own score, whatever
it is, is set aside before. A predicate on n is a condition on what is counted. The positions are checked as where they
were gathered.

Below no predicate the program must not get one (beside one an admitted ±∞ makes NaN, docs/design.md §8): what counts
nothing is a score of -∞ there, and the mean is `mean + 0`, a sum that brings no predicate.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from math import prod

from tensorattn.ir import (
    AT,
    Add,
    Affine,
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
    Tensor,
    highest_number,
    rebuild,
    walk,
)
from tensorattn.predicates import bringing, brings
from tensorattn.program import Program
from tensorattn.rewriting import Rewritten, Rule
from tensorattn.rewriting.lookups import Lookup, lookup_of
from tensorattn.rewriting.rows import Rows
from tensorattn.rewriting.scores import conjunction, conjuncts

REASON = "the score sees the index through an integer map only: its weights are those of the symbols times their counts"
ROWS = "rows that see their index through an integer map only are computed for each symbol, and read where the map says"


def by_symbol(rewritten: Rewritten, sizes: Mapping[str, int], outputs: tuple[str, ...]) -> Rewritten:
    """A rewritten program with sums over symbols, and rows of symbols, in the place of positions."""
    rewritten = segmented(rewritten, sizes)
    rows = Rows(rewritten.program, {**table_sizes(rewritten.program, sizes), **sizes})
    program = rows.rewritten(outputs)
    applied = tuple((name, Rule("symbol rows", by_symbol, ROWS)) for name in program.defined if name in rows.changed)
    return Rewritten(program, (*rewritten.applied, *applied))


def segmented(rewritten: Rewritten, sizes: Mapping[str, int]) -> Rewritten:
    """A rewritten program with every softmax over symbols in the place of positions, where their numbers are known."""
    program = rewritten.program
    masked = bringing(program)
    changed: dict[str, Expr] = {}
    for statement in program.statements:
        body = _everywhere(statement.body, masked, sizes, [highest_number(statement.body)])
        if body != statement.body:
            changed[statement.name] = body
    if not changed:
        return rewritten
    statements = tuple(replace(s, body=changed.get(s.name, s.body)) for s in program.statements)
    applied = tuple((name, Rule("segment sums", segmented, REASON)) for name in changed)
    return Rewritten(replace(program, statements=statements), (*rewritten.applied, *applied))


def looks_up(program: Program) -> bool:
    """Whether anything is read at positions that data give."""
    slots = (slot for tensor in program.tensors for slot in tensor.slots if isinstance(slot, Affine))
    return any(isinstance(atom, Tensor) and atom.slots for slot in slots for _, atom in slot.terms)


def table_sizes(program: Program, sizes: Mapping[str, int]) -> dict[str, int]:
    """The lengths of the axes of definitions, by the name of an index that runs along one (`Lookup.name`)."""
    found = {}
    for statement in program.statements:
        for number, axis in enumerate(statement.axes):
            if all(index.name in sizes for index in axis):
                found[f"{statement.name}.{number}"] = prod(sizes[index.name] for index in axis)
                for digit, index in enumerate(axis if len(axis) > 1 else ()):
                    found[f"{statement.name}.{number}.{digit}"] = sizes[index.name]
    return found


def _everywhere(node: Expr, masked: Set[str], sizes: Mapping[str, int], number: list[int]) -> Expr:
    before = rebuild(node, lambda child: _everywhere(child, masked, sizes, number))
    if not isinstance(before, Product):
        return before
    node, tried = before, set[Index]()
    open_: list[Expr] = []
    while (found := _candidate(node, masked, sizes, tried)) is not None:
        place, index, lookup = found
        tried.add(index)
        number[0] += 1
        if node.factors[place].where is None:  # type: ignore[union-attr]
            open_.append(Extent(index.name))
        node = _segmented(node, place, index, lookup, Index(lookup.name, number[0]))
    return _apart(node, before.factors, tuple(open_)) if open_ else node


def _apart(node: Product, old: tuple[Expr, ...], sizes: tuple[Expr, ...]) -> Expr:
    """The product below no predicate, for any value of the factors that it had.

    What may be infinite stays outside of the sum over symbols, among which are some that do not occur and weigh 0; and
    a sum of nothing is 0, whatever it is multiplied with.
    """
    others = [f for f in node.factors if f in old and not isinstance(f, Number)]
    if not others:
        return node
    data = tuple(f for f in others if not isinstance(f, Normalise))
    if data:
        late = frozenset().union(*(f.free for f in data))
        inner = Product(tuple(f for f in node.factors if f not in data), tuple(i for i in node.summed if i not in late))
        node = replace(node, factors=(inner, *data), summed=tuple(i for i in node.summed if i in late))
    return Map("where", (Map("less", (Number(0), Product(sizes))), node, Number(0)))


def _candidate(
    node: Product, masked: Set[str], sizes: Mapping[str, int], tried: Set[Index]
) -> tuple[int, Index, Lookup] | None:
    """The place of a softmax in a product, the index that it sees through a map, and the map."""
    for place, weights in enumerate(node.factors):
        if not isinstance(weights, Normalise) or weights.kind != "softmax":
            continue
        others = (*node.factors[:place], *node.factors[place + 1 :])
        for index in weights.indices:
            lookup = lookup_of(weights.score, index) if index in node.summed and index not in tried else None
            if lookup is None or not {lookup.name, index.name} <= sizes.keys():
                continue
            held = [factor for factor in others if index in factor.free]
            plain = not any(index in option.free for _, option in weights.options)
            plain = plain and all(index in part.free for part in conjuncts(weights.where))
            if plain and not any(brings(factor, masked) or _weighs(factor) for factor in held):
                return place, index, lookup
    return None


def _weighs(node: Expr) -> bool:
    """Weights stay factors: a mean of some would be an array of all of them."""
    return any(isinstance(part, Normalise) for part in walk(node))


# A sum by segment ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Segments:
    """Which entry along `axis` belongs to which place along `segment`, and what else a predicate asks of it."""

    places: Expr
    axis: Index
    segment: Index
    where: Expr | None
    free: frozenset[Index]  # of all that is summed


def segments(node: Expr) -> Segments | None:
    """How a sum or mean is one by segment, if it is."""
    if not isinstance(node, Reduce) or node.kind not in ("sum", "mean") or len(node.indices) != 1:
        return None
    parts = conjuncts(node.where)
    for part in parts:
        match part:
            case Map(function=function, arguments=(places, Position(index=segment))) if function == AT:
                rest = conjunction(p for p in parts if p is not part)
                others = node.body.free | (rest.free if rest is not None else frozenset())
                if segment not in others | places.free and node.indices[0] in places.free:
                    return Segments(places, node.indices[0], segment, rest, others | places.free)
    return None


# The rewrite --------------------------------------------------------------------------------------------------------


def _segmented(node: Product, place: int, index: Index, lookup: Lookup, symbol: Index) -> Product:
    weights: Normalise = node.factors[place]  # type: ignore[assignment]
    here = (Map(AT, (lookup.places, Position(symbol))), *conjuncts(weights.where))
    count = Reduce("sum", (index,), Number(1), conjunction(here))
    some = Map("less", (Number(0), count))
    score = _looked_up(weights.score, index, symbol)
    if weights.where is None:
        score = Map("where", (some, score, Number(0)))
    new = replace(
        weights,
        indices=tuple(symbol if i == index else i for i in weights.indices),
        score=Add((score, Map("log", (count,)))),
        where=None if weights.where is None else some,
    )
    others = (*node.factors[:place], *node.factors[place + 1 :])
    held = tuple(f for f in others if index in f.free)
    means: tuple[Expr, ...] = ()
    if held:
        value = held[0] if len(held) == 1 else Product(held)
        means = (Add((Reduce("mean", (index,), value, conjunction(here)), Number(0))),)
    rest = tuple(f for f in others if index not in f.free)
    summed = tuple(symbol if i == index else i for i in node.summed)
    return replace(node, factors=(new, *rest, *means), summed=summed)


def _looked_up(node: Expr, index: Index, symbol: Index) -> Expr:
    """The score with the symbol itself in the place of its map."""

    def slot(s: Slot) -> Slot:
        return symbol if isinstance(s, Affine) and index in s.free else s

    if isinstance(node, Tensor):
        return replace(node, slots=tuple(map(slot, node.slots)), slot_spans=())
    return rebuild(node, lambda child: _looked_up(child, index, symbol))
