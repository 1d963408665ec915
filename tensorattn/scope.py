"""What a resolved part of an expression leaves open, and the rules that join such parts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from tensorattn.bracketing import count_in, is_implicit
from tensorattn.ir import Expr, Index, Normalise, Product, Reduce, Slot, Tensor, substitute
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
    whole = Product(tuple(flat), tuple(sums))
    twice = _written_twice(flat)
    doubtful = sums if len(flat) == 1 else [i for i in sums if i.name in twice]
    barred = frozenset(n for n, factor in enumerate(flat) if doubtful and _is_barred(factor))
    stated = tuple(i for i in doubtful if not is_implicit(whole, i, barred))
    if not stated:
        return whole
    kept = tuple(i for i in sums if i not in stated)
    inner = flat[0] if len(flat) == 1 and not kept else replace(whole, summed=kept)
    return Reduce("sum", stated, inner)  # it prints with `sum[…]` around it, and so reads back


def _written_twice(factors: list[Expr]) -> frozenset[str]:
    """The indices that a scorer holds more than once: the weights made of it count them once."""
    scores = [f.score for f in factors if isinstance(f, Normalise) and isinstance(f.score, Tensor)]
    counts = [Counter(i.name for s in score.slots for i in _indices(s)) for score in scores]
    return frozenset(name for count in counts for name, number in count.items() if number > 1)


def _indices(slot: Slot) -> Iterable[Index]:
    return (slot,) if isinstance(slot, Index) else slot.free


def _is_barred(factor: Expr) -> bool:
    """Whether it may print as a tensor with a bar: its group stands in it once."""
    match factor:
        case Normalise(score=Tensor() as score, indices=indices):
            return all(count_in(score, i.name) == 1 for i in indices)
    return False


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
