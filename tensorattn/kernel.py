"""Kernels: straight-line instructions over registers, the only thing a back end sees.

A register is an array whose dimensions are its `axes`, in order; its dtype is a *work* dtype (`bool int64 float32
float64`), known when the kernel is made. Operands are aligned by index, never by position; an axis an operand lacks is
broadcast. Sizes are integers found from the shapes of the inputs by `Kernel.sizes`, in order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Union

from tensorattn.ir import Index
from tensorattn.parts import Carry, Limiting, Literal, Narrowed, Operand, Register, Root, Stacked, Summand, TileRule
from tensorattn.sizes import Size, SizeRead
from tensorattn.windows import Windows


@dataclass(frozen=True, slots=True)
class Load:
    """Input `input` as a register: cast to `out.dtype`; `axes` name its dimensions. The same index twice: its diagonal.

    `splits`: for each dimension, the indices it is reshaped into (one index: as it is). `given`: the dtype that the
    input has at every call, where it is known.
    """

    out: Register
    input: str
    splits: tuple[tuple[Index, ...], ...]
    given: str | None = None


@dataclass(frozen=True, slots=True)
class View:
    """A register read through other index names: `splits` as in `Load`, for each dimension of `source`."""

    out: Register
    source: Register
    splits: tuple[tuple[Index, ...], ...]


@dataclass(frozen=True, slots=True)
class Contract:
    """`out = Σ a·b` over the axes that `out` lacks. Both operands have the dtype of `out`.

    `added` is taken along in one call, where `lowering/adding.py` says that it fits. `along`: an axis whose places are
    multiplied one by one, and summed where `out` lacks it, for as one product an operand or `out` would be copied.
    """

    out: Register
    a: Register
    b: Register
    added: Summand | None = None
    along: Index | None = None


@dataclass(frozen=True, slots=True)
class Apply:
    """`out = function(arguments)`, elementwise; the functions of ir.FUNCTIONS and ir.OPERATORS, and `multiply add
    subtract divide isfinite select exp2`. `select(p, a, b)` is `where` with a boolean
    p, through which no gradient is taken; where p is a literal size, it is a or b itself, as that is positive or 0."""

    out: Register
    function: str
    arguments: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """`out` = `source` reduced over the axes that `out` lacks: `sum max min prod any all`. Empty: 0, −∞, +∞, 1, …"""

    out: Register
    kind: str
    source: Register


@dataclass(frozen=True, slots=True)
class Iota:
    """Positions 0 … size−1 along the one axis of `out`."""

    out: Register
    size: Size


@dataclass(frozen=True, slots=True)
class Fill:
    """An array of the axes of `out`, every entry `value`."""

    out: Register
    value: int | float | bool | Size | Root


@dataclass(frozen=True, slots=True)
class Gather:
    """`out[…] = table[p0, p1, …]`, one position per dimension of the table: a register of integers, or an index.

    An index that also stands in a position register is read at the same place (not as an outer product).
    """

    out: Register
    table: Register
    positions: tuple[Register | Index, ...]


@dataclass(frozen=True, slots=True)
class Scatter:
    """`out[p0, p1, …] += source[…]` on zeros: what `Gather` is transposed. Every axis that a position has, the source
    has, and no others; an index among the positions is its own place."""

    out: Register
    source: Register
    positions: tuple[Register | Index, ...]


@dataclass(frozen=True, slots=True)
class CheckRange:
    """`out = positions` after a check that the admitted lie in 0 … size−1 (`E-RANGE` with `what`); others become 0."""

    out: Register
    positions: Register
    size: Size
    where: Register | None
    what: str


@dataclass(frozen=True, slots=True)
class SegmentSum:
    """`out[…, s] = Σ_{n: segments[n] = s} source[…, n]` along `axis` of `source`; `out` has `segment` in its place."""

    out: Register
    source: Register
    segments: Register
    axis: Index
    segment: Index


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Running sums: `out[…, i] = Σ_t source[…, t]` over the t with t − i in one of the windows.

    `axis` of `source` is t; `out` has `along` in its place. No entry that is left out has any influence. `kind` `prod`:
    products, over windows that have no end on one side.
    """

    out: Register
    source: Register
    axis: Index
    along: Index
    windows: Windows
    kind: str = "sum"


