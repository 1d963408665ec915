"""Every code has an example that raises just it, a repaired form that does not, and its place in docs/errors.md."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path

import pytest

import tensorattn as ta
from tensorattn import codes
from tensorattn.source import Source, Span

ROOT = Path(__file__).resolve().parent.parent
CODES = [pytest.param(code, condition, id=code) for code, condition in codes.CODES.items()]


@pytest.mark.parametrize(("code", "condition"), CODES)
def test_the_example_raises_its_code_and_says_what_to_write(code: str, condition: codes.Condition) -> None:
    error = condition.example.error()
    assert error is not None
    assert error.code == code
    assert error.what
    assert error.hint
    assert str(error).startswith(f"{code}: {error.what}")
    assert f"help: {error.hint}" in str(error)


@pytest.mark.parametrize(("code", "condition"), CODES)
def test_the_repaired_form_is_accepted(code: str, condition: codes.Condition) -> None:
    condition.repaired.run()


@pytest.mark.parametrize(("code", "condition"), CODES)
def test_an_error_survives_pickling_and_copying(code: str, condition: codes.Condition) -> None:
    error = condition.example.error()
    assert error is not None
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert (again.code, again.spans, again.facts, again.hint) == (error.code, error.spans, error.facts, error.hint)


def test_a_repaired_form_raises_nothing_and_has_no_error() -> None:
    condition = codes.CODES["E-DANGLING"]
    assert condition.repaired.error() is None


def test_every_code_of_the_source_has_a_condition() -> None:
    used: set[str] = set()
    for path in (ROOT / "tensorattn").rglob("*.py"):
        if path.name != "codes.py":
            used.update(re.findall(r'"(E-[A-Z0-9]+)"', path.read_text()))
    assert used == codes.CODES.keys()


def test_the_page_is_up_to_date(pytestconfig: pytest.Config) -> None:
    path = ROOT / "docs" / "errors.md"
    if pytestconfig.getoption("--update-golden"):
        path.write_text(codes.page())
    assert path.read_text() == codes.page(), "python -m tensorattn.codes > docs/errors.md"


@pytest.mark.parametrize("text", ["y_i = A_<i j>", "y_i = M_ij", "y_i = (x_i"])
def test_an_error_of_a_text_is_a_syntax_error_with_its_place(text: str) -> None:
    with pytest.raises(SyntaxError) as caught:
        ta.parse("z = 1\n" + text, name="some.attn")
    error = caught.value
    assert isinstance(error, ta.NotationError)
    assert isinstance(error, ta.TensorattnError)
    assert isinstance(error, ValueError)
    assert (error.filename, error.lineno, error.text) == ("some.attn", 2, text)
    assert error.source is not None
    assert error.offset == error.source.line_of(error.spans[0].start)[1]


def test_a_text_without_a_name_says_formula() -> None:
    with pytest.raises(ta.NotationError) as caught:
        ta.parse("y_i = A_<i j>")
    assert caught.value.filename == "<formula>"


def test_errors_have_a_class_for_each_stage() -> None:
    kinds = {code: type(condition.example.error()) for code, condition in codes.CODES.items()}
    assert {c for c, k in kinds.items() if k is ta.ShapeError} == {
        "E-RANK",
        "E-EXTENT",
        "E-SPLIT",
        "E-BATCH",
        "E-RANGE",
    }
    assert {c for c, k in kinds.items() if k is ta.BindingError} == {"E-UNDEF", "E-INPUT", "E-GRAD", "E-INDEX"}
    assert kinds["E-DTYPE"] is ta.DTypeError
    assert kinds["E-PLAN"] is ta.PlanError
    assert kinds["E-BUDGET"] is ta.BudgetError
    assert issubclass(ta.BudgetError, ta.PlanError)
    assert kinds["E-BACKEND"] is ta.BackendError
    assert kinds["E-EMPTY"] is ta.latent.EmptyError
    assert issubclass(ta.latent.EmptyError, ta.ShapeError)
    assert kinds["E-VALUE"] is ta.latent.ValueRefusedError
    late = {
        "E-EMPTY",
        "E-VALUE",
        "E-RANK",
        "E-EXTENT",
        "E-SPLIT",
        "E-BATCH",
        "E-RANGE",
        "E-UNDEF",
        "E-INPUT",
        "E-GRAD",
        "E-INDEX",
        "E-DTYPE",
        "E-PLAN",
        "E-BUDGET",
    }
    assert {c for c, k in kinds.items() if k is ta.NotationError} == codes.CODES.keys() - late - {"E-BACKEND"}


def test_carets_stand_under_every_offender() -> None:
    source = Source("ab cd\n\tef gh\n")
    assert source.draw((Span(0, 2), Span(3, 5))) == "   1 | ab cd\n       ^^ ^^"
    assert source.draw((Span(7, 9), Span(0, 1))) == "   1 | ab cd\n       ^\n   2 |  ef gh\n        ^^"
    assert source.draw((Span(5, 5),)) == "   1 | ab cd\n            ^"
    assert source.line_of(7) == (2, 2, "\tef gh")
