"""The tree: what the text says, before any meaning. Every spelling reads to these nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from tensorattn.source import Span


@dataclass(frozen=True, slots=True)
class Name:
    """A word of the text and where it stands."""

    text: str
    span: Span


@dataclass(frozen=True, slots=True)
class AffineTerm:
    """`[-] coefficient * atom`; atom: a name, an extent, a gather, or None for a plain integer."""

    coefficient: int
    atom: Union[Name, "ExtentNode", "Reference", None]


@dataclass(frozen=True, slots=True)
class AffineSlot:
    """A slot of one or more affine terms; one lone name is a plain slot."""

    terms: tuple[AffineTerm, ...]
    span: Span
    signed: bool = False

    @property
    def plain(self) -> Name | None:
        (first, *rest) = self.terms
        if rest or self.signed or first.coefficient != 1 or not isinstance(first.atom, Name):
            return None
        return first.atom


@dataclass(frozen=True, slots=True)
class SplitSlot:
    """`(h d)`."""

    names: tuple[Name, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class BarSlot:
    """`bar(nu rho : condition)`."""

    names: tuple[Name, ...]
    where: "Tree | None"
    span: Span

    @property
    def group(self) -> frozenset[str]:
        return frozenset(n.text for n in self.names)


@dataclass(frozen=True, slots=True)
class BatchSlot:
    """`...`; as a tree, among the arguments of `uniform`, the positions of all batch axes."""

    span: Span


SlotNode = Union[AffineSlot, SplitSlot, BarSlot, BatchSlot]


@dataclass(frozen=True, slots=True)
class Reference:
    """A name with its groups: `slots` are the upper ones, then the lower ones."""

    name: Name
    slots: tuple[SlotNode, ...]
    upper: int
    span: Span
    scripted: bool

    @property
    def bars(self) -> tuple[BarSlot, ...]:
        return tuple(s for s in self.slots if isinstance(s, BarSlot))


@dataclass(frozen=True, slots=True)
class NumberNode:
    value: int | float
    span: Span


@dataclass(frozen=True, slots=True)
class ExtentNode:
    name: Name
    span: Span


@dataclass(frozen=True, slots=True)
class Bracket:
    body: "Tree"
    span: Span


@dataclass(frozen=True, slots=True)
class Call:
    """A function, or `and or not` and the comparisons, of argument expressions; each argument is a scope."""

    function: str
    arguments: tuple["Tree", ...]
    span: Span


@dataclass(frozen=True, slots=True)
class PowerNode:
    base: "Tree"
    exponent: "Tree"
    span: Span


@dataclass(frozen=True, slots=True)
class ProductNode:
    """Units joined by `*`, `/` or juxtaposition (`operators[n]` stands before `units[n]`; the first is `*`)."""

    units: tuple["Tree", ...]
    operators: tuple[str, ...]
    span: Span


@dataclass(frozen=True, slots=True)
class SumNode:
    """Signed terms."""

    terms: tuple[tuple[int, "Tree"], ...]
    span: Span


@dataclass(frozen=True, slots=True)
class Binding:
    """`kind[names : where; options](body)`."""

    kind: str
    names: tuple[Name, ...]
    where: "Tree | None"
    options: tuple[tuple[str | None, "Tree"], ...]
    body: "Tree"
    span: Span


@dataclass(frozen=True, slots=True)
class CatNode:
    """`cat[name = parts](arguments)`."""

    name: Name
    parts: tuple[Name, ...]
    arguments: tuple["Tree", ...]
    span: Span


Tree = Union[
    Reference, NumberNode, ExtentNode, Bracket, Call, PowerNode, ProductNode, SumNode, Binding, CatNode, BatchSlot
]


@dataclass(frozen=True, slots=True)
class StatementNode:
    """`target = body`; no target in a bare expression."""

    target: Reference | None
    body: Tree
    span: Span


def parts(node: Tree) -> tuple[Tree, ...]:
    """Direct sub-trees in reading order, those inside slots included."""
    match node:
        case Reference(slots=slots):
            return tuple(t for s in slots for t in _slot_parts(s))
        case NumberNode() | ExtentNode() | BatchSlot():
            return ()
        case Bracket(body=body):
            return (body,)
        case Call(arguments=found) | ProductNode(units=found) | CatNode(arguments=found):
            return found
        case PowerNode(base=base, exponent=exponent):
            return (base, exponent)
        case SumNode(terms=terms):
            return tuple(t for _, t in terms)
        case Binding(where=where, options=options, body=body):
            return tuple(t for t in (where, *(o for _, o in options), body) if t is not None)
    raise TypeError(f"not a tree: {node!r}")


def _slot_parts(slot: SlotNode) -> tuple[Tree, ...]:
    match slot:
        case AffineSlot(terms=terms):
            return tuple(t.atom for t in terms if isinstance(t.atom, (Reference, ExtentNode)))
        case BarSlot(where=where) if where is not None:
            return (where,)
        case _:
            return ()
