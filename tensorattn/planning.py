"""Program → plan: what is needed is kept, rewritten, and the order of every contraction is chosen by its price."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod

from tensorattn.comparisons import comparison
from tensorattn.ir import Add, Constant, Expr, Index, Map, Normalise, Product, Reduce, Tensor, inner_first, walk
from tensorattn.ordering import EXP_WEIGHT, MEMORY_WEIGHT, Network, Path, reading_order, search
from tensorattn.plan import SLACK, Contraction, Divisor, Order, Plan, Rival, Step
from tensorattn.predicates import admitted, bringing, brings
from tensorattn.program import Program
from tensorattn.rewriting import CANONICAL, SCATTER, Rewritten, rewrite
from tensorattn.rewriting.axes import split_axes
from tensorattn.rewriting.fusing import fuse
from tensorattn.rewriting.ratios import exponent
from tensorattn.rewriting.scatters import scatters
from tensorattn.rewriting.scores import is_ones
from tensorattn.rewriting.segments import by_symbol, looks_up, segments, table_sizes
from tensorattn.rewriting.separating import separate
from tensorattn.rewriting.symmetry import symmetric_halves
from tensorattn.sharing import sharing
from tensorattn.sizes import Size
from tensorattn.windows import additions

MOST_RIVALS = 4
MOST_PLACED = 4  # definitions read several times of which it is tried whether they pay in place
NOMINAL, NOMINAL_NORMALISED = 48, 128  # sizes that a plan is made for where none are given


def plan(program: Program, outputs: tuple[str, ...], sizes: Mapping[str, int] | None, *, ordered: bool = False) -> Plan:
    """The dense plan of a program without `...`, for these index sizes (None: nominal ones).

    `ordered`: a symmetric softmax runs over ordered tuples, which pays where loops leave out the others.

    A definition read once is put in its place; one that is a contraction and read several times, where that is cheaper.
    So is a softmax that sees its index through an integer map made one over what the map gives, for known sizes.
    """
    needed = prune(program, outputs)
    placed = written_out(needed, outputs)
    best = _plan(needed, outputs, sizes, placed, ordered)
    others: list[Plan] = []
    for name in _contracted(needed, outputs):
        other = _plan(needed, outputs, sizes, placed | {name}, ordered)
        known = dict(best.nominal) | dict(other.nominal)
        if other.price.value(known) < SLACK * best.price.value(known):
            best, other, placed = other, best, placed | {name}
        others.append(other)
    best = replace(best, others=tuple(price for other in others for price in other.prices))
    if sizes is None or not looks_up(best.program):
        return best
    other = _plan(needed, outputs, sizes, placed, ordered, by_segment=True)
    if other.program == best.program:
        return best
    totals = {id(p): p.price + _weighing(p) for p in (best, other)}
    known = dict(other.nominal)
    if totals[id(other)].value(known) < SLACK * totals[id(best)].value(known):
        best, other = other, best
    return replace(best, others=(*best.others, totals[id(other)] - _weighing(best)))


def _weighing(plan: Plan) -> Size:
    """What normalisers and sums by segment cost beside the contractions, by the entries that they run over."""
    total = Size()
    for node in (n for statement in plan.program.statements for n in walk(statement.body)):
        inside = node.free if isinstance(node, Normalise) else frozenset()
        if isinstance(node, Reduce) and node.kind != "sum":
            inside = node.free | set(node.indices)
        if (found := segments(node)) is not None:
            inside = found.free
        elif (placed := scatters(node)) is not None:
            inside = placed.free | node.body.free | set(node.indices)  # type: ignore[union-attr]
        if inside:
            total = total + Size.product(i.name for i in inside) * (EXP_WEIGHT + MEMORY_WEIGHT)
    return total


def _plan(
    needed: Program,
    outputs: tuple[str, ...],
    sizes: Mapping[str, int] | None,
    placed: frozenset[str],
    ordered: bool,
    *,
    by_segment: bool = False,
) -> Plan:
    if by_segment:
        placed |= lookups(needed)
    rewritten = rewrite(fuse(split_axes(needed, outputs), outputs, placed))
    nominal = nominal_sizes(rewritten.program) | dict(sizes or {})
    if ordered:
        rewritten = symmetric_halves(rewritten, nominal)
    if by_segment:
        tables = table_sizes(rewritten.program, sizes or {})
        rewritten, nominal = by_symbol(rewritten, {**tables, **(sizes or {})}, outputs), {**tables, **nominal}
    nominal = {**table_sizes(rewritten.program, nominal), **nominal}
    rewritten = _separated(rewritten, nominal)
    program = rewritten.program
    orders: dict[Expr, Order] = {}
    found: list[tuple[str, Order]] = []
    masked = bringing(program)
    for statement in program.statements:
        for node in inner_first(statement.body):
            contraction = contraction_of(node, masked, nominal)
            if contraction is not None and node not in orders:
                orders[node] = order(contraction, nominal)
                found.append((statement.name, orders[node]))
    scattered = [(s.name, SCATTER) for s in program.statements if any(map(scatters, walk(s.body)))]
    known = dict.fromkeys((name, rule.name, rule.reason) for name, rule in (*rewritten.applied, *scattered))
    applied = tuple(known)
    return Plan(program, needed.inputs, outputs, tuple(found), tuple(sorted(nominal.items())), applied=applied)


def _separated(rewritten: Rewritten, sizes: Mapping[str, int]) -> Rewritten:
    """The program with every softmax below a predicate summed by itself, where the contractions get no dearer."""
    masked = bringing(rewritten.program)

    def price(node: Product, joint: bool) -> int:
        contraction = contraction_of(node, masked, sizes)
        assert contraction is not None
        known = order(contraction, sizes).price.value(sizes)
        return known + MEMORY_WEIGHT * _entries(admitted(node, masked), sizes) if joint else known

    return separate(rewritten, price)


def written_out(program: Program, outputs: tuple[str, ...]) -> frozenset[str]:
    """The definitions to be put in place so that a softmax written out over several of them is seen as one.

    Those of exponentials, and of sums of them, without which fewer exponentials are left.
    """
    placed: frozenset[str] = frozenset()
    for statement in (s for s in program.statements if s.name not in outputs):
        name = statement.name
        tried = [placed | {name}]
        if exponent(statement.body) is not None:
            sums = {s.name for s in program.statements if s.name not in outputs and _sums(s.body, name)}
            tried.append(placed | {name} | sums)
        elif not _sums(statement.body):
            continue
        left = [_exponentials(program, outputs, names) for names in (placed, *tried)]
        placed = next((t for t, count in zip(tried, left[1:], strict=True) if count < left[0]), placed)
    return placed


def _exponentials(program: Program, outputs: tuple[str, ...], placed: frozenset[str]) -> int:
    """How many exponentials a program computes with these definitions in place."""
    found = rewrite(fuse(split_axes(program, outputs), outputs, placed), CANONICAL).program
    nodes = (node for statement in found.statements for node in walk(statement.body))
    return sum(exponent(node) is not None for node in nodes)


def _sums(node: Expr, name: str | None = None) -> bool:
    """Whether it is a sum of exponentials, or of the tensor of this name, perhaps with other terms."""
    match node:
        case Add(terms=terms):
            return any(_sums(term, name) for term in terms)
        case Product(factors=(entry,)) | Reduce(kind="sum", body=entry):
            if name is None:
                return exponent(entry) is not None
            return isinstance(entry, Tensor) and entry.name == name
    return False


def lookups(program: Program) -> frozenset[str]:
    """The definitions that only read a table at positions that data give."""
    return frozenset(
        s.name for s in program.statements if s.axes and isinstance(s.body, Tensor) and looks_up(Program((s,)))
    )


def _contracted(program: Program, outputs: tuple[str, ...]) -> list[str]:
    """The definitions read several times that are a contraction of what is no weights."""
    uses = Counter(tensor.name for tensor in program.tensors)
    found = []
    for statement in program.statements:
        body = statement.body
        plain = isinstance(body, Product) and body.summed and not any(isinstance(n, Normalise) for n in walk(body))
        if plain and statement.axes and uses[statement.name] > 1 and statement.name not in outputs:
            found.append(statement.name)
    return found[:MOST_PLACED]


def prune(program: Program, outputs: tuple[str, ...]) -> Program:
    """The program without the statements that no output needs."""
    needed = set(outputs)
    kept = []
    for statement in reversed(program.statements):
        if statement.name in needed:
            kept.append(statement)
            needed |= {node.name for node in walk(statement.body) if isinstance(node, Tensor)}
    return replace(program, statements=tuple(reversed(kept)))


def nominal_sizes(program: Program) -> dict[str, int]:
    """What a plan is made for where no sizes are given."""
    sizes: dict[str, int] = {}
    for statement in program.statements:
        for index in (*statement.indices, *reading_order(statement.body)):
            sizes.setdefault(index.name, NOMINAL)
        for node in walk(statement.body):
            if isinstance(node, Normalise):
                sizes |= {index.name: NOMINAL_NORMALISED for index in node.indices}
    return sizes


def contraction_of(node: Expr, masked: frozenset[str], sizes: Mapping[str, int] | None = None) -> Contraction | None:
    """The contraction a product, or a sum under a predicate, stands for; None for other nodes, and sums by
    segment or place.

    `masked`: the definitions that bring a predicate.
    """
    sizes = sizes or {}
    match node:
        case Product(factors=factors, summed=summed):
            return _sorted(node, factors, summed, None, masked, sizes)
        case Reduce() if segments(node) is not None or scatters(node) is not None:
            return None
        case Reduce(kind="sum" | "mean", indices=indices, body=body, where=where):
            factors, summed = (body.factors, body.summed) if isinstance(body, Product) else ((body,), ())
            clash = where is not None and set(summed) & where.free
            if clash or set(summed) & set(indices):
                factors, summed = (body,), ()
            return _sorted(node, factors, (*summed, *indices), where, masked, sizes)
    return None


def _sorted(
    node: Expr,
    parts: tuple[Expr, ...],
    summed: tuple[Index, ...],
    where: Expr | None,
    masked: frozenset[str],
    sizes: Mapping[str, int],
) -> Contraction:
    """A divisor divides the smallest array that has its indices, a factor or the result.

    Below a predicate it divides the result; one of summed entries stays a factor, so that an excluded 1/0 is kept out
    like any.
    """
    result = frozenset().union(*(p.free for p in parts)) - frozenset(summed)
    deltas = tuple(p for p in parts if isinstance(p, Constant) and p.kind == "delta" and p.free <= result)
    parts = tuple(p for p in parts if p not in deltas)
    scalars = tuple(p for p in parts if not p.free and not _is_reciprocal(p))
    below = tuple(p.arguments[0] for p in parts if not p.free and _is_reciprocal(p))  # type: ignore[union-attr]
    factors = [p for p in parts if p.free and not _is_reciprocal(p) and not is_ones(p)]
    predicate = None
    if where is not None:
        predicate = len(factors)
        factors.append(where)
    arrays = len(factors)
    guarded = where is not None or any(brings(p, masked) for p in parts)
    divisors: list[Divisor] = []
    for part in (p for p in parts if p.free and _is_reciprocal(p)):
        value = part.arguments[0]  # type: ignore[union-attr]
        places: list[int | None] = [None] if value.free <= result and len(factors) > (predicate is not None) else []
        if not guarded:
            places += [n for n, f in enumerate(factors) if value.free <= f.free and n < arrays]
        if not places:
            factors.append(part)
            continue
        sets = {n: result if n is None else factors[n].free for n in places}
        divisors.append(Divisor(value, min(places, key=lambda n, sets=sets: _entries(sets[n], sizes))))
    known = frozenset().union(*(f.free for f in factors))
    missing = tuple(index for index in summed if index not in known)
    return Contraction(node, tuple(factors), scalars, below, tuple(divisors), summed, missing, deltas, predicate)


def _entries(indices: Iterable[Index], sizes: Mapping[str, int]) -> int:
    """How many entries an array over these indices has."""
    return prod(sizes.get(index.name, NOMINAL) for index in indices)


def _is_reciprocal(node: Expr) -> bool:
    return isinstance(node, Map) and node.function == "reciprocal"


def order(contraction: Contraction, sizes: Mapping[str, int], after: Order | None = None) -> Order:
    """The cheapest pairwise order found for a contraction, and the runner-up.

    `after`: the order of another that shares factors with it and is made before: what that one makes costs nothing.
    """
    sets = tuple(f.free - contraction.lone(n) for n, f in enumerate(contraction.factors))
    comparisons = {n: c for n, f in enumerate(contraction.factors) if len(sets[n]) == 2 and (c := comparison(f))}
    network = Network(sets, contraction.result, sizes, reading_order(contraction.node), comparisons)
    best, *others = search(network) if after is None else sharing(contraction, network, after)
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
        found = network.running((left, right), sets, out) if path.sums else None
        added = union if found is None else sets[found[1]]
        flops, entries = (Size.product(i.name for i in indices) for indices in (added, out))
        ranked = tuple(network.ranked(union)), tuple(network.ranked(out))
        if found is None:
            steps.append(Step(left, right, *ranked, flops, entries))
        else:
            count = additions(network.comparisons[found[0]].windows)
            beside = flops * max(count - 1, 0)
            steps.append(Step(left, right, *ranked, flops * count, entries, found[0], beside))
    return tuple(steps)


def _price(steps: tuple[Step, ...]) -> Size:
    return sum((step.price for step in steps), Size())
