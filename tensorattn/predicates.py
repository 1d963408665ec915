"""Which factors bring a predicate to the product they stand in: what it excludes contributes 0 (docs/design.md §8)."""

from __future__ import annotations

from collections.abc import Set

from tensorattn.ir import Add, Expr, Map, Normalise, Product, Reduce, Tensor
from tensorattn.program import Program


def bringing(program: Program) -> frozenset[str]:
    """The definitions that bring a predicate to the product they are read in."""
    names: set[str] = set()
    for statement in program.statements:
        if brings(statement.body, names):
            names.add(statement.name)
    return frozenset(names)


def brings(node: Expr, names: Set[str]) -> bool:
    """Whether a factor brings a predicate, where the definitions `names` do.

    A product brings those of its factors; a sum only brings one (that some term admits) where every term does.
    """
    match node:
        case Normalise(where=where) | Reduce(kind="sum" | "mean", where=where):
            return where is not None
        case Product(factors=factors):
            return any(brings(factor, names) for factor in factors)
        case Add(terms=terms):
            return all(brings(term, names) for term in terms)
        case Map(function="negate", arguments=(inner,)):
            return brings(inner, names)
        case Tensor(name=name):
            return name in names
    return False
