"""Compiled formulas as one operator that is closed under differentiation.

`tensorattn::run(key, tensors)` computes the unit of a key (units.py). To torch it is opaque: one node of a graph,
whatever loops run inside, with shapes as polynomials in the sizes. `Formula` says how it is differentiated and mapped:
every derivative is the operator again at a longer key, so that all orders of all modes stream. What is kept between the
passes is inputs, outputs and the log Σ exp of the scores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.autograd import forward_ad

from tensorattn.sizes import Size
from tensorattn.units import length, stepped, unit

Tensors = tuple[torch.Tensor, ...]


@torch.library.custom_op("tensorattn::run", mutates_args=())
def run(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of the unit of a key."""
    made = unit(key)
    sizes = made.sizes([x.shape for x in tensors])
    function = made.function("torch", sizes, str(tensors[0].device))
    with torch.no_grad():
        found = function(*[x.detach() for x in tensors])
    return list(found)


@run.register_fake
def _run_fake(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return _like_outputs(key, tensors, tensors[0].new_empty)


def _like_outputs(key: str, tensors: Sequence[torch.Tensor], make: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the shapes and dtypes of the outputs."""
    made = unit(key)
    sizes = made.sizes([x.shape for x in tensors])
    shapes = [[length(Size.product(i.name for i in axis), sizes) for axis in output.axes] for output in made.outputs]
    dtypes = [getattr(torch, output.dtype) for output in made.outputs]
    return [make(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


@run.register_vmap
def _run_vmap(
    info: Any, dims: Any, key: str, tensors: list[torch.Tensor]
) -> tuple[list[torch.Tensor], list[int | None]]:
    key, moved = _mapped(key, tensors, dims[1])
    return run(key, moved), [0 if there else None for there in unit(key).mapped]


def _mapped(key: str, tensors: Sequence[torch.Tensor], dims: Sequence[int | None]) -> tuple[str, list[torch.Tensor]]:
    """The key with one more first axis, and the inputs that have it with it in front."""
    moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)]
    return stepped(key, "vmap", tuple(dim is not None for dim in dims)), moved


class Formula(torch.autograd.Function):
    """The calculus of the operator. Inputs: a key, and tensors; all outputs of the unit, also those that are kept."""

    @staticmethod
    def forward(key: str, *tensors: torch.Tensor) -> Tensors:
        return tuple(run(key, list(tensors)))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensors) -> None:
        key, *tensors = inputs
        made = unit(key)
        kept = [output[n] for n in made.kept]
        ctx.key, ctx.count = key, len(output)
        ctx.save_for_backward(*tensors, *kept)
        ctx.save_for_forward(*tensors, *kept)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o in output if not o.is_floating_point()))

    @staticmethod
    def backward(ctx: Any, *bars: torch.Tensor | None) -> tuple[Any, ...]:
        made = unit(ctx.key)
        names, floats = made.kernel.inputs, made.floats
        wanted = [n for n, f, need in zip(names, floats, ctx.needs_input_grad[1:], strict=True) if f and need]
        there = [b for b in bars if b is not None]
        if not wanted or not there:
            return (None, *(None for _ in names))
        key = stepped(ctx.key, "adjoint", tuple(b is not None for b in bars), tuple(wanted))
        found = Formula.apply(key, *ctx.saved_tensors, *there)
        sums = _summed(unit(key).gradients, found)
        return (None, *(sums.get(name) for name in names))

    @staticmethod
    def jvp(ctx: Any, _: None, *tangents: torch.Tensor | None) -> tuple[Any, ...]:
        made = unit(ctx.key)
        with forward_ad._set_fwd_grad_enabled(True):
            known = _primal(tangents)
            given = tuple(t is not None and f for t, f in zip(known, made.floats, strict=True))
            if not any(given):
                return (None,) * ctx.count
            key = stepped(ctx.key, "tangent", given)
            by_name = dict(zip(made.kernel.inputs, known, strict=True))
            takes = [by_name[name] for name in unit(key).takes]
            tensors = _primal(ctx.saved_tensors)
            sums = _summed(unit(key).gradients, Formula.apply(key, *tensors, *takes))
            inputs = tensors[: len(known)]
            zeros = _like_outputs(ctx.key, inputs, inputs[0].new_zeros)  # type: ignore[arg-type, union-attr]
            return tuple(sums.get(n, zero) for n, zero in enumerate(zeros))

    @staticmethod
    def vmap(
        info: Any, dims: tuple[Any, ...], key: str, *tensors: torch.Tensor
    ) -> tuple[Tensors, tuple[int | None, ...]]:
        key, moved = _mapped(key, tensors, dims[1:])
        return Formula.apply(key, *moved), tuple(0 if there else None for there in unit(key).mapped)


def _summed(names: Sequence[Any], found: Sequence[torch.Tensor]) -> dict[Any, torch.Tensor]:
    """The terms of each name added up."""
    sums: dict[Any, torch.Tensor] = {}
    for name, term in zip(names, found, strict=True):
        sums[name] = sums[name] + term if name in sums else term
    return sums


def _primal(tensors: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
    """The tensors without the tangents of this level: torch turns forward derivatives off inside `jvp`, so that an
    outer level would see none and its answer would silently be zero (pytorch issue 197867); here they are on again."""
    return [torch._VF._unpack_dual(x, level=0)[0] if x is not None and x.is_floating_point() else x for x in tensors]


@torch.compiler.allow_in_graph
def differentiable(key: str, *tensors: torch.Tensor) -> Tensors:
    """The outputs of a key with all their derivatives; dynamo puts the call into its graph as it is."""
    return Formula.apply(key, *tensors)


def _number(value: Any, device: torch.device | None) -> torch.Tensor:
    """A Python number as a tensor without axes that loses nothing of it."""
    dtype = torch.float64 if isinstance(value, float) else torch.bool if isinstance(value, bool) else torch.int64
    return torch.full((), value, dtype=dtype, device=device)


def operation(key: str, scalars: Sequence[bool]) -> Callable[..., Tensors]:
    """The program of a key as a function of its inputs; `scalars`: which of them are Python numbers."""
    count = unit(key).saved.first  # type: ignore[union-attr]

    def formula(*values: Any) -> Tensors:
        device = next((v.device for v in values if isinstance(v, torch.Tensor)), None)
        tensors = [_number(v, device) if s else v for v, s in zip(values, scalars, strict=True)]
        return tuple(differentiable(key, *tensors)[:count])

    return formula
