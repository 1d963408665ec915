"""Inputs for a program from the sizes of its indices, and programs compared with the reference."""

from __future__ import annotations

import random
from collections.abc import Mapping
from math import prod

import numpy as np

import tensorattn as ta
from tensorattn import reference
from tensorattn.ir import Affine, Concatenate, Index, Split, Tensor, walk
from tensorattn.program import Program

SIZES = (0, 1, 2, 3, 5, 7)


def some_sizes(program: Program, rnd: random.Random) -> dict[str, int]:
    """A size for every index of a program, perhaps one of them 0 or 1; what stands in one slot is equally long."""
    same: dict[str, str] = {}
    first: dict[str, Tensor] = {}
    for node in (n for s in program.statements for n in walk(s.body)):
        for index in sorted(node.free):
            same.setdefault(index.name, index.name)
        if isinstance(node, Tensor):
            for a, b in zip(first.setdefault(node.name, node).slots, node.slots, strict=True):
                if isinstance(a, Index) and isinstance(b, Index):
                    same = {name: same[a.name] if r == same[b.name] else r for name, r in same.items()}
    drawn = {representative: rnd.choice(SIZES[2:]) for representative in same.values()}
    if rnd.random() < 0.5:
        drawn[rnd.choice(list(drawn))] = rnd.choice(SIZES[:2])
    sizes = {name: drawn[representative] for name, representative in same.items()}
    for node in (n for s in program.statements for n in walk(s.body)):
        if isinstance(node, Concatenate):
            sizes[node.index.name] = sum(sizes[part.name] for part in node.parts)
    return sizes


def inputs(program: Program, sizes: Mapping[str, int], rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Normal numbers for every input; an axis that is read at fixed positions has three entries."""
    arrays = {}
    for tensor in program.tensors:
        if tensor.name in program.inputs:
            arrays[tensor.name] = rng.normal(size=[_length(slot, sizes) for slot in tensor.slots])
    return arrays


def _length(slot: object, sizes: Mapping[str, int]) -> int:
    match slot:
        case Index(name=name):
            return sizes[name]
        case Split(indices=indices):
            return prod(sizes[i.name] for i in indices)
        case Affine():
            return 3
    raise TypeError(slot)


def agree(program: Program, other: Program, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int]) -> None:
    """Two programs with the same last statement by definition, in the reference."""
    name = program.statements[-1].name
    wanted = reference.evaluate(program, arrays, sizes)[name]
    scale = reference.magnitude(program, arrays, sizes)[name]
    found = reference.evaluate(other, arrays, sizes)[name]
    close(found, wanted, scale)


def close(found: np.ndarray, wanted: np.ndarray, scale: np.ndarray, tolerance: float = 1e-10) -> None:
    assert found.shape == wanted.shape
    assert np.array_equal(np.isnan(found), np.isnan(wanted))
    finite = np.isfinite(wanted)
    assert np.array_equal(found[~finite & ~np.isnan(wanted)], wanted[~finite & ~np.isnan(wanted)])
    assert (np.abs(found - wanted)[finite] <= tolerance * (1 + scale[finite])).all()


def compiled_agrees(
    program: Program, arrays: Mapping[str, np.ndarray], sizes: Mapping[str, int], **options: str
) -> None:
    """The compiled program, in NumPy and torch, with the reference."""
    import torch

    name = program.statements[-1].name
    wanted = reference.evaluate(program, arrays, sizes)[name]
    scale = reference.magnitude(program, arrays, sizes)[name]
    compiled = ta.compile(program, sizes=sizes, **options)
    with np.errstate(all="ignore"):
        close(compiled(dict(arrays)), wanted, scale)
    close(compiled({n: torch.tensor(a) for n, a in arrays.items()}).numpy(), wanted, scale)
