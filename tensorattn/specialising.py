"""A program for inputs of certain dtypes, batch rank and sizes: plan, kernel, function, and the checks of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tensorattn import backends
from tensorattn.asking import Asked, Asking, fixed_kinds
from tensorattn.backward import operator_needs, recorded_needs
from tensorattn.checking import check_open
from tensorattn.choosing import Candidate, Choice, choose
from tensorattn.dtypes import infer
from tensorattn.errors import DTypeError, PlanError
from tensorattn.expanding import expand
from tensorattn.extents import index_names, size_reads
from tensorattn.guarding import Budget, Limit, chooser, guard, recogniser
from tensorattn.ir import BATCH, Index
from tensorattn.kinds import Case, Draft
from tensorattn.lowering.linking import unlinked
from tensorattn.plan import Plan
from tensorattn.program import Program
from tensorattn.rates import machine
from tensorattn.rewriting.emptying import with_doubtful_sums, without_empty_sums
from tensorattn.sizes import Size
from tensorattn.units import key_of
from tensorattn.watching import PLAIN, RECORDED, TRACED, TRANSFORMED


@dataclass(frozen=True, slots=True)
class Request:
    """What `compile` was asked for: the statements needed, outputs, given sizes, plan and budget."""

    program: Program
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    plan: Asking
    memory: int | None

    def at(self, sizes: Mapping[str, int]) -> Request:
        """The request at sizes some of which may be 0."""
        empty = {name for name, size in sizes.items() if size == 0}
        return replace(self, program=without_empty_sums(self.program, empty)) if empty else self

    def traced(self, dtypes: Mapping[str, str]) -> Request:
        """The request at sizes that a tracer does not know: all but those given may be 0."""
        known = {name for name, size in self.sizes.items() if size}
        return replace(self, program=with_doubtful_sums(self.program, known, infer(self.program, dtypes)))

    def asked(self, *, budgeted: bool = True, traced: bool = False) -> Asked:
        """What a plan has to be. Raises: PlanError."""
        fixed = fixed_kinds(self.program, self.plan)
        return Asked(self.plan, self.memory if budgeted and not traced else None, traced, fixed)


@dataclass(frozen=True)
class Specialisation:
    """The program for inputs of certain dtypes and batch rank: a check of shapes, a choice test, and the function.

    `facts`: what both of them look at, and the dtypes; inputs with equal ones need neither. `store` copies a result
    into an array of the user's.
    """

    fits: Callable[..., bool]
    holds: Callable[..., bool] | None
    facts: Callable[..., tuple[Any, ...]]
    run: Callable[..., tuple[Any, ...]]
    store: Callable[[Any, Any], None]
    plan: Plan


def specialise(
    request: Request,
    backend: backends.Backend,
    dtypes: Mapping[str, str],
    ranks: Mapping[str, int],
    sizes: Mapping[str, int] | None,
    watched: str = "",
    device: str = "cpu",
) -> Specialisation:
    """The specialisation for inputs of these dtypes and ranks (Python numbers have none), planned for these sizes.

    `watched`: by what (RECORDED, TRANSFORMED, TRACED, PLAIN). Under a tracer `sizes` is None, for it must not look at
    any.
    """
    rank = batch_rank(request.program, ranks)
    program = expand(request.program, rank)
    reads = size_reads(program, request.sizes)
    if sizes is None:  # a call that is not traced finds them before
        check_open(program, [name for name in index_names(program) if name not in dict(reads)])
    base = backend.exponential_base()
    on = machine(backend.name, base, device)
    case = Case(program, request.outputs, dtypes, reads, sizes, on, base, recorded=watched == RECORDED)
    chosen, key = decide(request, case, rank, watched)
    scalars = frozenset(n for n in program.inputs if n not in ranks)
    budget = None
    limits = chosen.limits
    if request.memory is not None and sizes is not None:
        if case.needs is None:
            budget = Budget(chosen.chosen.cost, request.memory)
        else:  # no more than what was decided for
            limits += tuple(Limit(Size.of(name), size + 1, above=False) for name, size in sizes.items())
    return Specialisation(
        fits=guard(program, reads, scalars, backend),
        holds=chooser(chosen.plan, program, chosen.kernel.sizes, scalars, limits, budget),
        facts=recogniser(program, scalars, backend),
        run=_built(backend, chosen, case, watched) if key is None else _operation(backend, key, program, scalars),
        store=backend.store,
        plan=chosen.plan,
    )


def decide(request: Request, case: Case, rank: int, watched: str) -> tuple[Choice, str | None]:
    """The plan of a call that is watched so, and the key of the operator where that is what runs.

    `rank`: how many axes `...` stands for. Raises: PlanError; BudgetError, where gradients are recorded also if the
    backward pass would be over the budget.
    """
    if watched == RECORDED and request.memory is not None:
        case.needs = partial(_needed, request, case, rank)
    asked = request.asked(traced=watched in (TRACED, PLAIN))
    try:
        chosen = choose(case, asked)
    except PlanError:
        if 0 not in (case.sizes or {}).values():
            raise
        chosen = choose(case, replace(asked, plan="auto", fixed={}))  # of empty sums nothing may be left to plan
    watching = watched not in ("", PLAIN) and request.plan != "dense"
    if not watching or not _is_worth(case, chosen.chosen, request, watched):
        return chosen, None
    return chosen, _operator(request, case, rank, chosen.chosen)


def _needed(request: Request, case: Case, rank: int, candidate: Candidate) -> int:
    """The bytes that the larger pass of a candidate has to be granted while gradients are recorded."""
    if request.plan != "dense" and _is_worth(case, candidate, request, RECORDED):
        return operator_needs(_operator(request, case, rank, candidate))
    return recorded_needs(Draft(candidate.plan, candidate.kernel), case.dtypes)


def _built(backend: backends.Backend, chosen: Choice, case: Case, watched: str) -> Callable[..., tuple[Any, ...]]:
    run = backend.build(chosen.kernel, "formula")
    if watched not in (RECORDED, TRACED):
        return run
    links = unlinked(chosen.kernel, case.dtypes, case.sizes)
    return backend.linked(run, links) if any(links) else run


def _operation(
    backend: backends.Backend, key: str, program: Program, scalars: frozenset[str]
) -> Callable[..., tuple[Any, ...]]:
    return backend.operation(key, tuple(n in scalars for n in program.inputs))


def _operator(request: Request, case: Case, rank: int, candidate: Candidate) -> str:
    """The key of the program as one operator with all its derivatives."""
    halved = candidate.plan.program != case.dense.plan.program  # only loops change it: over ordered tuples
    plan = request.plan
    if plan == "factored":
        plan = "dense"  # what no ratio takes
    elif not isinstance(plan, str):
        plan = "auto"
    return key_of(
        request.program, request.outputs, request.sizes, case.dtypes, rank, case.sizes, plan, request.memory,
        halved=halved, ratios=_ratios(request, candidate),
    )  # fmt: skip


def _ratios(request: Request, candidate: Candidate) -> Sequence[str] | None:
    """The statements whose reductions are factored: those asked for, else those chosen."""
    taken = dict(candidate.recipe).get("factored", ())
    if request.plan == "factored" or taken is None:
        return None
    return sorted({*taken, *(name for name, kind in request.asked().fixed.items() if kind == "factored")})


def _is_worth(case: Case, candidate: Candidate, request: Request, watched: str) -> bool:
    """Whether the operator runs, which makes weights again for derivatives and costs more than a small call."""
    if watched == RECORDED:
        return any(kind == "streamed" for kind, _ in candidate.recipe) or candidate.sliced is not None
    if not case.weights:
        return False
    small = watched == TRANSFORMED and request.plan == "auto" and not candidate.recipe
    return not small


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
