"""Every formula of the corpus, accepted ones by value and refused ones by code and carets."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import reference as oracle
from tests import corpus

ACCEPTED = [pytest.param(entry, id=entry["id"]) for entry in corpus.load("accept")]
REFUSED = [pytest.param(entry, id=entry["id"]) for entry in corpus.load("refuse")]
TOLERANCE = 1e-10
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")  # lints are tested elsewhere


def close(found: object, entry: corpus.Entry, inputs: dict[str, np.ndarray]) -> None:
    expected = corpus.reference(entry, inputs)
    assert list(np.shape(found)) == entry["output_shape"]
    np.testing.assert_allclose(np.asarray(found), expected, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.fixture
def inputs(entry: corpus.Entry) -> dict[str, np.ndarray]:
    return corpus.make_inputs(entry, np.random.default_rng(0))


@pytest.mark.parametrize("entry", ACCEPTED)
def test_the_oracle_gives_the_value(entry: corpus.Entry, inputs: dict[str, np.ndarray]) -> None:
    program = ta.parse(corpus.formula(entry))
    close(oracle.evaluate(program, inputs, sizes=entry.get("sizes"))[entry["output"]], entry, inputs)


@pytest.mark.parametrize("entry", ACCEPTED)
def test_numpy_gives_the_value(entry: corpus.Entry, inputs: dict[str, np.ndarray]) -> None:
    close(ta.compile(corpus.formula(entry), sizes=entry.get("sizes"))(inputs), entry, inputs)


@pytest.mark.parametrize("entry", ACCEPTED)
def test_torch_gives_the_value(entry: corpus.Entry, inputs: dict[str, np.ndarray]) -> None:
    compiled = ta.compile(corpus.formula(entry), sizes=entry.get("sizes"))
    result = compiled({name: torch.tensor(array) for name, array in inputs.items()})
    assert isinstance(result, torch.Tensor)
    close(result.numpy(), entry, inputs)


@pytest.mark.parametrize("entry", ACCEPTED)
def test_the_check_accepts_the_shapes(entry: corpus.Entry) -> None:
    shapes = {name: corpus.shape(axes, entry) for name, axes in entry["inputs"].items()}
    checked = ta.check(ta.parse(corpus.formula(entry)), shapes, sizes=entry.get("sizes"))
    assert entry["output"] in checked.outputs


@pytest.mark.parametrize("entry", ACCEPTED)
def test_the_check_accepts_named_axes(entry: corpus.Entry) -> None:
    shapes = {name: " ".join(axes) for name, axes in entry["inputs"].items()}
    checked = ta.check(ta.parse(corpus.formula(entry)), shapes, sizes=entry.get("sizes"))
    assert entry["output"] in checked.outputs


@pytest.mark.parametrize("entry", ACCEPTED)
def test_the_printed_program_reads_back(entry: corpus.Entry) -> None:
    program = ta.parse(corpus.formula(entry))
    again = ta.parse(str(program))
    assert again == program
    assert hash(again) == hash(program)
    assert str(again) == str(program)


@pytest.mark.parametrize("entry", REFUSED)
def test_a_refused_formula_names_its_fault(entry: corpus.Entry) -> None:
    text = corpus.formula(entry)
    shapes = {name: " ".join(axes) for name, axes in entry["inputs"].items()}
    with pytest.raises(ta.TensorattnError) as caught:
        ta.check(ta.parse(text), shapes)
    error = caught.value
    assert error.code in entry["error"].split("|")
    assert error.hint
    found = []
    for span in error.spans:
        line, column, _ = error.source.line_of(span.start)
        found.append([line, column, column + span.end - span.start])
    assert sorted(found) == entry["carets"], str(error)
