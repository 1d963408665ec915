"""Index sets → the order of pairwise contractions, under our own size-aware price.

The search is opt_einsum's, with its strategy named: `dp` up to 12 factors, a fixed number of random greedy ones above.
Its `dp` tells steps apart by their index sets alone, so that every result is priced again here and compared with a
simple greedy of our own.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heappop, heappush
from math import exp
from typing import Any

from tensorattn.comparisons import Comparison
from tensorattn.ir import (
    Affine,
    Concatenate,
    Constant,
    Expr,
    Index,
    Normalise,
    Position,
    Reduce,
    Split,
    Tensor,
    Top,
    walk,
)
from tensorattn.windows import additions

MOST_FOR_DP = 12
TRIALS, BRANCHES = 12, 8  # random greedy searches, and the pairs that each step of one chooses from
MOST_FOR_RIVALS = 6  # factors up to which orders for other sizes are looked for, to know when a plan ceases to hold
MOST_RUNNING = 3  # comparisons of positions in one contraction that become running sums
MEMORY_WEIGHT = 8  # multiply-adds of a GEMM that cost as much as writing one entry
EXP_WEIGHT = 16  # ... as one exponential

Indices = frozenset[Index]
Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Path:
    """Pairs of operand numbers (factors first, then results), and the strategy that found them.

    `sums`: whether products with a comparison of positions are running sums where they may be.
    """

    strategy: str
    pairs: tuple[Pair, ...]
    sums: bool = True


@dataclass(frozen=True, slots=True)
class Network:
    """What is contracted: the index sets of the factors, the indices of the result and the sizes of all.

    `rank` numbers the indices by first occurrence, so that nothing depends on their names. `comparisons`: the factors
    by number that are a predicate on two positions: a step with one may be a running sum.
    """

    factors: tuple[Indices, ...]
    result: Indices
    sizes: Mapping[str, int]
    rank: Mapping[Index, int]
    comparisons: Mapping[int, Comparison] = field(default_factory=dict)

    def ranked(self, indices: Iterable[Index]) -> list[Index]:
        return sorted(indices, key=self.rank.__getitem__)

    def entries(self, indices: Indices) -> int:
        """The number of entries over the indices; an empty index still has a price."""
        total = 1
        for index in indices:
            total *= max(self.sizes[index.name], 1)
        return total

    def running(self, pair: Pair, sets: Sequence[Indices], out: Indices) -> Pair | None:
        """A pair whose product is a running sum: the comparison first, then what is summed."""
        for number, other in (pair, pair[::-1]):
            known = self.comparisons.get(number)
            if known and known.running(sets[other], out):
                return number, other
        return None

    def step_price(self, left: Indices, right: Indices, out: Indices) -> int:
        return self.entries(left | right) + MEMORY_WEIGHT * self.entries(out)

    def pair_price(self, pair: Pair, sets: Sequence[Indices], out: Indices, *, sums: bool = True) -> int:
        """The price of a step: a running sum adds over the indices of one operand only.

        Every addition but the last writes an array that is not the result.
        """
        found = self.running(pair, sets, out) if sums else None
        if found is None:
            return self.step_price(sets[pair[0]], sets[pair[1]], out)
        number, other = found
        count, entries = additions(self.comparisons[number].windows), self.entries(sets[other])
        return count * entries + MEMORY_WEIGHT * (max(count - 1, 0) * entries + self.entries(out))

    def outcomes(self, pairs: Sequence[Pair]) -> list[Indices]:
        """The indices of every operand, the results of the pairs included."""
        sets = list(self.factors)
        alive = set(range(len(sets)))
        for left, right in pairs:
            alive -= {left, right}
            needed = self.result.union(*(sets[n] for n in alive))
            alive.add(len(sets))
            sets.append((sets[left] | sets[right]) & needed)
        return sets

    def price(self, pairs: Sequence[Pair], *, sums: bool = True) -> int:
        sets = self.outcomes(pairs)
        first = len(self.factors)
        return sum(self.pair_price(pair, sets, sets[first + n], sums=sums) for n, pair in enumerate(pairs))


def reading_order(node: Expr) -> dict[Index, int]:
    """The indices of an expression, bound ones too, numbered by first occurrence.

    A product sums a set: where its indices stand in its factors counts, and not how the set is written.
    """
    found: dict[Index, int] = {}
    for part in walk(node):
        for index in _written(part):
            found.setdefault(index, len(found))
    return found


def _written(node: Expr) -> tuple[Index, ...]:
    match node:
        case Tensor(slots=slots):
            plain = (s for s in slots if not isinstance(s, Affine))
            return tuple(i for s in plain for i in (s.indices if isinstance(s, Split) else (s,)))
        case Constant(indices=indices) | Reduce(indices=indices) | Normalise(indices=indices) | Top(indices=indices):
            return indices
        case Position(index=index):
            return (index,)
        case Concatenate(index=index, parts=parts):
            return (index, *parts)
    return ()


def search(network: Network) -> list[Path]:
    """The paths found, the cheapest first; at least one."""
    count = len(network.factors)
    if count < 2:
        return [Path("one factor", ())]
    if count == 2:
        return _cheapest(network, [Path("the only order", ((0, 1),))])
    order = _canonical_order(network)
    canonical = replace(network, factors=tuple(network.factors[n] for n in order), comparisons={})
    head, rest, numbers = _equal_sets(canonical)
    found = []
    for strategy, pairs in _candidates(rest):
        whole = (*head, *_shifted(pairs, numbers, count, len(head)))
        found.append(Path(strategy, _renumbered(whole, order)))
    return _cheapest(network, [*found, *(Path("running sums", pairs) for pairs in _running_sums(network))])


def _cheapest(network: Network, found: Sequence[Path]) -> list[Path]:
    """The paths, and each with arrays in the place of running sums where it has some; the cheapest first."""
    paths = (replace(path, sums=sums) for path in found for sums in ((True, False) if network.comparisons else (True,)))
    prices = {path: network.price(path.pairs, sums=path.sums) for path in paths}
    ranked = sorted(prices, key=prices.__getitem__)
    return list({(p.pairs, prices[p]): p for p in reversed(ranked)}.values())[::-1]


def _candidates(network: Network) -> list[tuple[str, tuple[Pair, ...]]]:
    count = len(network.factors)
    if count < 3:
        return [("elementwise first", ((0, 1),) if count == 2 else ())]
    found = [("dp", _dynamic(network))] if count <= MOST_FOR_DP else [("random-greedy", _random_greedy(network))]
    found.append(("greedy", _greedy(network)))
    if count <= MOST_FOR_RIVALS:
        found += [("dp for other sizes", _dynamic(other)) for other in _other_sizes(network)]
    return found


def _other_sizes(network: Network) -> list[Network]:
    """The network with all sizes alike, and with each one of its indices large in turn."""
    names = list(dict.fromkeys(i.name for i in network.ranked(frozenset().union(*network.factors))))
    return [
        replace(network, sizes={name: 4096 if name == large else 16 for name in names})
        for large in (None, *names[:MOST_FOR_RIVALS])
    ]


def _running_sums(network: Network) -> list[tuple[Pair, ...]]:
    """Orders with products that are running sums: all that holds the position summed is joined before."""
    found: list[tuple[Pair, ...]] = []
    count = len(network.factors)

    def joined(operands: Mapping[int, Indices], needed: Indices, done: int) -> tuple[Pair, ...]:
        numbers = tuple(operands)
        everything = frozenset().union(*operands.values())
        rest = replace(network, factors=tuple(operands.values()), result=everything & needed, comparisons={})
        return tuple(_shifted(search(rest)[0].pairs, numbers, count, done))

    def grow(operands: Mapping[int, Indices], pairs: tuple[Pair, ...], left: tuple[int, ...]) -> None:
        for number in left:
            for one in (network.comparisons[number], network.comparisons[number].turned):
                near = {n: s for n, s in operands.items() if n != number and one.left in s}
                rest = {n: s for n, s in operands.items() if n != number and n not in near}
                needed = network.result.union(*rest.values())
                if (
                    not near
                    or one.left in needed
                    or one.right not in needed
                    or any(one.right in s for s in near.values())
                ):
                    continue
                steps = joined(near, needed | {one.left, one.right}, len(pairs))
                place = count + len(pairs) + len(steps) - 1 if steps else next(iter(near))
                new = (*pairs, *steps, (place, number))
                out = (frozenset().union(*near.values()) & needed) | {one.right}
                after = {**rest, count + len(new) - 1: out}
                found.append((*new, *joined(after, network.result, len(new))))
                grow(after, new, tuple(n for n in left if n != number and n in after))

    if len(network.comparisons) <= MOST_RUNNING:
        grow(dict(enumerate(network.factors)), (), tuple(network.comparisons))
    return found


def _equal_sets(network: Network) -> tuple[tuple[Pair, ...], Network, tuple[int, ...]]:
    """Factors over the same indices are multiplied first: pairs, what is left, and the operand number of each left."""
    count = len(network.factors)
    number: dict[Indices, int] = {}
    pairs: list[Pair] = []
    for n, indices in enumerate(network.factors):
        if indices in number:
            pairs.append((number[indices], n))
            number[indices] = count + len(pairs) - 1
        else:
            number[indices] = n
    return tuple(pairs), replace(network, factors=tuple(number)), tuple(number.values())


def _shifted(pairs: Sequence[Pair], numbers: Sequence[int], count: int, done: int) -> list[Pair]:
    def operand(n: int) -> int:
        return numbers[n] if n < len(numbers) else count + done + n - len(numbers)

    return [(operand(a), operand(b)) for a, b in pairs]


def _renumbered(pairs: Sequence[Pair], order: Sequence[int]) -> tuple[Pair, ...]:
    return tuple(tuple(order[n] if n < len(order) else n for n in pair) for pair in pairs)  # type: ignore[misc]


def _canonical_order(network: Network) -> list[int]:
    """The factors in an order that depends neither on names nor on the order of writing (ties keep it)."""
    colour: dict[Index, Any] = {
        i: (network.sizes[i.name], i in network.result) for i in frozenset().union(*network.factors)
    }
    keys: list[Any] = []
    for _ in range(3):
        keys = [tuple(sorted(colour[i] for i in f)) for f in network.factors]
        ranks = {key: n for n, key in enumerate(sorted(set(keys)))}
        pairs = list(zip(keys, network.factors, strict=True))
        refined = {i: (colour[i], tuple(sorted(ranks[k] for k, f in pairs if i in f))) for i in colour}
        places = {c: n for n, c in enumerate(sorted(set(refined.values())))}
        colour = {i: places[refined[i]] for i in colour}
        keys = [tuple(sorted(colour[i] for i in f)) for f in network.factors]
    return sorted(range(len(network.factors)), key=lambda n: (len(network.factors[n]), keys[n]))


def _greedy(network: Network) -> tuple[Pair, ...]:
    """Always the pair whose step costs least more than its operands; pairs that share an index first."""
    count = len(network.factors)
    bits = {index: 1 << n for n, index in enumerate(network.ranked(frozenset().union(*network.factors)))}
    costs = _Costs(network, bits)
    operands = {n: sum(bits[i] for i in indices) for n, indices in enumerate(network.factors)}
    prices: dict[Pair, tuple[bool, int]] = {}
    pairs: list[Pair] = []
    touched = -1
    while len(operands) > 1:
        twice, many = _uses(operands.values())
        for a in [n for n, indices in operands.items() if indices & touched or not indices]:
            for b in operands:
                if a != b:
                    prices[min(a, b), max(a, b)] = costs.pair(operands[a], operands[b], twice, many)
        a, b = min(prices, key=lambda pair: (prices[pair], pair))
        touched = operands[a] | operands[b]
        out = costs.outcome(operands[a], operands[b], twice, many)
        del operands[a], operands[b]
        prices = {pair: price for pair, price in prices.items() if a not in pair and b not in pair}
        operands[count + len(pairs)] = out
        pairs.append((a, b))
    return tuple(pairs)


def _uses(operands: Iterable[int]) -> tuple[int, int]:
    """The indices that stand in exactly two operands, and in more."""
    once = twice = many = 0
    for indices in operands:
        many |= twice & indices
        twice |= once & indices
        once |= indices
    return twice & ~many, many


class _Costs:
    """Index sets as bits of an integer, for the inner loop of the greedy search."""

    def __init__(self, network: Network, bits: Mapping[Index, int]) -> None:
        self.result = sum(bit for index, bit in bits.items() if index in network.result)
        self.sizes = {bit: max(network.sizes[index.name], 1) for index, bit in bits.items()}
        self._known: dict[int, int] = {}

    def entries(self, indices: int) -> int:
        found = self._known.get(indices)
        if found is None:
            found, rest = 1, indices
            while rest:
                bit = rest & -rest
                found, rest = found * self.sizes[bit], rest ^ bit
            self._known[indices] = found
        return found

    def outcome(self, left: int, right: int, twice: int, many: int) -> int:
        """What is left of two operands: the indices of the result and those that others use."""
        return (left | right) & (self.result | many | (twice & (left ^ right)))

    def pair(self, left: int, right: int, twice: int, many: int) -> tuple[bool, int]:
        out = self.entries(self.outcome(left, right, twice, many))
        price = self.entries(left | right) + MEMORY_WEIGHT * out
        return not left & right, price - self.entries(left) - self.entries(right)


def _numbers(network: Network) -> tuple[list[Any], Any, dict[Any, int]]:
    """The network in opt_einsum's terms. Its indices may be anything hashable; integers hash alike in every process."""
    number: dict[Index, int] = {}
    for n in _canonical_order(network):
        for index in sorted(network.factors[n], key=lambda i: (network.sizes[i.name], network.rank[i])):
            number.setdefault(index, len(number))
    factors = [frozenset(number[i] for i in f) for f in network.factors]
    sizes = {place: max(network.sizes[i.name], 1) for i, place in number.items()}
    return factors, frozenset(number[i] for i in network.result), sizes


