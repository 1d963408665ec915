"""Candidates → the plan: each kind is tried and priced at the actual sizes, and the fastest that fits is taken.

A program with few weights is dense without a look at anything else, for planning takes longer than such a call. No plan
with more FLOPs than dense is taken unless a budget of memory forces it. A tracer, which may look at no size, gets the
dense plan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from tensorattn.asking import Asked, refuse
from tensorattn.cost import Cost, kernel_cost
from tensorattn.errors import BudgetError, PlanError
from tensorattn.guarding import Budget, Limit
from tensorattn.ir import Index
from tensorattn.kernel import IfFinite, Instruction, Kernel, Normalised
from tensorattn.kinds import KINDS, Case, Draft, Refusal
from tensorattn.lowering import streaming
from tensorattn.lowering.adding import with_sums
from tensorattn.lowering.attempts import ratios_sliced
from tensorattn.lowering.flattening import biased, joined_keys
from tensorattn.lowering.layouts import laid_out
from tensorattn.plan import Plan
from tensorattn.rates import seconds
from tensorattn.sizes import Size

SMALL = 1 << 16  # weights below which dense is taken unseen
WINDOW = 4  # a choice is made anew where the number of weights leaves its power of 2**WINDOW
MORE_FLOPS = 1.0625  # of dense: what merging tiles adds is no reason against a plan
CLEARLY = 0.9  # of the time of dense: the estimates are no better, and dense has less to go wrong
# A backward pass makes five products for two of the forward pass in every kind of plan, and three for one where a ratio
# is sliced. In loops what is elementwise stands beside them, in an attention kernel within; with a bias of which a
# gradient may be wanted no such kernel runs, and with keys of several axes the gradients of all of them are arrays.
APART, JOINED, SLICED, UNFUSED = 1.06, 1.1, 1.14, 3
LEAST_TILE = 1 << 12  # entries of a tile, however small the budget: 16 KB of float32, so that rounds are not too many
MOST_MIXED = 6  # statements for which mixtures are tried

Recipe = tuple[tuple[str, "frozenset[str] | None"], ...]  # the kinds, and for which statements each (None: all)


@dataclass(frozen=True, slots=True)
class Reduction:
    """A normaliser of the program: where it stands, how many entries its weights have, and the kind that does it."""

    statement: str
    normaliser: str
    indices: tuple[Index, ...]
    entries: Size
    kind: str


@dataclass(frozen=True)
class Candidate:
    """A plan of some kind, its kernel, and its price at the sizes of the case."""

    recipe: Recipe
    plan: Plan
    kernel: Kernel
    reductions: tuple[Reduction, ...]
    case: Case = field(repr=False)
    tile: int | None = None

    @property
    def name(self) -> str:
        """The kinds, with their statements where they are not for all."""
        words = [kind if only is None else f"{kind} ({', '.join(sorted(only))})" for kind, only in self.recipe]
        return ", ".join(words) or "dense"

    @cached_property
    def cost(self) -> Cost:
        return kernel_cost(self.kernel, self.case.machine.library, self.sizes)

    @cached_property
    def seconds(self) -> float:
        """The estimated time of a call; of one whose gradients are recorded, in proportion to that of both passes."""
        found = seconds(self.sliced or self.kernel, self.sizes, self.case.machine)
        if not self.case.recorded:
            return found
        if self.sliced:
            return found * SLICED
        kinds = dict(self.recipe)
        if "flattened" in kinds and biased(self.kernel):
            return found * UNFUSED
        if "flattened" in kinds and joined_keys(self.kernel):
            found *= JOINED
        return found * APART if "streamed" in kinds else found

    @cached_property
    def sliced(self) -> Kernel | None:
        """While gradients are recorded: with loops in its ratios, as the operator has; None where nothing is large."""
        if not self.case.recorded or "factored" not in dict(self.recipe):
            return None
        return ratios_sliced(self.kernel, dict(self.plan.nominal), self.case.base)

    @cached_property
    def flops(self) -> int:
        return self.cost.at(self.sizes).flops

    @cached_property
    def peak(self) -> int:
        """The bytes to be granted beyond inputs and outputs."""
        if self.case.needs is not None:
            return self.case.needs(self)
        return Budget.needed(self.cost.at(self.sizes).peak_bytes)

    @cached_property
    def sizes(self) -> dict[str, int]:
        return Draft(self.plan, self.kernel).sizes


@dataclass(frozen=True, slots=True)
class Rejected:
    """What was not taken, and why; `candidate` is None where there is no such plan."""

    name: str
    why: str
    candidate: Candidate | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What is taken and why, what is not, and the limits within which that holds."""

    chosen: Candidate
    why: str
    rejected: tuple[Rejected, ...] = ()
    limits: tuple[Limit, ...] = ()

    @property
    def plan(self) -> Plan:
        return self.chosen.plan

    @property
    def kernel(self) -> Kernel:
        return self.chosen.kernel


