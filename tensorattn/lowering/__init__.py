"""Plan → kernel: dense. Every node becomes one or a few instructions, the weights of a normaliser included."""

from __future__ import annotations

from collections.abc import Mapping

from tensorattn.dtypes import infer, visible
from tensorattn.extents import size_reads as sizes_of
from tensorattn.kernel import Kernel, Output
from tensorattn.lowering.building import Builder
from tensorattn.lowering.expressions import Lowering
from tensorattn.lowering.liveness import without_dead
from tensorattn.plan import Plan
from tensorattn.sizes import SizeRead


def lower(plan: Plan, input_dtypes: Mapping[str, str], size_reads: tuple[tuple[str, SizeRead], ...] = ()) -> Kernel:
    """The kernel of a plan for inputs of these dtypes; `size_reads` says how a call finds the index sizes.

    Raises: DTypeError (`E-DTYPE`) as `dtypes.infer`.
    """
    program, known = plan.program, dict(size_reads)
    size_reads = (
        *size_reads,
        *(read for read in sizes_of(program, _given(known)) if read[0] not in known and "." in read[0]),
    )
    typing = infer(program, input_dtypes)
    lowering = Lowering(plan, typing, Builder(dict(size_reads)), input_dtypes)
    outputs = []
    for statement in program.statements:
        lowering.define(statement)
    for name in plan.outputs:
        statement = program.statement(name)
        register = lowering.result(statement)
        outputs.append(Output(name, register, statement.axes, visible(typing.names[name])))
    body = without_dead(tuple(lowering.builder.body), tuple(o.register for o in outputs))
    sizes = (*size_reads, *lowering.builder.lengths)
    return Kernel(plan.inputs, sizes, body, tuple(outputs))


def _given(reads: Mapping[str, SizeRead]) -> dict[str, int]:
    return {name: read for name, read in reads.items() if isinstance(read, int)}
