"""Short ways to write IR, with what is obvious left out."""

from __future__ import annotations

from tensorattn.ir import Add, Expr, Map, Number, Product


def number(value: int | float) -> Expr:
    """A literal; a negative one is written as it is read."""
    return Map("negate", (Number(-value),)) if value < 0 else Number(value)


def constant(node: Expr) -> int | float | None:
    """The value of a literal, a sign before it included."""
    match node:
        case Number(value=value):
            return value
        case Map(function="negate", arguments=(Number(value=value),)):
            return -value
    return None


def call(function: str, *arguments: Expr) -> Expr:
    return Map(function, arguments)


def negate(node: Expr) -> Expr:
    if isinstance(node, Map) and node.function == "negate":
        return node.arguments[0]
    return Map("negate", (node,))


def times(*factors: Expr) -> Expr:
    """A product of factors that sum nothing."""
    kept = [f for f in factors if constant(f) != 1]
    return kept[0] if len(kept) == 1 else Product(tuple(kept)) if kept else Number(1)


def add(*terms: Expr) -> Expr:
    """A sum; sums among the terms hand theirs up."""
    flat = [inner for term in terms for inner in (term.terms if isinstance(term, Add) else (term,))]
    return flat[0] if len(flat) == 1 else Add(tuple(flat))


def subtract(first: Expr, second: Expr) -> Expr:
    return add(first, negate(second))


def where(condition: Expr, yes: Expr, no: Expr) -> Expr:
    return Map("where", (condition, yes, no))


def both(*conditions: Expr) -> Expr:
    """All the conditions, each once."""
    flat: list[Expr] = []
    for condition in conditions:
        joined = isinstance(condition, Map) and condition.function == "and"
        flat += condition.arguments if joined else (condition,)  # type: ignore[union-attr]
    once = tuple(dict.fromkeys(flat))
    return once[0] if len(once) == 1 else Map("and", once)
