"""Formulas through every stage, as golden text: one file of tests/golden/stages a formula."""

from __future__ import annotations

import pytest

import tensorattn as ta
from tensorattn.cli.stages import stage_text
from tests import goldens

FORMULAS = {
    "attention": "y^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n",
    "scaled": "y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>",
    "causal": "y_<i e> = S_<i bar(j : j <= i)> v_<j e>",
    "joint": "W^<mu nu rho> = k^mu_i q^nu_j r^rho_kappa M_<i j kappa>\ny^mu_n = W^<mu bar(nu rho)> v^<bar(nu rho)>_n",
    "chained_bars": "y^n = g^<n bar(i)> T^<n bar(i) bar(j)> e^<n j>",
    "difference": "y_<i e> = (A_<i bar(j)> - lam * B_<i bar(j)>) v_<j e>",
    "heads": "y_<i (h e)> = softmax[j](Q_<i (h d)> K_<j (h d)> / sqrt(|d|)) V_<j (h e)>",
    "relative": "y_<i e> = softmax[j](Q_<i d> K_<j d> + b_<i-j+|j|-1>) V_<j e>",
    "gathered": "y_<h i e> = softmax[j](Q_<h i d> K_<h j d> + b_<h, D_<i j>>) V_<h j e>",
    "sink": "y_<i e> = softmax[j : keep_<i j>; sink=s](Q_<i d> K_<j d>) V_<j e>",
    "top": "y_<i e> = S_<i bar(j : top[j; 2](S_<i j>))> v_<j e>",
    "batched": "y_<... i e> = softmax[j](Q_<... i d> K_<... j d>) V_<... j e>",
    "concatenated": "y_i = cat[a = m + j](A_<i m>, B_<i j>) x_a",
    "brackets": "y_i = ((A_<i j> B_j) C_i) / ((A_<i j> D_j) * 2 + 1e-06)",
}
SIZES = {"heads": {"h": 4}}
STAGES = ("text", "tree", "ir", "plan", "kernel", "source")


def stages(name: str) -> str:
    """The text, then every stage under its name; of the source the function alone, for NumPy and for torch."""
    program, sizes = ta.parse(FORMULAS[name]), SIZES.get(name, {})
    parts = [f"== formula\n{FORMULAS[name]}"]
    for stage in STAGES[:-1]:
        parts.append(f"== {stage}\n{stage_text(program, stage, sizes, None, 'numpy')}")
    for backend in ("numpy", "torch"):
        code = stage_text(program, "source", sizes, None, backend)
        function = code[code.rindex("\n\n\n") + 3 :].rstrip()
        parts.append(f"== source, {backend}\n{function}")
    return "\n\n".join(parts) + "\n"


@pytest.mark.usefixtures("base_e")
@pytest.mark.parametrize("name", FORMULAS)
def test_every_stage(name: str, pytestconfig: pytest.Config) -> None:
    goldens.agree(f"stages/{name}.txt", stages(name), pytestconfig)


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in (goldens.FOLDER / "stages").iterdir()} == FORMULAS.keys()


@pytest.mark.parametrize("name", FORMULAS)
def test_the_printed_text_goes_through_the_same_stages(name: str) -> None:
    program, sizes = ta.parse(FORMULAS[name]), SIZES.get(name, {})
    for stage in ("ir", "plan", "kernel", "source"):
        wanted = stage_text(program, stage, sizes, None, "numpy")
        assert stage_text(ta.parse(str(program)), stage, sizes, None, "numpy") == wanted
