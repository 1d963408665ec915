"""Calls with inputs like those of the last call skip its checks; inputs that differ in anything checked do not."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.errors import TensorattnError

ATTEND = "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n"


def inputs(m=3, n=5, d=4, e=2, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=s).astype(dtype) for name, s in (("q", (m, d)), ("k", (n, d)), ("v", (n, e)))}


def dense(q, k, v):
    s = q @ k.T
    w = np.exp(s - s.max(1, keepdims=True))
    return w / w.sum(1, keepdims=True) @ v


@pytest.fixture
def checks(monkeypatch):
    """How often a call was checked."""
    from tensorattn.compiling import Compiled

    plain, counted = Compiled._checked, []
    monkeypatch.setattr(Compiled, "_checked", lambda self, *a: counted.append(1) or plain(self, *a))
    return counted


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_only_the_first_of_like_calls_is_checked(wrap, checks):
    compiled = ta.compile(ATTEND)
    for seed in range(3):
        x = inputs(seed=seed)
        np.testing.assert_allclose(np.asarray(compiled({k: wrap(a) for k, a in x.items()})), dense(**x), atol=1e-12)
    assert len(checks) == 1


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
def test_other_sizes_and_dtypes_are_checked(wrap, checks):
    compiled = ta.compile(ATTEND)
    for m, n, dtype in ((3, 5, np.float64), (3, 6, np.float64), (3, 6, np.float32), (3, 5, np.float64)):
        x = inputs(m, n, dtype=dtype)
        y = compiled({k: wrap(a) for k, a in x.items()})
        np.testing.assert_allclose(np.asarray(y), dense(**x), atol=1e-5)
        assert str(y.dtype).endswith(np.dtype(dtype).name)
    assert len(checks) == 4


def wrong():
    x = inputs()
    yield {**x, "k": x["k"][:, :3]}, "E-EXTENT"
    yield {**x, "k": x["k"][:4]}, "E-EXTENT"
    yield {**x, "k": x["k"][0]}, "E-RANK"
    yield {**x, "k": np.ma.masked_array(x["k"])}, "E-BACKEND"
    yield {**x, "k": torch.tensor(x["k"])}, "E-BACKEND"
    yield {**x, "k": x["k"].astype("datetime64[s]")}, "E-DTYPE"
    yield {**x, "k": 1.0}, "E-RANK"
    yield {**x, "extra": x["k"]}, "E-UNDEF"
    yield {"q": x["q"], "v": x["v"]}, "E-INPUT"


@pytest.mark.parametrize(("given", "code"), list(wrong()), ids=lambda value: value if isinstance(value, str) else "")
def test_errors_are_those_of_a_first_call(given, code):
    messages = []
    for warm in (False, True):
        compiled = ta.compile(ATTEND)
        if warm:
            compiled(inputs())
        with pytest.raises(TensorattnError) as error:
            compiled(given)
        messages.append(str(error.value))
        assert error.value.code == code
    assert messages[0] == messages[1]


def test_a_number_is_no_array_and_a_large_one_is_refused():
    compiled = ta.compile("y_i = c x_i")
    x = np.arange(3.0)
    for c in (2, 3, 2.5, True, np.float64(4), np.array(5.0), 2):
        np.testing.assert_array_equal(compiled(c=c, x=x), float(c) * x)
    for _ in range(2):
        with pytest.raises(TensorattnError):
            compiled(c=2**63, x=x)
    np.testing.assert_array_equal(compiled(c=7, x=x), 7 * x)


def test_lists_are_taken_after_arrays_and_before():
    compiled, x = ta.compile(ATTEND), inputs()
    for name in ("q", "k", "v", "q"):
        np.testing.assert_allclose(compiled({**x, name: x[name].tolist()}), dense(**x), atol=1e-12)
        np.testing.assert_allclose(compiled(x), dense(**x), atol=1e-12)


def test_recorded_gradients_are_not_recalled_as_others():
    compiled = ta.compile(ATTEND)
    x = {k: torch.tensor(a) for k, a in inputs().items()}
    compiled(x)
    x["q"].requires_grad_()
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    y = compiled(x)
    y.sum().backward()
    assert x["q"].grad is not None


def test_a_batch_axis_more_is_another_input():
    compiled, rng = (
        ta.compile("y^<... mu>_n = softmax[nu](q^<... mu>_i k^<... nu>_i) v^<... nu>_n"),
        np.random.default_rng(0),
    )
    for batch in ((), (2,), (2, 3), (2,), ()):
        q, k, v = (rng.normal(size=(*batch, *s)) for s in ((3, 4), (5, 4), (5, 2)))
        assert compiled(q=q, k=k, v=v).shape == (*batch, 3, 2)


def test_a_mapping_with_keys_that_are_not_strings_names_what_is_missing():
    compiled, x = ta.compile(ATTEND), inputs()
    with pytest.raises(TensorattnError, match="`k` is missing"):
        compiled({"q": x["q"], 1: x["k"], "v": x["v"]})


def test_threads_with_different_sizes():
    compiled, wrong_results = ta.compile(ATTEND), []

    def work(m):
        x = inputs(m, m + 2, seed=m)
        expected = dense(**x)
        for _ in range(200):
            if not np.allclose(compiled(x), expected, atol=1e-12):
                wrong_results.append(m)

    threads = [threading.Thread(target=work, args=(m,)) for m in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong_results
