"""The IR: every node class on one screen.

A program is statements in order; an expression is a closed set of frozen nodes. `free` of a node is the set of indices
open in it. Upper and lower groups are kept for printing (`upper` = how many slots stand above); axis order is the order
of `slots`. Spans take no part in equality.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from typing import Any, Union

from tensorattn.source import Span

BATCH = "..."  # the name of the index that stands for all leading batch axes

NORMALISERS = ("softmax", "sparsemax", "entmax", "l1norm", "l2norm")
REDUCTIONS = ("sum", "mean", "max", "min", "lse", "prod")
FUNCTIONS = (
    *"exp log tanh sigmoid relu leaky_relu elu gelu silu softplus sqrt abs sin cos sign maximum minimum where".split(),
    "uniform",
)
COMPARISONS = {"<=": "less_equal", ">=": "greater_equal", "==": "equal", "!=": "not_equal", "<": "less", ">": "greater"}
LOGICAL = ("and", "or", "not")
LEAKY_SLOPE = 0.2  # of leaky_relu, if none is given
OPERATORS = ("negate", "reciprocal", "power", *COMPARISONS.values(), *LOGICAL)
AT = "at"  # `equal` of a position that data give and an index; it has to be in range. No formula that is read has it.
BOOLEAN = frozenset({*COMPARISONS.values(), *LOGICAL, AT})  # the functions whose value is a truth


@dataclass(frozen=True, slots=True, order=True)
class Index:
    """An index: its name (which owns the size) and the number of its binder within the statement (0: free)."""

    name: str
    number: int = 0


@dataclass(frozen=True, slots=True)
class Affine:
    """A slot `Σ coefficient·atom + constant`; the atoms are positions, extents, integer scalars and gathers."""

    terms: tuple[tuple[int, "Position | Extent | Tensor"], ...]
    constant: int = 0

    @property
    def free(self) -> frozenset[Index]:
        return frozenset().union(*(atom.free for _, atom in self.terms))


@dataclass(frozen=True, slots=True)
class Split:
    """A slot `(h d)`: one axis read as several indices, the first the slow one."""

    indices: tuple[Index, ...]

    @property
    def free(self) -> frozenset[Index]:
        return frozenset(self.indices)


Slot = Union[Index, Affine, Split]


@dataclass(frozen=True, slots=True)
class Node:
    """Base of the expressions; `free` is filled by `_open` when a node is made."""

    free: frozenset[Index] = field(init=False, compare=False, repr=False, default=frozenset(), kw_only=True)
    span: Span | None = field(compare=False, repr=False, default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "free", self._open())

    def _open(self) -> frozenset[Index]:
        return frozenset().union(*(child.free for child in children(self)))  # type: ignore[arg-type]  # all are Expr


@dataclass(frozen=True, slots=True)
class Number(Node):
    """A literal."""

    value: int | float


@dataclass(frozen=True, slots=True)
class Extent(Node):
    """`|d|`: the size of an index name."""

    name: str


@dataclass(frozen=True, slots=True)
class Position(Node):
    """A bare index: its 0-based position."""

    index: Index

    def _open(self) -> frozenset[Index]:
        return frozenset({self.index})


@dataclass(frozen=True, slots=True)
class Tensor(Node):
    """An input or an earlier statement, read through slots; no slots: a scalar."""

    name: str
    slots: tuple[Slot, ...] = ()
    upper: int = 0
    slot_spans: tuple[Span, ...] = field(compare=False, repr=False, default=())

    def _open(self) -> frozenset[Index]:
        return frozenset().union(*({s} if isinstance(s, Index) else s.free for s in self.slots))


@dataclass(frozen=True, slots=True)
class Constant(Node):
    """`delta` (Kronecker, ≥ 2 indices), `eps` (Levi-Civita, n ≥ 2 of size n) or `ones` (≥ 1)."""

    kind: str
    indices: tuple[Index, ...]
    upper: int = 0

    def _open(self) -> frozenset[Index]:
        return frozenset(self.indices)


@dataclass(frozen=True, slots=True)
class Product(Node):
    """`Σ_summed Π factors`."""

    factors: tuple["Expr", ...]
    summed: tuple[Index, ...] = ()

    def _open(self) -> frozenset[Index]:
        return frozenset().union(*(f.free for f in self.factors)) - frozenset(self.summed)


@dataclass(frozen=True, slots=True)
class Add(Node):
    """A sum of terms; a term that lacks an index is broadcast. A subtracted term is `Map("negate", …)`."""

    terms: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Map(Node):
    """An elementwise function: one of FUNCTIONS or OPERATORS."""

    function: str
    arguments: tuple["Expr", ...]


@dataclass(frozen=True, slots=True)
class Reduce(Node):
    """`sum[j : where](body)` and its kin: the indices are gone in the result. The body may lack one."""

    kind: str
    indices: tuple[Index, ...]
    body: "Expr"
    where: "Expr | None" = None

    def _open(self) -> frozenset[Index]:
        return frozenset().union(*(c.free for c in children(self))) - frozenset(self.indices)


@dataclass(frozen=True, slots=True)
class Normalise(Node):
    """`softmax[j : where; sink=s](score)` and its kin: weights along the indices, which stay open.

    Options: `sink` (softmax), `alpha` (entmax), `eps` (l1norm). `origin`: the statement it was written in, once a plan
    is made.
    """

    kind: str
    indices: tuple[Index, ...]
    score: "Expr"
    where: "Expr | None" = None
    options: tuple[tuple[str, "Expr"], ...] = ()
    origin: str = field(compare=False, repr=False, default="", kw_only=True)

    def _open(self) -> frozenset[Index]:
        return frozenset(self.indices).union(*(c.free for c in children(self)))


@dataclass(frozen=True, slots=True)
class Top(Node):
    """`top[j; k](body)`: true at the k largest admitted entries along the indices, which stay open."""

    indices: tuple[Index, ...]
    count: "Expr"
    body: "Expr"
    where: "Expr | None" = None

    def _open(self) -> frozenset[Index]:
        return frozenset(self.indices).union(*(c.free for c in children(self)))


@dataclass(frozen=True, slots=True)
class Concatenate(Node):
    """`cat[a = m + j](A, B)`: the disjoint union of the parts, part n bound in argument n."""

    index: Index
    parts: tuple[Index, ...]
    arguments: tuple["Expr", ...]

    def _open(self) -> frozenset[Index]:
        inner = [a.free - {p} for p, a in zip(self.parts, self.arguments, strict=True)]
        return frozenset({self.index}).union(*inner)


Expr = Union[Number, Extent, Position, Tensor, Constant, Product, Add, Map, Reduce, Normalise, Top, Concatenate]


@dataclass(frozen=True, slots=True)
class Statement:
    """`name^<…>_<…> = body`; an axis is one index or a merged group, the first index the slow one."""

    name: str
    axes: tuple[tuple[Index, ...], ...]
    body: Expr
    upper: int = 0
    span: Span | None = field(compare=False, repr=False, default=None)

    @property
    def indices(self) -> tuple[Index, ...]:
        return tuple(index for axis in self.axes for index in axis)


def slot_tensors(slot: Slot) -> tuple[Expr, ...]:
    """The expressions inside a slot: gathers, integer scalars, positions and extents."""
    return tuple(atom for _, atom in slot.terms) if isinstance(slot, Affine) else ()


def children(node: Expr) -> tuple[Expr, ...]:
    """Direct sub-expressions, in reading order."""
    match node:
        case Number() | Extent() | Position() | Constant():
            return ()
        case Tensor(slots=slots):
            return tuple(e for slot in slots for e in slot_tensors(slot))
        case Product(factors=parts) | Add(terms=parts) | Map(arguments=parts) | Concatenate(arguments=parts):
            return parts
        case Reduce(body=body, where=where):
            return (body,) if where is None else (where, body)
        case Normalise(score=score, where=where, options=options):
            return tuple(e for e in (where, *(o for _, o in options), score) if e is not None)
        case Top(count=count, body=body, where=where):
            return tuple(e for e in (where, count, body) if e is not None)
    raise TypeError(f"not an expression: {node!r}")


def rebuild(node: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """The node with `change` applied to each direct sub-expression."""

    def slot(s: Slot) -> Slot:
        return replace(s, terms=tuple((c, change(a)) for c, a in s.terms)) if isinstance(s, Affine) else s

    def value(v: Any) -> Any:
        if isinstance(v, Node):
            return change(v)  # type: ignore[arg-type]
        if isinstance(v, tuple) and v and all(isinstance(e, Node) for e in v):
            return tuple(change(e) for e in v)
        return v

    match node:
        case Tensor(slots=slots):
            return replace(node, slots=tuple(slot(s) for s in slots)) if slots else node
        case Normalise(options=options):
            changed = {f.name: value(getattr(node, f.name)) for f in fields(node) if f.init and f.name != "options"}
            return Normalise(**changed, options=tuple((n, change(o)) for n, o in options))
        case _ if not children(node):
            return node
        case _:
            return type(node)(**{f.name: value(getattr(node, f.name)) for f in fields(node) if f.init})


def substitute(node: Expr, new: Callable[[Index], Index]) -> Expr:
    """The node with every index, bound ones included, replaced by `new`."""

    def slot(s: Slot) -> Slot:
        match s:
            case Index():
                return new(s)
            case Split(indices=indices):
                return Split(tuple(map(new, indices)))
            case Affine(terms=terms):
                return replace(s, terms=tuple((c, substitute(a, new)) for c, a in terms))

    match node:
        case Position(index=index):
            return replace(node, index=new(index))
        case Tensor(slots=slots):
            return replace(node, slots=tuple(map(slot, slots)))
        case Constant(indices=indices):
            return replace(node, indices=tuple(map(new, indices)))
    node = rebuild(node, lambda child: substitute(child, new))
    match node:
        case Product(summed=indices):
            return replace(node, summed=tuple(map(new, indices)))
        case Reduce(indices=indices) | Normalise(indices=indices) | Top(indices=indices):
            return replace(node, indices=tuple(map(new, indices)))
        case Concatenate(index=index, parts=parts):
            return replace(node, index=new(index), parts=tuple(map(new, parts)))
    return node


def walk(node: Expr) -> Iterator[Expr]:
    """The node and all its descendants, parents first, in reading order."""
    yield node
    for child in children(node):
        yield from walk(child)


def inner_first(node: Expr) -> Iterator[Expr]:
    """The node and all its descendants, children first."""
    for child in children(node):
        yield from inner_first(child)
    yield node


def highest_number(node: Expr) -> int:
    """The highest number of any index in an expression, bound ones included."""
    found = [0]

    def seen(index: Index) -> Index:
        found.append(index.number)
        return index

    substitute(node, seen)
    return max(found)


@dataclass(frozen=True, slots=True)
class NormalisedReduction:
    """`Σ_summed weights · values`: a product that sums an index of a normaliser among its factors.

    The shape on which planning, streaming, derivatives, posteriors and sharding work.
    """

    product: Product
    weights: Normalise
    place: int  # of the normaliser among the factors

    @property
    def values(self) -> tuple[Expr, ...]:
        """The other factors."""
        return (*self.product.factors[: self.place], *self.product.factors[self.place + 1 :])

    @property
    def barred(self) -> tuple[Index, ...]:
        """The normalised indices that the product sums."""
        return tuple(i for i in self.weights.indices if i in self.product.summed)


def normalised_reductions(expr: Expr) -> Iterator[NormalisedReduction]:
    """Every normalised reduction of an expression, the outermost first."""
    for node in walk(expr):
        if not isinstance(node, Product):
            continue
        for place, factor in enumerate(node.factors):
            if isinstance(factor, Normalise) and set(factor.indices) & set(node.summed):
                yield NormalisedReduction(node, factor, place)
