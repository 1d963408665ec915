"""Gradient programs compared with torch's automatic differentiation of the formula itself, planned densely."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

import tensorattn as ta
from tensorattn.program import Program

Arrays = Mapping[str, np.ndarray]


def by_torch(program: Program, wrt: Sequence[str], arrays: Arrays, seed: np.ndarray, sizes=None) -> list[np.ndarray]:
    """The gradients of Σ seed · output, in float64."""
    tensors = {n: torch.tensor(a, requires_grad=n in wrt) for n, a in arrays.items() if n in program.inputs}
    result = ta.compile(program, sizes=sizes, plan="dense")(tensors)
    if not result.requires_grad:
        return [np.zeros(arrays[n].shape) for n in wrt]
    found = torch.autograd.grad(result, [tensors[n] for n in wrt], torch.tensor(seed), allow_unused=True)
    return [np.zeros(arrays[n].shape) if g is None else g.numpy() for n, g in zip(wrt, found, strict=True)]


def by_program(gradient: Program, count: int, arrays: Arrays, sizes=None, **options: object) -> list[np.ndarray]:
    """What the last `count` statements of a gradient program are."""
    names = gradient.defined[-count:]
    results = ta.compile(gradient, outputs=names, sizes=sizes, **options)(dict(arrays))
    return [np.asarray(results[name]) for name in names]


def seed_of(program: Program, arrays: Arrays, sizes=None) -> np.ndarray:
    """A random cotangent for the last statement."""
    shape = np.shape(ta.compile(program, sizes=sizes, plan="dense")({n: arrays[n] for n in program.inputs}))
    return np.random.default_rng(3).normal(size=shape)


def agree(
    program: Program | str,
    wrt: Sequence[str],
    arrays: Arrays,
    sizes=None,
    *,
    torch_too: bool = False,
    **options: object,
) -> Program:
    """The gradient program against torch; returned."""
    program = ta.parse(program) if isinstance(program, str) else program
    gradient = ta.grad(program, wrt)
    assert ta.parse(str(gradient)) == gradient
    (name,) = set(gradient.inputs) - set(program.inputs)
    seed = seed_of(program, arrays, sizes)
    wanted = by_torch(program, wrt, arrays, seed, sizes)
    given = {**arrays, name: seed}
    close(by_program(gradient, len(wrt), given, sizes, **options), wanted)
    if torch_too:
        tensors = {n: torch.tensor(a) for n, a in given.items()}
        close(by_program(gradient, len(wrt), tensors, sizes, **options), wanted)
    return gradient


def close(found: Sequence[np.ndarray], wanted: Sequence[np.ndarray], tolerance: float = 1e-10) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * (1 + np.abs(other).max(initial=0)))


def differences(program: Program, name: str, arrays: Arrays, seed: np.ndarray, sizes=None) -> np.ndarray:
    """The gradient of Σ seed · output by central differences."""
    compiled, step = ta.compile(program, sizes=sizes, plan="dense"), 1e-6
    base = arrays[name]
    found = np.zeros(base.shape)
    for place in np.ndindex(base.shape):
        sides = []
        for sign in (1, -1):
            moved = base.copy()
            moved[place] += sign * step
            sides.append((seed * compiled({**arrays, name: moved})).sum())
        found[place] = (sides[0] - sides[1]) / (2 * step)
    return found


def normal(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}