def choose(case: Case, asked: Asked, *, thorough: bool = False) -> Choice:
    """The plan of a case. `thorough`: every kind is tried and priced, even where nothing depends on it.

    Where its sizes leave nothing to do in the way that is asked for, as those of empty inputs may, it is the plan that
    there is for any sizes.

    Raises: PlanError `E-PLAN` where the plan asked for does not exist; BudgetError `E-BUDGET` where none fits.
    """
    try:
        return _at_sizes(case, asked, thorough=thorough)
    except BudgetError:
        raise
    except PlanError:
        if case.sizes is None or case.given is not None:
            raise
        return _at_sizes(replace(case, sizes=None), asked, thorough=thorough)


def _at_sizes(case: Case, asked: Asked, *, thorough: bool) -> Choice:
    if asked.traced or (case.sizes is None and asked.plan == "auto"):
        why = "a traced program has no sizes" if asked.traced else "a call plans for its own sizes, and none are given"
        return Choice(_dense(case), why, _untaken(case) if thorough else ())
    total = sum(case.weights.values(), Size())
    entries = total.value(case.nominal)
    limits = _window(total, entries) if asked.open or asked.memory is not None else ()
    small = entries < SMALL and asked.plan == "auto"
    if (small or asked.plan == "dense") and not thorough:
        dense = _dense(case)
        if asked.memory is None or dense.peak <= asked.memory:
            return Choice(dense, "", limits=limits)
    found, rejected = _candidates(case, asked, thorough)
    mixed = list(_mixtures(case, asked, _start(found, asked))) if asked.plan == "auto" and not small else []
    chosen, why = _best([*found, *mixed], asked, small)
    others = tuple(
        Rejected(c.name, _reason(c, chosen, asked, small), c)
        for c in found
        if c is not chosen and c.name != chosen.name
    )
    return Choice(chosen, why, (*others, *rejected), limits)


# Candidates -------------------------------------------------------------------------------------------------------


def _dense(case: Case) -> Candidate:
    plan, kernel = case.dense
    return Candidate((), plan, laid_out(kernel), _reductions(kernel, kernel, ()), case)


def _made(case: Case, recipe: Recipe, tile: int | None = None) -> Candidate | Refusal:
    """The candidate of a recipe: every kind of it changes what the one before left."""
    if not recipe:
        return _dense(case)
    draft = case.dense
    for kind, only in recipe:
        changed = KINDS[kind].change(case, draft, only, tile)
        if isinstance(changed, Refusal):
            return changed
        draft = changed
    plan = replace(draft.plan, kind=" + ".join(kind for kind, _ in recipe))
    reductions = _reductions(case.dense.kernel, draft.kernel, recipe)
    return Candidate(recipe, plan, with_sums(draft.kernel), reductions, case, tile)


def _reductions(before: Kernel, after: Kernel, recipe: Recipe) -> tuple[Reduction, ...]:
    """The normalisers of a kernel, and what became of each."""
    left = {i.out.name for i in _normalisers(after.body)}
    found = []
    for i in _normalisers(before.body):
        done = next((kind for kind, only in recipe if only is None or i.origin in only), "dense")
        kind = "dense" if i.out.name in left else done
        found.append(Reduction(i.origin, i.kind, i.indices, Size.product(a.name for a in i.out.axes), kind))
    return tuple(found)


