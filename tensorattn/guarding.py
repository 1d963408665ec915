"""What a call checks about its arrays: one generated function of shape comparisons, nothing else on the fast path."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from math import lcm

from tensorattn.backends import Backend
from tensorattn.backends.naming import Names
from tensorattn.cost import Cost
from tensorattn.extents import AxisFact, SumFact, definition_axes, size_facts
from tensorattn.ir import Affine, Extent, Index, Position, Tensor
from tensorattn.plan import SLACK, Plan
from tensorattn.program import Program
from tensorattn.sizes import Axis, Quotient, Size, SizeRead

Reads = tuple[tuple[str, SizeRead], ...]
MARGIN = 16  # a predicted peak is granted this part of itself more
BUFFERS = 1 << 18  # and bytes for small things, as those through which NumPy casts


@dataclass(frozen=True, slots=True)
class Limit:
    """The choice made holds while `entries` is at least (`above`) or below `bound`."""

    entries: Size
    bound: int
    above: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """The choice made holds while its peak fits in `memory` bytes."""

    cost: Cost
    memory: int

    @staticmethod
    def needed(peak: int) -> int:
        """The bytes that a predicted peak takes at most: row sums and the buffers of the library are not predicted."""
        return peak + peak // MARGIN + min(3 * peak, BUFFERS)

    @property
    def most(self) -> int:
        """The largest predicted peak that fits."""
        return bisect_right(range(self.memory + 1), self.memory, key=self.needed) - 1


class GuardWriter:
    """Writes Python over the shapes of the inputs."""

    def __init__(self, program: Program, reads: Reads, scalars: frozenset[str]) -> None:
        self.program, self.reads, self.scalars = program, dict(reads), scalars
        self.names = Names(("strided", "masked", "recording", "fits", "holds", "facts"))
        self.inputs = {n: self.names.of("input", n) for n in program.inputs}

    def size_lines(self) -> list[str]:
        return [f"    {self.names.of('size', n)} = {self.read(r)}" for n, r in self.reads.items()]

    def read(self, read: SizeRead) -> str:
        match read:
            case int():
                return str(read)
            case Axis(input=name, axis=axis):
                return f"{self.inputs[name]}.shape[{axis}]"
            case Quotient(of=axis, by=by):
                return self.read(axis) + "".join(f" // ({self.names.of('size', n)} or 1)" for n in by)
            case Size():
                return self.polynomial(read)
        raise TypeError(read)

    def polynomial(self, size: Size) -> str:
        """A polynomial in sizes as an integer expression."""
        if size.constant is not None:
            return str(size.constant)
        below = lcm(*(Fraction(c).denominator for _, c in size.terms))
        words = []
        for monomial, coefficient in size.terms:
            factors = [self.names.of("size", n) for n, power in monomial for _ in range(power)]
            words.append(" * ".join([str(int(coefficient * below)), *factors]))
        total = f"({' + '.join(words)})"
        return total if below == 1 else f"({total} // {below})"

    def ranks(self) -> list[str]:
        """Conditions on the number of axes."""
        first: dict[str, Tensor] = {}
        for tensor in self.program.tensors:
            first.setdefault(tensor.name, tensor)
        shown = [(n, len(first[n].slots)) for n in self.program.inputs]
        return [f"{self.inputs[n]}.ndim == {rank}" for n, rank in shown if n not in self.scalars]

    def conditions(self) -> list[str]:
        """Conditions on sizes that the reads do not make true by themselves."""
        axes = definition_axes(self.program)
        found = []
        for fact in size_facts(self.program):
            if isinstance(fact, SumFact):
                left = self.polynomial(Size.of(fact.whole))
                right = self.polynomial(sum((Size.of(p) for p in fact.parts), Size.of(fact.constant)))
            else:
                left, right = self.polynomial(Size.product(fact.names)), self._axis(fact, axes)
            if left != right and self._is_news(fact):
                found.append(f"{left} == {right}")
        return list(dict.fromkeys(found))

    def _axis(self, fact: AxisFact, axes: Mapping[str, tuple[Size, ...]]) -> str:
        return (
            self.polynomial(axes[fact.tensor][fact.axis])
            if fact.tensor in axes
            else f"{self.inputs[fact.tensor]}.shape[{fact.axis}]"
        )

    def _is_news(self, fact: object) -> bool:
        return not (
            isinstance(fact, AxisFact)
            and len(fact.names) == 1
            and self.reads.get(fact.names[0]) == Axis(fact.tensor, fact.axis)
        )

    def ranges(self) -> list[str]:
        """Affine slots of inputs stay inside their axis, judged by intervals."""
        found = []
        for tensor in self.program.tensors:
            if tensor.name not in self.inputs:
                continue
            for axis, slot in enumerate(tensor.slots):
                if not isinstance(slot, Affine) or any(isinstance(a, Tensor) for _, a in slot.terms):
                    continue
                low, high = _ends(slot)
                found += [
                    f"{self.polynomial(low)} >= 0",
                    f"{self.polynomial(high)} < {self.inputs[tensor.name]}.shape[{axis}]",
                ]
        return list(dict.fromkeys(found))


def _ends(slot: Affine) -> tuple[Size, Size]:
    """The least and the greatest position of an affine slot, as polynomials."""
    low = high = Size.of(slot.constant)
    for coefficient, atom in slot.terms:
        match atom:
            case Extent(name=name):
                low, high = low + coefficient * Size.of(name), high + coefficient * Size.of(name)
            case Position(index=Index(name=name)):
                end = coefficient * (Size.of(name) - 1)
                low, high = (low, high + end) if coefficient > 0 else (low + end, high)
    return low, high


LARGEST = 2**63  # Python integers beyond it have no place in an int64 array
NUMBERS = (float, int, bool)


def recogniser(program: Program, scalars: frozenset[str], backend: Backend) -> Callable[..., tuple[object, ...]]:
    """A function of the inputs in order: all that a specialisation is chosen by and that its checks look at.

    Inputs with the facts of those that were accepted before need no check.
    """
    template, names = backend.facts()
    inputs = GuardWriter(program, (), scalars).inputs
    number = f"{{x}}.__class__, {{x}}.__class__ in NUMBERS and -{LARGEST} <= {{x}} < {LARGEST}"
    facts = [(number if n in scalars else template).format(x=x) for n, x in inputs.items()]
    lines = [f"def facts({', '.join(inputs.values())}):", f"    return ({''.join(f'{fact}, ' for fact in facts)})"]
    return _made(lines, "facts", {**names, "NUMBERS": NUMBERS})  # type: ignore[return-value]


def guard(program: Program, reads: Reads, scalars: frozenset[str], backend: Backend) -> Callable[..., bool]:
    """A function of the inputs in order: whether kinds, ranks, sizes and devices fit, without solving anything."""
    writer = GuardWriter(program, reads, scalars)
    arrays = [writer.inputs[n] for n in program.inputs if n not in scalars]
    plain, names = backend.plainness()
    conditions = [*(plain.format(x=a) for a in arrays), *writer.ranks()]
    conditions += [f"-{LARGEST} <= {writer.inputs[n]} < {LARGEST}" for n in program.inputs if n in scalars]
    if backend.name == "torch" and len(arrays) > 1:
        conditions.append(" == ".join(f"{a}.device" for a in arrays))
    lines = [f"def fits({', '.join(writer.inputs.values())}):"]
    if conditions:
        lines += [f"    if not ({' and '.join(conditions)}):", "        return False"]
    sized = [*writer.conditions(), *writer.ranges()]
    if sized:
        lines += [*writer.size_lines(), f"    return {' and '.join(sized)}"]
    else:
        lines.append("    return True")
    return _made(lines, "fits", names)


def chooser(
    plan: Plan,
    program: Program,
    reads: Reads,
    scalars: frozenset[str],
    limits: tuple[Limit, ...] = (),
    budget: Budget | None = None,
) -> Callable[..., bool] | None:
    """A function of the inputs in order: whether the plan is still the choice at their sizes; None if it always is.

    A few integer polynomials are compared; nothing is searched.
    """
    writer = GuardWriter(program, reads, scalars)
    known = dict(reads)
    pairs = [(rival.price, order.price) for order in plan.searched for rival in order.rivals]
    pairs += [(other, plan.price) for other in plan.others]
    tests = []
    for other, own in pairs:
        difference = other - own
        if difference.symbols <= known.keys() and any(c < 0 for _, c in difference.terms):
            tests.append(f"{writer.polynomial(other)} >= {SLACK} * {writer.polynomial(own)}")
    for limit in limits:
        if limit.entries.symbols <= known.keys() and limit.bound:
            tests.append(f"{writer.polynomial(limit.entries)} {'>=' if limit.above else '<'} {limit.bound}")
    tiles: list[str] = []
    if budget is not None:
        tiles = list(_tile_lines(writer, budget.cost))
        tests += [f"{writer.polynomial(peak)} <= {budget.most}" for peak in budget.cost.peaks]
    if not tests:
        return None
    head = [f"def holds({', '.join(writer.inputs.values())}):", *writer.size_lines(), *tiles]
    return _made([*head, f"    return {' and '.join(dict.fromkeys(tests))}"], "holds")


def _tile_lines(writer: GuardWriter, cost: Cost) -> Iterator[str]:
    """The lengths and numbers of the tiles, as `Tiles.at` finds them."""
    for tiles in cost.tiles:
        length, count = writer.names.of("size", tiles.length), writer.names.of("size", tiles.count)
        size, most, per = (writer.polynomial(s) for s in (tiles.size, tiles.most, tiles.rule.per))
        yield f"    {count} = max({tiles.rule.entries} // max({per}, 1), 1)"
        yield f"    {length} = min({count}, {most})"
        yield f"    {count} = -(-{size} // {count})"


def _made(lines: list[str], name: str, names: Mapping[str, object] | None = None) -> Callable[..., bool]:
    space: dict[str, object] = dict(names or {})
    exec("\n".join(lines), space)  # our own text: identifiers made by one function, integers and comparisons
    return space[name]  # type: ignore[return-value]
