"""examples/training.py in a small size: the curves, the formula beside torch and beside loops, the picture."""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.library.reading import read_entry

EXAMPLE = Path(__file__).parent.parent / "examples" / "training.py"
SMALL = {"steps": 8, "batch": 4, "context": 12, "width": 16, "heads": 2, "layers": 1}
OPTIONS = [text for name, size in SMALL.items() for text in (f"--{name}", str(size))]


@pytest.fixture(scope="module")
def training():
    spec = importlib.util.spec_from_file_location("example_training", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass looks its module up
    spec.loader.exec_module(module)
    return module


def test_curves_of_the_formula_and_of_torch_agree_and_fall(training, tmp_path, capsys):
    found = training.main([*OPTIONS, "--steps", "25", "--picture", str(tmp_path / "curve.svg")])
    assert set(found) == {"formula", "torch", "joint"}
    np.testing.assert_allclose(found["formula"], found["torch"], rtol=0, atol=1e-4)
    for losses in found.values():
        assert len(losses) == 25
        assert np.mean(losses[-5:]) < np.mean(losses[:5]) - 0.2
    printed, complaints = capsys.readouterr()
    assert "the same curve" in printed
    assert complaints == ""
    if importlib.util.find_spec("matplotlib") is None:
        assert training.NO_PICTURE in printed
    else:
        assert (tmp_path / "curve.svg").read_text().count("<svg") == 1


def test_a_difference_is_noticed(training, monkeypatch, tmp_path):
    scaled = training.FORMULA.replace("/ sqrt(|c|)", "/ 2")
    assert scaled != training.FORMULA
    monkeypatch.setattr(training, "FORMULA", scaled)
    with pytest.raises(AssertionError, match="the curves of the formula and of torch are"):
        training.main([*OPTIONS, "--picture", str(tmp_path / "curve.svg")])


def test_joint_attention_is_that_of_loops(training):
    rng, (t, h, c) = np.random.default_rng(0), (5, 2, 3)
    q, k, v = (rng.normal(size=(1, h, t, c)) for _ in range(3))
    y = ta.compile(training.THREE)(q=q, k=k, v=v)
    for head in range(h):
        for row in range(t):
            total, value = 0.0, np.zeros(c)
            for a in range(row + 1):
                for b in range(row + 1):
                    weight = np.exp((q[0, head, row] * k[0, head, a] * k[0, head, b]).sum())
                    total, value = total + weight, value + weight * v[0, head, a] * v[0, head, b]
            np.testing.assert_allclose(y[0, head, row], value / total, rtol=1e-10)


def test_one_line_makes_it_joint(training):
    assert training.JOINT != training.FORMULA
    two, three = (set(text.splitlines()) for text in (training.FORMULA, training.JOINT))
    assert two - three == {training.TWO}
    assert three - two == {training.THREE}


def test_formula_file_states_all_its_inputs(training):
    entry = read_entry("attention", training.FORMULA)
    assert {shape.name for shape in entry.shapes} == set(entry.program.inputs)
    assert entry.formula == str(entry.program)


def test_batches_are_stretches_of_the_text(training):
    corpus, shape = training.Corpus("abcabd" * 20), training.Shape(**SMALL)
    batches = corpus.batches(shape)
    assert len(batches) == 8
    assert torch.equal(batches[3], corpus.batches(shape)[3])
    for ids in batches:
        for row in ids:
            assert "".join(corpus.letters[n] for n in row) in "abcabd" * 20
