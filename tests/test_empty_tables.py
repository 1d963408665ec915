"""Tables without entries, of which every position is excluded; and errors that name what the user wrote."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
GATHERED = [
    "y_i = sum[j : m_<i j>](T_<t_<i j>>)",
    "y_<i n> = sum[j : m_<i j>](T_<t_<i j>> v_n)",
]


def given(text: str, wrap, admit: bool) -> dict:
    all_ = dict(T=np.zeros(0), t=np.zeros((3, 3), np.int64), m=np.full((3, 3), admit), v=np.ones(3))
    return {n: wrap(all_[n]) for n in ta.parse(text).inputs}


@pytest.mark.parametrize("wrap", [np.asarray, torch.tensor])
@pytest.mark.parametrize("plan", ["dense", "auto"])
@pytest.mark.parametrize("text", GATHERED)
def test_what_is_excluded_is_not_read(text, plan, wrap):
    f = ta.compile(text, plan=plan)
    assert not np.asarray(f(given(text, wrap, False))).any()
    with pytest.raises(ta.ShapeError, match="position in axis 0 of `T`"):
        f(given(text, wrap, True))


@pytest.mark.parametrize("text", GATHERED)
def test_gradients_of_nothing_are_there(text):
    x = given(text, torch.tensor, False)
    x["T"].requires_grad_()
    (found,) = torch.autograd.grad(ta.compile(text)(x).sum(), x["T"])
    assert found.shape == (0,)
    slopes = torch.func.grad(lambda T: ta.compile(text)(x | {"T": T}).sum())(x["T"].detach())
    assert slopes.shape == (0,)


def test_an_open_size_is_the_same_error_in_a_trace():
    f = ta.compile("y_m = softmax[n](q_m k_n / sqrt(|i|)) v_n")
    x = {n: torch.ones(3) for n in "qkv"}

    class Module(torch.nn.Module):
        def forward(self, x):
            return f(x)

    for call in (f, lambda x: torch.export.export(Module(), (x,)), torch.compile(f, fullgraph=True, backend="eager")):
        with pytest.raises(Exception, match="the size of i is open") as caught:
            call(x)
        assert not isinstance(caught.value, LookupError)
