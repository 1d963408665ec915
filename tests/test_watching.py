"""What a call asks of torch, and how many operations of torch a small call is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd import forward_ad
from torch.profiler import ProfilerActivity, profile
from torch.utils.flop_counter import FlopCounterMode

import tensorattn as ta
from tensorattn.watching import is_calm

ATTEND = "y^<b h mu>_n = softmax[nu](q^<b h mu>_i k^<b h nu>_i / sqrt(|i|)) v^<b h nu>_n"
MASKED = ATTEND.replace("[nu]", "[nu : nu <= mu]")
Inputs = dict[str, torch.Tensor]


def drawn(dtype: torch.dtype = torch.float32) -> Inputs:
    make = torch.Generator().manual_seed(5)
    shapes = {"q": (2, 1, 5, 3), "k": (2, 1, 7, 3), "v": (2, 1, 7, 2)}
    return {name: torch.randn(shape, generator=make).to(dtype) for name, shape in shapes.items()}


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return ((q / q.shape[-1] ** 0.5) @ k.mT).softmax(-1) @ v


# Who watches --------------------------------------------------------------------------------------------------------


@contextmanager
def derived() -> Iterator[None]:
    with forward_ad.dual_level():
        yield


STATES: dict[str, Callable[[], AbstractContextManager]] = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "forward derivatives": derived,
    "a mode of the user": lambda: FlopCounterMode(display=False),
}


@pytest.mark.parametrize("state", STATES)
def test_a_state_of_torch_is_noticed_in_a_call_like_the_last(state: str) -> None:
    x, f = drawn(), ta.compile(ATTEND)
    expected = f(x)
    for _ in range(2):
        assert is_calm()
        with STATES[state]() as entered:
            assert not is_calm()
            found = f(x)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        if isinstance(entered, FlopCounterMode):
            assert entered.get_total_flops() == 2 * 2 * 5 * 7 * (3 + 2)
        assert is_calm()
        torch.testing.assert_close(f(x), expected, rtol=0, atol=0)


@pytest.mark.parametrize("text", [ATTEND, MASKED])
def test_transforms_and_tracers_are_noticed_in_a_call_like_the_last(text: str) -> None:
    x, f = drawn(), ta.compile(text)
    expected, seen = f(x), []

    def call(q: torch.Tensor) -> torch.Tensor:
        seen.append(is_calm())
        return f({**x, "q": q})

    torch.testing.assert_close(torch.func.vmap(call)(torch.stack([x["q"], 2 * x["q"]]))[0], expected)
    bar = torch.func.grad(lambda q: call(q).sum())(x["q"])
    leaf = x["q"].clone().requires_grad_()
    torch.testing.assert_close(torch.autograd.grad(f({**x, "q": leaf}).sum(), leaf)[0], bar)
    traced = torch.fx.experimental.proxy_tensor.make_fx(call)(x["q"])
    torch.testing.assert_close(traced(x["q"]), expected)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        assert call(mode.from_tensor(x["q"])).shape == expected.shape
    assert seen == [False] * len(seen)
    torch.testing.assert_close(f(x), expected, rtol=0, atol=0)


def test_a_compiled_caller_notices_after_a_plain_call() -> None:
    x, f = drawn(), ta.compile(ATTEND)
    expected = f(x)
    compiled = torch.compile(lambda x: f(x) + (0 if is_calm() else 1), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), expected + 1)


# What a call does ---------------------------------------------------------------------------------------------------


def operations(call: Callable[[], object]) -> list[str]:
    """The operations that are not part of another, in order."""
    call()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        call()
    events = [e for e in profiler.events() if e.cpu_parent is None and e.name.startswith("aten::")]
    return [e.name.removeprefix("aten::") for e in sorted(events, key=lambda e: e.time_range.start)]


@pytest.mark.parametrize("recorded", [False, True])
def test_attention_is_five_operations_and_a_look(recorded: bool) -> None:
    x, f = {n: a.requires_grad_(recorded) for n, a in drawn().items()}, ta.compile(ATTEND)
    torch.testing.assert_close(f(x), by_hand(**x))
    assert operations(lambda: f(x)) == ["div", "mT", "matmul", "softmax", "equal", "matmul"]


@pytest.mark.parametrize("dead", [-np.inf, np.inf, np.nan])
@pytest.mark.parametrize("size", [4, 90])  # all weights are looked at, and one a row
def test_the_look_finds_a_row_without_weights(dead: float, size: int) -> None:
    """A score of −∞ is excluded, and a row of them is 0; with +∞ or NaN it is NaN."""
    score = torch.randn(size, size, generator=torch.Generator().manual_seed(1))
    score[size // 2] = dead
    score[1, 2] = -np.inf
    f = ta.compile("y^mu_n = softmax[nu](s^<mu nu>) v^nu_n")
    v = torch.randn(size, 3, generator=torch.Generator().manual_seed(2))
    expected = score.softmax(-1) @ v
    expected[size // 2] = 0 if dead == -np.inf else np.nan
    for library in (torch.as_tensor, np.asarray):
        found = torch.as_tensor(f({"s": library(score), "v": library(v)}))
        torch.testing.assert_close(found, expected, equal_nan=True)
