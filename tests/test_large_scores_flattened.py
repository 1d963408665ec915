"""Scores as large as additive masks make them, in attention with one key axis: the parts of a row keep their digits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.backends.numpy.attending import attend as attend_numpy
from tensorattn.backends.torch import attending
from tensorattn.backends.torch.attending import Asked, attend
from tests.test_large_biases import FORMULAS, M, N, derivatives, drawn

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
FLAT = {
    "keys": "y_<i e> = softmax[j](q_<i d> k_<j d> + c_j) v_<j e>",
    "sink": FORMULAS["sink"],
    "joint": FORMULAS["joint"],
}
SINKS = {
    "rows": "y_<i e> = softmax[j; sink=s_i](q_<i d> k_<j d> + b_<i j>) v_<j e>",
    "keys": "y_<i e> = softmax[j; sink=s_i](q_<i d> k_<j d> + c_j) v_<j e>",
    "one": "y_<i e> = softmax1[j](q_<i d> k_<j d> + b_<i j>) v_<j e>",
}


def agree(program: ta.Program, arrays: dict[str, np.ndarray], plan: str, room: float, create: bool = True) -> None:
    wide = {name: array.astype("float64") for name, array in arrays.items()}
    wanted = derivatives(program, "dense", wide)
    found = derivatives(program, plan, arrays) if create else first(program, plan, arrays)
    for one, other in zip(found, wanted, strict=create):
        allowed = room * (1 + float(other.detach().abs().max()))
        torch.testing.assert_close(one.double(), other, rtol=room, atol=allowed)


def first(program: ta.Program, plan: str, arrays: dict[str, np.ndarray]) -> tuple[torch.Tensor, ...]:
    """The value and its gradients by the kernel's own backward pass, of which no graph is made."""
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays.values()]
    y = ta.compile(program, plan=plan)(dict(zip(arrays, tensors, strict=True)))
    return y, *torch.autograd.grad(y.sin().sum(), tensors)