def _dynamic(network: Network) -> tuple[Pair, ...]:
    from opt_einsum.paths import DynamicProgramming

    factors, result, sizes = _numbers(network)
    return _numbered(DynamicProgramming(minimize=f"combo-{MEMORY_WEIGHT}")(factors, result, sizes), len(factors))


def _random_greedy(network: Network) -> tuple[Pair, ...]:
    """The best of a fixed number of greedy searches with a little chance; the same on every machine.

    The generator is our own: opt_einsum's wrapper would seed the one that all threads share.
    """
    from opt_einsum.paths import ssa_greedy_optimize

    chance = random.Random(0)

    def growth(out: int, left: int, right: int, *_: object) -> float:
        return chance.gauss(1.0, 0.01) * (out - left - right)

    factors, result, sizes = _numbers(network)
    choices = (None, *[partial(_warm, chance=chance)] * (TRIALS - 1))
    paths = (ssa_greedy_optimize(list(factors), result, sizes, choose, growth) for choose in choices)
    return min((tuple((a, b) for a, b in path) for path in paths), key=network.price)


def _warm(queue: list[Any], remaining: Mapping[Any, int], *, chance: random.Random) -> Any:
    """One of the cheapest pairs in the queue, the cheaper the likelier (Boltzmann, in units of the least price)."""
    found: list[Any] = []
    while queue and len(found) < BRANCHES:
        candidate = heappop(queue)
        if candidate[1] in remaining and candidate[2] in remaining:
            found.append(candidate)
    if not found:
        return None
    least = found[0][0][0]
    weights = [exp((least - candidate[0][0]) / max(1, abs(least))) for candidate in found]
    chosen = found.pop(chance.choices(range(len(found)), weights)[0])
    for other in found:
        heappush(queue, other)
    return chosen


def _numbered(path: Iterable[Iterable[int]], count: int) -> tuple[Pair, ...]:
    """A path in opt_einsum's terms (places in a shrinking list) as pairs of operand numbers."""
    operands = list(range(count))
    pairs: list[Pair] = []
    for places in path:
        taken = [operands[p] for p in sorted(places)]
        operands = [o for o in operands if o not in taken]
        while len(taken) > 1:
            pairs.append((taken[0], taken[1]))
            taken = [count + len(pairs) - 1, *taken[2:]]
        operands.append(taken[0])
    return tuple(pairs)
