"""Compiled formulas as one operator that is closed under differentiation.

`tensorattn::run(key, tensors)` computes the unit of a key (units.py). To torch it is opaque: one node of a graph,
whatever loops run inside, with shapes as polynomials in the sizes. `Formula` says how it is differentiated and mapped:
every derivative is the operator again at a longer key, so that all orders of all modes stream. What is kept between the
passes is inputs, outputs and the log Σ exp of the scores.
"""

# What these ask of torch has no public names there.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._functorch import TransformType, peek_interpreter_stack

from tensorattn.backends.torch import functions as functions  # its operators stand in saved programs, too
from tensorattn.backends.torch import uncast
from tensorattn.backends.torch import weights as weights
from tensorattn.backends.torch.functions import are_fine
from tensorattn.errors import BackendError
from tensorattn.sizes import Size
from tensorattn.units import exactly, length, stepped, unit

Tensors = tuple[torch.Tensor, ...]


LIBRARY = torch.library.Library("tensorattn", "FRAGMENT")
LIBRARY.define("run(str key, Tensor[] tensors) -> Tensor[]", tags=(torch.Tag.pt2_compliant_tag,))
run = torch.ops.tensorattn.run.default


@torch.library.impl(LIBRARY, "run", "CompositeExplicitAutograd")
def _computed(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """The outputs of the unit of a key."""
    made = unit(key)
    if not are_fine([tensors[n] for n in made.logarithms]):
        made = unit(exactly(key))
    sizes = made.sizes([x.shape for x in tensors])
    function = made.function("torch", sizes, str(tensors[0].device))
    with torch.no_grad():
        found = uncast(function, [x.detach() for x in tensors])
    return list(found)  # type: ignore[arg-type]


def _shaped(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return _like_outputs(key, tensors, tensors[0].new_empty)


def _followed(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """With the calculus of `Formula`. Raises: BackendError under `functionalize`, where torch has no functions."""
    top = peek_interpreter_stack()
    if top and top.key() == TransformType.Functionalize:
        what = "torch.func.functionalize cannot go through the operator of this formula"
        raise BackendError("E-BACKEND", what, hint='compile it with plan="dense": plain operations of torch')
    return list(Formula.apply(key, *tensors))


def _mapped_before(key: str, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """For `is_grads_batched=True` and `vectorize=True` of torch.autograd, which map in the way before torch.func."""
    torch._C._vmapmode_increment_nesting()
    depth = torch._C._vmapmode_decrement_nesting()
    at = {level: [_is_mapped(x, level) for x in tensors] for level in range(depth, 0, -1)}
    level, which = next((level, which) for level, which in at.items() if any(which))
    bare = [torch._remove_batch_dim(x, level, 1, 0) if there else x for x, there in zip(tensors, which, strict=True)]
    key = stepped(key, "vmap", tuple(which))
    found = zip(run(key, bare), unit(key).mapped, strict=True)
    return [torch._add_batch_dim(x, 0, level) if there else x for x, there in found]


def _is_mapped(x: torch.Tensor, level: int) -> bool:
    """Whether a tensor is mapped at a level; one that is not takes on any size that is named."""
    return len({torch._remove_batch_dim(x, level, size, 0).shape[0] for size in (0, 1)}) == 1


# Asked of the dispatcher, for the operator has many callers: formulas, exported programs, its own derivatives.
LIBRARY.impl("run", _followed, "Autograd")
LIBRARY.impl("run", _followed, "FuncTorchDynamicLayerFrontMode")
LIBRARY.impl("run", _mapped_before, "Batched")
torch.library.register_fake("tensorattn::run", _shaped)


def _like_outputs(key: str, tensors: Sequence[torch.Tensor], make: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
    """Tensors of the shapes and dtypes of the outputs."""
    made = unit(key)
    sizes = made.sizes([x.shape for x in tensors])
    shapes = [[length(Size.product(i.name for i in axis), sizes) for axis in output.axes] for output in made.outputs]
    dtypes = [getattr(torch, output.dtype) for output in made.outputs]
    return [make(shape, dtype=dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]


class Formula(torch.autograd.Function):
    """The calculus of the operator. Inputs: a key, and tensors; all outputs of the unit, also those that are kept."""

    @staticmethod
    def forward(key: str, *tensors: torch.Tensor) -> Tensors:
        with torch._C._AutoDispatchBelowAutograd():
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
        found = run(key, [*ctx.saved_tensors, *there])
        sums: dict[str, torch.Tensor] = {}
        for name, term in zip(unit(key).gradients, found, strict=True):
            sums[name] = sums[name] + term if name in sums else term
        return (None, *(sums.get(name) for name in names))

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: torch.Tensor | None) -> tuple[Any, ...]:
        """One call and no arithmetic: torch turns forward derivatives off in here, and what is computed beside a
        function has no tangent for an outer level (pytorch issue 197867)."""
        (_, *tangents), made = grad_inputs, unit(ctx.key)
        given = tuple(t is not None and f for t, f in zip(tangents, made.floats, strict=True))
        if not any(given):
            return (None,) * ctx.count
        key = stepped(ctx.key, "tangent", given)
        by_name = dict(zip(made.kernel.inputs, tangents, strict=True))
        found = run(key, [*ctx.saved_tensors, *(by_name[name] for name in unit(key).takes)])
        known = dict(zip(unit(key).gradients, found, strict=True))
        inputs = ctx.saved_tensors[: len(tangents)]
        zeros = _like_outputs(ctx.key, inputs, inputs[0].new_zeros)
        return tuple(known.get(n, zero) for n, zero in enumerate(zeros))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Tensors, tuple[int | None, ...]]:
        (key, *tensors), (_, *dims) = args, in_dims
        moved = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(tensors, dims, strict=True)]
        key = stepped(key, "vmap", tuple(dim is not None for dim in dims))
        return tuple(run(key, moved)), tuple(0 if there else None for there in unit(key).mapped)


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
        return tuple(run(key, tensors)[:count])

    return formula
