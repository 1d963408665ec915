"""Program → plan: what is needed is kept, rewritten, and the order of every contraction is chosen by its price."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from tensorattn.ir import Constant, Expr, Index, Map, Normalise, Product, Reduce, Tensor, children, walk
from tensorattn.ordering import MEMORY_WEIGHT, Network, Path, reading_order, search
from tensorattn.plan import Contraction, Divisor, Order, Plan, Rival, Step
from tensorattn.predicates import bringing, brings
from tensorattn.program import Program
from tensorattn.rewriting import rewrite
from tensorattn.rewriting.inlining import inline_below_predicates
from tensorattn.sizes import Size

MOST_RIVALS = 4
NOMINAL, NOMINAL_NORMALISED = 48, 128  # sizes that a plan is made for where none are given


def plan(program: Program, outputs: tuple[str, ...], sizes: Mapping[str, int] | None) -> Plan:
    """The dense plan of a program without `...`, for these index sizes (None: nominal ones)."""
    needed = prune(program, outputs)
    program = rewrite(inline_below_predicates(needed, outputs))
    nominal = _nominal(program) | dict(sizes or {})
    orders: dict[Expr, Order] = {}
    found: list[tuple[str, Order]] = []
    masked = bringing(program)
    for statement in program.statements:
        for node in _inner_first(statement.body):
            contraction = contraction_of(node, masked)
            if contraction is not None and node not in orders:
                orders[node] = order(contraction, nominal)
                found.append((statement.name, orders[node]))
    return Plan(program, needed.inputs, outputs, tuple(found), tuple(sorted(nominal.items())))


def _inner_first(node: Expr) -> Iterator[Expr]:
    for child in children(node):
        yield from _inner_first(child)
    yield node


def prune(program: Program, outputs: tuple[str, ...]) -> Program:
    """The program without the statements that no output needs."""
    needed = set(outputs)
    kept = []
    for statement in reversed(program.statements):
        if statement.name in needed:
            kept.append(statement)
            needed |= {node.name for node in walk(statement.body) if isinstance(node, Tensor)}
    return replace(program, statements=tuple(reversed(kept)))


def _nominal(program: Program) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for statement in program.statements:
        for index in (*statement.indices, *reading_order(statement.body)):
            sizes.setdefault(index.name, NOMINAL)
        for node in walk(statement.body):
            if isinstance(node, Normalise):
                sizes |= {index.name: NOMINAL_NORMALISED for index in node.indices}
    return sizes


def contraction_of(node: Expr, masked: frozenset[str]) -> Contraction | None:
    """The contraction a product, or a sum under a predicate, stands for; None for other nodes.

    `masked`: the definitions that bring a predicate.
    """
    match node:
        case Product(factors=factors, summed=summed):
            return _sorted(node, factors, summed, None, masked)
        case Reduce(kind="sum" | "mean", indices=indices, body=body, where=where):
            factors, summed = (body.factors, body.summed) if isinstance(body, Product) else ((body,), ())
            clash = where is not None and set(summed) & where.free
            if clash or set(summed) & set(indices):
                factors, summed = (body,), ()
            return _sorted(node, factors, (*summed, *indices), where, masked)
    return None


def _sorted(
    node: Expr, parts: tuple[Expr, ...], summed: tuple[Index, ...], where: Expr | None, masked: frozenset[str]
) -> Contraction:
    """Below a predicate a divisor of summed entries stays a factor, so that an excluded 1/0 is kept out like any."""
    result = frozenset().union(*(p.free for p in parts)) - frozenset(summed)
    deltas = tuple(p for p in parts if isinstance(p, Constant) and p.kind == "delta" and p.free <= result)
    parts = tuple(p for p in parts if p not in deltas)
    scalars = tuple(p for p in parts if not p.free and not _is_reciprocal(p))
    below = tuple(p.arguments[0] for p in parts if not p.free and _is_reciprocal(p))  # type: ignore[union-attr]
    factors = [p for p in parts if p.free and not _is_reciprocal(p) and not _is_ones(p)]
    predicate = None
    if where is not None:
        predicate = len(factors)
        factors.append(where)
    guarded = where is not None or any(brings(p, masked) for p in parts)
    divisors: list[Divisor] = []
    for part in (p for p in parts if p.free and _is_reciprocal(p)):
        value = part.arguments[0]  # type: ignore[union-attr]
        place = next((n for n, f in enumerate(factors) if value.free <= f.free and n != predicate), None)
        if value.free <= result and any(n != predicate for n in range(len(factors))):
            divisors.append(Divisor(value, None))
        elif place is not None and not guarded:
            divisors.append(Divisor(value, place))
        else:
            factors.append(part)
    known = frozenset().union(*(f.free for f in factors))
    missing = tuple(index for index in summed if index not in known)
    return Contraction(node, tuple(factors), scalars, below, tuple(divisors), summed, missing, deltas, predicate)


def _is_reciprocal(node: Expr) -> bool:
    return isinstance(node, Map) and node.function == "reciprocal"


def _is_ones(node: Expr) -> bool:
    return isinstance(node, Constant) and node.kind == "ones"


def order(contraction: Contraction, sizes: Mapping[str, int]) -> Order:
    """The cheapest pairwise order found for a contraction, and the runner-up."""
    sets = tuple(f.free - contraction.lone(n) for n, f in enumerate(contraction.factors))
    network = Network(sets, contraction.result, sizes, reading_order(contraction.node))
    best, *others = search(network)
    steps = _steps(network, best)
    naive = Size.product(i.name for i in frozenset().union(*sets)) * max(len(sets) - 1, 0)
    rivals = {_price(_steps(network, other)): other.strategy for other in reversed(others)}
    own = _price(steps)
    kept = tuple(Rival(strategy, price) for price, strategy in reversed(rivals.items()) if price != own)
    return Order(contraction, steps, best.strategy, own, naive, kept[:MOST_RIVALS])


def _steps(network: Network, path: Path) -> tuple[Step, ...]:
    sets = network.outcomes(path.pairs)
    steps = []
    for number, (left, right) in enumerate(path.pairs, len(network.factors)):
        union, out = sets[left] | sets[right], sets[number]
        flops, entries = (Size.product(i.name for i in indices) for indices in (union, out))
        steps.append(Step(left, right, tuple(network.ranked(union)), tuple(network.ranked(out)), flops, entries))
    return tuple(steps)


def _price(steps: tuple[Step, ...]) -> Size:
    return sum((s.flops + s.entries * MEMORY_WEIGHT for s in steps), Size())
