"""Which expressions a predicate may exclude: only there must a value that is no finite number carry no gradient."""

from __future__ import annotations

from collections.abc import Iterator

from tensorattn.ir import BOOLEAN, Expr, Map, Normalise, Product, Reduce, Tensor, Top, children, walk
from tensorattn.predicates import bringing, brings
from tensorattn.program import Program
from tensorattn.rewriting.symmetry import mirrored


def exposed(program: Program) -> frozenset[Expr]:
    """The expressions below a predicate, or beside one in a product, through definitions.

    What alone brings the predicate to a product is 0 where it excludes, and so needs no protection from it.
    """
    masked, ordered = bringing(program), unguarded(program)
    names: set[str] = set()
    found: set[Expr] = set()

    def visit(node: Expr, below: bool) -> None:
        if below:
            found.add(node)
            if isinstance(node, Tensor):
                names.add(node.name)
        for child, inside in _parts(node, masked):
            visit(child, below or (inside and node not in ordered))

    for statement in reversed(program.statements):
        visit(statement.body, statement.name in names)
    return frozenset(found)


def unguarded(program: Program) -> frozenset[Normalise]:
    """The weights whose predicate excludes nothing but what stands, permuted, among what it admits."""
    nodes = (node for statement in program.statements for node in walk(statement.body))
    return frozenset(weights for node in nodes if (weights := mirrored(node)) is not None)


def has_predicate(program: Program) -> bool:
    """Whether any predicate stands in the program."""
    nodes = (node for statement in program.statements for node in walk(statement.body))
    return any(isinstance(node, (Reduce, Normalise, Top)) and node.where is not None for node in nodes)


def _parts(node: Expr, masked: frozenset[str]) -> Iterator[tuple[Expr, bool]]:
    """The parts of a node that gradients reach, each with whether a predicate of this node may exclude it."""
    match node:
        case Product(factors=factors):
            bringing = [n for n, factor in enumerate(factors) if brings(factor, masked)]
            for n, factor in enumerate(factors):
                yield factor, bool(bringing) and bringing != [n]
        case Reduce(body=body, where=where):
            yield body, where is not None
        case Normalise(score=score, where=where, options=options):
            yield score, where is not None
            yield from ((option, False) for _, option in options)
        case Top():
            return
        case Map(function=function) if function in BOOLEAN:
            return
        case Map(function="where", arguments=(_, *branches)):
            yield from ((branch, False) for branch in branches)
        case _:
            yield from ((child, False) for child in children(node))