def _normalisers(body: Iterable[Instruction]) -> Iterator[Normalised]:
    """Those whose weights are held as one array: in a loop they are only made in part at a time."""
    for instruction in body:
        match instruction:
            case Normalised():
                yield instruction
            case IfFinite(fast=inner):
                yield from _normalisers(inner)


def _fitted(case: Case, recipe: Recipe, memory: int | None) -> Candidate | Refusal:
    """The candidate with the largest tiles that fit the budget; the smallest there are where none fits.

    Where the smallest tiles change nothing, no other ones do; while gradients are recorded, tiles are the operator's.
    """
    best = _made(case, recipe)
    if isinstance(best, Refusal) or memory is None or best.peak <= memory or not recipe or case.needs is not None:
        return best
    least = _made(case, recipe, LEAST_TILE)
    if isinstance(least, Refusal) or least.kernel == best.kernel:
        return best
    if least.peak > memory:
        return min(best, least, key=lambda c: c.peak)
    fits, exceeds = LEAST_TILE.bit_length() - 1, streaming.TILE_ENTRIES.bit_length()  # as powers of 2
    while exceeds - fits > 1:
        power = (fits + exceeds) // 2
        found = _made(case, recipe, 1 << power)
        if isinstance(found, Candidate) and found.peak <= memory:
            fits, least = power, found
        else:
            exceeds = power
    return least


def _candidates(case: Case, asked: Asked, thorough: bool) -> tuple[list[Candidate], list[Rejected]]:
    """Dense and one candidate a kind; the kinds of which there is no plan, with the reasons."""
    for statement, kind in asked.fixed.items():
        alone = _made(case, () if kind == "dense" else ((kind, frozenset({statement})),))
        if isinstance(alone, Refusal):
            refuse(asked, [(f"{statement}, {kind}", "; ".join(alone.reasons))])
    found: list[Candidate] = []
    rejected: list[Rejected] = []
    for recipe in _recipes(case, asked, thorough):
        made = _fitted(case, recipe, asked.memory)
        if isinstance(made, Candidate):
            found.append(made)
        else:
            rejected.append(Rejected(" + ".join(kind for kind, _ in recipe), "; ".join(made.reasons)))
    wanted = [c for c in found if asked.meant(c.recipe)]
    if not wanted:
        refuse(asked, [(r.name, r.why) for r in rejected])
    return found, rejected


def _recipes(case: Case, asked: Asked, thorough: bool) -> list[Recipe]:
    if isinstance(asked.plan, str):
        everywhere: list[Recipe] = [(), *(((kind, _worth(case)),) for kind in KINDS)]
        if asked.plan == "auto" or thorough:
            named = [((asked.plan, None),)] if asked.plan in KINDS else []
            others = [r for r in everywhere if not r or r[0][0] != asked.plan]
            return [*others, *named]
        return [()] if asked.plan == "dense" else [((asked.plan, None),)]
    free = [s for s in case.weights if s not in asked.fixed and not _is_small(case, s)]
    kinds = ["dense", *KINDS] if free else ["dense"]
    found = [_recipe({**dict.fromkeys(free, kind), **asked.fixed}) for kind in kinds]
    return list(dict.fromkeys([*([()] if thorough else []), *found]))


def _recipe(kinds: Mapping[str, str]) -> Recipe:
    """What is done with each statement as a recipe, in the order of the table."""
    named = ((kind, frozenset(s for s, k in kinds.items() if k == kind)) for kind in KINDS)
    return tuple((kind, only) for kind, only in named if only)


def _is_small(case: Case, statement: str) -> bool:
    return case.weights[statement].value(case.nominal) < SMALL


def _worth(case: Case) -> frozenset[str] | None:
    """The statements whose weights are many; None where all or none of them have."""
    large = frozenset(s for s in case.weights if not _is_small(case, s))
    return None if len(large) in (0, len(case.weights)) else large


