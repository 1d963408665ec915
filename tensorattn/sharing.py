"""Two contractions that share factors: what the first has made, the second need not make again."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from tensorattn.ir import Expr, Index
from tensorattn.ordering import Network, Pair, Path, search
from tensorattn.plan import Contraction, Order
from tensorattn.sizes import Size

Made = tuple[frozenset[Expr], frozenset[Index]]  # the factors that went into a step, and all indices of its operands


def sharing(contraction: Contraction, network: Network, after: Order) -> list[Path]:
    """The paths of a contraction that is made after `after`, the cheapest first: steps made before are free.

    One of them follows the steps of the other order as far as their factors stand in both.
    """
    free = made(after.contraction, [(s.left, s.right) for s in after.steps], [s.indices for s in after.steps])
    found = search(network)
    summed = any(step.running is not None for step in after.steps)
    followed = Path("as the one before", _restricted(contraction, after), summed)
    if len(followed.pairs) == len(network.factors) - 1:
        found.insert(0, followed)

    def price(path: Path) -> int:
        sets = network.outcomes(path.pairs)
        unions = [sets[a] | sets[b] for a, b in path.pairs]
        steps = zip(made(contraction, path.pairs, unions), path.pairs, strict=True)
        first = len(network.factors)
        prices = [
            (m, network.pair_price(pair, sets, sets[first + n], sums=path.sums)) for n, (m, pair) in enumerate(steps)
        ]
        return sum(price for m, price in prices if m not in free)

    return sorted({(path.pairs, path.sums): path for path in reversed(found)}.values(), key=price)


def unshared_price(order: Order, after: Order) -> Size:
    """The price of the steps that the order before has not made."""
    free = made(after.contraction, [(s.left, s.right) for s in after.steps], [s.indices for s in after.steps])
    own = made(order.contraction, [(s.left, s.right) for s in order.steps], [s.indices for s in order.steps])
    steps = [step for step, m in zip(order.steps, own, strict=True) if m not in free]
    return sum((step.price for step in steps), Size())


def made(contraction: Contraction, pairs: Sequence[Pair], unions: Sequence[Collection[Index]]) -> list[Made]:
    """For each pair what goes into it."""
    leaves = [frozenset({factor}) for factor in contraction.factors]
    for left, right in pairs:
        leaves.append(leaves[left] | leaves[right])
    return [(m, frozenset(u)) for m, u in zip(leaves[len(contraction.factors) :], unions, strict=True)]


def _restricted(contraction: Contraction, after: Order) -> tuple[Pair, ...]:
    """The steps of `after` without the factors that the contraction lacks."""
    places = {factor: n for n, factor in enumerate(contraction.factors)}
    operands: list[int | None] = [places.get(factor) for factor in after.contraction.factors]
    pairs: list[Pair] = []
    for step in after.steps:
        left, right = operands[step.left], operands[step.right]
        if left is None or right is None:
            operands.append(right if left is None else left)
        else:
            pairs.append((left, right))
            operands.append(len(contraction.factors) + len(pairs) - 1)
    return tuple(pairs)
