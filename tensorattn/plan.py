"""A plan: what is contracted with what, in which order and at which price, as a printable value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from tensorattn.alike import form
from tensorattn.ir import Expr, Index, Normalise, Product, Tensor, walk
from tensorattn.ordering import MEMORY_WEIGHT, reading_order
from tensorattn.program import Program
from tensorattn.sizes import Size

NOTHING = Size()
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
    `running`: the number of the one that is a comparison of positions, where the step is a running sum of the other;
    `beside`: the entries of what its additions write before the last one.
    """

    left: int
    right: int
    indices: tuple[Index, ...]
    out: tuple[Index, ...]
    flops: Size
    entries: Size
    running: int | None = None
    beside: Size = NOTHING

    @property
    def price(self) -> Size:
        """Multiply-adds, and what is written in units of them."""
        return self.flops + (self.entries + self.beside) * MEMORY_WEIGHT


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
class Exponent:
    """A part of a score with the part of the predicate that has no other indices; `node`: its exponential."""

    score: Expr
    where: Expr | None
    node: Expr


@dataclass(frozen=True, slots=True)
class Factored:
    """A normalised reduction as a ratio of two sums of products of exponentials, each over few indices.

    `rows` are the parts of the score without a normalised index, which cancel; `values` the factors that are summed
    with the weights; `count` is the number of admitted tuples, where there is a predicate; `ratio` a node that stands
    for it; `finish` what multiplies it; `inner` are the orders of the products within these parts.
    """

    node: Product
    weights: Normalise
    exponents: tuple[Exponent, ...]
    rows: tuple[Expr, ...]
    values: tuple[Expr, ...]
    numerator: Order
    denominator: Order
    count: Order | None
    ratio: Expr
    finish: Order | None
    inner: tuple[Order, ...]
    price: Size
    dense_price: Size

    @property
    def entries(self) -> Size:
        """How many weights there are."""
        return Size.product(index.name for index in self.weights.free)

    @property
    def orders(self) -> tuple[Order, ...]:
        return tuple(o for o in (*self.inner, self.numerator, self.denominator, self.count, self.finish) if o)


@dataclass(frozen=True, slots=True)
class Plan:
    """A program and how its contractions are ordered. It serves all sizes; `guarding.chooser` says for how long.

    `inputs` keep the order in which the program as written first reads them. `factored` are the normalised reductions,
    with the statement each stands in, that are computed as a ratio where that does not underflow.
    """

    program: Program
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    orders: tuple[tuple[str, Order], ...]  # with the statement each stands in
    nominal: tuple[tuple[str, int], ...] = field(default=())
    kind: str = "dense"
    others: tuple[Size, ...] = ()  # the prices of plans with other definitions in place
    factored: tuple[tuple[str, Factored], ...] = ()
    applied: tuple[tuple[str, str, str], ...] = ()  # a rule that changed a statement: statement, rule, reason

    @property
    def price(self) -> Size:
        """What all contractions cost together, equal ones once."""
        prices = {form(order.contraction.node).expression: order.price for _, order in self.orders}
        return sum(prices.values(), Size())

    @property
    def prices(self) -> tuple[Size, ...]:
        """The price, and what it would be with another order of one contraction."""
        rivals = (rival.price - order.price for _, order in self.orders for rival in order.rivals)
        return tuple(dict.fromkeys((self.price, *(self.price + difference for difference in rivals))))

    @property
    def searched(self) -> tuple[Order, ...]:
        """Every order that was chosen by its price."""
        return tuple(o for _, o in self.orders) + tuple(o for _, f in self.factored for o in f.orders)

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
        ratios = {f.node: f for name, f in plan.factored if name == statement.name}
        lines.append(f"{statement.name}[{' '.join(index.name for index in statement.indices)}]")
        lines += [f"  {rule}: {reason}" for name, rule, reason in plan.applied if name == statement.name]
        for order in orders:
            if found := ratios.get(order.contraction.node):  # type: ignore[call-overload]
                lines += ["  " + line for line in _ratio(found, known, dict(plan.nominal))]
            lines += ["  " + line for line in _order(order, known, dict(plan.nominal))]
        if not orders:
            lines.append("  no product: evaluated node by node")
    return "\n".join(lines)


def _ratio(found: Factored, sizes: Mapping[str, Size], nominal: Mapping[str, int]) -> list[str]:
    """The two sums, and what is computed where they underflow (the order that follows)."""
    own, dense = _amount(found.price, sizes), _amount(found.dense_price, sizes)
    lines = [f"factored: a ratio of two sums of products of exponentials; price {own}, with all weights {dense}"]
    for word, order in (("numerator", found.numerator), ("denominator", found.denominator)):
        lines += [f"{word}:", *("  " + line for line in _order(order, sizes, nominal))]
    return [*lines, "where these underflow, with the weights:"]


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
            + (" (running sums)" if step.running is not None else "")
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
