"""What a plan is asked to be: `plan=` and `memory=`, checked, and said of normalisers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from operator import index
from types import MappingProxyType
from typing import Any, NoReturn

from tensorattn.errors import BudgetError, PlanError, suggest
from tensorattn.ir import Normalise, Tensor, walk
from tensorattn.kinds import PLANS
from tensorattn.program import Program

Asking = str | Mapping[str, str]  # what `plan=` takes


@dataclass(frozen=True, slots=True)
class Asked:
    """The plan asked for, the bytes it may take, and whether a tracer runs.

    `fixed`: the kinds of the normalisers by statement, where `plan` names some.
    """

    plan: Asking = "auto"
    memory: int | None = None
    traced: bool = False
    fixed: Mapping[str, str] = field(default_factory=dict)

    @property
    def open(self) -> bool:
        """Whether something is left to choose."""
        return self.plan == "auto" or not isinstance(self.plan, str)

    def meant(self, recipe: Iterable[tuple[str, frozenset[str] | None]]) -> bool:
        """Whether a recipe is what was asked for."""
        kinds = dict(recipe)
        if self.plan == "auto":
            return True
        if isinstance(self.plan, str):
            return self.plan in kinds or (self.plan == "dense" and not kinds)
        chosen = {s: kind for kind, only in kinds.items() for s in only or ()}
        return all(chosen.get(s, "dense") == kind for s, kind in self.fixed.items())


def check_plan(program: Program, plan: Any) -> Asking:
    """The argument `plan`: the name of a kind, or a mapping from statements to such names. Raises: PlanError."""
    if not isinstance(plan, Mapping):
        _check_name(plan)
        return plan
    for statement, kind in plan.items():
        _check_name(kind)
        if statement not in program.defined:
            facts = [f"the statements are {', '.join(program.defined)}"]
            hint = suggest(str(statement), program.defined) or 'plan="auto"'
            raise PlanError("E-PLAN", f"plan= names {statement!r}, which is no statement", facts=facts, hint=hint)
    return dict(plan)


def _check_name(plan: Any) -> None:
    if not isinstance(plan, str) or plan not in PLANS:
        facts = [f"the plans are {', '.join(PLANS)}"]
        hint = suggest(str(plan), PLANS) or 'plan="auto" takes the fastest'
        raise PlanError("E-PLAN", f"there is no plan {plan!r}", facts=facts, hint=hint)


def check_memory(memory: Any) -> int | None:
    """The argument `memory`. Raises: BudgetError."""
    try:
        number = None if memory is None else -1 if isinstance(memory, bool) else index(memory)
    except TypeError:
        number = -1
    if number is not None and number < 0:
        raise BudgetError("E-BUDGET", f"memory={memory!r} is no number of bytes", hint="memory=2**30 is one gibibyte")
    return number


def fixed_kinds(program: Program, plan: Asking) -> Mapping[str, str]:
    """The kinds asked for, by the statement in which each normaliser is written; `auto` fixes nothing.

    A statement is meant where a normaliser, or the sum of weights that another one leaves open, stands in it. Of the
    statements that no output needs, which a program is without here, nothing is asked. Raises: PlanError.
    """
    if isinstance(plan, str):
        return MappingProxyType({})
    found = {s.name: [n for n in walk(s.body) if isinstance(n, Normalise)] for s in program.statements}
    own = [name for name, normalisers in found.items() if normalisers]
    weights = {s.name for s in program.statements if any(set(n.indices) & set(s.indices) for n in found[s.name])}
    fixed: dict[str, str] = {}
    named: dict[str, str] = {}
    for name, kind in plan.items():
        if name not in found:
            continue
        read = {n.name for n in walk(program.statement(name).body) if isinstance(n, Tensor)}
        meant = sorted((read & weights) | ({name} & set(own)))
        if not meant:
            facts = [f"statements with normalisers: {', '.join(own) or 'none'}"]
            raise PlanError("E-PLAN", f"no weights are made or summed in `{name}`", facts=facts, hint='plan="auto"')
        for origin in meant:
            if fixed.setdefault(origin, kind) != kind:
                what = f"`{named[origin]}` and `{name}` are one reduction, and plan= names two plans for it"
                raise PlanError("E-PLAN", what, hint=f"name one of the two: plan={{{name!r}: {kind!r}}}")
            named[origin] = name
    return MappingProxyType({name: kind for name, kind in fixed.items() if kind != "auto"})


def refuse(asked: Asked, reasons: Iterable[tuple[str, str]]) -> NoReturn:
    """Raises: PlanError with the reason of each kind."""
    reasons = list(reasons)
    if isinstance(asked.plan, str):
        what = f"nothing in this program can be {asked.plan}"
        facts = [why for _, why in reasons]
    else:
        what = "this program has no plan " + ", ".join(f"{s}: {kind}" for s, kind in asked.plan.items())
        facts = [f"{name}: {why}" for name, why in reasons]
    raise PlanError("E-PLAN", what, facts=facts, hint='plan="auto"')
