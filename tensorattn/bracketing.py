"""Where a printed product needs brackets, so that reading it back sums each index just there."""

from __future__ import annotations

from itertools import combinations, count
from typing import cast

from tensorattn.ir import (
    Affine,
    Concatenate,
    Constant,
    Expr,
    Index,
    Map,
    Normalise,
    Position,
    Product,
    Reduce,
    Slot,
    Tensor,
    Top,
    children,
    substitute,
    walk,
)

Range = tuple[int, int]  # the factors low … high - 1


def brackets_of(factors: tuple[Expr, ...], summed: tuple[Index, ...]) -> tuple[Range, ...]:
    """The ranges of factors in brackets of their own; they nest.

    A product holds the sums of its bracketed parts too, and identities keep equal names apart. In text an index that is
    summed here, while another of its name is bound elsewhere in the product, is summed by a bracket around its factors.
    """
    bound = [_bound(f) for f in factors]
    names = [i.name for i in summed]
    apart = [i for i in summed if names.count(i.name) > 1 or any(i.name in b for b in bound)]
    apart.sort(key=lambda i: (_holders(factors, i), i.name))  # the order of the sums means nothing
    ranges = {i: _whole(_holders(factors, i), factors, summed) for i in apart}
    changed = True
    while changed:
        changed = False
        for one, other in combinations(apart, 2):
            a, b = ranges[one], ranges[other]
            if max(a[0], b[0]) >= min(a[1], b[1]) or _within(a, b) or _within(b, a):
                continue
            union, wider = (
                (min(a[0], b[0]), max(a[1], b[1])),
                other if _collides(one, factors, bound, summed, a, b) else one,
            )
            ranges[wider] = _whole(union, factors, summed)
            changed = True
    return tuple(sorted({r for r in ranges.values() if r != (0, len(factors))}))


def without_early_sums(expr: Product) -> Product:
    """The product without brackets that would sum, when read back, an index that is summed around them."""
    factors: list[Expr] = []
    summed = list(expr.summed)
    for factor in expr.factors:
        inner = factor.factors if isinstance(factor, Product) else ()
        if isinstance(factor, Product) and any(sum(count_in(f, i.name) for f in inner) > 1 for i in factor.free):
            factors += inner
            summed += factor.summed
        else:
            factors.append(factor)
    return expr if len(factors) == len(expr.factors) else Product(tuple(factors), tuple(summed))


def with_names_apart(expr: Product, explicit: tuple[Index, ...], blocked: frozenset[str]) -> Product:
    """The product in which no binder of an explicit sum holds an index of the same name that means something else.

    The binder goes around those factors alone that hold its index. Where that would sum others early, and where a sum
    has the name of another index of one of its factors, or of one that is not summed, it gets another name.
    """
    for index in expr.summed:
        twins = {i for f in expr.factors for i in f.free if i.name == index.name and i != index}
        inside = tuple(f for f in expr.factors if index in f.free)
        outside = tuple(f for f in expr.factors if index not in f.free)
        if not twins <= {*expr.summed} or any(twins & f.free for f in inside):
            return _with_another_name(expr, index, blocked)
        if index not in explicit or not (twins or any(index.name in _bound(f) for f in expr.factors)):
            continue
        own = tuple(i for i in expr.summed if not any(i in f.free for f in outside))
        shared = {i for f in inside for i in f.free if i not in own}
        early = any(sum(count_in(f, i.name) for f in inside) > 1 for i in shared)
        if not outside or early or any(index.name in _bound(f) for f in inside):
            return _with_another_name(expr, index, blocked)
        return Product((*outside, Product(inside, own)), tuple(i for i in expr.summed if i not in own))
    return expr


def _with_another_name(expr: Product, index: Index, blocked: frozenset[str]) -> Product:
    taken = set(blocked)
    substitute(expr, lambda i: taken.add(i.name) or i)
    fresh = next(name for n in count(1) if (name := f"{index.name}{n}") not in taken)
    return cast(Product, substitute(expr, lambda i: Index(fresh) if i == index else i))


