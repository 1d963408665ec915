"""What users hand to a compiled formula besides arrays: sizes, names; and the errors for inputs that are not there."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

from tensorattn.errors import BindingError, DTypeError, ShapeError, suggest
from tensorattn.ir import Affine
from tensorattn.program import Program


def given_sizes(what: str, sizes: Any) -> dict[str, int]:
    """A mapping of index names to sizes, checked. Raises: ShapeError `E-EXTENT`."""
    if sizes is not None and not isinstance(sizes, Mapping):
        raise ShapeError("E-EXTENT", f"{what} is {sizes!r}, not a mapping", hint='{"h": 8}')
    found: dict[str, int] = {}
    for name, size in (sizes or {}).items():
        if not isinstance(name, str):
            raise ShapeError("E-EXTENT", f"{what} names {name!r}, which is no index", hint='{"h": 8}')
        try:
            found[name] = -1 if isinstance(size, bool) else index(size)
        except TypeError:
            found[name] = -1
        if found[name] < 0:
            raise ShapeError("E-EXTENT", f"the size of {name} is given as {size!r}", hint="sizes are integers ≥ 0")
    return found


def gathered_sizes(program: Program, arrays: Mapping[str, Any]) -> dict[str, int]:
    """The lengths of the axes of inputs that are read at gathered positions: `table.axis`, batch axes counted."""
    found = {}
    for tensor in program.tensors:
        shape = tuple(getattr(arrays.get(tensor.name), "shape", ()))
        for axis, slot in enumerate(reversed(tensor.slots)):
            if isinstance(slot, Affine) and axis < len(shape):
                found[f"{tensor.name}.{len(shape) - 1 - axis}"] = int(shape[-1 - axis])
    return found


def merged(arrays: Any, named: dict[str, Any]) -> dict[str, Any]:
    """Inputs as a mapping and as keywords together. Raises: BindingError `E-INPUT`."""
    if not isinstance(arrays, Mapping):
        what = f"inputs are given by name, not as a {type(arrays).__name__}"
        raise BindingError("E-INPUT", what, hint="attend(q=q, k=k), or one mapping")
    twice = [name for name in named if name in arrays]
    if twice:
        raise BindingError("E-INPUT", f"the input `{twice[0]}` is given twice", hint="as a keyword or in the mapping")
    return {str(name): array for name, array in arrays.items()} | named


def missing(program: Program, inputs: tuple[str, ...], named: Mapping[str, Any]) -> BindingError:
    """The error for inputs that a call lacks."""
    lacking = [n for n in inputs if n not in named]
    spans = [t.span for t in program.tensors if t.name in lacking and t.span][:1]
    hint = suggest(lacking[0], [n for n in named if n not in inputs]) or f"call with {lacking[0]}=…"
    if lacking[0] == "out":
        hint = 'the keyword `out` is the place of the result; give the input in a mapping: {"out": …}'
    facts = [f"the formula's inputs: {', '.join(inputs)}", f"given: {', '.join(named) or 'none'}"]
    shown = ", ".join(f"`{m}`" for m in lacking)
    what = f"the input {shown} is missing" if len(lacking) == 1 else f"the inputs {shown} are missing"
    source = program.source if spans else None
    return BindingError("E-INPUT", what, source=source, spans=spans, facts=facts, hint=hint)


def check_superfluous(program: Program, inputs: tuple[str, ...], named: Mapping[str, Any]) -> None:
    """Inputs that only other outputs need are allowed. Raises: BindingError `E-UNDEF` for others."""
    for name in named:
        if name not in program.inputs:
            facts = [f"the formula's inputs: {', '.join(inputs)}"]
            hint = suggest(name, inputs) or "remove it"
            raise BindingError("E-UNDEF", f"the formula has no input `{name}`", facts=facts, hint=hint)


def check_numbers(arrays: Mapping[str, Any]) -> None:
    """Raises: DTypeError `E-DTYPE` for a Python integer that int64 does not hold."""
    for name, value in arrays.items():
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise DTypeError("E-DTYPE", f"the integer `{name}` does not fit in 64 bits", hint=f"{name}=float({name})")
