"""Program → what it says about sizes, and how a call reads the size of each index from the shapes of its inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensorattn.ir import BATCH, Concatenate, Constant, Expr, Extent, Index, Split, Tensor, walk
from tensorattn.keys import indices_of
from tensorattn.program import Program
from tensorattn.sizes import Axis, Quotient, Size, SizeRead
from tensorattn.source import Span


@dataclass(frozen=True, slots=True)
class AxisFact:
    """Axis `axis` of `tensor` is the product of the sizes of `names` (one name: a plain slot).

    `axis` does not count the batch axes.
    """

    tensor: str
    axis: int
    names: tuple[str, ...]
    span: Span | None


@dataclass(frozen=True, slots=True)
class SumFact:
    """`|whole|` is the sum of the sizes of the parts and a constant: `cat`, `delta` (one part), `eps` (a constant)."""

    whole: str
    parts: tuple[str, ...]
    constant: int
    kind: str
    span: Span | None


SizeFact = AxisFact | SumFact


def size_facts(program: Program) -> tuple[SizeFact, ...]:
    """All facts in reading order."""
    return tuple(fact for s in program.statements for node in walk(s.body) for fact in _facts(node))


def _facts(node: Expr) -> Iterator[SizeFact]:
    match node:
        case Tensor(name=name, slots=slots):
            shift = 0
            for number, slot in enumerate(slots):
                span = node.slot_spans[number] if number < len(node.slot_spans) else node.span
                match slot:
                    case Index(name=index) if index == BATCH:
                        shift = 1
                    case Index(name=index):
                        yield AxisFact(name, number - shift, (index,), span)
                    case Split(indices=indices):
                        yield AxisFact(name, number - shift, tuple(i.name for i in indices), span)
        case Concatenate(index=index, parts=parts, span=span):
            yield SumFact(index.name, tuple(p.name for p in parts), 0, "cat", span)
        case Constant(kind="delta", indices=indices, span=span):
            for other in indices[1:]:
                yield SumFact(other.name, (indices[0].name,), 0, "delta", span)
        case Constant(kind="eps", indices=indices, span=span):
            for index in indices:
                yield SumFact(index.name, (), len(indices), "eps", span)


def index_names(program: Program) -> tuple[str, ...]:
    """Every index name with a size, extents included, in order of first occurrence."""
    names = [i.name for s in program.statements for i in (*s.indices, *indices_of(s.body))]
    names += [n.name for s in program.statements for n in walk(s.body) if isinstance(n, Extent)]
    return tuple(n for n in dict.fromkeys(names) if n != BATCH)


def definition_axes(program: Program) -> dict[str, tuple[Size, ...]]:
    """The size of each axis of each statement, in symbols of its index names; batch axes left out."""
    return {
        s.name: tuple(Size.product(i.name for i in a) for a in s.axes if a[0].name != BATCH) for s in program.statements
    }


def size_reads(program: Program, given: Mapping[str, int]) -> tuple[tuple[str, SizeRead], ...]:
    """For every index that can be known, in an order that can be computed: how a call finds its size.

    The program is expanded (no `...`). An index missing from the answer has an open size.
    """
    inputs, axes = set(program.inputs), definition_axes(program)
    facts = size_facts(program)
    reads: dict[str, SizeRead] = {n: given[n] for n in index_names(program) if n in given}
    for fact in facts:  # plain slots first: they need nothing else
        if isinstance(fact, AxisFact) and len(fact.names) == 1 and fact.tensor in inputs:
            reads.setdefault(fact.names[0], Axis(fact.tensor, fact.axis))
    while True:
        found = {n: r for fact in facts for n, r in _read(fact, inputs, axes, reads) if n not in reads}
        if not found:
            return tuple(reads.items())
        name = next(iter(found))
        reads[name] = found[name]


def _read(
    fact: SizeFact, inputs: set[str], axes: Mapping[str, tuple[Size, ...]], reads: Mapping[str, SizeRead]
) -> Iterator[tuple[str, SizeRead]]:
    """What one fact tells about a size not yet known."""
    if isinstance(fact, SumFact):
        names = (fact.whole, *fact.parts)
        open_names = [n for n in names if n not in reads]
        if len(open_names) != 1:
            return
        total = sum((Size.of(p) for p in fact.parts), Size.of(fact.constant))
        name = open_names[0]
        if name == fact.whole:
            yield name, total
        elif fact.parts.count(name) == 1:
            yield name, Size.of(fact.whole) - (total - Size.of(name))
        return
    open_names = [n for n in fact.names if n not in reads]
    if fact.tensor in inputs:
        if len(open_names) == 1 and fact.names.count(open_names[0]) == 1:
            others = tuple(n for n in fact.names if n != open_names[0])
            yield open_names[0], Quotient(Axis(fact.tensor, fact.axis), others)
        return
    size, own = axes[fact.tensor][fact.axis], Size.product(fact.names)
    for known, other in ((size, own), (own, size)):  # the axis of a statement: one unknown on either side
        lacking = [n for m, _ in other.terms for n, _ in m if n not in reads]
        if known.symbols <= reads.keys() and len(lacking) == 1 and len(other.terms) == 1:
            rest = tuple(n for (m, _) in other.terms for n, power in m for _ in range(power) if n != lacking[0])
            yield lacking[0], Quotient(known, rest) if rest else known
            return