def is_enclosable(factors: tuple[Expr, ...], summed: tuple[Index, ...], found: Range) -> bool:
    """Whether a bracket around these factors changes no sum: it holds all of every index that it would sum."""
    return _whole(found, factors, summed) == found


def is_divisor(factors: tuple[Expr, ...], number: int) -> bool:
    """Whether a factor prints after `/`."""
    factor = factors[number]
    return number > 0 and isinstance(factor, Map) and factor.function == "reciprocal"


def _holders(factors: tuple[Expr, ...], index: Index) -> Range:
    places = [n for n, f in enumerate(factors) if index in f.free]
    return places[0], places[-1] + 1


def _whole(found: Range, factors: tuple[Expr, ...], summed: tuple[Index, ...]) -> Range:
    """The range grown until it begins with a numerator and holds all of every index that reading it would sum."""
    low, high = found
    while is_divisor(factors, low):
        low -= 1
    for index in summed:
        if sum(count_in(f, index.name) for f in factors[low:high] if index in f.free) >= 2:
            own = _holders(factors, index)
            if not _within(own, (low, high)):
                return _whole((min(low, own[0]), max(high, own[1])), factors, summed)
    return low, high


def _collides(
    index: Index,
    factors: tuple[Expr, ...],
    bound: list[frozenset[str]],
    summed: tuple[Index, ...],
    own: Range,
    other: Range,
) -> bool:
    """Whether the bracket of an index cannot take in the range of another one, for what else bears its name there."""
    new = [n for n in range(*other) if not own[0] <= n < own[1]]
    return any(
        index.name in bound[n] or any(i.name == index.name and i != index for i in factors[n].free & set(summed))
        for n in new
    )


def _within(inner: Range, outer: Range) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


def _bound(expr: Expr) -> frozenset[str]:
    """The names of the indices bound inside."""
    found: set[Index] = set()
    for node in walk(expr):
        match node:
            case Product(summed=indices) | Reduce(indices=indices) | Concatenate(parts=indices):
                found.update(indices)
            case _:
                pass
    return frozenset(i.name for i in found)


def is_implicit(expr: Product, index: Index, barred: frozenset[int]) -> bool:
    """Whether reading the printed product sums this index there; `barred`: factors without a scope of their own."""
    count = sum(count_in(f, index.name) for f in expr.factors if index in f.free)
    if any(_reads_position(f, index) for f in expr.factors):
        return False
    return count >= 2 and not any(n not in barred and _sums_within(f, index) for n, f in enumerate(expr.factors))


def count_in(factor: Expr, name: str) -> int:
    """How often an index counts in a factor: in a tensor as often as written."""
    if isinstance(factor, Tensor):
        return sum(_count_in_slot(slot, name) for slot in factor.slots)
    if isinstance(factor, Constant):
        return sum(i.name == name for i in factor.indices)
    return int(any(i.name == name for i in factor.free))


def _count_in_slot(slot: Slot, name: str) -> int:
    if isinstance(slot, Affine):
        return sum(count_in(atom, name) for _, atom in slot.terms)
    return sum(index.name == name for index in ((slot,) if isinstance(slot, Index) else slot.free))


def _reads_position(expr: Expr, index: Index) -> bool:
    """Whether the position of an index stands where only a binder makes it known: in no slot, predicate, `uniform`."""
    match expr:
        case Position():
            return expr.index == index
        case Tensor() | Map(function="uniform"):
            return False
        case Normalise() | Top() if index in expr.indices:
            return False
    where = expr.where if isinstance(expr, (Reduce, Normalise, Top)) else None
    return any(_reads_position(part, index) for part in children(expr) if part is not where)


def _sums_within(expr: Expr, index: Index) -> bool:
    """Whether a scope inside the factor would sum the index by itself when read back."""
    if isinstance(expr, (Normalise, Top)) and index in expr.indices:
        return False  # named by the binder, so no scope inside sums it
    for part in children(expr):
        if index not in part.free:
            continue
        inner = part.factors if isinstance(part, Product) else (part,)
        if sum(count_in(f, index.name) for f in inner) >= 2 or _sums_within(part, index):
            return True
    return False
