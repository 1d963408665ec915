"""A program for inputs of certain dtypes, batch rank and sizes: plan, kernel, function, and the checks of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tensorattn import backends
from tensorattn.cost import Cost, kernel_cost
from tensorattn.errors import DTypeError, PlanError
from tensorattn.expanding import expand
from tensorattn.extents import size_reads
from tensorattn.guarding import Reads, chooser, guard
from tensorattn.ir import BATCH, Index, normalised_reductions
from tensorattn.kernel import Kernel
from tensorattn.lowering import lower
from tensorattn.lowering.streaming import Limit, streamed
from tensorattn.plan import Plan
from tensorattn.planning import plan as make_plan
from tensorattn.program import Program
from tensorattn.rewriting.fusing import fuse
from tensorattn.sizes import Size

PLANS = ("auto", "dense", "streamed")
LEAST_STREAMED = 1 << 21  # weights below this many entries are faster dense: two tiles


@dataclass(frozen=True, slots=True)
class Request:
    """What `compile` was asked for: the statements needed, outputs, given sizes, kind of plan."""

    program: Program
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    plan: str
    budgeted: bool


@dataclass(frozen=True)
class Specialisation:
    """The program for inputs of certain dtypes and batch rank: a check of shapes, a choice test, and the function."""

    fits: Callable[..., bool]
    holds: Callable[..., bool] | None
    run: Callable[..., tuple[Any, ...]]
    plan: Plan
    cost: Cost | None


@dataclass(frozen=True, slots=True)
class Planned:
    """A plan, its kernel, and the limits within which it is the choice."""

    plan: Plan
    kernel: Kernel
    limits: tuple[Limit, ...] = ()


def specialise(
    request: Request,
    backend: backends.Backend,
    dtypes: Mapping[str, str],
    ranks: Mapping[str, int],
    sizes: Mapping[str, int] | None,
    differentiable: bool,
) -> Specialisation:
    """The specialisation for inputs of these dtypes and ranks (Python numbers have none), planned for these sizes.

    `sizes` is None under a tracer, which must not look at any. `differentiable`: gradients are recorded.
    """
    program = expand(request.program, batch_rank(request.program, ranks))
    reads = size_reads(program, request.sizes)
    chosen = planned(
        request, program, dtypes, reads, sizes, backend.exponential_base(), differentiable, traced=sizes is None
    )
    scalars = frozenset(n for n in program.inputs if n not in ranks)
    return Specialisation(
        fits=guard(program, reads, scalars, backend),
        holds=chooser(chosen.plan, program, reads, scalars, chosen.limits),
        run=backend.build(chosen.kernel, "formula"),
        plan=chosen.plan,
        cost=kernel_cost(chosen.kernel) if request.budgeted else None,
    )


def planned(
    request: Request,
    program: Program,
    dtypes: Mapping[str, str],
    reads: Reads,
    sizes: Mapping[str, int] | None,
    base: str,
    differentiable: bool = False,
    traced: bool = False,
) -> Planned:
    """Dense, or streamed where that is asked for or pays.

    `base`: of the faster exponential of the back end. A traced program, and where gradients are recorded `auto`, is
    dense: a traced loop has no length, and a recorded one keeps every tile.

    Raises: PlanError `E-PLAN` where the plan asked for does not exist.
    """
    limits: tuple[Limit, ...] = ()
    fused = fuse(program, request.outputs)
    wanted = request.plan == "streamed" and not traced
    if request.plan == "auto" and sizes is not None and not differentiable:
        limits = tuple(Limit(entries, LEAST_STREAMED, above=False) for entries in _weights(fused))
        known = [limit for limit in limits if limit.entries.symbols <= sizes.keys()]
        wanted = any(limit.entries.value(sizes) >= limit.bound for limit in known)
    if wanted:
        chosen = make_plan(fused, request.outputs, sizes)
        chosen = replace(chosen, kind="streamed", inputs=program.inputs)
        least = 0 if request.plan == "streamed" else LEAST_STREAMED
        found = streamed(lower(chosen, dtypes, reads), dict(chosen.nominal), least, base)
        if found.axes:
            return Planned(chosen, found.kernel, found.limits)
        if request.plan == "streamed":
            why = found.refused or ("the program has no softmax whose weights are summed",)
            raise PlanError("E-PLAN", "nothing in this program can be streamed", facts=why, hint='plan="auto"')
        limits = found.limits
    chosen = make_plan(program, request.outputs, sizes)
    return Planned(chosen, lower(chosen, dtypes, reads), limits)


def _weights(program: Program) -> tuple[Size, ...]:
    """How many weights each softmax has whose indices are all summed in its product."""
    reductions = (r for s in program.statements for r in normalised_reductions(s.body))
    found = (r.weights for r in reductions if r.weights.kind == "softmax" and r.barred == r.weights.indices)
    return tuple(dict.fromkeys(Size.product(i.name for i in weights.free) for weights in found))


def batch_rank(program: Program, ranks: Mapping[str, int]) -> int:
    """How many axes `...` stands for, read off the first input that has it."""
    for tensor in program.tensors:
        if tensor.name in ranks and Index(BATCH) in tensor.slots:
            return max(ranks[tensor.name] - len(tensor.slots) + 1, 0)
    return 0


def dtypes_of(backend: backends.Backend, arrays: Mapping[str, Any]) -> dict[str, str]:
    """The dtype of each input. Raises: DTypeError that names the input."""
    found = {}
    for name, array in arrays.items():
        try:
            found[name] = backends.number_dtype(array) or backend.dtype_of(array)
        except DTypeError as error:
            raise DTypeError(error.code, f"`{name}`: {error.what}", facts=error.facts, hint=error.hint) from None
    return found


def dtype_name(dtype: Any) -> str:
    """The name of a dtype a specialisation is kept by: a torch dtype, or the class of a Python number."""
    if isinstance(dtype, type):
        return backends.number_dtype(dtype()) or "complex"
    return backends.get("torch").name_of(dtype)
