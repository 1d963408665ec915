"""The kinds of plan: a table of ways to turn a draft, a plan and its kernel, into another one.

A kind is one entry of KINDS. It changes the reductions of all statements or of some, so that kinds can be mixed: each
gets the draft that those before it in the table left. Dense is the draft as it was lowered.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple

from tensorattn.factoring import factored
from tensorattn.guarding import Reads
from tensorattn.ir import Normalise, Reduce, walk
from tensorattn.kernel import Kernel
from tensorattn.lowering import lower
from tensorattn.lowering.attempts import attempts_streamed
from tensorattn.lowering.bounding import bounded
from tensorattn.lowering.flattening import biased, flattened
from tensorattn.lowering.layouts import laid_out
from tensorattn.lowering.streaming import streamed
from tensorattn.plan import Plan
from tensorattn.planning import NOMINAL
from tensorattn.planning import plan as make_plan
from tensorattn.program import Program
from tensorattn.rates import Machine, seconds
from tensorattn.rewriting.fusing import with_origins
from tensorattn.sizes import Size


class Draft(NamedTuple):
    """A plan and its kernel."""

    plan: Plan
    kernel: Kernel

    @property
    def sizes(self) -> dict[str, int]:
        """A size for every symbol; axes that no index names count as nominal ones."""
        found = {name: NOMINAL for name, _ in self.kernel.sizes} | dict(self.plan.nominal)
        for name, read in self.kernel.sizes:
            if name not in dict(self.plan.nominal) and isinstance(read, Size):
                found[name] = read.value(found)
        return found


class Refusal(NamedTuple):
    """Why there is no plan of a kind."""

    reasons: tuple[str, ...]


@dataclass
class Case:
    """What is planned and for whom: a program without `...`, its outputs, dtypes and sizes, and the machine.

    `sizes`: None where no plan may depend on them; those that are not among them are nominal. `base`: of the faster
    exponential of the back end. `recorded`: gradients are. `given`: the draft, where it is not that of the program.
    `needs`: the bytes a candidate needs, where that is not a matter of its own kernel alone.
    """

    program: Program
    outputs: tuple[str, ...]
    dtypes: Mapping[str, str]
    reads: Reads
    sizes: Mapping[str, int] | None
    machine: Machine
    base: str
    recorded: bool = False
    given: Draft | None = None
    needs: Callable[[Any], int] | None = None

    def __post_init__(self) -> None:
        self.program = with_origins(self.program)

    @cached_property
    def nominal(self) -> Mapping[str, int]:
        """A size for every index of the plan."""
        return dict(self.dense.plan.nominal)

    @cached_property
    def dense(self) -> Draft:
        """The plan in which weights are arrays."""
        return self.given or self._draft("dense")

    @cached_property
    def ordered(self) -> Draft:
        """With symmetric softmaxes over ordered tuples besides, which pays where a loop leaves the others out."""
        return self._draft("streamed", ordered=True)

    def _draft(self, kind: str, *, ordered: bool = False) -> Draft:
        plan = replace(make_plan(self.program, self.outputs, self.sizes, ordered=ordered), kind=kind)
        return Draft(plan, lower(plan, self.dtypes, self.reads))

    def looped(self, *, ordered: bool) -> tuple[Draft, ...]:
        """What loops may be made of: all that is equal made once, and each loop with weights and scores of its own.

        Once is less work; but weights whose values need a sum of them, or a score along whose other axes another loop
        runs, would be left whole.
        """
        if self.given is not None:
            return (self.given,)
        once = self.ordered if ordered and self.ordered.plan.program != self.dense.plan.program else self.dense
        weights = [n for s in once.plan.program.statements for n in walk(s.body) if isinstance(n, Normalise)]
        if len(weights) < 2:
            return (once,)
        plan = replace(once.plan, kind="streamed")
        each = Draft(plan, lower(plan, self.dtypes, self.reads))
        return once, each

    @cached_property
    def weights(self) -> Mapping[str, Size]:
        """How many entries the normalisers written in each statement have as planned, those of `lse` included."""
        found: dict[str, Size] = {}
        for statement in self.dense.plan.program.statements:
            for node in walk(statement.body):
                match node:
                    case Normalise(origin=origin):
                        axes, name = node.free, origin or statement.name
                    case Reduce(kind="lse", indices=indices, body=body):
                        axes, name = body.free | set(indices), statement.name
                    case _:
                        continue
                found[name] = found.get(name, Size()) + Size.product(index.name for index in axes)
        return found


Change = Callable[[Case, Draft, "frozenset[str] | None", "int | None"], "Draft | Refusal"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of plan.

    `change(case, draft, only, tile)`: the draft with the reductions of the statements `only` (None: all) done by this
    kind, those that it cannot do as they were; a refusal where it can do none. `tile`: entries of a tile at most (None:
    what is fastest). `words`: what becomes of the weights.
    """

    change: Change
    words: str


def _factored(case: Case, draft: Draft, only: frozenset[str] | None, tile: int | None) -> Draft | Refusal:
    if case.given is not None:
        return Refusal(("it is no program",))
    found = factored(draft.plan, lambda one: only is None or one.weights.origin in only)
    if not found.plan.factored:
        return Refusal(found.refused or ("the program has no softmax whose weights are summed",))
    kernel = lower(found.plan, case.dtypes, case.reads)
    if not case.recorded:
        kernel = attempts_streamed(kernel, dict(found.plan.nominal), case.base, tile)
    return Draft(found.plan, kernel)


def _flattened(case: Case, draft: Draft, only: frozenset[str] | None, tile: int | None) -> Draft | Refusal:
    sizes = dict(draft.plan.nominal)
    chunks = not case.recorded
    both = [flattened(draft.kernel, sizes, chunks, only=only, chunk_entries=tile, join=join) for join in (False, True)]
    if not both[0].count:
        return Refusal(both[0].refused or ("the program has no softmax whose weights are summed",))
    made = dict.fromkeys(found.kernel for found in both)
    drafts = [Draft(draft.plan, laid_out(kernel, sizes)) for kernel in made]
    if len(drafts) == 1:
        return drafts[0]
    return min(drafts, key=lambda d: (case.recorded and biased(d.kernel), seconds(d.kernel, d.sizes, case.machine)))


def _streamed(case: Case, draft: Draft, only: frozenset[str] | None, tile: int | None) -> Draft | Refusal:
    drafts: tuple[Draft, ...] = (draft,)
    if draft is case.dense:
        drafts = case.looped(ordered=only is None or only >= case.weights.keys())
    refused: list[tuple[str, ...]] = []
    looped: list[tuple[int, float, Draft]] = []
    for plan, kernel in drafts:
        found = streamed(kernel, dict(plan.nominal), base=case.base, only=only, tile_entries=tile)
        refused.append(found.refused)
        if found.axes:
            made = Draft(plan, bounded(laid_out(found.kernel, dict(plan.nominal))))
            looped.append((len(found.refused), seconds(made.kernel, made.sizes, case.machine), made))
    if not looped:
        return Refusal(refused[0] or ("the program has no softmax whose weights are summed",))
    return min(looped, key=lambda f: f[:2])[2]


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "factored": Kind(_factored, "summed in a ratio of sums over few indices"),
        "flattened": Kind(_flattened, "made and summed in an attention kernel, over one key axis"),
        "streamed": Kind(_streamed, "made tile by tile and summed away at once"),
    }
)
PLANS = ("auto", "dense", *KINDS)
