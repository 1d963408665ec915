"""Which softmaxes are attention with one key axis: the pattern that a flattened plan hands to a kernel made for it.

The score is one product between a query side (free indices) and a key side (barred indices), or several whose bonds are
joined to a longer one, plus biases; the weights are summed with values that do not depend on the free rows. Then the
barred group counts as one index, whatever its arity: two-index attention with as many keys as the group has tuples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import product as choices
from math import prod

from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Contract, Fold, Instruction, Iota, Kernel, Normalised
from tensorattn.lowering.columns import Positions, is_of_keys, positions
from tensorattn.lowering.flow import names_of
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.looping import RefusalError
from tensorattn.lowering.multilinear import Factor, Product, Reader, Scale, Term, plain_side
from tensorattn.lowering.sides import Sides
from tensorattn.parts import Literal, Register, Root
from tensorattn.sizes import Size

MOST_FLOATING = 6  # factors that may stand on either side: their places are tried one by one
Axes = tuple[Index, ...]
Numbers = tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A term of the score as a product of a query and a key, with one bond; its scales."""

    query: list[Factor]
    key: list[Factor]
    bond: Index
    scales: tuple[Scale, ...]


@dataclass(frozen=True, slots=True)
class Attention:
    """A softmax and the sum of its weights as attention.

    Instruction `last` of the body makes the result: itself, or on the plain side of a branch, where `tail` follows.
    `more`: other terms of the score between the same rows and keys, whose bonds are joined to the one; `positions` and
    `of_keys`: biases that are columns of query and key.
    """

    normalised: Normalised
    result: Register
    last: int
    tail: tuple[Instruction, ...]
    query: list[Factor]
    key: list[Factor]
    value: list[Factor]
    biases: list[Term]
    batch: Axes
    rows: Axes
    bond: Axes
    values: Axes
    scales: tuple[Scale, ...]  # of the score
    outer: tuple[Scale, ...]  # of the result
    causal: bool
    more: tuple[Part, ...] = ()
    positions: tuple[Positions, ...] = ()
    of_keys: tuple[Term, ...] = ()

    @property
    def joins(self) -> bool:
        """Whether the query and the key are joined from several parts."""
        return bool(self.more or self.positions or self.of_keys)

    @property
    def group(self) -> Axes:
        return tuple(i for i in self.normalised.score.axes if i in self.normalised.indices)

    def has(self, factors: Iterable[Factor]) -> Axes:
        """The batch axes that occur in the factors."""
        seen = {i for f in factors for i in f.axes}
        return tuple(i for i in self.batch if i in seen)


def attention(kernel: Kernel, found: Normalised, sizes: Mapping[str, int], *, join: bool = True) -> Attention:
    """The softmax as attention; `join`: with the bonds of several terms joined.

    Raises: RefusalError with what it lacks.
    """
    if found.kind != "softmax":
        raise RefusalError(f"{found.kind} over {names_of(found.indices)} is no softmax")
    reader = Reader(kernel.body)
    chain = _Chain(kernel, reader, found)
    score, group = found.score, set(found.indices)
    free = [i for i in score.axes if i not in group]
    if not set(free) <= set(chain.result.axes):
        raise RefusalError(f"an index of the score over {names_of(group)} is summed with the weights")
    names = {i: i for i in score.axes}
    terms = reader.terms(score, names)
    held = {i for f in chain.value.factors for i in f.axes} & set(free)
    if free and held >= set(free):
        raise RefusalError(f"the values over {names_of(group)} depend on every free index")
    splits = [_split(reader, term, score, group, held) for term in terms]
    work = [0 if s is None else prod(max(sizes.get(i.name, 1), 1) for i in s.axes) for s in splits]
    main = max(range(len(terms)), key=work.__getitem__)
    split = splits[main]
    if split is None:
        raise RefusalError(f"the score over {names_of(group)} is no product of rows and keys")
    more = [n for n, s in enumerate(splits) if join and n != main and s is not None and s.rows == split.rows]
    parts = {n: part for n in (main, *more) if (part := _part(splits[n], group, sizes, score)) is not None}
    joined = {n: parts[n] for n in more if n in parts and main in parts}
    biases = [term for n, term in enumerate(terms) if n != main and n not in joined]
    axes = split.axes.union(*(splits[n].axes for n in joined))  # type: ignore[union-attr]
    sides = split.rows if join and main in parts else None
    beside = _biases(reader, biases, score, sides, group, sizes)
    whole = _sorted(reader, found, chain, split, beside.rest, sizes, axes | beside.axes)
    return replace(whole, more=tuple(joined.values()), positions=beside.positions, of_keys=beside.of_keys)


