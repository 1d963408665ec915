"""What a resolved part of an expression leaves open, and the rules that join such parts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from tensorattn.bracketing import is_implicit
from tensorattn.ir import Expr, Index, Product, Reduce, substitute
from tensorattn.source import Span

OPEN = -1  # the number of an index whose binder is not known yet


@dataclass(slots=True)
class Part:
    """An expression with the names open in it (and where), those summed implicitly and those bound inside."""

    expr: Expr
    opened: dict[str, list[Span]] = field(default_factory=dict)
    written: dict[str, int] = field(default_factory=dict)  # how often a tensor writes an index; else each counts once
    contracted: dict[str, list[Span]] = field(default_factory=dict)
    reduced: dict[str, Span] = field(default_factory=dict)
    scorer: frozenset[str] = frozenset()  # the bar group, where the part is a barred tensor
    plain: tuple[str, ...] = ()  # its plain indices

    def count(self, name: str) -> int:
        return max(self.written.get(name, 0), 1) if name in self.opened else 0


def merged(parts: Iterable[Part]) -> Part:
    """The scopes of several parts side by side; the expression is the first one's."""
    listed = list(parts)
    joined = Part(listed[0].expr)
    for part in listed:
        for name, spans in part.opened.items():
            joined.opened.setdefault(name, []).extend(spans)
        for name, spans in part.contracted.items():
            joined.contracted.setdefault(name, []).extend(spans)
        joined.reduced.update(part.reduced)
    return joined


@dataclass(slots=True)
class Numbers:
    """Hands out index identities within a statement."""

    next: int = 1

    def fresh(self, name: str) -> Index:
        self.next += 1
        return Index(name, self.next)


def close(expr: Expr, names: dict[str, Index]) -> Expr:
    """The expression with the open indices of these names given their identity."""
    if not names:
        return expr
    return substitute(expr, lambda i: names[i.name] if i.number == OPEN and i.name in names else i)


def product(factors: list[Expr], summed: tuple[Index, ...]) -> Expr:
    """`Σ Π`, flattened: a factor that is a product hands up its factors and its sums (identities keep them apart)."""
    flat: list[Expr] = []
    sums: list[Index] = []
    for factor in factors:
        if isinstance(factor, Product):
            flat.extend(factor.factors)
            sums.extend(factor.summed)
        else:
            flat.append(factor)
    sums.extend(summed)
    if len(flat) == 1 and not sums:
        return flat[0]
    found = Product(tuple(flat), tuple(sums))
    if len(flat) == 1 and not all(is_implicit(found, index, frozenset()) for index in sums):
        return Reduce("sum", found.summed, flat[0])  # it prints with `sum[…]` around it, and so reads back
    return found


def renumber(expr: Expr, free: frozenset[Index]) -> Expr:
    """Bound indices numbered from 1 for each name, in order of first occurrence; free ones keep 0."""
    numbers: dict[Index, Index] = {}
    used: dict[str, int] = {}

    def new(index: Index) -> Index:
        if index in free:
            return index
        if index not in numbers:
            used[index.name] = used.get(index.name, 0) + 1
            numbers[index] = Index(index.name, used[index.name])
        return numbers[index]

    return substitute(expr, new)