@dataclass(frozen=True, slots=True)
class Join:
    """Concatenation of the sources along `axis`; each is broadcast to the other axes of `out` first.

    `parts[n]` is the index of source n that becomes a stretch of `axis`.
    """

    out: Register
    axis: Index
    sources: tuple[Register, ...]
    parts: tuple[Index, ...]


@dataclass(frozen=True, slots=True)
class Normalised:
    """Weights along `indices` of `score` (all its axes stay; `out.axes == score.axes`).

    kinds: `softmax` (stable; options `sink`: a register or literal added to the denominator as exp(sink)), `sparsemax`,
    `entmax` (option `alpha`), `l1norm` (option `eps`), `l2norm`. `where`: excluded entries are exactly 0, as are their
    gradients. `origin`: the statement it was written in. `exposed`: predicates outside may exclude a whole row, so that
    one that is no number carries no gradient.
    """

    out: Register
    kind: str
    indices: tuple[Index, ...]
    score: Register
    where: Register | None
    options: tuple[tuple[str, Operand], ...] = ()
    origin: str = field(default="", compare=False, repr=False)
    exposed: bool = field(default=False, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class LogSumExp:
    """log Σ exp of the admitted entries, over the axes that `out` lacks; nothing admitted: −∞."""

    out: Register
    source: Register
    where: Register | None


@dataclass(frozen=True, slots=True)
class Largest:
    """True at the `count` largest admitted entries along `indices` (ties to the lower position, NaN last)."""

    out: Register
    indices: tuple[Index, ...]
    count: Operand
    source: Register
    where: Register | None


@dataclass(frozen=True, slots=True)
class Cast:
    """The source in another work dtype."""

    out: Register
    source: Register


@dataclass(frozen=True, slots=True)
class Arrange:
    """The source with its axes in the order of `out`, those it lacks broadcast (sizes from the kernel).

    `packed`: a copy of its own, which lies in memory in this order.
    """

    out: Register
    source: Register
    packed: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """`out = source[start:stop]` along `axis`; the bounds are the tile bounds of the enclosing `Stream`."""

    out: Register
    source: Register
    axis: Index


@dataclass(frozen=True, slots=True)
class Weigh:
    """A tile of a softmax: `greatest` = max of the admitted scores along `indices` and of `floor` (−∞ where there is
    none), `out` = base^(score − greatest), 0 where excluded, `total` = Σ out. `base`: `e`, or `2` where the scores come
    in units of ln 2 (exp2 is the faster function). `floor`: the maximum so far, so that what it makes has that unit."""

    out: Register
    greatest: Register
    total: Register
    indices: tuple[Index, ...]
    score: Register
    where: Register | None
    base: str = "e"
    floor: Register | None = None


@dataclass(frozen=True, slots=True)
class Attend:
    """Attention over one key axis: `out = softmax(scale · query·key + bias) · value`, the weights over `group`.

    `query` has axes among `batch rows bond`, `key` among `batch group bond`, `value` among `batch group values`, `bias`
    and `where` among `batch rows group`: all of them but for `batch`, and for `bias` and `where`. `scale`: what is
    multiplied, and what divides; the divisor is 0 only where the bond is empty. `causal`: admitted is what has a
    position along `group` up to that along `rows` (one index each); a row without any is 0. `greatest` and `total`:
    what is needed to merge rows, a number near the largest admitted score (−∞ where there is none), and Σ e of e =
    exp(score − greatest); `out` is then Σ e · value. `out.axes == (*batch, *rows, *values)`, theirs `(*batch, *rows)`.
    """

    out: Register
    query: Register
    key: Register
    value: Register
    bias: Register | None
    where: Register | None
    batch: tuple[Index, ...]
    rows: tuple[Index, ...]
    bond: tuple[Index, ...]
    group: tuple[Index, ...]
    values: tuple[Index, ...]
    scale: tuple[tuple[Literal, ...], tuple[Literal, ...]] = ((), ())
    causal: bool = False
    greatest: Register | None = None
    total: Register | None = None


@dataclass(frozen=True, slots=True)
class Powers:
    """`out` = e^(score − greatest) with `greatest` = max of the admitted scores along `indices` (0 where there is none
    or it is −∞); 0 where excluded. The maximum is a constant: it carries no gradient."""

    out: Register
    greatest: Register
    indices: tuple[Index, ...]
    score: Register
    where: Register | None


@dataclass(frozen=True, slots=True)
class Stream:
    """The loop: `axis` (of size `size`) is cut into tiles of `tile` positions (a number or a rule); every tile runs
    `body`, whose last act is to leave the `part` registers; `merge` combines the carried state with them, into
    registers named by `merged`; `stacked` are the results that hold the axis. Bodies may hold streams.

    `live`: the stretch of the axis that the loop runs over; `narrowed`: those of other axes, which `Slice` cuts too.

    The carry is a commutative monoid, so any order, tree or split over devices gives the same.
    """

    axis: Index
    size: Size
    tile: int | TileRule
    body: tuple["Instruction", ...]
    carry: tuple[Carry, ...]
    merge: tuple["Instruction", ...]
    merged: tuple[Register, ...]
    stacked: tuple[Stacked, ...] = ()
    live: Narrowed | None = None
    narrowed: tuple[Narrowed, ...] = ()


@dataclass(frozen=True, slots=True)
class IfFinite:
    """`out` by `fast` where every entry of `values` is finite, else by `safe`; both bodies end by writing `out`.

    `safe` is right for all values (non-finite entries are zeroed in the contraction and NaN is marked exactly where an
    admitted one is reached, docs/design.md §8). A back end may always run `safe`; one that may not look at values must.
    """

    out: Register
    values: tuple[Register, ...]
    fast: tuple["Instruction", ...]
    safe: tuple["Instruction", ...]

    def __post_init__(self) -> None:
        for side in (self.fast, self.safe):
            if not side or getattr(side[-1], "out", None) != self.out:
                raise ValueError(f"a side of a branch has to end by writing {self.out.name}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """`outs` by `fast`; where `test`, a truth without axes that `fast` may make, does not hold, by `fallback` instead.

    Both bodies make all of them. `fallback` is right for all values. A back end may always run it; one that may not
    look at values must.
    """

    outs: tuple[Register, ...]
    test: Register
    fast: tuple["Instruction", ...]
    fallback: tuple["Instruction", ...]

    @property
    def out(self) -> Register:
        """The first of them."""
        return self.outs[0]


@dataclass(frozen=True, slots=True)
class IfBounded:
    """`fast` where each of `limits` is a bound between its two numbers, else `safe`; both make `outs`.

    `safe` is right for all values. A back end may always run it; one that may not look at values must.
    """

    outs: tuple[Register, ...]
    limits: tuple[tuple[Limiting, float, float], ...]
    fast: tuple["Instruction", ...]
    safe: tuple["Instruction", ...]


Instruction = Union[
    Load, View, Contract, Apply, Fold, Iota, Fill, Gather, Scatter, CheckRange, SegmentSum, Join, Normalised,
    LogSumExp, Largest, Cast, Arrange, Slice, Stream, Weigh, Attend, IfFinite, IfBounded, Powers, Attempt,
    Accumulate,
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Output:
    """A result: the register, the axes of the answer (merged groups are reshaped) and its dtype as the user sees it."""

    name: str
    register: Register
    axes: tuple[tuple[Index, ...], ...]
    dtype: str  # a logical dtype: also float16, bfloat16


@dataclass(frozen=True, slots=True)
class Kernel:
    """A whole program as instructions; `comments` head the generated source."""

    inputs: tuple[str, ...]
    sizes: tuple[tuple[str, SizeRead], ...]
    body: tuple[Instruction, ...]
    outputs: tuple[Output, ...]
    comments: tuple[str, ...] = field(default=(), compare=False)
