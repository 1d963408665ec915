"""What a compiled formula takes and gives: names and axes, in order of first use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorattn.ir import Slot, Split
from tensorattn.program import Program


@dataclass(frozen=True, slots=True)
class Signature:
    """`inputs` and `outputs`: name → axes, each axis as it is written in the formula (first use)."""

    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, tuple[str, ...]]

    def __str__(self) -> str:
        def shown(tensors: Mapping[str, tuple[str, ...]]) -> str:
            return ", ".join(f"{name}[{', '.join(axes)}]" for name, axes in tensors.items())

        return f"{shown(self.inputs)} -> {shown(self.outputs)}"


def signature(program: Program, outputs: tuple[str, ...]) -> Signature:
    """The signature of the statements that these outputs need."""
    from tensorattn.planning import prune

    used = prune(program, outputs)
    inputs: dict[str, tuple[str, ...]] = {}
    for tensor in used.tensors:
        if tensor.name not in used.defined:
            inputs.setdefault(tensor.name, tuple(_axis(s) for s in tensor.slots))
    made = {n: tuple(_axis(a[0] if len(a) == 1 else Split(a)) for a in program.statement(n).axes) for n in outputs}
    return Signature(inputs, made)


def _axis(slot: Slot) -> str:
    from tensorattn.showing import show_slot

    return show_slot(slot)
