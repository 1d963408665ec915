"""Formulas as they were printed in papers, notes and code, and the page that lists them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import tensorattn as ta
from tests import corpus, seeds

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
PRINTED = [pytest.param(entry, id=str(number)) for number, entry in enumerate(seeds.load())]
SIZES = dict(zip("mu nu rho kappa i j m n".split(), (3, 4, 5, 7, 2, 6, 8, 9), strict=True))


@pytest.mark.parametrize("entry", PRINTED)
def test_printed_formulas(entry: seeds.Entry) -> None:
    text = entry["text"]
    if "value" in entry:
        rng = np.random.default_rng(1)
        inputs = entry.get("matrix") or entry["inputs"]
        arrays = {name: rng.normal(size=[SIZES[a] for a in axes.split()]) for name, axes in inputs.items()}
        expected = eval(entry["value"], {"np": np, "sm": corpus.softmax, **arrays})
        found = ta.compile(ta.parse(text, axes=entry.get("matrix")))(arrays)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-10)
        assert found.shape == tuple(SIZES[a] for a in entry["axes"].split())
    elif "reads" in entry:
        assert str(ta.parse(text)) == entry["reads"]
    else:
        with pytest.raises(ta.TensorattnError) as caught:
            ta.parse(text)
        error = caught.value
        assert (error.code, text[error.span.start : error.span.end]) == (entry["error"], entry["caret"]), str(error)
        assert entry["repair"] in str(error.hint)
        assert ta.parse(entry["repaired"]).statements


@pytest.mark.parametrize("entry", [entry for entry in seeds.load() if "matrix" in entry])
def test_a_formula_of_matrices_needs_axes(entry: seeds.Entry) -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse(entry["text"])
    assert caught.value.code == entry["error"]
    assert caught.value.hint


def attempt(text: str) -> ta.Program | ta.TensorattnError:
    try:
        return ta.parse(text)
    except ta.TensorattnError as error:
        return error


def test_formulas_found_in_the_field() -> None:
    """What people print: read, or refused with a repair; nothing else comes out."""
    found = corpus.printed()
    results = {name: attempt(text) for name, text in found.items()}
    for name, result in results.items():
        if isinstance(result, ta.TensorattnError):
            assert result.hint, name
            assert all(0 <= span.start <= span.end <= len(found[name]) + 1 for span in result.spans), name
    formulas = {entry["id"]: corpus.formula(entry) for entry in corpus.load("accept")}
    assert [name for name, result in results.items() if result == ta.parse(formulas[name])] == [
        "S03-output",
        "S07-joint-output",
        "S08-a",
        "S09-b",
    ]
    renamed = {  # the notes write a bar or a tilde over the name
        "S00-logits": {"Wbar": "W"},
        "S05-trilinear-logits": {"Wbar": "W"},
        "S04-mhdpa-program": {"Wbar": "W"},
        "S11-final-repaired": {"Mtilde": "N"},
        "S02-weights": {"out": "P"},
    }
    for name, names in renamed.items():
        assert results[name].rename(**names) == ta.parse(formulas[name]), name


def test_the_page_lists_every_printed_formula() -> None:
    page = (Path(__file__).parent.parent / "docs" / "spellings.md").read_text(encoding="utf-8")
    assert page.endswith(f"{seeds.table()}\n"), "the table of the page is seeds.table()"


def test_the_page_tells_the_truth() -> None:
    """Every row of its tables whose plain side is a formula, and every refusal."""
    page = (Path(__file__).parent.parent / "docs" / "spellings.md").read_text(encoding="utf-8")
    checked = 0
    for left, right in re.findall(r"^\| (`.*) \| (`.*) \|$", page.split("## What is refused")[0], re.MULTILINE):
        written, plain = re.findall(r"`([^`]+)`", left), re.findall(r"`([^`]+)`", right)
        for text, meant in zip(written, plain * (len(written) // len(plain)), strict=False):
            if isinstance(attempt(meant), ta.Program):
                assert attempt(text) == ta.parse(meant), text
                checked += 1
    assert checked > 25
    refused = page.split("## What is refused")[1].split("## Formulas")[0]
    for examples, code in re.findall(r"^\| (.*?) \| `(E-\w+)` \|", refused, re.MULTILINE):
        for text in re.findall(r"`([^`]+)`", examples):
            error = attempt(text)
            assert isinstance(error, ta.TensorattnError), text
            assert error.code == code, text
