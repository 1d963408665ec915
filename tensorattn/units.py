"""What an operator of a library runs: kernels made from a text, so that the text alone says what is computed.

A key is JSON: a program with the dtypes of its inputs, and steps: `adjoint`, `tangent` or `vmap`. The unit of a key is
the kernel that follows, planned for the sizes of each call like any other. A process that has only the key, after a
checkpoint was loaded or a graph was compiled elsewhere, makes the same unit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from tensorattn import backends
from tensorattn.adjoining import adjoint, gradient_names
from tensorattn.adjoining.batching import batched
from tensorattn.adjoining.saving import Saved, saving
from tensorattn.asking import Asked
from tensorattn.choosing import LEAST_TILE, Candidate, choose
from tensorattn.dtypes import FLOATS
from tensorattn.errors import BudgetError, PlanError
from tensorattn.expanding import expand
from tensorattn.extents import size_reads
from tensorattn.factoring import factored
from tensorattn.ir import Index
from tensorattn.kernel import Attempt, Kernel, Load, Output
from tensorattn.kinds import Case, Draft
from tensorattn.lowering import lower
from tensorattn.lowering.attempts import attempts_streamed, with_loads_before
from tensorattn.lowering.layouts import laid_out
from tensorattn.lowering.rescaling import rebased
from tensorattn.lowering.streaming import opened
from tensorattn.lowering.unifying import unified
from tensorattn.lowering.views import bytes_of
from tensorattn.plan import Plan
from tensorattn.planning import plan as make_plan
from tensorattn.program import Program
from tensorattn.rates import machine
from tensorattn.reading import as_program
from tensorattn.rewriting.fusing import with_origins
from tensorattn.sizes import Axis, Quotient, Size, SizeRead

MOST_UNITS = 1024
NOTHING = Size()
TILES = (None, 1 << 18, 1 << 16, 1 << 14, LEAST_TILE)  # entries of a tile of a ratio that are tried within a budget
MOST_FUNCTIONS = 32  # plans for other sizes that one unit keeps
Step = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Unit:
    """A kernel without loops, and how it is planned. `dtypes`: logical ones, of all inputs.

    `saved`: what a softmax leaves for its derivatives, as outputs after those of the program; None where there is no
    softmax left. `gradients`: of an adjoint, the input of which each output is a cotangent; of a tangent, the number of
    the output of which it is one. `takes`: the input of which each of the last inputs of a tangent is one. `held`: the
    bytes beside what its kernel takes, of what was saved, and of the sums of what one input gets in several places.
    `logarithms`: the numbers of the inputs that are a log Σ exp by which weights are made again.
    """

    key: str
    kernel: Kernel
    plan: Plan
    dtypes: Mapping[str, str]
    asked: Asked
    saved: Saved | None = None
    gradients: tuple[Any, ...] = ()
    logarithms: tuple[int, ...] = ()
    takes: tuple[str, ...] = ()
    held: Size = NOTHING
    _functions: dict[Any, Callable[..., tuple[Any, ...]]] = field(default_factory=dict)

    @cached_property
    def floats(self) -> tuple[bool, ...]:
        """Which inputs have derivatives."""
        used = {i.input for i in self.kernel.body if isinstance(i, Load) and i.out.dtype.startswith("float")}
        return tuple(n in used and self.dtypes[n] in FLOATS for n in self.kernel.inputs)

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.kernel.outputs

    @property
    def mapped(self) -> tuple[bool, ...]:
        """Of a kernel after the step `vmap`: which outputs have the axis."""
        axis = (Index(self.kernel.sizes[0][0]),)
        return tuple(output.axes[:1] == (axis,) for output in self.kernel.outputs)

    @property
    def kept(self) -> tuple[int, ...]:
        """The numbers of the outputs that the derivatives need."""
        return () if self.saved is None else self.saved.outputs

    def sizes(self, shapes: Sequence[Sequence[int]]) -> dict[str, Any]:
        """The sizes of all axes from the shapes of the inputs."""
        places = dict(zip(self.kernel.inputs, shapes, strict=True))
        found: dict[str, Any] = {}
        for name, read in self.kernel.sizes:
            found[name] = _size(read, places, found)
        return found

    def function(self, backend: str, sizes: Mapping[str, int], device: str) -> Callable[..., tuple[Any, ...]]:
        """The kernel as a function of its inputs, planned for sizes like these."""
        budget = self.asked.memory is not None
        kind = (backend, device, *(size if budget else size.bit_length() for size in sizes.values()))
        found = self._functions.get(kind)
        if found is None:
            if len(self._functions) >= MOST_FUNCTIONS:
                self._functions.clear()
            found = self._functions[kind] = backends.get(backend).build(self.planned(backend, sizes, device), "formula")
        return found

    def planned(self, backend: str, sizes: Mapping[str, int], device: str = "cpu") -> Kernel:
        """The kernel with the loops that pay at these sizes. Raises: BudgetError."""
        return self.chosen(backend, sizes, device).kernel

    def chosen(self, backend: str, sizes: Mapping[str, int], device: str = "cpu") -> Candidate:
        """The plan, within the budget less what is held beside it. Raises: BudgetError."""
        held, asked, tiles = self.held.value(sizes), self.asked, TILES[:1]
        if asked.memory is not None:
            asked = replace(asked, memory=max(asked.memory - held, 0))
            tiles = TILES if any(isinstance(i, Attempt) for i in self.kernel.body) else tiles
        refused: list[PlanError] = []
        for plan in dict.fromkeys((asked.plan, "auto")):  # a derivative may have nothing left of that kind
            for tile in tiles:
                try:
                    return choose(self._case(backend, sizes, device, tile), replace(asked, plan=plan)).chosen
                except PlanError as error:
                    refused.append(error)
        least = min((e for e in refused if isinstance(e, BudgetError)), key=lambda e: e.least)
        least.least += held
        raise least

    def _case(self, backend: str, sizes: Mapping[str, int], device: str, tile: int | None) -> Case:
        """What is planned, with ratios in tiles of so many entries."""
        plan = replace(self.plan, nominal=tuple(sizes.items()))
        base = backends.get(backend).exponential_base()
        on = machine(backend, base, device)
        draft = Draft(plan, attempts_streamed(rebased(self.kernel, base), sizes, base, tile))
        return Case(plan.program, plan.outputs, self.dtypes, self.kernel.sizes, sizes, on, base, given=draft)


def _size(read: SizeRead, shapes: Mapping[str, Sequence[int]], sizes: Mapping[str, Any]) -> Any:
    match read:
        case int():
            return read
        case Axis(input=name, axis=axis):
            return shapes[name][axis]
        case Quotient(of=of, by=by):
            found = _size(of, shapes, sizes)
            for name in by:
                found = found // (sizes[name] if isinstance(sizes[name], int) and sizes[name] else sizes[name] or 1)
            return found
    return length(read, sizes)


def length(size: Size, sizes: Mapping[str, Any]) -> Any:
    """The value of a polynomial at sizes that may be symbols of another library."""
    if size.constant is not None:
        return size.constant
    total: Any = 0
    for monomial, coefficient in size.terms:
        term: Any = int(coefficient)
        for name, power in monomial:
            for _ in range(power):
                term = term * sizes[name]
        total = total + term
    return total


# Keys -------------------------------------------------------------------------------------------------------------


def key_of(
    program: Program, outputs: Sequence[str], sizes: Mapping[str, int], dtypes: Mapping[str, str], rank: int,
    hints: Mapping[str, int] | None, plan: str, memory: int | None, *, halved: bool = False,
    ratios: Sequence[str] | None = (),
) -> str:  # fmt: skip
    """The key of a program: `rank` axes stand for `...`; `hints`: sizes for which contractions are ordered.

    `halved`: a symmetric softmax runs over ordered tuples, in loops that leave out the others. `ratios`: the statements
    whose reductions are factored (None: all that can be).
    """
    return json.dumps(
        dict(
            program=str(program), outputs=list(outputs), sizes=dict(sizes), dtypes=dict(dtypes), rank=rank,
            hints=None if hints is None else dict(hints), plan=plan, memory=memory, halved=halved, steps=[],
            ratios=None if ratios is None else list(ratios),
        ),
        ensure_ascii=True,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def stepped(key: str, step: str, *arguments: Any) -> str:
    """The key with one more step."""
    read = json.loads(key)
    read["steps"].append([step, *arguments])
    return json.dumps(read)


@lru_cache(maxsize=4096)
def exactly(key: str) -> str:
    """The key with the same inputs and outputs whose derivatives make weights again by a softmax.

    A log Σ exp of −10⁹ has no digit left for the number of keys: weights made from it add up to anything.
    """
    return json.dumps({**json.loads(key), "exact": True})


@lru_cache(maxsize=MOST_UNITS)
def unit(key: str) -> Unit:
    """The unit of a key. Raises: RefusalError where some instruction has no derivative."""
    read = json.loads(key)
    if not read["steps"]:
        return _with_saved(_first(key, read), exact=read.get("exact", False))
    *before, (step, *arguments) = read["steps"]
    inner = unit(json.dumps({**read, "steps": before}))
    return STEPS[step](replace(inner, key=key, _functions={}), *arguments)


def _first(key: str, read: Mapping[str, Any]) -> Unit:
    program = with_origins(expand(as_program(read["program"]), read["rank"]))
    reads = size_reads(program, read["sizes"])
    halved = read["halved"]
    plan = make_plan(program, tuple(read["outputs"]), read["hints"], ordered=halved)
    ratios = read.get("ratios", [])  # keys of programs that were saved before have none
    if ratios != []:
        plan = factored(plan, lambda one: ratios is None or one.weights.origin in ratios).plan
    made = lower(replace(plan, kind="streamed") if halved else plan, read["dtypes"], reads)
    kernel = laid_out(unified(replace(made, body=with_loads_before(opened(made.body)))))
    asked = Asked(read["plan"], read["memory"])
    return Unit(key, kernel, plan, read["dtypes"], asked)


def _with_saved(found: Unit, *, exact: bool) -> Unit:
    kernel, saved = saving(found.kernel)
    return replace(found, kernel=kernel, saved=replace(saved, exact=exact), _functions={})


def _adjoint(of: Unit, given: Sequence[bool], wanted: Sequence[str]) -> Unit:
    """The cotangents of the inputs `wanted` from those of the outputs `given`."""
    kernel = adjoint(of.kernel, given, wanted, of.dtypes, of.saved)
    dtypes = dict(of.dtypes)
    if of.saved is not None:
        dtypes |= {n: r.dtype for n, r in zip(of.saved.inputs, of.saved.registers, strict=True)}
    known = [o for o, there in zip(of.outputs, given, strict=True) if there]
    dtypes |= {n: o.dtype for n, o in zip(kernel.inputs[len(kernel.inputs) - len(known) :], known, strict=True)}
    gradients = tuple(gradient_names(of.kernel, wanted))
    asked = replace(of.asked, plan=of.asked.plan if of.asked.plan in ("streamed", "dense") else "auto")
    held = _held(() if of.saved is None else of.outputs[of.saved.first :], kernel.outputs)
    logarithms = of.logarithms
    if of.saved is not None:
        logarithms = () if of.saved.exact else tuple(len(of.kernel.inputs) + n for n in of.saved.logarithms)
    return replace(
        of, kernel=kernel, dtypes=dtypes, saved=None, gradients=gradients, asked=asked, held=held, logarithms=logarithms
    )


def _held(saved: Sequence[Output], terms: Sequence[Output]) -> Size:
    """What lies beside a backward pass: what was saved, and the second and later terms of the gradient of an input."""
    later = [term for n, term in enumerate(terms) if any(term.name == other.name for other in terms[:n])]
    return sum(map(bytes_of, (*saved, *later)), Size())


def _tangent(of: Unit, given: Sequence[bool]) -> Unit:
    """The tangents of the outputs from those of the float inputs `given`.

    The adjoint is linear in the cotangents: its adjoint with respect to them, at no matter which, is the tangent.
    """
    names = [n for n, there in zip(of.kernel.inputs, given, strict=True) if there]
    floats = [o.dtype in FLOATS for o in of.outputs]
    back = _adjoint(of, floats, names)
    count = len(of.kernel.inputs) + len(of.kept)
    bars = back.kernel.inputs[count:]
    forth = _adjoint(replace(back, saved=None), [True] * len(back.outputs), bars)
    read = {i.input for i in forth.kernel.body if isinstance(i, Load)}
    assert not read & set(bars), "an adjoint is linear in the cotangents"
    kernel = replace(forth.kernel, inputs=tuple(n for n in forth.kernel.inputs if n not in bars))
    outputs = [n for n, there in enumerate(floats) if there]
    numbers = tuple(outputs[bars.index(name)] for name in forth.gradients)
    assert len(set(numbers)) == len(numbers), "a cotangent is read once"
    return replace(forth, kernel=kernel, gradients=numbers, takes=back.gradients)


def _vmap(of: Unit, which: Sequence[bool]) -> Unit:
    """For many inputs at once, some of them along a new first axis."""
    if of.saved is None:
        return replace(of, kernel=batched(of.kernel, which))
    plain = replace(of.kernel, outputs=of.kernel.outputs[: of.saved.first])
    return _with_saved(replace(of, kernel=unified(batched(plain, which)), saved=None), exact=of.saved.exact)


STEPS: Mapping[str, Callable[..., Unit]] = {"adjoint": _adjoint, "tangent": _tangent, "vmap": _vmap}
