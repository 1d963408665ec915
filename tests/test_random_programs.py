"""Compiled programs against the reference, over random formulas, sizes (0 and 1 among them) and dtypes."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import reference as oracle
from tests.strategies import Example, examples

SETTINGS = settings(
    max_examples=100, derandomize=True, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
FEWER = settings(SETTINGS, max_examples=40)


pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


def allowed(example: Example, program: ta.Program) -> dict[str, np.ndarray]:
    """The rounding error that a right evaluation may have: relative to the same sums of absolute values."""
    half = any(array.dtype == np.float32 for array in example.inputs.values())
    scale = oracle.magnitude(program, example.inputs, example.sizes, example.names)
    return {name: (1e-5 if half else 1e-10) * (array + 1e-3) for name, array in scale.items()}


def values(example: Example, program: ta.Program | str, arrays: dict[str, object]) -> dict[str, np.ndarray]:
    compiled = ta.compile(program, sizes=example.sizes or None, outputs=example.names)
    result = compiled(arrays)
    named = result if isinstance(result, dict) else {example.names[0]: result}
    return {name: np.asarray(array) for name, array in named.items()}


def agree(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray], error: dict[str, np.ndarray]) -> None:
    for name, value in wanted.items():
        assert found[name].shape == value.shape, name
        assert np.isfinite(value).all(), name
        assert (np.abs(found[name] - value) <= error[name]).all(), (name, found[name], value)


@given(examples())
@SETTINGS
def test_numpy_and_torch_agree_with_the_reference(example: Example) -> None:
    program = ta.parse(example.text)
    wanted = oracle.evaluate(program, example.inputs, example.sizes, example.names)
    error = allowed(example, program)
    found = values(example, program, example.inputs)
    agree(found, wanted, error)
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in example.inputs.items()}
    by_torch = values(example, program, tensors)
    agree(by_torch, wanted, error)
    assert {n: a.dtype for n, a in by_torch.items()} == {n: a.dtype for n, a in found.items()}


def shows_a_nan(example: Example) -> bool:
    """Whether NaN has one place to go: 0 · NaN of a delta depends on what is summed first."""
    return "delta" not in example.text


@given(examples().filter(shows_a_nan), st.integers(0, 2**32))
@SETTINGS
def test_a_nan_reaches_what_it_reaches_in_the_reference(example: Example, seed: int) -> None:
    program, poisoned = ta.parse(example.text), example.poisoned(random.Random(seed))
    wanted = oracle.evaluate(program, poisoned.inputs, example.sizes, example.names)
    error = allowed(example, program)
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in poisoned.inputs.items()}
    for arrays in (poisoned.inputs, tensors):
        for name, array in values(example, program, arrays).items():
            np.testing.assert_array_equal(np.isnan(array), np.isnan(wanted[name]), err_msg=name)
            clean = ~np.isnan(array)
            room = error[name] * (10 + np.abs(wanted[name]) / 1e-3)  # a ranking that saw NaN weighs other values
            assert (np.abs(array - wanted[name])[clean] <= room[clean]).all()


def shows_an_infinity(example: Example) -> bool:
    """As above; and exp(∞) / Σ exp is a softmax, whose row with +∞ is NaN, where the quotient has zeros in it."""
    return shows_a_nan(example) and "l1norm" not in example.text


@given(examples().filter(shows_an_infinity), st.integers(0, 2**32))
@SETTINGS
def test_an_infinity_reaches_what_it_reaches_in_the_reference(example: Example, seed: int) -> None:
    """An infinity in a product may become NaN, as what is summed first may be 0; but nothing else may happen."""
    program, poisoned = ta.parse(example.text), example.poisoned(random.Random(seed), (np.inf, -np.inf))
    wanted = oracle.evaluate(program, poisoned.inputs, example.sizes, example.names)
    error = allowed(example, program)
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in poisoned.inputs.items()}
    for arrays in (poisoned.inputs, tensors):
        for name, array in values(example, program, arrays).items():
            finite = np.isfinite(wanted[name])
            np.testing.assert_array_equal(np.isfinite(array), finite, err_msg=name)
            room = error[name] * (10 + np.abs(wanted[name]) / 1e-3)
            assert (np.abs(array[finite] - wanted[name][finite]) <= room[finite]).all()
            known = np.isinf(wanted[name]) & np.isinf(array)
            np.testing.assert_array_equal(array[known], wanted[name][known], err_msg=name)


@given(examples())
@FEWER
def test_a_printed_program_reads_back(example: Example) -> None:
    program = ta.parse(example.text)
    again = ta.parse(str(program))
    assert again == program
    assert hash(again) == hash(program)
    assert str(again) == str(program)


@given(examples())
@FEWER
def test_the_names_of_summed_indices_change_nothing(example: Example) -> None:
    other = example.renamed()
    program, again = ta.parse(example.text), ta.parse(other.text)
    assert again == program
    assert hash(again) == hash(program)
    found, wanted = values(other, again, example.inputs), values(example, program, example.inputs)
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, strict=True, err_msg=name)


@given(examples(), st.integers(0, 2**32))
@FEWER
def test_the_order_of_factors_changes_no_value(example: Example, seed: int) -> None:
    program, again = ta.parse(example.text), ta.parse(example.reordered(random.Random(seed)).text)
    wanted = oracle.evaluate(program, example.inputs, example.sizes, example.names)
    agree(values(example, again, example.inputs), wanted, allowed(example, program))


@given(examples())
@FEWER
def test_the_check_knows_every_shape(example: Example) -> None:
    program = ta.parse(example.text)
    shapes = {name: array.shape for name, array in example.inputs.items()}
    checked = ta.check(program, shapes, sizes=example.sizes or None)
    for name, array in oracle.evaluate(program, example.inputs, example.sizes, example.names).items():
        assert tuple(int(size) for size in checked.tensors[name]) == array.shape