@dataclass(frozen=True, slots=True)
class _Biases:
    """Those that are columns of query and key, and the rest."""

    positions: tuple[Positions, ...]
    of_keys: tuple[Term, ...]
    rest: list[Term]

    @property
    def axes(self) -> set[Index]:
        """Of those that are columns."""
        return {i for p in self.positions for i in p.axes}.union(*(t.factor.axes for t in self.of_keys if t.factor))


def _biases(
    reader: Reader,
    terms: list[Term],
    score: Register,
    rows: frozenset[Index] | None,
    group: set[Index],
    sizes: Mapping[str, int],
) -> _Biases:
    """The terms sorted; `rows`: those of the query, None where nothing may be joined to it."""
    if rows is None:
        return _Biases((), (), terms)
    found = {n: positions(reader, term, score, rows, group, sizes) for n, term in enumerate(terms)}
    others = [term for n, term in enumerate(terms) if found[n] is None]
    of_keys = tuple(term for term in others if is_of_keys(term, score, rows, group))
    return _Biases(
        tuple(p for p in found.values() if p is not None), of_keys, [term for term in others if term not in of_keys]
    )


def _part(split: _Split | None, group: set[Index], sizes: Mapping[str, int], score: Register) -> Part | None:
    """A term whose bond is one index."""
    assert split is not None
    query, key = _sides(split, group, sizes, score)
    left, right = ({i for f in side for i in f.axes} - set(score.axes) for side in (query, key))
    bond = left & right
    return Part(query, key, *bond, scales=tuple(split.product.scales)) if len(bond) == 1 else None


@dataclass(frozen=True, slots=True)
class _Split:
    """A term as a product whose rows and keys meet in no factor."""

    product: Product
    rows: frozenset[Index]

    @property
    def axes(self) -> set[Index]:
        return {i for f in self.product.factors for i in f.axes}


def _split(reader: Reader, term: Term, score: Register, group: set[Index], held: set[Index]) -> _Split | None:
    if term.factor is None or term.factor.register.dtype != score.dtype:
        return None
    found = reader.product(term.factor, set(score.axes))
    found.scales += term.scales
    keys = [f for f in found.factors if group & set(f.axes)]
    fixed = held.union(*(f.axes for f in keys))
    rows = ({i for f in found.factors for i in f.axes} & set(score.axes)) - group - fixed
    same = all(f.register.dtype == score.dtype for f in found.factors)
    return _Split(found, frozenset(rows)) if keys and rows and same else None


def _sorted(
    reader: Reader,
    found: Normalised,
    chain: _Chain,
    split: _Split,
    biases: list[Term],
    sizes: Mapping[str, int],
    axes: set[Index],
) -> Attention:
    """Every index and every factor in its place; `axes`: of all factors of rows and keys."""
    score, group, where = found.score, set(found.indices), found.where
    masked = {i for t in biases if t.factor is not None for i in t.factor.axes} | set(where.axes if where else ())
    rows = [i for i in score.axes if i in split.rows]
    if masked & set(rows):  # what the masks do not tell apart is a batch: a mask is never repeated over it
        rows = [i for i in rows if i in masked]
    seen = [axes, {i for f in chain.value.factors for i in f.axes}, masked]
    batch = [i for i in score.axes if i not in {*group, *rows} and any(i in s for s in seen)]
    batch.sort(key=lambda i: tuple(i not in s for s in seen))  # stable: what is broadcast together stands together
    query, key = _sides(split, group, sizes, score)
    left, right = ({i for f in side for i in f.axes} - set(score.axes) for side in (query, key))
    values = tuple(i for i in chain.result.axes if i not in score.axes)
    bond = tuple(i for i in dict.fromkeys(i for f in query for i in f.axes) if i in left & right)
    causal = where is not None and len(rows) == len(group) == 1 and _is_causal(reader, where, rows[0], *group)
    return Attention(
        found, chain.result, chain.last, chain.tail, query, key, chain.value.factors, biases, tuple(batch), tuple(rows),
        bond, values, tuple(split.product.scales), tuple(chain.value.scales), causal,
    )  # fmt: skip


def _sides(
    split: _Split, group: set[Index], sizes: Mapping[str, int], score: Register
) -> tuple[list[Factor], list[Factor]]:
    """The factors of the query and of the key; those that could be on either are put where all together costs least."""
    factors, outer = split.product.factors, set(score.axes)
    query = [f for f in factors if split.rows & set(f.axes)]
    key = [f for f in factors if group & set(f.axes)]
    floating = [f for f in factors if f not in query and f not in key]
    sides = Sides("", score.dtype, sizes)
    entries = prod(max(sizes.get(i.name, 1), 1) for i in outer)

    def price(places: tuple[bool, ...]) -> int:
        left = query + [f for f, to_key in zip(floating, places, strict=True) if not to_key]
        right = key + [f for f, to_key in zip(floating, places, strict=True) if to_key]
        seen = [{i for f in side for i in f.axes} for side in (left, right)]
        bond = (seen[0] & seen[1]) - outer
        work = entries * prod(max(sizes.get(i.name, 1), 1) for i in bond)
        return work + sum(sides.price(s, (outer | bond) & a) for s, a in zip((left, right), seen, strict=True))

    if len(floating) > MOST_FLOATING:
        return query + floating, key
    best = min(choices((False, True), repeat=len(floating)), key=price)
    left = query + [f for f, to_key in zip(floating, best, strict=True) if not to_key]
    return left, key + [f for f, to_key in zip(floating, best, strict=True) if to_key]


