"""Rules that recognise what is written out: golden text before and after, and both sides on random sizes and values."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.planning import written_out
from tensorattn.program import Program
from tensorattn.reference import evaluate
from tensorattn.rewriting import CANONICAL, rewrite
from tensorattn.rewriting.fusing import fuse
from tests import goldens, programs

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

SOFTMAXES = (
    "y_<m n> = exp(q_<m i> k_<j i>) v_<j n> / sum[l](exp(q_<m i> k_<l i>))",
    "y_<m n> = exp(q_<m i> k_<j i> / sqrt(|i|)) v_<j n> / sum[l](exp(q_<m p> k_<l p> / sqrt(|p|)))",
    "y_m = exp(s_<m j k>) x_j z_k / sum[a b](exp(s_<m a b>))",
    "E_<m j> = exp(q_<m i> k_<j i>)\nZ_m = sum[l](E_<m l>)\ny_<m n> = E_<m j> v_<j n> / Z_m",
    "E_<m j> = exp(s_<m j>)\nZ_m = sum[l](E_<m l>)\nW_<m j> = E_<m j> / Z_m\ny_<m n> = W_<m j> v_<j n>",
    "E_<m j> = exp(s_<m j>)\nZ_m = sum[l](E_<m l>)\ny_m = (E_<m j> x_j / Z_m) * (E_<m j> z_j / Z_m)",
    "y_m = exp(s_<m j>) x_j / (1 + sum[l](exp(s_<m l>)))",
    "y_m = exp(s_<m j>) x_j / (sum[l](exp(s_<m l>)) + exp(z_m))",
    "y_m = exp(s_<m j>) x_j / (0.25 + sum[l](exp(s_<m l>)))",
    "y_m = l1norm[j : j <= m](exp(s_<m j>)) x_j",
    "y_m = sigmoid(s_<m j>) x_j / sum[l](sigmoid(s_<m l>))",
    "y_m = l1norm[j : j <= m](sigmoid(s_<m j>)) x_j",
    "E_<m j> = sigmoid(s_<m j>)\nZ_m = sum[l](E_<m l>)\ny_m = (E_<m j> x_j / Z_m) * (E_<m j> z_j / Z_m)",
    "y_m = l1norm[j](2**s_<m j>) x_j",
    "y_m = exp(s_<m j>)**2 * x_j / sum[l](exp(s_<m l>)**2)",
    "Z_m = sum[l](exp(s_<m l>))\ny_m = (exp(s_<m j>) x_j / Z_m) * (exp(s_<m j>) z_j / Z_m)",
    "Z = sum[l m](exp(s_<m l>))\ny_m = exp(s_<m j>) x_j / Z + exp(s_<m j>) z_j / Z",
    "E_<m j> = exp(s_<m j>)\nZ_m = 1 + sum[l](E_<m l>)\ny_m = E_<m j> x_j / Z_m + E_<m j> z_j / Z_m",
    "y_m = sum[j : j <= m](exp(s_<m j>) x_j) / sum[l : l <= m](exp(s_<m l>))",
    "y_m = -2 * sum[j : j <= m](exp(s_<m j>) x_j / (1 + sum[l : l <= m](exp(s_<m l>))))",
    "y_m = sum[j : j <= m](exp(s_<m j>) x_j / sum[l](exp(s_<m l>)))",
    "y_m = sum[j k : k <= m](exp(s_<m k>) B_<k j>) / sum[l : l <= m](exp(s_<m l>))",
    "E_<m j> = exp(s_<m j>)\nN_m = sum[j : j <= m](E_<m j> x_j)\nZ_m = sum[l : l <= m](E_<m l>)\ny_m = N_m / Z_m",
)
OTHERS = (
    "y_i = sum[j](A_<i j> sum[k](B_<j k> v_k))",
    "y_<i k> = delta_<i j> x_<j k>",
    "y = delta_<i j> a_i b_j",
    "y_i = log(softmax[j](s_<i j>) exp(m_j))",
    "y_i = log(sum[j k](exp(a_<i j>) exp(b_<j k>)))",
)
STAYS = (
    "E_<m j> = exp(s_<m j>)\ny_<m n> = E_<m j> v_<j n>\nz_m = sum[j](E_<m j>)\no_<m n> = y_<m n> z_m",
    "E_<m j> = exp(s_<m j>)\nZ_m = sum[l](E_<m l>)\ny_m = E_<m j> x_j / Z_m + E_<m j> z_j",  # E itself is asked for
    "y_m = exp(s_<m j>) x_j / (z_m + sum[l](exp(s_<m l>)))",  # z may be 0 or less
    "y_m = exp(s_<m j>) x_j / (sum[l](exp(s_<m l>)) - 1)",
    "y_m = sum[j : j <= m](exp(s_<m j>) x_j) / sum[l : l >= m](exp(s_<m l>))",
    "y_m = sum[j : j <= m](exp(s_<m j>) x_j) / sum[l](exp(s_<m l>) c_l)",
    "y_m = exp(s_<m j>) x_j / sum[l : l <= m](exp(s_<m l>))",
    "y_m = exp(s_<m j>) x_j / sum[l](sigmoid(s_<m l>))",
    "y_m = l1norm[j](1**s_<m j>) x_j",
    "y_m = l1norm[j](c_j**s_<m j>) x_j",
    "y_m = sum[j : c_<m j>](exp(s_<m j>) x_j) / sum[l : c_<l m>](exp(s_<m l>))",
)


def both(text: str) -> tuple[Program, Program]:
    """A program, with definitions in place, before and after the rules."""
    program = ta.parse(text)
    outputs = program.defined[-1:]
    before = fuse(program, outputs, written_out(program, outputs))
    return before, rewrite(before, CANONICAL).program


def test_before_and_after(pytestconfig: pytest.Config) -> None:
    parts = []
    for text in (*SOFTMAXES, *OTHERS, *STAYS):
        after = both(text)[1]
        parts.append(f"{text}\n-- {after}".replace("\n", "\n   ").replace("\n   --", "\n--"))
    goldens.agree("canonical_rules.txt", "\n".join(parts) + "\n", pytestconfig)


@pytest.mark.parametrize("text", [*SOFTMAXES, *OTHERS])
def test_both_sides_have_one_value(text: str) -> None:
    before, after = both(text)
    assert before != after, "a rule applies"
    program = ta.parse(text)
    for seed in range(6):
        sizes = programs.some_sizes(program, random.Random(seed))
        if "delta" in text:
            sizes = dict.fromkeys(sizes, max(sizes.values()))
        if not all(sizes.values()):
            continue  # 0 / 0 is NaN written out, and 0 as a softmax
        arrays = programs.inputs(program, sizes, np.random.default_rng(seed))
        wanted = evaluate(program, arrays, sizes)[program.defined[-1]]
        np.testing.assert_allclose(evaluate(after, arrays, sizes)[program.defined[-1]], wanted, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(ta.compile(text)(arrays), wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("text", SOFTMAXES)
def test_scores_may_be_large(text: str) -> None:
    """Written out, exp(1000) / Σ exp(1000) is ∞ / ∞."""
    program = ta.parse(text)
    assert "softmax" in str(both(text)[1]) or "bar(" in str(both(text)[1])
    sizes = dict.fromkeys(program.indices, 3)
    arrays = programs.inputs(program, sizes, np.random.default_rng(0))
    large = {n: a * (1000 if n in ("s", "q") else 1) for n, a in arrays.items()}
    assert np.isfinite(ta.compile(text)(large)).all()


@pytest.mark.parametrize("text", SOFTMAXES)
def test_gradients_are_those_of_the_weights(text: str) -> None:
    """As a quotient they would be ∞ / ∞ or 0 / 0."""
    program = ta.parse(text)
    names = list(program.inputs)
    arrays = programs.inputs(program, dict.fromkeys(program.indices, 3), np.random.default_rng(0))
    gradient = ta.grad(program, names)
    outputs = gradient.defined[-len(names) :]
    value, symbolic = ta.compile(program), ta.compile(gradient, outputs=outputs)
    seed = next(name for name in gradient.inputs if name not in arrays)
    for shift in (0.0, 900.0, -900.0) if "s" in arrays else (0.0,):
        given = arrays | ({"s": arrays["s"] + shift} if shift else {})
        tensors = {name: torch.tensor(a, requires_grad=True) for name, a in given.items()}
        value(tensors).sum().backward()
        given[seed] = np.ones([3] * len(program.statements[-1].axes))
        found = symbolic({name: given[name] for name in gradient.inputs})
        for name, output in zip(names, outputs, strict=True):
            assert tensors[name].grad is not None
            np.testing.assert_allclose(found[output], tensors[name].grad, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    "text",
    [
        "y_<m e> = sigmoid(q_<m d> k_<j d>) v_<j e> / sum[l](sigmoid(q_<m d> k_<l d>))",
        "y_<m e> = l1norm[j](sigmoid(q_<m d> k_<j d>)) v_<j e>",
    ],
)
@pytest.mark.parametrize("plan", ["auto", "dense", "streamed"])
def test_sigmoids_that_all_underflow_are_equal_weights(text: str, plan: str) -> None:
    rng = np.random.default_rng(0)
    q, v = rng.normal(size=(3, 4)).astype(np.float32), rng.normal(size=(5, 2)).astype(np.float32)
    q[1] = -60  # σ(−240) is 0 in float32
    arrays = {"q": q, "k": np.ones((5, 4), np.float32), "v": v}
    compiled = ta.compile(text, plan=plan)
    for found in (compiled(arrays), compiled({n: torch.tensor(a) for n, a in arrays.items()}).numpy()):
        assert np.isfinite(found).all()
        np.testing.assert_allclose(found[1], v.mean(axis=0), atol=1e-5)


@pytest.mark.parametrize(
    "text",
    [
        "y_m = sum[j : c_<m j>](exp(s_<m j>) x_j) / sum[l : c_<m l>](exp(s_<m l>))",
        "y_m = sum[j : c_<m j>](exp(s_<m j>) x_j / sum[l : c_<m l>](exp(s_<m l>)))",
    ],
)
def test_a_row_written_out_that_admits_nothing_is_zero(text: str) -> None:
    rng = np.random.default_rng(0)
    admitted = np.array([[True, True, False], [False, False, False]])
    s, x = rng.normal(size=(2, 3)), np.array([1.0, 2.0, np.nan])
    weights = np.exp(s[0, :2]) / np.exp(s[0, :2]).sum()
    for plan in ("auto", "dense"):
        found = ta.compile(text, plan=plan)(s=s, x=x, c=admitted)
        np.testing.assert_allclose(found, [weights @ x[:2], 0])


@pytest.mark.parametrize("text", STAYS)
def test_what_is_no_softmax_keeps_its_definitions(text: str) -> None:
    program = ta.parse(text)
    assert not written_out(program, program.defined[-1:])
    assert "softmax" not in str(both(text)[1])
    assert "bar(" not in str(both(text)[1])


def test_the_page_names_every_rule() -> None:
    root = Path(ta.__file__).parent
    texts = [path.read_text(encoding="utf-8") for path in sorted((root / "rewriting").glob("*.py"))]
    names = {name for text in texts for name in re.findall(r'Rule\(\s*"([^"]+)"', text)}
    assert len(names) > 15
    page = (root.parent / "docs/plans.md").read_text(encoding="utf-8")
    assert {name for name in names if f"\n| {name} |" not in page} == set()
