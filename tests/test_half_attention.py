"""Attention of inputs in half precision: a device gets them as they were, and nothing else is rounded to it."""

from __future__ import annotations

import math

import pytest
import torch

import tensorattn as ta
from tensorattn.backends.torch import attending
from tensorattn.backends.torch.attending import Asked

HEADS = "y^<h mu>_n = softmax[nu](q^<h mu>_i k^<h nu>_i / sqrt(|i|)) v^<h nu>_n"
SIZES = dict(h=2, mu=48, nu=40, i=16, n=8)


def source(text: str, dtypes: dict[str, str], plan: str = "flattened") -> str:
    return ta.compile(text, plan=plan).source("torch", dtypes=dtypes, **SIZES)


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
@pytest.mark.parametrize("where", ["", " : nu <= mu"])
def test_inputs_that_are_only_widened_are_named(half, where):
    text = HEADS.replace("[nu]", f"[nu{where}]")
    assert f"half=torch.{half}" in source(text, dict.fromkeys("qkv", half))


@pytest.mark.parametrize(
    "text",
    [
        HEADS.replace("/ sqrt(|i|)", "/ sqrt(|i|) + b^<mu nu>"),  # a bias keeps its digits
        HEADS.replace("/ sqrt(|i|)", "/ sqrt(|i|) + c^nu"),  # a column of the keys
        HEADS.replace("v^<h nu>_n", "v^<h nu>_n w^nu"),
    ],
)
def test_what_is_made_from_inputs_is_not_rounded(text):
    found = source(text, dict.fromkeys(ta.parse(text).inputs, "bfloat16"))
    assert " = attend(" in found
    assert "half=" not in found


def test_inputs_of_two_widths_are_not_rounded():
    assert "half=" not in source(HEADS, dict(q="bfloat16", k="bfloat16", v="float32"))
    assert "half=" not in source(HEADS, dict(q="bfloat16", k="bfloat16", v="float16"))
    assert "half=" not in source(HEADS, dict.fromkeys("qkv", "float32"))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("recorded", [False, True])
def test_a_device_runs_its_kernel_for_half_precision(causal, recorded, monkeypatch):
    """This runs the code of other devices on the CPU."""
    seen = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    spy = lambda *args, **options: seen.append([x.dtype for x in args]) or kernel(*args, **options)  # noqa: E731
    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    make = torch.Generator().manual_seed(0)
    exact = [torch.randn(2, 32, 16, generator=make).bfloat16() for _ in range(3)]
    wide = [x.float().requires_grad_(recorded) for x in exact]
    asked = Asked(*wide, 1 / math.sqrt(16), None, None, causal, False, torch.bfloat16)
    out, *_ = attending._on_device(asked)
    assert seen == [[torch.bfloat16] * 3]
    assert out.dtype == torch.float32
    scores = (wide[0] @ wide[1].mT).double() / math.sqrt(16)
    scores = scores.masked_fill(~torch.ones(32, 32, dtype=torch.bool).tril(), -math.inf) if causal else scores
    torch.testing.assert_close(out.double(), scores.softmax(-1) @ wide[2].double(), rtol=0.02, atol=0.02)
    if recorded:
        out.sum().backward()
        assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in wide)


def test_the_cpu_computes_in_float32():
    make = torch.Generator().manual_seed(0)
    x = {n: torch.randn(2, 40, 16, generator=make).bfloat16() for n in "qkv"}
    found = ta.compile(HEADS, plan="flattened")(x)
    scores = x["q"].double() @ x["k"].double().mT / math.sqrt(16)
    expected = (scores.softmax(-1) @ x["v"].double()).bfloat16()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, expected, rtol=2**-7, atol=1e-4)
