"""What the forward pass keeps for the backward one: results, and the log Σ exp that make tiles of weights again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

from tensorattn.adjoining.emitting import Emitter
from tensorattn.adjoining.rules import exponentials, less
from tensorattn.kernel import Arrange, Fold, Instruction, Kernel, Load, LogSumExp, Normalised, Output
from tensorattn.lowering.flow import Flow
from tensorattn.lowering.looping import RefusalError
from tensorattn.lowering.online import Cluster
from tensorattn.parts import Literal, Operand, Register

SAVED = "saved"  # register n: the input `saved n`
KEPT = ("max", "min")  # folds whose result their derivative needs


@dataclass(frozen=True, slots=True)
class Weights:
    """A softmax whose weights are summed away: the log Σ exp of its scores, its sink, its results.

    `exposed`: predicates outside may exclude all of a row with NaN, which then has results and no gradient.
    """

    logarithm: Register
    sink: Operand | None
    results: tuple[Register, ...]
    exposed: bool


@dataclass(frozen=True, slots=True)
class Saved:
    """The registers that are kept, the outputs that they are, and the softmaxes by the name of their weights.

    `first`: the number of the first output that is none of the program's own. `logarithms`: the numbers of the
    registers that are a log Σ exp. `exact`: these are so large that weights are made again by a softmax.
    """

    registers: tuple[Register, ...]
    outputs: tuple[int, ...]
    first: int
    clusters: Mapping[str, Weights]
    logarithms: tuple[int, ...] = ()
    exact: bool = False

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(f"{SAVED} {n}" for n in range(len(self.registers)))

    def remade(self, e: Emitter, body: tuple[Instruction, ...]) -> list[Instruction]:
        """The body with loads in place of what is kept, and weights made from the log Σ exp."""
        kept = {r.name for r in self.registers}
        found: list[Instruction] = [self._load(n) for n in range(len(self.registers))]
        for made in body:
            if made.out.name in kept:  # type: ignore[union-attr]
                continue
            if isinstance(made, Normalised) and made.out.name in self.clusters:
                found += self._weights(e, made)
            else:
                found.append(made)
        return found

    def _load(self, number: int) -> Load:
        register = self.registers[number]
        return Load(register, f"{SAVED} {number}", tuple((i,) for i in register.axes), register.dtype)

    def _weights(self, e: Emitter, made: Normalised) -> list[Instruction]:
        e.body = []
        known = self.clusters[made.out.name]
        if self.exact:
            sink = known.sink if known.sink is None else less(e, known.sink, known.logarithm)
            again = replace(made, score=less(e, made.score, known.logarithm))
            e.emit(again if sink is None else replace(again, options=(("sink", sink),)))
            return e.body
        weights = exponentials(e, made.score, total(e, known), made.where)
        last = e.body[-1]
        if weights.axes == made.out.axes:
            return [*e.body[:-1], replace(last, out=made.out)]
        return [*e.body, Arrange(made.out, weights)]


def saving(kernel: Kernel) -> tuple[Kernel, Saved]:
    """The kernel with what it keeps as further outputs."""
    flow = Flow(kernel.body, frozenset(o.register.name for o in kernel.outputs), {})
    body, clusters = list(kernel.body), {}
    kept: dict[str, Register] = {}
    for number, made in enumerate(kernel.body):
        if isinstance(made, LogSumExp) or (isinstance(made, Fold) and made.kind in KEPT):
            kept[made.out.name] = made.out
        if not isinstance(made, Normalised):
            continue
        try:
            cluster = Cluster(flow, number, 1)
        except RefusalError:
            continue
        known = [kernel.body[n].out for n in cluster.logarithms]  # type: ignore[union-attr]
        logarithm = known[0] if known else Register(f"{made.out.name}lse", cluster.free, made.out.dtype)
        if not known:
            body.append(LogSumExp(logarithm, made.score, made.where))
        sink, results = dict(made.options).get("sink"), tuple(cluster.results)
        clusters[made.out.name] = Weights(logarithm, sink, results, made.exposed)
        kept |= {r.name: r for r in (logarithm, *cluster.results)}
    outputs = list(kernel.outputs)
    places = [_place(outputs, r) for r in kept.values()]
    logs = {made.out.name for made in body if isinstance(made, LogSumExp)}
    numbers = tuple(n for n, name in enumerate(kept) if name in logs)
    saved = Saved(tuple(kept.values()), tuple(places), len(kernel.outputs), clusters, numbers)
    return replace(kernel, body=tuple(body), outputs=tuple(outputs)), saved


def _place(outputs: list[Output], register: Register) -> int:
    """The output that the register is, a new one if it is none yet."""
    axes = tuple((i,) for i in register.axes)
    for number, output in enumerate(outputs):
        if (output.register, output.axes, output.dtype) == (register, axes, register.dtype):
            return number
    outputs.append(Output(f"{SAVED} {len(outputs)}", register, axes, register.dtype))
    return len(outputs) - 1


def _finite(e: Emitter, value: Register) -> Register:
    """With 0 where it is no finite number."""
    finite = e.apply("isfinite", value, dtype="bool", like=value.axes)
    return e.select(finite, value, Literal(0.0), value.dtype)


def total(e: Emitter, weights: Weights) -> Register:
    """log of the whole denominator: of the scores, and of the sink."""
    logarithm, sink = weights.logarithm, weights.sink
    if sink is None:
        return logarithm
    dtype = logarithm.dtype
    sink = sink if isinstance(sink, Register) else e.scalar(sink, dtype)
    high = e.apply("maximum", logarithm, sink, dtype=dtype, like=logarithm.axes)
    far = e.apply("equal", e.apply("abs", high, dtype=dtype), Literal(inf), dtype="bool")
    shift = e.select(far, Literal(0.0), high, dtype)
    parts = [e.apply("exp", e.apply("subtract", x, shift, dtype=dtype), dtype=dtype) for x in (logarithm, sink)]
    both = e.apply("add", *parts, dtype=dtype, like=logarithm.axes)
    none = e.apply("equal", both, Literal(0), dtype="bool")
    log = e.apply("log", e.select(none, Literal(1.0), both, dtype), dtype=dtype)
    return e.select(none, Literal(-inf), e.apply("add", log, shift, dtype=dtype), dtype)


def weighted(
    e: Emitter, made: Normalised, bar: Register, saved: Saved, of: Callable[[Register], Register | None]
) -> Iterator[tuple[Register, Register]]:
    """s̄ = W (W̄ − Σ R̄·R) and what the sink gets; what L̄ gives is the rule of log Σ exp."""
    weights = saved.clusters[made.out.name]
    dtype, free = made.out.dtype, weights.logarithm.axes
    bars = [(r, of(r)) for r in weights.results]
    parts = [e.pulled([b, _finite(e, r) if weights.exposed else r], r.axes, free) for r, b in bars if b is not None]
    mean = e.total(parts, free)
    rest = e.apply("subtract", bar, mean, dtype=dtype, like=made.score.axes)
    found = e.apply("multiply", made.out, rest, dtype=dtype, like=made.score.axes)
    where = made.where
    if weights.exposed:
        tame = e.apply("isfinite", total(e, weights), dtype="bool")
        where = tame if where is None else e.apply("and", where, tame, dtype="bool", like=made.score.axes)
    yield made.score, found if where is None else e.select(where, found, Literal(0.0), dtype)
    if isinstance(weights.sink, Register):
        whole = total(e, weights)
        none = e.apply("equal", whole, Literal(-inf), dtype="bool")
        if weights.exposed:
            none = e.apply("not", e.apply("isfinite", whole, dtype="bool"), dtype="bool")
        if saved.exact:
            taken = e.apply("subtract", Literal(1.0), e.fold("sum", made.out, made.indices), dtype=dtype)
        else:
            below = e.apply("subtract", weights.sink, e.select(none, Literal(0.0), whole, dtype), dtype=dtype)
            taken = e.apply("exp", below, dtype=dtype)
        share = e.select(none, Literal(0.0), taken, dtype)
        yield weights.sink, e.pulled([mean, share, Literal(-1.0)], free, weights.sink.axes)