def _mixtures(case: Case, asked: Asked, best: Candidate) -> Iterator[Candidate]:
    """The best candidate with another kind for one statement of many weights."""
    large = [s for s in case.weights if not _is_small(case, s)]
    if not 1 < len(large) <= MOST_MIXED:
        return
    of = {s: next((kind for kind, only in best.recipe if only is None or s in only), "dense") for s in large}
    for statement in large:
        for kind in ("dense", *KINDS):
            recipe = _recipe({**of, statement: kind})
            if kind != of[statement] and len(recipe) + sum(len(o or ()) for _, o in recipe) > 1:
                made = _fitted(case, recipe, asked.memory)
                if isinstance(made, Candidate):
                    yield made


# The choice -------------------------------------------------------------------------------------------------------


def _start(found: list[Candidate], asked: Asked) -> Candidate:
    """What mixtures start from: the fastest that fits, else what comes nearest to fitting."""
    wanted = [c for c in found if asked.meant(c.recipe)]
    if asked.memory is not None and all(c.peak > asked.memory for c in wanted):
        return min(wanted, key=lambda c: c.peak)
    return _best(found, asked, small=False)[0]


def _best(found: list[Candidate], asked: Asked, small: bool) -> tuple[Candidate, str]:
    """The fastest candidate that may be taken, and the reason."""
    wanted = [c for c in found if asked.meant(c.recipe)]
    fitting = [c for c in wanted if asked.memory is None or c.peak <= asked.memory]
    if not fitting:
        least = min(wanted, key=lambda c: c.peak)
        facts = [f"the smallest possible peak here: {least.peak:,} bytes beyond inputs and outputs ({least.name})"]
        if least.case.needs is not None:
            facts.append("gradients are recorded, so that it is the larger one of both passes")
        what, hint = f"no plan fits in {asked.memory:,} bytes", f"memory={least.peak}"
        error = BudgetError("E-BUDGET", what, facts=facts, hint=hint)
        error.least = least.peak
        raise error
    if not asked.open:
        return fitting[0], "asked for"
    dense = next((c for c in fitting if not c.recipe), None)
    if small and dense is not None:
        return dense, f"fewer than {SMALL:,} weights"
    allowed = [c for c in fitting if dense is None or not c.recipe or _is_lean(c, dense)]
    chosen = min(allowed, key=lambda c: c.seconds if c.recipe else CLEARLY * c.seconds)
    within = "" if len(fitting) == len(wanted) else " within the budget"
    if all(chosen.seconds <= c.seconds for c in allowed):
        return chosen, f"the least time{within}"
    return chosen, f"nothing is clearly faster{within}"


def _is_lean(candidate: Candidate, dense: Candidate) -> bool:
    return candidate.flops <= MORE_FLOPS * dense.flops


def _reason(candidate: Candidate, chosen: Candidate, asked: Asked, small: bool) -> str:
    """Why a candidate was not taken."""
    if not asked.meant(candidate.recipe):
        return "another plan is asked for"
    if asked.memory is not None and candidate.peak > asked.memory:
        return f"over the budget of {asked.memory:,} bytes"
    if small and not chosen.recipe:
        return "not worth planning"
    if candidate.seconds >= chosen.seconds:
        return "slower"
    return "not clearly faster" if _is_lean(candidate, chosen) else "more FLOPs than dense"


def _untaken(case: Case) -> tuple[Rejected, ...]:
    """The other kinds, where no size says which to take."""
    found = []
    for kind in KINDS:
        made = _made(case, ((kind, None),))
        refused = isinstance(made, Refusal)
        found.append(Rejected(kind, "; ".join(made.reasons) if refused else "", None if refused else made))
    return tuple(found)


def _window(total: Size, entries: int) -> tuple[Limit, ...]:
    """Between which numbers of weights the choice stays as it is."""
    if total.constant is not None:
        return ()
    if entries < SMALL:
        return (Limit(total, SMALL, above=False),)
    power = (entries.bit_length() - 1) // WINDOW * WINDOW
    return Limit(total, 1 << power, above=True), Limit(total, 1 << (power + WINDOW), above=False)
