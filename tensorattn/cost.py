"""What a plan costs: FLOPs, exps, bytes moved and peak bytes, as polynomials in the sizes, read off its kernel.

Forward, and backward where somebody asks (`backward.py`). In a streamed kernel the length of a tile and the number
of tiles are symbols of their own, `tile_nu` and `tiles_nu`, whose values follow from the sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import Any

from tensorattn.backends.limits import LEAST_KEYS, MOST_SCORES
from tensorattn.dtypes import predicates
from tensorattn.errors import BudgetError
from tensorattn.flash import flashed, scored
from tensorattn.ir import Affine, Index, Map, Tensor, walk
from tensorattn.kernel import (
    Accumulate,
    Apply,
    Attend,
    Contract,
    Fold,
    Gather,
    Instruction,
    Kernel,
    LogSumExp,
    Normalised,
    Powers,
    SegmentSum,
    Stream,
    Weigh,
)
from tensorattn.lowering import lower
from tensorattn.lowering.liveness import makes, reads
from tensorattn.lowering.views import entries, is_view, size_in_bytes
from tensorattn.parts import Register, TileRule
from tensorattn.peaks import BOND, KEYS, peaks, total
from tensorattn.plan import Plan
from tensorattn.program import Program
from tensorattn.records import Added, Chunked, FlashBack, Record, Slope, SoftmaxBack
from tensorattn.rounds import Tiles, looped, placed, resolved, straight, tiled, with_stretches, with_tiles
from tensorattn.sizes import Size
from tensorattn.windows import additions

EXPONENTIAL = frozenset("exp exp2 tanh sigmoid elu gelu silu softplus uniform".split())

OF_VALUES = frozenset("exp exp2 tanh sigmoid sqrt relu reciprocal".split())  # whose slope is made of the value


@dataclass(frozen=True, slots=True)
class Counted:
    """A cost at given sizes, in integers."""

    flops: int
    exps: int
    bytes_moved: int
    peak_bytes: int


@dataclass(frozen=True)
class Cost:
    """Polynomials in the sizes; the peak is the largest of several, one for each place in the kernel.

    `gradients` makes the cost of the backward pass, for whoever asks for it.
    """

    flops: Size
    exps: Size
    bytes_moved: Size
    peaks: tuple[Size, ...]
    tiles: tuple[Tiles, ...] = ()
    gradients: Callable[[], Cost] | None = field(default=None, compare=False, repr=False)

    @cached_property
    def backward(self) -> Cost | None:
        """The cost of the backward pass of torch; its tiles are its own."""
        return None if self.gradients is None else self.gradients()

    def at(self, sizes: Mapping[str, int]) -> Counted:
        """The cost at these sizes, in exact integers."""
        sizes = with_tiles(self.tiles, sizes)
        peak = max((p.value(sizes) for p in self.peaks), default=0)
        values = (p.value(sizes) for p in (self.flops, self.exps, self.bytes_moved))
        return Counted(*values, peak_bytes=max(peak, 0))

    def given(self, sizes: Mapping[str, int]) -> Cost:
        """The cost with these sizes in place of their symbols; sizes that are not given stay symbols."""
        known = with_tiles(self.tiles, sizes)
        numbers = {name: Size.of(size) for name, size in known.items()}
        open_tiles = tuple(t.substitute(numbers) for t in self.tiles if t.length not in known)
        flops, exps, moved = (s.substitute(numbers) for s in (self.flops, self.exps, self.bytes_moved))
        gradients = None if self.gradients is None else partial(_given, self, sizes)
        return Cost(flops, exps, moved, tuple(p.substitute(numbers) for p in self.peaks), open_tiles, gradients)

    @property
    def peak_bytes(self) -> Any:
        """The peak beyond inputs and outputs as a sympy expression, a sympy integer where it is known."""
        import sympy

        def plain(name: str) -> Any:
            return sympy.Symbol(name, integer=True, positive=True)

        values: dict[str, Any] = {}

        def known(name: str) -> Any:
            return values[name] if name in values else plain(name)

        for tiles in self.tiles:
            values |= tiles.to_sympy(known)
        return sympy.Max(0, *(peak.to_sympy(known) for peak in self.peaks))

    @property
    def amounts(self) -> dict[str, int | str]:
        """`flops`, `exps`, `bytes_moved` and `peak_bytes`: an integer each, or the polynomial as text."""
        sizes = {"flops": self.flops, "exps": self.exps, "bytes_moved": self.bytes_moved}
        found: dict[str, int | str] = {n: str(s) if s.constant is None else s.constant for n, s in sizes.items()}
        known = max([0, *(peak.constant for peak in self.peaks if peak.constant is not None)])
        unknown = sorted({str(peak) for peak in self.peaks if peak.constant is None})
        terms = [str(known), *unknown] if known or len(unknown) == 1 else unknown
        return {**found, "peak_bytes": f"max({', '.join(terms)})" if unknown else known}

    @property
    def data(self) -> dict[str, Any]:
        """The amounts, what the symbols of tiles stand for, and the same of the backward pass under `backward`.

        Where the pass would be refused, for it does not fit in a budget, there is the reason under `refused`.
        """
        found: dict[str, Any] = dict(self.amounts)
        if self.tiles:
            found["tiles"] = {t.length: f"min({t.positions}, {t.most})" for t in self.tiles}
        try:
            return found if self.backward is None else {**found, "backward": self.backward.data}
        except BudgetError as error:
            return {**found, "backward": {"refused": error.what}}

    def __str__(self) -> str:
        lines = [f"{name:12}{amount}" for name, amount in self.amounts.items()]
        for tiles in self.tiles:
            lines.append(f"where {tiles.length} = min({tiles.positions}, {tiles.most}), {tiles.count} tiles of it")
        try:
            if self.backward is not None:
                lines += ["backward", *(f"  {line}" for line in str(self.backward).splitlines())]
        except BudgetError as error:
            lines += ["backward", f"  refused: {error.what}"]
        return "\n".join(lines)


def _given(cost: Cost, sizes: Mapping[str, int]) -> Cost:
    assert cost.backward is not None
    return cost.backward.given(sizes)


def cost(plan: Plan, dtypes: Mapping[str, str] | None = None) -> Cost:
    """The cost of a plan for inputs of these dtypes (default: what each place asks for, floats are float64)."""
    known = default_dtypes(plan.program) | dict(dtypes or {})
    return kernel_cost(lower(plan, {name: known[name] for name in plan.inputs}))


def default_dtypes(program: Program) -> dict[str, str]:
    """Predicates are truths, index tensors, scalars in slots and what `uniform` takes integers, all else float64."""
    found = dict.fromkeys(program.inputs, "float64")
    for statement in program.statements:
        for node in walk(statement.body):
            found |= {p.name: "bool" for p in predicates(node) if isinstance(p, Tensor) and p.name in found}
            if isinstance(node, Tensor):
                atoms = [a for s in node.slots if isinstance(s, Affine) for _, a in s.terms if isinstance(a, Tensor)]
                found |= {a.name: "int64" for a in atoms if a.name in found}
            if isinstance(node, Map) and node.function == "uniform":
                keys = (n for a in node.arguments for n in walk(a) if isinstance(n, Tensor))
                found |= {n.name: "int64" for n in keys if n.name in found}
    return found


def kernel_cost(kernel: Kernel, library: str = "numpy", sizes: Mapping[str, int] | None = None) -> Cost:
    """The cost of a kernel whose branches all take their fast side; `library`: whose temporaries count.

    `sizes`: which width of an attention torch fills up to the other, and whether NumPy takes a batch at once; where
    they are not known, neither and all of it.
    """
    body, found, stretches = tiled(kernel)
    means, most = (resolved(stretches, which, found, sizes or {}) for which in ("mean", "most"))
    found = with_stretches(found, means)
    counts = [Size(), Size(), Size()]
    for instruction, around in placed(body, found):
        for n, count in enumerate((flops, exps, bytes_moved)):
            counts[n] = counts[n] + looped(count(instruction).substitute(means), around)
    tiles = list(found)
    if library == "numpy":  # whose attention runs over chunks of its keys
        body = tuple(_by_keys(body, tiles, with_tiles(found, sizes or {})))
    else:
        plain = tuple(flashed(straight(kernel.body), sizes))
        body, *_ = tiled(replace(kernel, body=plain))
    joined = joined_bonds(kernel)
    counts = [count.substitute(joined) for count in counts]
    alive = tuple(dict.fromkeys(size.substitute(most).substitute(joined) for size in peaks(kernel, body, library)))
    return Cost(*counts, peaks=alive, tiles=with_stretches(with_stretches(tiles, most), joined))


def joined_bonds(kernel: Kernel) -> dict[str, Size]:
    """The sizes of indices that stand for several bonds, in terms of those."""
    return {name: read for name, read in kernel.sizes if name.startswith(BOND) and isinstance(read, Size)}


def _by_keys(body: Iterable[Instruction], found: list[Tiles], sizes: Mapping[str, int]) -> Iterator[Instruction]:
    """The attentions, those in loops too, as NumPy has them: over chunks of their keys. `sizes`: as far as known."""
    for made in body:
        match made:
            case Stream(body=inner):
                yield replace(made, body=tuple(_by_keys(inner, found, sizes)))
            case Attend():
                yield _chunked(made, found, sizes)
            case _:
                yield made


def _chunked(attend: Attend, found: list[Tiles], sizes: Mapping[str, int]) -> Chunked:
    number = "" if not found else str(len(found) + 1)
    length, count = f"{KEYS}{attend.group[0].name}{number}", f"chunks_{attend.group[0].name}{number}"
    rows, all_rows, keys = entries(attend.rows), entries((*attend.batch, *attend.rows)), entries(attend.group)
    apart = all_rows.symbols <= sizes.keys() and all_rows.value(sizes) * LEAST_KEYS > MOST_SCORES
    rule = TileRule(MOST_SCORES, rows if apart else all_rows)
    if apart and rows.value(sizes) * LEAST_KEYS > MOST_SCORES:
        rule = TileRule(LEAST_KEYS, Size.of(1))
    found.append(Tiles(attend.group[0].name, length, count, keys, rule, keys))
    given = {f.name: getattr(attend, f.name) for f in fields(attend)}
    return Chunked(**given, chunk=Index(length), apart=apart)


def flops(instruction: Instruction | Record) -> Size:
    """Floating-point operations."""
    match instruction:
        case Contract(out=out, a=a, b=b, added=added):
            return entries((*a.axes, *b.axes)) * 2 + entries(out.axes) * (added is not None)
        case Apply(out=out):
            return entries(out.axes)
        case Fold(source=source):
            return entries(source.axes)
        case SegmentSum(source=source):
            return entries(source.axes)
        case Accumulate(source=source, windows=windows):
            return entries(source.axes) * additions(windows)
        case LogSumExp(source=source) | Normalised(score=source) | Weigh(score=source) | Powers(score=source):
            return entries(source.axes) * 4
        case Attend(bond=bond, values=values):
            return scored(instruction) * (Size.product(i.name for i in bond) + entries(values) + 2) * 2
        case FlashBack(of=of):
            return of.count * entries(of.width) * 10 + of.count * 4
        case SoftmaxBack(out=out):
            return entries(out.axes) * 4
        case Added(out=out) | Slope(out=out):
            return entries(out.axes)
    return Size()


def bytes_moved(instruction: Instruction | Record) -> Size:
    """Bytes read and written; of a table that is gathered from, as many as are taken."""
    if is_view(instruction) and not isinstance(instruction, Added):
        return Size()
    if isinstance(instruction, Gather):
        out = instruction.out
        return size_in_bytes(out) * 2 + total(
            size_in_bytes(p) for p in instruction.positions if isinstance(p, Register)
        )
    return total(size_in_bytes(r) for r in (*makes(instruction), *reads(instruction)))


def exps(instruction: Instruction | Record) -> Size:
    """Exponentials, and functions that take as long."""
    match instruction:
        case Apply(out=out, function=function) if function in EXPONENTIAL:
            return entries(out.axes)
        case (
            LogSumExp(source=source)
            | Normalised(kind="softmax", score=source)
            | Weigh(score=source)
            | Powers(score=source)
        ):
            return entries(source.axes)
        case Attend():
            return scored(instruction)
        case FlashBack(of=of):
            return of.count
        case Slope(out=out, function=function) if function in EXPONENTIAL - OF_VALUES:
            return entries(out.axes)
    return Size()
