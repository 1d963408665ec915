"""Kernel → kernel: the vector–Jacobian product, from which every derivative of every order is made.

The adjoint of a kernel F(x) → y is the kernel F*(x, saved, ȳ) → x̄. It runs F again up to the weights, which it makes
from the scores and the log Σ exp that F saved, W = exp(s − L), so that no softmax is left in it: sums of products and
elementwise functions, which loops cut into tiles like any other. With ȳ of the results R = Σ_b W·V and L̄ of L,

    s̄ = W (W̄ − Σ_n R̄·R + L̄),    W̄ and V̄ from R̄ by the rule for products.

An adjoint is a kernel, so it has an adjoint. It is linear in ȳ: its own adjoint with respect to ȳ is the tangent of F.

Source: Dao et al. 2022, algorithm 4, for general scores and values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tensorattn.adjoining.branches import attempted, branched
from tensorattn.adjoining.emitting import Emitter
from tensorattn.adjoining.rules import Terms, by_logarithm, off_diagonal, terms
from tensorattn.adjoining.saving import Saved, weighted
from tensorattn.kernel import Attempt, IfFinite, Instruction, Kernel, Load, LogSumExp, Normalised, Output
from tensorattn.lowering.liveness import made_within, makes, reads, without_dead
from tensorattn.lowering.unifying import unified
from tensorattn.parts import Register


@dataclass(slots=True)
class Sweep:
    """A pass over instructions from the last to the first; `bars`: what the cotangent of each register is made of."""

    e: Emitter
    active: frozenset[str]
    makers: Mapping[str, Instruction]
    bars: dict[str, list[Register]] = field(default_factory=dict)

    def add(self, register: Register, bar: Register) -> None:
        """One more term of the cotangent of a register; it may lack axes along which it is constant."""
        if register.name in self.active:
            self.bars.setdefault(register.name, []).append(self.e.cast(bar, register.dtype))

    def of(self, register: Register) -> Register | None:
        found = self.bars.get(register.name)
        return None if not found else self.e.total(found, register.axes)

    def rule(self, made: Instruction, bar: Register) -> Terms:
        """What the cotangent of a result gives to the operands. Raises: RefusalError."""
        return terms(self.e, made, bar)

    def back(self, body: Sequence[Instruction], saved: Saved | None = None) -> None:
        """From the cotangents of results to those of what the body reads. Raises: RefusalError."""
        for made in reversed(body):
            bar = self.of(made.out)  # type: ignore[union-attr]  # what else an instruction makes is a constant
            if isinstance(made, Attempt):
                found = attempted(self, made)
            elif bar is None:
                continue
            elif isinstance(made, IfFinite):
                found = branched(self, made, bar)
            elif isinstance(made, Normalised) and saved is not None and made.out.name in saved.clusters:
                found = weighted(self.e, made, bar, saved, self.of)
            elif isinstance(made, LogSumExp) and saved is not None and not saved.exact:
                found = by_logarithm(self.e, made, bar)
            else:
                found = self.rule(made, bar)
            for operand, term in found:
                self.add(operand, term)


def activity(body: Sequence[Instruction], wanted: frozenset[str]) -> frozenset[str]:
    """The names of the float registers that depend on these registers, with them."""
    found = set(wanted)
    for made in body:
        if any(r.name in found for r in reads(made)):
            found |= {r.name for r in makes(made) if r.dtype.startswith("float")}
    return frozenset(found)


def adjoint(
    kernel: Kernel,
    given: Sequence[bool],
    wanted: Sequence[str],
    dtypes: Mapping[str, str],
    saved: Saved | None = None,
    sweeping: type[Sweep] = Sweep,
) -> Kernel:
    """The kernel of the cotangents of the inputs `wanted`, one for each place where one is read: `gradient_names`.

    Its inputs are those of the kernel, what was saved, and cotangents of the outputs that are `given`. `dtypes`: of the
    inputs, for their gradients have the same. `sweeping`: the pass, with its rules. Raises: RefusalError where there is
    no rule for some instruction.
    """
    e = Emitter(_stem(kernel))
    loads = [i for i in kernel.body if isinstance(i, Load) and i.input in wanted and i.out.dtype.startswith("float")]
    body = kernel.body if saved is None else saved.remade(e, kernel.body)
    makers = {r.name: i for i in body for r in makes(i)}
    sweep = sweeping(e, activity(kernel.body, frozenset(load.out.name for load in loads)), makers)
    e.body[:] = body
    names = []
    for number, (output, there) in enumerate(zip(kernel.outputs, given, strict=True)):
        if there:
            names.append(f"{e.stem}cotangent {number}")
            sweep.add(output.register, _loaded(e, output, names[-1]))
    sweep.back(kernel.body, saved)
    outputs = tuple(_gradient(e, load, sweep.of(load.out), dtypes[load.input]) for load in loads)
    inputs = (*kernel.inputs, *(() if saved is None else saved.inputs), *names)
    live = without_dead(tuple(e.body), tuple(o.register for o in outputs))
    return unified(Kernel(inputs, kernel.sizes, live, outputs))


def gradient_names(kernel: Kernel, wanted: Sequence[str]) -> list[str]:
    """Of which input each output of the adjoint is a cotangent; those of one input add up."""
    loads = [i for i in kernel.body if isinstance(i, Load) and i.out.dtype.startswith("float")]
    return [load.input for load in loads if load.input in wanted]


def _stem(kernel: Kernel) -> str:
    """The beginning of names that no register and no input of the kernel has."""
    names = {r.name for r in made_within(kernel.body)} | set(kernel.inputs)
    return next(stem for n in range(len(names) + 1) if not any(name.startswith(stem := f"d{n}_") for name in names))


def _loaded(e: Emitter, output: Output, name: str) -> Register:
    flat = tuple(index for axis in output.axes for index in axis)
    return e.emit(Load(e.register(flat, output.register.dtype), name, output.axes))


def _gradient(e: Emitter, load: Load, bar: Register | None, dtype: str) -> Output:
    """The cotangent in the axis order of the input, 0 off a diagonal that was read, and where nothing depends on it."""
    found = bar if bar is not None else e.full(0, load.out.axes, load.out.dtype)
    value = off_diagonal(e, found, [index for split in load.splits for index in split])
    axes = iter(value.axes)
    groups = tuple(tuple(next(axes) for _ in split) for split in load.splits)
    return Output(f"gradient {load.input}", value, groups, dtype)


__all__ = ["Saved", "adjoint", "gradient_names"]
