"""Which tuples a factor admits, as a predicate of its own: what stands beside the factor is only read there.

A cotangent of the factor is a product of all that stands beside it, without the factor and so without its predicate.
Positions that only that predicate keeps in range (`softmax[j : j >= 1](…) v_<j - 1>`) need it again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tensorattn.differentiating.expressions import both, call
from tensorattn.ir import Add, Expr, Index, Map, Normalise, Number, Product, Reduce, Statement, Tensor, substitute
from tensorattn.keys import indices_of

Identity = Callable[[Index], Index]


def admitted(node: Expr, definitions: Mapping[str, Statement], identity: Identity) -> Expr | None:
    """The predicate that a factor brings (`predicates.brings`), over its indices; None where it brings none.

    `identity`: another index of the same name.
    """

    def each(nodes: Iterable[Expr]) -> list[Expr | None]:
        return [admitted(n, definitions, identity) for n in nodes]

    match node:
        case Normalise(where=where):
            return where
        case Reduce(kind="sum", indices=indices, body=body, where=None):
            found = admitted(body, definitions, identity)
            return None if found is None else _some(found, indices, identity)
        case Reduce(kind="sum" | "mean", indices=indices, where=where):
            return None if where is None else _some(where, indices, identity)
        case Product(factors=factors, summed=summed):
            found = [p for p in each(factors) if p is not None]
            return _some(both(*found), summed, identity) if found else None
        case Add(terms=terms):
            found = [p for p in each(terms) if p is not None]
            return Map("or", tuple(found)) if len(found) == len(terms) else None
        case Map(function="negate", arguments=(inner,)):
            return admitted(inner, definitions, identity)
        case Tensor(name=name) if name in definitions:
            return _defined(node, definitions, identity)
    return None


def _some(where: Expr, indices: Iterable[Index], identity: Identity) -> Expr:
    """Whether a tuple over the indices is admitted."""
    bound = {i: identity(i) for i in indices if i in where.free}
    if not bound:
        return where
    inside = substitute(where, lambda i: bound.get(i, i))
    return call("greater", Reduce("sum", tuple(bound.values()), Number(1), inside), Number(0))


def _defined(node: Tensor, definitions: Mapping[str, Statement], identity: Identity) -> Expr | None:
    """What a definition admits, over the indices through which it is read."""
    statement = definitions[node.name]
    found = admitted(statement.body, definitions, identity)
    if found is None or not all(isinstance(slot, Index) for slot in (*node.slots, *statement.indices)):
        return None
    if len(statement.indices) != len(node.slots):
        return None
    names: dict[Index, Index] = dict(zip(statement.indices, node.slots, strict=True))  # type: ignore[arg-type]
    names |= {i: identity(i) for i in dict.fromkeys(indices_of(found)) if i not in names}
    return substitute(found, lambda i: names[i])
