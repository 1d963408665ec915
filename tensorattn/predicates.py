"""Which factors bring a predicate to the product they stand in: what it excludes contributes 0 (docs/design.md §8)."""

from __future__ import annotations

from collections.abc import Set

from tensorattn.ir import Add, Expr, Index, Map, Normalise, Product, Reduce, Tensor, children
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
        case Reduce(kind="sum", body=body, where=None):  # a product, too
            return brings(body, names)
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


def admitted(node: Expr, names: Set[str]) -> frozenset[Index]:
    """The indices that the predicates which a factor brings have together."""
    match node:
        case Normalise(where=where) if where is not None:
            return where.free
        case Reduce(kind="sum" | "mean", indices=indices, where=where) if where is not None:
            return where.free.difference(indices)
        case Reduce(kind="sum", indices=indices, body=body, where=None):
            return admitted(body, names).difference(indices)
        case Product(factors=factors, summed=summed):
            return frozenset[Index]().union(*(admitted(f, names) for f in factors)).difference(summed)
        case Map(function="negate") | Add() if brings(node, names):
            return frozenset[Index]().union(*(admitted(part, names) for part in children(node)))
        case Tensor(name=name) if name in names:
            return node.free
    return frozenset()
