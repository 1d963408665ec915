"""The command line and the spellings of a formula: read from anywhere, shown in each."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.test_cli import ATTENTION, VALUE, files, run  # noqa: F401  the fixture

LATEX = r"$$ W^{\mu\nu} = \frac{q^\mu_i k^\nu_i}{\sqrt{|i|}} $$ $$ y^{\mu}_n = W^{\mu\bar\nu} v^{\bar\nu}_n $$"
UNICODE = "W^⟨μ ν⟩ = q^μᵢ k^νᵢ / √(|i|)\ny^μₙ = W^⟨μ ν̅⟩ v^⟨ν̅⟩ₙ"


@pytest.mark.parametrize("text", [LATEX, UNICODE])
def test_any_spelling_is_read_from_anywhere(files, text):  # noqa: F811
    Path("pasted.tex").write_text(text, encoding="utf-8-sig")
    Path("pasted.attn").write_text(text, encoding="utf-8-sig")
    plain = run("show", ATTENTION).stdout
    for argument, stdin in [(text, None), ("pasted.tex", None), ("pasted.attn", None), ("-", text)]:
        assert run("show", argument, stdin=stdin).stdout == plain
        assert (
            "sizes"
            in run("check", argument, "--shape", "q=3,2", "--shape", "k=5,2", "--shape", "v=5,4", stdin=stdin).stdout
        )
    for command in ("explain", "cost"):
        assert run(command, text, *"-d mu=3 -d nu=5 -d i=2 -d n=4".split()).stdout
    run("run", "pasted.tex", *(part for name in "qkv" for part in ("-i", f"{name}={name}.npy")), "-O", "y.npy")
    np.testing.assert_allclose(np.load("y.npy"), files["y"])


def test_a_mistake_is_shown_in_the_pasted_text(files):  # noqa: F811
    Path("pasted.tex").write_text("\ufeff% scores\r\n$ W^{\\mu} = x^{(q)} $", encoding="utf-8")
    error = run("check", "pasted.tex", status=1).output
    assert "   2 | $ W^{\\mu} = x^{(q)} $\n                    ^^^^^^\n" in error


@pytest.mark.parametrize("spelling", ["ascii", "unicode", "latex", "einsum"])
def test_shown_text_in_any_spelling(spelling):
    formula = "y_<i mu> = A_<i j> x_<j mu>"
    text = run("show", formula, "--as", spelling).stdout.rstrip("\n")
    data = json.loads(run("show", formula, "--as", spelling, "--format", "json").stdout)
    assert data == {"stage": "text", "as": spelling, "text": text}
    if spelling != "einsum":
        assert run("show", text).stdout.rstrip("\n") == formula


def test_what_is_no_einsum_is_not_shown_as_one():
    result = run("show", VALUE, "--as", "einsum", "--format", "json", status=1)
    assert json.loads(result.stderr)["code"] == "E-EINSUM"


def test_a_spelling_is_for_the_text_only():
    assert "--as is for the stage text" in run("show", VALUE, "--as", "latex", "--stage", "ir", status=2).stderr
