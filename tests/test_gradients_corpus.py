"""Gradient programs of the corpus and of random programs against torch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import tensorattn as ta
from tensorattn import reference
from tensorattn.extents import index_names
from tensorattn.planning import prune
from tensorattn.program import Program
from tests import corpus
from tests.gradients import agree, by_program, by_torch, seed_of
from tests.strategies import Example, examples

ENTRIES = [pytest.param(entry, id=entry["id"]) for entry in corpus.load("accept")]
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


@pytest.mark.parametrize("entry", ENTRIES)
def test_the_gradients_of_the_corpus(entry: corpus.Entry) -> None:
    arrays = corpus.make_inputs(entry, np.random.default_rng(0))
    program = prune(ta.parse(corpus.formula(entry)), (entry["output"],))
    floats = [n for n in program.inputs if arrays[n].dtype.kind == "f"]
    agree(program, floats, {n: arrays[n] for n in program.inputs}, entry.get("sizes"), plan="dense")


def _floats(program: Program, example: Example) -> list[str]:
    """The inputs with a gradient that the notation can write: in a program with `...`, those that have it."""
    batched = {t.name for t in program.tensors for s in t.slots if getattr(s, "name", "") == "..."}
    found = [n for n in program.inputs if example.inputs[n].dtype.kind == "f"]
    return [n for n in found if n in batched or not program.batched]


@given(examples())
@settings(max_examples=40, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_gradients_of_random_programs(example: Example) -> None:
    whole = ta.parse(example.text)
    program = prune(whole, (whole.defined[-1],))
    wrt = _floats(program, example)
    sizes = {n: s for n, s in example.sizes.items() if n in index_names(program)}
    arrays = {n: a.astype(float) if a.dtype.kind == "f" else a for n, a in example.inputs.items()}
    arrays = {n: arrays[n] for n in program.inputs}
    try:
        seed = seed_of(program, arrays, sizes)
    except ta.ShapeError:  # a size that only the other statements fix
        return
    if not wrt:
        return
    gradient = ta.grad(program, wrt)
    assert ta.parse(str(gradient)) == gradient
    (name,) = set(gradient.inputs) - set(program.inputs)
    given = {**arrays, name: seed}
    found = by_program(gradient, len(wrt), given, sizes, plan="dense")
    scales = reference.magnitude(gradient, given, sizes, gradient.defined[-len(wrt) :]).values()
    for one, other, scale in zip(found, by_torch(program, wrt, arrays, seed, sizes), scales, strict=True):
        assert one.shape == other.shape
        room = 1e-10 * (1 + np.nan_to_num(scale, nan=1.0, posinf=1.0))
        assert ((np.abs(one - other) <= room) | (np.isnan(one) & np.isnan(other))).all(), (one, other)
