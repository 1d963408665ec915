"""A plan: what is contracted with what, in which order and at which price, as a printable value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tensorattn.ir import Expr, Index, Tensor, walk
from tensorattn.ordering import MEMORY_WEIGHT, reading_order
from tensorattn.program import Program
from tensorattn.sizes import Size

SLACK = 0.8  # a plan is kept until another order costs less than this share of its price


@dataclass(frozen=True, slots=True)
class Divisor:
    """A factor `1 / value`; `of` is the number of the factor it divides, None: the result."""

    value: Expr
    of: int | None


@dataclass(frozen=True, slots=True)
class Contraction:
    """A product (or a sum under a predicate) sorted by what is done with its factors.

    `factors` have indices and are contracted pairwise; `scalars` and `below` have none and multiply and divide;
    `missing` are the summed indices that stand in no factor (their sizes multiply); `predicate` is the number of the
    factor that is the sum's own predicate; `deltas` select from the result.
    """

    node: Expr
    factors: tuple[Expr, ...]
    scalars: tuple[Expr, ...]
    below: tuple[Expr, ...]
    divisors: tuple[Divisor, ...]
    summed: tuple[Index, ...]
    missing: tuple[Index, ...]
    deltas: tuple[Expr, ...] = ()
    predicate: int | None = None

    @property
    def result(self) -> frozenset[Index]:
        """The indices left after the contraction of the factors."""
        return frozenset().union(*(f.free for f in self.factors)) - frozenset(self.summed)

    @property
    def alone(self) -> int | None:
        """The number of the one factor of a sum under its own predicate, where nothing else there is data."""
        data = [n for n in range(len(self.factors)) if n != self.predicate]
        beside = (*self.scalars, *self.below)
        if self.predicate is None or len(data) != 1 or self.divisors or any(map(_is_data, beside)):
            return None
        return data[0]

    def lone(self, factor: int) -> frozenset[Index]:
        """The summed indices that stand in this factor only: they are summed before anything else."""
        others = frozenset().union(*(f.free for n, f in enumerate(self.factors) if n != factor))
        return (self.factors[factor].free & frozenset(self.summed)) - others


def _is_data(node: Expr) -> bool:
    return any(isinstance(part, Tensor) for part in walk(node))


@dataclass(frozen=True, slots=True)
class Step:
    """`left, right → out`: operands are numbered, the factors first, then the result of each step.

    `flops` counts multiply-adds: the product of the sizes of all indices of the two; `entries` is the size of `out`.
    """

    left: int
    right: int
    indices: tuple[Index, ...]
    out: tuple[Index, ...]
    flops: Size
    entries: Size


@dataclass(frozen=True, slots=True)
class Rival:
    """Another order of the same contraction: who found it, and its price."""

    strategy: str
    price: Size


@dataclass(frozen=True, slots=True)
class Order:
    """The pairwise order of one contraction, the prices of other orders found, and what one big sum would cost."""

    contraction: Contraction
    steps: tuple[Step, ...]
    strategy: str
    price: Size
    naive_flops: Size
    rivals: tuple[Rival, ...] = ()

    @property
    def flops(self) -> Size:
        return sum((step.flops for step in self.steps), Size())


@dataclass(frozen=True, slots=True)
class Plan:
    """A program and how its contractions are ordered. It serves all sizes; `guarding.chooser` says for how long.

    `inputs` keep the order in which the program as written first reads them.
    """

    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    orders: tuple[tuple[str, Order], ...]  # with the statement each stands in
    nominal: tuple[tuple[str, int], ...] = field(default=())
    kind: str = "dense"

    def explain(self, sizes: Mapping[str, int] | None = None) -> str:
        """The plan in words and numbers; sizes that are not given stay symbols."""
        return describe(self, sizes)

    def __str__(self) -> str:
        return describe(self, None)


def describe(plan: Plan, sizes: Mapping[str, int] | None) -> str:
    """The contraction order of every product: its steps, FLOPs, largest intermediate, and why this order."""
    lines = [f"plan: {plan.kind}, for {', '.join(plan.outputs)}"]
    known = {name: Size.of(size) for name, size in (sizes or {}).items()}
    for statement in plan.program.statements:
        orders = [order for name, order in plan.orders if name == statement.name]
        lines.append(f"{statement.name}[{' '.join(index.name for index in statement.indices)}]")
        for order in orders:
            lines += ["  " + line for line in _order(order, known, dict(plan.nominal))]
        if not orders:
            lines.append("  no product: evaluated node by node")
    return "\n".join(lines)


def _order(order: Order, sizes: Mapping[str, Size], nominal: Mapping[str, int]) -> list[str]:
    contraction, spell = order.contraction, _spelling(order.contraction)
    names = [f"{_word(factor)}[{spell(factor.free, factor)}]" for factor in contraction.factors]
    lines = []
    for n, factor in enumerate(contraction.factors):
        if lone := contraction.lone(n):
            left = spell(factor.free - lone, factor)
            lines.append(f"sum {names[n]} over {spell(lone)} -> [{left}]")
            names[n] = f"sum({_word(factor)})[{left}]"
    for number, step in enumerate(order.steps, 1):
        names.append(f"t{number}[{spell(step.out)}]")
        lines.append(
            f"{names[step.left]}, {names[step.right]} -> {names[-1]}: "
            f"{_amount(step.flops * 2, sizes)} FLOPs, {_amount(step.entries, sizes)} entries"
        )
    if not order.steps:
        return [*lines, f"one factor: {names[0]}" if names else "numbers only"]
    return lines if len(order.steps) == 1 else [*lines, *_reasons(order, sizes, nominal)]


def _reasons(order: Order, sizes: Mapping[str, Size], nominal: Mapping[str, int]) -> list[str]:
    """Why this order: what it costs, what one sum over everything would, and the order that comes next."""
    largest = max((step.entries for step in order.steps), key=lambda e: e.substitute(sizes).value(nominal))
    flops, naive = _amount(order.flops * 2, sizes), _amount(order.naive_flops * 2, sizes)
    words = f"order by {order.strategy}: {flops} FLOPs, largest intermediate {_amount(largest, sizes)} entries"
    lines = [f"{words}; as one sum over all indices {naive} FLOPs"]
    for rival in order.rivals[:1]:
        own, price = _amount(order.price, sizes), _amount(rival.price, sizes)
        if own != price:
            unit = f"multiply-adds + {MEMORY_WEIGHT} per entry written"
            lines.append(f"price {own} ({unit}); by {rival.strategy} {price}")
    return lines


def _amount(size: Size, sizes: Mapping[str, Size]) -> str:
    """A number where the sizes it depends on are given, else a polynomial in those that are not."""
    found = size.substitute(sizes)
    return str(found) if found.constant is None else f"{found.constant:,}"


def _spelling(contraction: Contraction) -> Callable[..., str]:
    """How indices are written: those of a tensor in its order, else the result's first; with numbers only where two of
    one name meet here."""
    numbers: dict[str, set[int]] = {}
    for factor in contraction.factors:
        for index in factor.free:
            numbers.setdefault(index.name, set()).add(index.number)

    def word(index: Index) -> str:
        return index.name if len(numbers.get(index.name, ())) < 2 else f"{index.name}#{index.number}"

    def spell(indices: Iterable[Index], factor: Expr = contraction.node) -> str:
        rank = reading_order(factor)
        summed = frozenset() if isinstance(factor, Tensor) else frozenset(contraction.summed)
        return " ".join(map(word, sorted(indices, key=lambda i: (i in summed, rank.get(i, len(rank)), i))))

    return spell


def _word(factor: Expr) -> str:
    word = getattr(factor, "name", None) or getattr(factor, "kind", None) or getattr(factor, "function", None)
    return word or type(factor).__name__.lower()
