"""The cotangent of a tensor: all that its readings hand to it, over one set of axes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tensorattn.differentiating.contexts import Context, simple
from tensorattn.differentiating.expressions import add, call, number, times
from tensorattn.differentiating.statements import Book, read
from tensorattn.ir import BATCH, Affine, Constant, Expr, Extent, Index, Position, Product, Slot, Split, Tensor

Axis = tuple[Index, ...]  # one index, or a merged group


@dataclass(slots=True)
class Collected:
    """What the readings of one tensor hand to it."""

    readings: list[tuple[Tensor, Context]] = field(default_factory=list)

    def take(self, tensor: Tensor, context: Context) -> None:
        self.readings.append((tensor, context))


def axes_of(book: Book, name: str) -> tuple[tuple[Axis, ...], int]:
    """The axes that the cotangent of a tensor has, as it is read in the program, and how many of them are upper ones.

    A plain slot names its axis; an axis that is only read split is a merged group; one that is only read at computed
    positions gets a new index.
    """
    tensors = [t for t in book.program.tensors if t.name == name]
    statement = next((s for s in book.program.statements if s.name == name), None)
    if statement is not None:
        tensors.insert(0, read(statement))
    axes: list[Axis] = []
    for number_ in range(len(tensors[0].slots)):
        used = {i.name for axis in axes for i in axis}
        axes.append(_axis(book, [t.slots[number_] for t in tensors], used))
    return tuple(axes), tensors[0].upper


def _axis(book: Book, slots: Sequence[Slot], used: set[str]) -> Axis:
    plain = [s.name for s in slots if isinstance(s, Index)]
    groups = {tuple(i.name for i in s.indices) for s in slots if isinstance(s, Split)}
    if not plain and len(groups) == 1:
        (names,) = groups
        if not set(names) & used:
            return tuple(_new(book, name) for name in names)
    free = [name for name in plain if name not in used]
    if free:
        return (_new(book, free[0]),)
    return (_new(book, book.copy_name(plain[0], 1) if plain else book.index_name("p")),)


def _new(book: Book, name: str) -> Index:
    return Index(BATCH) if name == BATCH else book.identity(Index(name))


def over(book: Book, axes: Sequence[Axis], wanted: str, readings: Iterable[tuple[Tensor, Context]]) -> list[Context]:
    """What each reading hands over, over the axes."""
    return [_landed(book, axes, wanted, tensor.slots, context) for tensor, context in readings]


def _landed(book: Book, axes: Sequence[Axis], wanted: str, slots: Sequence[Slot], context: Context) -> Context:
    """What a reading through these slots hands over: the transpose of each slot.

    A plain slot names the axis, a diagonal is a delta, a split is merged; a computed position p selects the tuples at
    which it is the axis's own position.
    """
    slots, context = _solved(book, axes, wanted, slots, context)
    names: dict[Index, Index] = {}
    deltas: list[Expr] = []
    guards: list[Expr] = []
    for slot, axis in zip(slots, axes, strict=True):
        match slot:
            case Index(name=name) if name == BATCH:
                continue
            case Index() if len(axis) == 1 and slot not in names:
                names[slot] = axis[0]
            case Index() if len(axis) == 1:  # a diagonal
                deltas.append(Constant("delta", (names[slot], axis[0])))
            case Split(indices=indices) if len(indices) == len(axis) and not set(indices) & set(names):
                names |= dict(zip(indices, axis, strict=True))
            case Affine():
                guards.append(call("equal", Position(axis[0]), as_expression(slot)))
            case _:
                return _merged(book, axes, wanted, slots, context)
    whole = replace(context, guards=(*context.guards, *guards)).renamed(names)
    return whole.within(i for axis in axes for i in axis).times(*deltas)


def _solved(
    book: Book, axes: Sequence[Axis], wanted: str, slots: Sequence[Slot], context: Context
) -> tuple[Sequence[Slot], Context]:
    """`x_<i - j + c>` reaches p where j = i + c − p: read there, a sum over i alone, and no selection from all (i, j).

    One affine slot of positions and sizes, with an index of coefficient ±1 that stands in no other slot.
    """
    numbers = [n for n, slot in enumerate(slots) if isinstance(slot, Affine)]
    if len(numbers) != 1:
        return slots, context
    (number_,) = numbers
    slot, own = slots[number_], Position(axes[number_][0])
    others = frozenset().union(*({s} if isinstance(s, Index) else s.free for s in slots if s is not slot))
    assert isinstance(slot, Affine)
    lone = _lone(slot, others)
    if lone is None:
        return slots, context
    (sign,) = [c for c, atom in slot.terms if atom == lone]
    rest = tuple((-sign * c, atom) for c, atom in slot.terms if atom != lone)
    there = Affine(((sign, own), *rest), -sign * slot.constant)
    needed = tuple(i for i in context.scope if i in others | slot.free)
    table = book.derived(context, needed, wanted + "Table")
    place = as_expression(there)
    inside = (
        call("greater_equal", place, number(0)),
        call("less", place, Extent(lone.index.name)),
    )
    read_there = tuple(_at(factor, lone.index, there) for factor in table.factors)
    scope = (*(i for i in needed if i != lone.index), axes[number_][0])
    left = tuple(axes[number_][0] if s is slot else s for s in slots)
    return left, Context(read_there, scope, inside, table.negative)


def _lone(slot: Affine, others: frozenset[Index]) -> Position | None:
    """The last position of a slot that can be solved for."""
    if not all(isinstance(atom, Position | Extent) for _, atom in slot.terms):
        return None
    positions = [atom for _, atom in slot.terms if isinstance(atom, Position)]
    fit = [p for c, p in slot.terms if isinstance(p, Position) and abs(c) == 1 and positions.count(p) == 1]
    return next((p for p in reversed(fit) if p.index not in others), None)


def _at(node: Expr, index: Index, place: Affine) -> Expr:
    """A tensor read at a position in the place of an index."""
    assert isinstance(node, Tensor)
    return Tensor(node.name, tuple(place if slot == index else slot for slot in node.slots), node.upper)


def _merged(book: Book, axes: Sequence[Axis], wanted: str, slots: Sequence[Slot], context: Context) -> Context:
    """A reading that splits an axis which another reads whole: merged in a statement of its own."""
    own: list[Axis] = []
    for slot, axis in zip(slots, axes, strict=True):
        split = slot.indices if isinstance(slot, Split) else axis
        own.append(tuple(book.identity(i) for i in split))
    inner = _landed(book, own, wanted, slots, context)
    flat = [i for axis in own for i in axis]
    statement = book.made(book.inner_name(wanted + "Part"), own, 0, _broadcast(inner, flat, book))
    book.backward.append(statement)
    here = Tensor(statement.name, tuple(axis[0] if len(axis) == 1 else Split(axis) for axis in axes))
    return Context((here,), tuple(i for axis in axes for i in axis))


def _broadcast(context: Context, axes: Sequence[Index], book: Book) -> Expr:
    """The cotangent over all the axes: those that it lacks are broadcast."""
    return with_axes(context.written(axes, book), axes)


def with_axes(body: Expr, axes: Sequence[Index]) -> Expr:
    """The expression times `ones` over the axes that it lacks."""
    lacking = tuple(i for i in axes if i not in body.free)
    return times(body, Constant("ones", lacking)) if lacking else body


def as_expression(slot: Affine) -> Expr:
    """The position that a slot computes, as a number."""
    terms = [times(number(coefficient), atom) for coefficient, atom in slot.terms]
    signed = [simple(t.factors, ()) if isinstance(t, Product) else t for t in terms]
    if slot.constant or not signed:
        signed.append(number(slot.constant))
    return add(*signed)


def total(book: Book, contexts: Sequence[Context], axes: Sequence[Axis]) -> Expr:
    """The sum of all contributions, over all the axes."""
    flat = [i for axis in axes for i in axis]
    terms = _counted([c.written(flat, book) for c in contexts])
    return with_axes(add(*terms), flat)


def _counted(terms: Sequence[Expr]) -> list[Expr]:
    """Equal terms as one, times their number."""
    found: dict[Expr, int] = {}
    for term in terms:
        found[term] = found.get(term, 0) + 1
    return [simple(_factors(t, n), _sums(t)) if n > 1 else t for t, n in found.items()]


def _factors(term: Expr, count: int) -> tuple[Expr, ...]:
    return (number(count), *(term.factors if isinstance(term, Product) else (term,)))


def _sums(term: Expr) -> tuple[Index, ...]:
    return term.summed if isinstance(term, Product) else ()


def guards_of(contexts: Sequence[Context], axes: Sequence[Axis]) -> tuple[Expr, ...]:
    """The predicates that the sum is under: those of the only contribution, where they are not summed away."""
    flat = [i for axis in axes for i in axis]
    return contexts[0].guards if len(contexts) == 1 and contexts[0].selects(flat) else ()
