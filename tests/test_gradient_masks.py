"""What a predicate excludes has no influence on gradients, whatever it holds, and gets a gradient of exactly 0."""

from __future__ import annotations

import math

import pytest
import torch

import tensorattn as ta
from tensorattn import units
from tensorattn.lowering import streaming
from tests import operators

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


# the formula; which rows of which inputs no admitted tuple reads; which rows of the result admit nothing
CASES = {
    "causal": (
        "y^mu_n = softmax[nu : nu <= mu and nu > 0](q^mu_i k^nu_i) v^nu_n",
        {"k": [0, 5, 6], "v": [0, 5, 6]},
        [0],
    ),
    "given": (
        "y^mu_n = softmax[nu : keep^<mu nu>](q^mu_i k^nu_i / sqrt(|i|) + b^<mu nu>) v^nu_n",
        {"k": [2], "v": [2], "q": [3]},
        [3],
    ),
    "joint": (
        "y^mu_n = softmax[nu rho : nu < rho and rho <= mu](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n",
        {"k": [4, 5, 6], "r": [0, 5], "w": [0, 5], "v": [4, 5, 6]},
        [0],
    ),
    "shaped": (
        "y^mu_n = softmax[nu : keep^<mu nu>](3 tanh(q^mu_i k^nu_i / 3) + log(c_nu)) v^nu_n",
        {"k": [2], "v": [2], "q": [3], "c": [2]},
        [3],
    ),
    "sink": (
        "y^mu_n = softmax[nu : keep^<mu nu>; sink=s](q^mu_i k^nu_i) v^nu_n",
        {"k": [2], "v": [2], "q": [3]},
        [3],
    ),
    "lse": ("y^mu = lse[nu : nu <= mu](q^mu_i k^nu_i)", {"k": [5, 6]}, []),
    "sparse": ("y^mu_n = sparsemax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n", {"k": [5, 6], "v": [5, 6]}, []),
}
SHAPES = {
    "q": (5, 3), "k": (7, 3), "v": (7, 2), "r": (6, 3), "w": (6, 2), "b": (5, 7), "c": (7,), "s": (), "keep": (5, 7),
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiles(monkeypatch):
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 24)
    units.unit.cache_clear()
    yield
    units.unit.cache_clear()


def drawn(names):
    make = torch.Generator().manual_seed(1)
    found = {n: torch.rand(SHAPES[n], generator=make, dtype=torch.float64) + 0.5 for n in names if n != "keep"}
    if "keep" in names:
        keep = torch.rand(SHAPES["keep"], generator=make) > 0.4
        keep[:, 2], keep[3], keep[0, 1] = False, False, True
        found["keep"] = keep
    return found


def poisoned(tame, unread, wild):
    """The tensors with a wild number wherever no admitted tuple reads."""
    hurt = {n: x.clone() for n, x in tame.items()}
    for tensor, rows in unread.items():
        hurt[tensor][rows] = wild
    if "b" in hurt:
        hurt["b"][~hurt["keep"]] = wild
    return hurt


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_excluded_values_have_no_influence_on_gradients(name: str, order: int, plan: str) -> None:
    text, unread, empty = CASES[name]
    tame = drawn(ta.parse(text).inputs)
    operator = operators.operation(text, tame, plan=plan)
    names = [n for n, x in tame.items() if x.is_floating_point()]

    def found(tensors):
        call, floats = operators.of_floats(operator, tensors)
        return call(*floats)[0], operators.gradients(call, floats, 3, order=order)

    value, slopes = found(tame)
    for wild in (math.nan, math.inf, -math.inf):
        other_value, other_slopes = found(poisoned(tame, unread, wild))
        torch.testing.assert_close(value, other_value, rtol=1e-12, atol=1e-12)
        for tensor, plain, other in zip(names, slopes, other_slopes, strict=True):
            assert other.isfinite().all(), (tensor, wild)
            torch.testing.assert_close(plain, other, rtol=1e-12, atol=1e-12)
            assert tensor not in unread or (other[unread[tensor]] == 0).all(), (tensor, wild)
        assert (other_value[empty] == 0).all()


@pytest.mark.parametrize("plan", ["auto", "dense", "streamed"])
def test_second_derivatives_of_empty_rows_are_0(plan: str) -> None:
    text, _, _ = CASES["given"]
    tensors = drawn(ta.parse(text).inputs)
    operator = operators.operation(text, tensors, plan=plan)
    call, floats = operators.of_floats(operator, tensors)
    names = [n for n, x in tensors.items() if x.is_floating_point()]
    twice = operators.gradients(call, floats, 3, order=2)
    assert all(x.isfinite().all() for x in twice)
    assert (twice[names.index("q")][3] == 0).all()
    assert (twice[names.index("b")][3] == 0).all()


@pytest.mark.parametrize("kind", ["softmax[nu]", "sparsemax[nu]", "entmax[nu; 1.5]", "entmax[nu; 1.3]", "l1norm[nu]"])
def test_without_keys_every_input_has_a_gradient(kind):
    attend = ta.compile(f"y^mu_n = {kind}(q^mu_i k^nu_i) v^nu_n", plan="dense")
    shapes = dict(q=(3, 2), k=(0, 2), v=(0, 2))
    x = {name: torch.ones(shape, requires_grad=True) for name, shape in shapes.items()}
    found = torch.autograd.grad(attend(x).sum(), list(x.values()))
    assert [g.shape for g in found] == list(shapes.values())
    assert not found[0].any()


def test_the_branch_that_is_not_taken_gets_nothing_of_a_cotangent_that_is_no_number() -> None:
    """As torch has it for `torch.where`: it is no product with zeros."""
    compiled = ta.compile("y^mu_n = sum[nu](softmax[nu](q^mu_i k^nu_i) where(nu < 2, v^nu_n, 0))", plan="streamed")
    x = {name: torch.ones(shape, requires_grad=True) for name, shape in dict(q=(3, 2), k=(5, 2), v=(5, 4)).items()}
    (found,) = torch.autograd.grad(compiled(x), [x["v"]], torch.full((3, 4), math.nan))
    assert found[:2].isnan().all()
    assert (found[2:] == 0).all()
