"""Compiled formulas as operators at sizes for which a call would not use one, and what their derivatives are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

import tensorattn as ta
from tensorattn import units
from tensorattn.backends.torch import operator
from tensorattn.specialising import batch_rank

Function = Callable[..., tuple[torch.Tensor, ...]]


def operation(
    text: str, tensors: Mapping[str, torch.Tensor], outputs: Sequence[str] = (), sizes: Mapping[str, int] | None = None,
    plan: str = "streamed", *, halved: bool = False, ratios: Sequence[str] | None = (),
) -> Function:  # fmt: skip
    """The operator of a program as a function of its inputs by name."""
    program = ta.parse(text)
    names = tuple(outputs) or (program.defined[-1],)
    used = ta.compile(program, outputs=names, sizes=sizes).used
    dtypes = {n: str(x.dtype).removeprefix("torch.") for n, x in tensors.items()}
    rank = batch_rank(used, {n: x.ndim for n, x in tensors.items()})
    key = units.key_of(used, names, sizes or {}, dtypes, rank, None, plan, None, halved=halved, ratios=ratios)
    run = operator.operation(key, (False,) * len(used.inputs))
    return lambda **named: run(*[named[n] for n in used.inputs])


def of_floats(function: Function, tensors: Mapping[str, torch.Tensor]) -> tuple[Function, tuple[torch.Tensor, ...]]:
    """The function of the float inputs alone, and those."""
    names = [n for n, x in tensors.items() if x.is_floating_point()]

    def call(*floats: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return function(**{**tensors, **dict(zip(names, floats, strict=True))})

    return call, tuple(tensors[n].detach() for n in names)


def gradients(
    function: Function, inputs: Sequence[torch.Tensor], seed: int, *, order: int = 1
) -> tuple[torch.Tensor, ...]:
    """Vector–Jacobian products of the outputs that are floats, `order` times one of the other."""
    xs = [x.detach().clone().requires_grad_() for x in inputs]
    found: Sequence[torch.Tensor] = [y for y in function(*xs) if y.is_floating_point()]
    make = torch.Generator().manual_seed(seed)
    for n in range(order):
        bars = [torch.randn(y.shape, generator=make, dtype=y.dtype) for y in found]
        pairs = [(y, bar) for y, bar in zip(found, bars, strict=True) if y.requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(x) for x in xs)
        ys, bars = zip(*pairs, strict=True)
        found = torch.autograd.grad(ys, xs, bars, create_graph=n + 1 < order, allow_unused=True, materialize_grads=True)
    return tuple(found)