def _is_causal(reader: Reader, where: Register, row: Index, key: Index) -> bool:
    """Whether the predicate is `key <= row` on plain positions."""
    match reader.makers.get(where.name):
        case Apply(function="less_equal", arguments=(Register() as low, Register() as high)):
            pair = low, high
        case Apply(function="greater_equal", arguments=(Register() as high, Register() as low)):
            pair = low, high
        case _:
            return False
    plain = all(isinstance(reader.makers.get(r.name), Iota) for r in pair)
    return plain and (pair[0].axes, pair[1].axes) == ((key,), (row,))


def split_scales(scales: Iterable[Scale], bond: Axes) -> tuple[tuple[Numbers, Numbers], list[Scale]]:
    """The numbers that scale the score (multiplied, dividing), and the rest, which goes to the query.

    A divisor is a number other than 0, or is 0 only where the bond is empty and there is nothing to scale.
    """
    above, below, rest = [], [], []
    known = {i.name for i in bond}
    for function, by in scales:
        if isinstance(by, Literal) and function == "multiply":
            above.append(by)
        elif isinstance(by, Literal) and _is_positive(by, known):
            below.append(by)
        else:
            rest.append((function, by))
    return (tuple(above), tuple(below)), rest


def _is_positive(literal: Literal, known: set[str]) -> bool:
    value = literal.value.of if isinstance(literal.value, Root) else literal.value
    if isinstance(value, Size):
        return len(value.terms) == 1 and value.symbols <= known
    return bool(value)


class _Chain:
    """What is done with the weights, up to a result without a barred index: factors and numbers that multiply."""

    def __init__(self, kernel: Kernel, reader: Reader, found: Normalised) -> None:
        self.value = Product()
        self.kept = {o.register.name for o in kernel.outputs}
        self.group = set(found.indices)
        opened = [(n, i) for n, top in enumerate(kernel.body) for i in plain_side([top])]
        live, others = found.out, list[Register]()
        while set(live.axes) & self.group:
            users = [(n, i) for n, i in opened if live in reads(i)]
            if live.name in self.kept:
                raise RefusalError(f"the weights over {names_of(self.group)} are asked for")
            if len(users) != 1:
                raise self._refusal()
            self.last, user = users[0]
            live = self._step(user, live, others)
        self.result = live
        side = tuple(plain_side([kernel.body[self.last]]))
        place = next(n for n, i in enumerate(side) if live in makes(i))
        self.tail = side[place + 1 :]
        used = {*found.score.axes, *live.axes, *(i for o in others for i in o.axes)}
        for other in others:
            part = reader.product(Factor(other, other.axes), used)
            self.value.factors += part.factors
            self.value.scales += part.scales
        if any(f.register.dtype != found.score.dtype for f in self.value.factors) or live.dtype != found.score.dtype:
            raise RefusalError(f"the values over {names_of(self.group)} are of another dtype than the score")
        if not any(self.group & set(f.axes) for f in self.value.factors):
            raise RefusalError(f"no value depends on {names_of(self.group)}")

    def _step(self, user: Instruction, live: Register, others: list[Register]) -> Register:
        """One step of the chain. Raises: RefusalError where it is not linear."""
        match user:
            case Contract(out=out, a=a, b=b) if (a == live) != (b == live):
                others.append(b if a == live else a)
            case Apply(out=out, function="multiply", arguments=(a, b)) if (a == live) != (b == live):
                other = b if a == live else a
                if isinstance(other, Literal):
                    self.value.scales.append(("multiply", other))
                else:
                    others.append(other)
            case Apply(out=out, function="divide", arguments=(a, b)) if a == live and b != live and _is_scalar(b):
                self.value.scales.append(("divide", b))
            case Apply(out=out, function="negate"):
                self.value.scales.append(("multiply", Literal(-1)))
            case Fold(out=out, kind="sum"):
                pass
            case Arrange(out=out) if set(out.axes) == set(live.axes):
                pass
            case _:
                raise self._refusal()
        if out.dtype != live.dtype:
            raise self._refusal()
        return out

    def _refusal(self) -> RefusalError:
        return RefusalError(f"the weights over {names_of(self.group)} are used other than in one sum of products")


def _is_scalar(operand: Register | Literal) -> bool:
    return isinstance(operand, Literal) or not operand.axes
