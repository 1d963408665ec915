"""A program for inputs of certain dtypes, batch rank and sizes: plan, kernel, function, and the checks of a call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tensorattn import backends
from tensorattn.asking import Asked, Asking, fixed_kinds
from tensorattn.choosing import choose
from tensorattn.errors import DTypeError
from tensorattn.expanding import expand
from tensorattn.extents import size_reads
from tensorattn.guarding import Budget, chooser, guard
from tensorattn.ir import BATCH, Index
from tensorattn.kinds import Case
from tensorattn.plan import Plan
from tensorattn.program import Program
from tensorattn.rates import machine


@dataclass(frozen=True, slots=True)
class Request:
    """What `compile` was asked for: the statements needed, outputs, given sizes, plan and budget."""

    program: Program
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]
    plan: Asking
    memory: int | None

    def asked(self, *, budgeted: bool = True, recorded: bool = False, traced: bool = False) -> Asked:
        """What a plan has to be. Raises: PlanError."""
        fixed = fixed_kinds(self.program, self.plan)
        return Asked(self.plan, self.memory if budgeted and not traced else None, recorded, traced, fixed)


@dataclass(frozen=True)
class Specialisation:
    """The program for inputs of certain dtypes and batch rank: a check of shapes, a choice test, and the function."""

    fits: Callable[..., bool]
    holds: Callable[..., bool] | None
    run: Callable[..., tuple[Any, ...]]
    plan: Plan


def specialise(
    request: Request,
    backend: backends.Backend,
    dtypes: Mapping[str, str],
    ranks: Mapping[str, int],
    sizes: Mapping[str, int] | None,
    differentiable: bool,
    device: str = "cpu",
) -> Specialisation:
    """The specialisation for inputs of these dtypes and ranks (Python numbers have none), planned for these sizes.

    `sizes` is None under a tracer, which must not look at any. `differentiable`: gradients are recorded.
    """
    program = expand(request.program, batch_rank(request.program, ranks))
    reads = size_reads(program, request.sizes)
    on, base = machine(backend.name, device), backend.exponential_base()
    case = Case(program, request.outputs, dtypes, reads, sizes, on, base, recorded=differentiable)
    chosen = choose(case, request.asked(recorded=differentiable, traced=sizes is None))
    scalars = frozenset(n for n in program.inputs if n not in ranks)
    budget = None
    if request.memory is not None and sizes is not None:
        budget = Budget(chosen.chosen.cost, request.memory)
    return Specialisation(
        fits=guard(program, reads, scalars, backend),
        holds=chooser(chosen.plan, program, chosen.kernel.sizes, scalars, chosen.limits, budget),
        run=backend.build(chosen.kernel, "formula"),
        plan=chosen.plan,
    )


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
