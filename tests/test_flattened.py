"""Flattened plans: softmaxes of any arity as two-index attention, equal to the reference, dense plans and torch."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import reference as oracle
from tensorattn.kernel import IfFinite, Instruction, Stream
from tensorattn.lowering import flattening
from tests.attention_formulas import Formula, formulas

SETTINGS = settings(
    max_examples=16, derandomize=True, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


@contextmanager
def chunked(entries: int) -> Iterator[None]:
    """Whatever is built is built in chunks of about so many entries; 0: all at once."""
    names = ("MOST_BUILT", "CHUNK_ENTRIES", "MASK_ENTRIES")
    before = [getattr(flattening, name) for name in names]
    try:
        for name, value in zip(names, (0, entries, entries) if entries else before, strict=True):
            setattr(flattening, name, value)
        yield
    finally:
        for name, value in zip(names, before, strict=True):
            setattr(flattening, name, value)


def instructions(body: tuple[Instruction, ...]) -> Iterator[Instruction]:
    """The instructions at every depth, of branches the fast side."""
    for instruction in body:
        yield instruction
        if isinstance(instruction, IfFinite):
            yield from instructions(instruction.fast)
        if isinstance(instruction, Stream):
            yield from instructions(instruction.body)


def tensors(arrays: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The arrays as tensors of the same strides."""
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def by_both(text: str, arrays: dict[str, np.ndarray], entries: int) -> Iterator[np.ndarray]:
    with chunked(entries):
        for given in (arrays, tensors(arrays)):
            yield np.asarray(ta.compile(text, plan="flattened")(given))


# Values -----------------------------------------------------------------------------------------------------------


@given(formulas(), st.sampled_from((0, 1, 40)))
@SETTINGS
def test_both_back_ends_agree_with_the_reference(formula: Formula, entries: int) -> None:
    program = ta.parse(formula.text)
    wanted = oracle.evaluate(program, formula.inputs)["y"]
    half = any(a.dtype == np.float32 for a in formula.inputs.values())
    allowed = (1e-5 if half else 1e-10) * (oracle.magnitude(program, formula.inputs)["y"] + 1e-3)
    for found in by_both(formula.text, formula.inputs, entries):
        assert found.shape == wanted.shape
        assert (np.abs(found - wanted) <= allowed).all()


@given(formulas(least=1), st.sampled_from((0, 1, 40)), st.integers(0, 2**32))
@SETTINGS
def test_what_is_not_finite_gives_what_the_dense_plan_gives(formula: Formula, entries: int, seed: int) -> None:
    poisoned = formula.poisoned(random.Random(seed), (np.nan, np.inf, -np.inf))
    allowed = 1e-5 * (oracle.magnitude(ta.parse(formula.text), formula.inputs)["y"] + 1e-3)
    both = (poisoned.inputs, tensors(poisoned.inputs))
    for arrays, found in zip(both, by_both(formula.text, poisoned.inputs, entries), strict=True):
        wanted = np.asarray(ta.compile(formula.text, plan="dense")(arrays))
        finite = np.isfinite(wanted)
        np.testing.assert_array_equal(np.isfinite(found), finite)
        far = np.abs(found[finite] - wanted[finite])
        assert (far <= 10 * allowed[finite] + 1e-5 * np.abs(wanted[finite])).all()
