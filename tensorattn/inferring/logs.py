"""Whether an output is a logarithm of what the weights make: then it is linear in logarithms, and only they meet it."""

from __future__ import annotations

from collections.abc import Mapping

from tensorattn.ir import Add, Expr, Map, Normalise, Product, Reduce, Tensor, walk
from tensorattn.program import Program

Known = Mapping[str, bool | None]  # by statement: see `_through`


def is_logarithm(program: Program, output: str, weights: Normalise) -> bool:
    """Whether the weights reach the output through `log` or `lse` alone, and these by sums and factors without them."""
    known: dict[str, bool | None] = {}
    for statement in program.statements:
        known[statement.name] = _through(statement.body, weights, known)
    return known[output] is True


def _through(node: Expr, weights: Normalise, known: Known) -> bool | None:
    """None: the weights do not reach this; True: through logarithms alone; False: otherwise."""
    if not any(
        part is weights or (isinstance(part, Tensor) and known.get(part.name) is not None) for part in walk(node)
    ):
        return None
    match node:
        case Map(function="log") | Reduce(kind="lse"):
            return True
        case Tensor(name=name):
            return known.get(name)
        case Map(function="negate", arguments=parts) | Add(terms=parts) | Map(function="where", arguments=(_, *parts)):
            return all(_through(part, weights, known) is not False for part in parts)
        case Product(factors=parts):
            found = [way for part in parts if (way := _through(part, weights, known)) is not None]
            return found == [True]
        case Reduce(kind="sum" | "mean", body=body):
            return bool(_through(body, weights, known))
        case _:
            return False