@pytest.mark.parametrize("where", ["all", "some"])
@pytest.mark.parametrize("size", ["1e9", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FLAT)
def test_flattened_plans_agree_with_dense_ones(name: str, dtype: str, size: str, where: str) -> None:
    program = ta.parse(FLAT[name])
    arrays = drawn(program, -1e9 if size == "1e9" else np.finfo(dtype).min, where, dtype)
    if size == "1e9":
        arrays["q"] = np.zeros_like(arrays["q"])  # else the scores have few digits
    room = 1e-4 if dtype == "float32" else 1e-6 if size == "1e9" else 1e-9
    agree(program, arrays, "flattened", room)
    agree(program, arrays, "flattened", room, create=False)


@pytest.mark.parametrize("plan", ["flattened", "streamed"])
@pytest.mark.parametrize("size", [-1e9, "least", "half"])
@pytest.mark.parametrize("name", SINKS)
def test_a_sink_takes_its_share_of_large_scores(name: str, size: float | str, plan: str) -> None:
    program = ta.parse(SINKS[name])
    least = float(np.finfo("float32").min)
    large = {"least": least, "half": least / 2}.get(size, size)  # type: ignore[call-overload]
    arrays = drawn(program, large, "all", "float32")
    arrays |= {"q": np.zeros_like(arrays["q"])} | ({"s": np.full_like(arrays["s"], large)} if "s" in arrays else {})
    agree(program, arrays, plan, 1e-4)
    y = ta.compile(program, plan=plan)({**arrays, "v": np.ones_like(arrays["v"])})
    np.testing.assert_allclose(np.asarray(y), M / (M + 1) if "s" in arrays else 0, rtol=1e-6)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("large", [0.0, -1e9, -np.inf])
@pytest.mark.parametrize("library", ["numpy", "fused", "plain"])
def test_parts_of_rows_merge_to_the_whole(library: str, large: float, causal: bool) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, n, 3)).astype(np.float32) for n in (5, 8, 8))
    q *= large == 0  # else the scores have few digits
    bias = np.full((1, 5, 8), large, np.float32)
    bias[0, 2] = 0
    where = np.tril(np.ones((1, 5, 8), bool)) if causal else np.ones((1, 5, 8), bool)

    def parts(low: int, high: int) -> list[np.ndarray]:
        given = (q, k[:, low:high], v[:, low:high], bias[..., low:high], where[..., low:high])
        if library == "numpy":
            return [np.asarray(x, np.float64) for x in attend_numpy(*given[:3], 0.5, *given[3:], parts=True)]
        a, b, c, *masks = map(torch.tensor, given)
        found = attend(a.requires_grad_(library == "plain"), b, c, 0.5, *masks, parts=True)
        return [x.detach().double().numpy() for x in found]

    halves = [parts(0, 3), parts(3, 8)]
    high = np.maximum(halves[0][1], halves[1][1])
    scales = [np.where(part[1] == -np.inf, 0, np.exp(part[1] - np.where(high == -np.inf, 0, high))) for part in halves]
    total = sum(part[2] * scale for part, scale in zip(halves, scales, strict=True))
    out = sum(part[0] * scale[..., None] for part, scale in zip(halves, scales, strict=True))
    score = torch.tensor(0.5 * q.astype(np.float64) @ k.swapaxes(-1, -2) + bias)
    weights = torch.softmax(score.masked_fill(~torch.tensor(where), -np.inf), -1).nan_to_num()
    expected = (weights @ torch.tensor(v, dtype=torch.float64)).numpy()
    np.testing.assert_allclose(out / np.where(total == 0, 1, total)[..., None], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
def test_chunks_of_keys_merge_by_their_numbers(library: Callable[..., Any]) -> None:
    """Of equal scores every key has the same weight, however many of them a chunk has."""
    program = ta.parse("y_<i e> = softmax[j l](q_<i d> k_<j d> k_<l d> + r_i) v_<j e> v_<l e>")
    compiled = ta.compile(program, plan="flattened", memory=2 << 20)
    v = np.random.default_rng(0).random((150, 4))
    arrays = dict(q=np.zeros((8, 16)), k=np.ones((150, 16)), r=np.full(8, -1e9), v=v)
    given = {name: library(array.astype(np.float32)) for name, array in arrays.items()}
    assert "for " in compiled.source(library.__module__.split(".")[0], dict(i=8, d=16, j=150, l=150, e=4))
    np.testing.assert_allclose(np.asarray(compiled(given)), np.tile(v.mean(0) ** 2, (8, 1)), rtol=1e-5)


def asked(large: float, keys: int = M) -> Asked:
    """Attention as a device is asked for it, with a column of the keys that is `large` at some or all of them."""
    rng = np.random.default_rng(1)
    column = np.full((1, M, 1), large)
    column[:, keys:] = 0
    q = torch.tensor(np.concatenate([np.ones((1, N, 1)), np.zeros((1, N, 3))], -1), requires_grad=True)
    k, v = np.concatenate([column, rng.normal(size=(1, M, 3))], -1), rng.normal(size=(1, M, 2))
    return Asked(q.float(), *(torch.tensor(x, dtype=torch.float32) for x in (k, v)), 1.0, None, None, False, False)


def test_a_device_is_looked_at_before_its_kernel_makes_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any device but the CPU torch shows no log Σ exp; this runs the same code on the CPU."""
    looked: list[int] = []
    blocks = attending._in_blocks
    monkeypatch.setattr(attending, "_in_blocks", lambda asked: looked.append(1) or blocks(asked))
    assert attending._on_device(asked(-1.0)) is not None
    assert not looked, "norms tell"
    assert attending._on_device(asked(-1e9, keys=4)) is not None
    assert looked == [1], "the scores tell that other keys count"
    assert attending._on_device(asked(-1e9)) is None
    with torch.no_grad():
        assert attending._on_device(asked(-1e9)) is not None
    biased = asked(0.0)._replace(bias=torch.full((1, N, M), -1e9))
    assert attending._on_device(biased) is None
    biased.bias[:, :, 0] = 0  # type: ignore[index]
    assert attending._on_device(biased) is not None
