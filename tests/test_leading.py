"""Loops whose axis leads their tiles, sums that are made place by place, and what loops make of short slices before."""

from __future__ import annotations

import math

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import units
from tensorattn.backends.numpy import functions as numpy_functions
from tensorattn.backends.torch import tiles
from tensorattn.ir import Index
from tensorattn.kernel import Apply, Contract, IfFinite, Normalised, Slice, Stream, Weigh
from tensorattn.lowering import hoisting, orienting, streaming
from tensorattn.lowering.buffers import places
from tensorattn.lowering.products import product, product_of
from tensorattn.parts import Carry, Summand
from tensorattn.sizes import Size
from tests.kernels import BOTH, axes, call, kernel, register
from tests.strategies import examples
from tests.test_derivatives import SETTINGS, check
from tests.test_orienting import BIASED, OPERATOR, adjoint, given, inner

RELATIONS = """W^<mu nu rho> = q^mu_i k^nu_i r^rho_i
a^<mu rho>_m = W^<mu bar(nu) rho> t^nu_m
b^<mu nu>_m = W^<mu nu bar(rho)> u^rho_m
y^mu_l = a^<mu rho>_m b^<mu nu>_m w^<nu rho>_l"""
SHARED = "W^<b h mu nu> = q^<b mu>_i k^<h nu>_i\ny^<b h mu>_n = W^<b h mu bar(nu)> v^<h nu>_n"
GIVEN = """W^<h mu nu rho> = q^<h mu>_i k^<h nu>_i r^rho_i
a^<mu h rho>_m = W^<h mu bar(nu) rho> t^<h nu>_m
b^<mu h nu>_m = W^<h mu nu bar(rho)> u^<h rho>_m
y^<h mu>_l = a^<mu h rho>_m b^<mu h nu>_m w^<h nu rho>_l"""
FORMULAS = {
    OPERATOR: dict(h=2, mu=7, nu=5, rho=6, i=2, j=3, l=2, n=2),
    RELATIONS: dict(mu=5, nu=7, rho=3, i=2, m=2, l=3),
    BIASED: dict(b=5, h=2, mu=3, nu=7, i=2, n=3),
    GIVEN: dict(h=1, mu=7, nu=7, rho=2, i=1, m=2, l=1),  # its loops cut scores that are made before
    SHARED: dict(b=5, h=2, mu=3, nu=3, i=3, n=1),  # Σ_b Σ_mu, with h and nu on either side of mu
}
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


def loop_of(body) -> Stream:
    return next(i for i in inner(body) if isinstance(i, Stream))


@pytest.fixture
def eager(monkeypatch):
    """As if calls cost nothing and copies much, with tiles of a few positions."""
    monkeypatch.setattr(orienting, "A_CALL", 0)
    monkeypatch.setattr(hoisting, "SHARE", 1)
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 60)
    units.unit.cache_clear()
    yield
    units.unit.cache_clear()


# Products place by place ------------------------------------------------------------------------------------------


PLACES = ["h m n, h c r n -> h c m r", "h c r n, h m n -> h c m r", "h c m r, h m n -> h c r n",
          "c m n, r n -> c m r", "m n, c r n -> c r m", "h g m n, h g c r n -> h g c m r"]  # fmt: skip


@BOTH
@pytest.mark.parametrize("spelt", PLACES)
@pytest.mark.parametrize("length", [0, 1, 3])
@pytest.mark.parametrize("added", [None, "row", "column", "whole"])
def test_places_of_an_axis_are_multiplied_one_by_one(library, spelt, length, added):
    lengths = dict(h=2, g=3, c=length, m=5, n=2, r=7)
    (first, second), out = spelt.split(" -> ")[0].split(", "), spelt.split(" -> ")[1]
    made = product(axes(first), axes(second), axes(out), Index("c"))
    assert Index("c") in made.batch
    kept = {"row": {*made.left}, "column": {*made.right}, "whole": {*axes(out)}, None: set()}[added]
    beside = " ".join(i for i in out.split() if Index(i) in kept | {*made.batch[:1]} - {Index("c")})
    rng = np.random.default_rng(0)
    spellings = [first, second, beside]
    x, z, w = (rng.normal(size=[lengths[n] for n in spelling.split()]) for spelling in spellings)
    names = [register(n, spelling) for n, spelling in zip("xzw", spellings, strict=True)]
    step = Contract(register("y", out), *names[:2], None if added is None else Summand(names[2], (1, 1)), Index("c"))
    inputs = {n: (spelling, "float64") for n, spelling in zip("xzw", spellings, strict=True)}
    (found,) = call(library, kernel(inputs, (step,), (step.out,)), x, z, w)
    letters = [spelling.replace(" ", "") for spelling in (*spellings, out)]
    expected = np.einsum("{0},{1}->{3}".format(*letters), x, z)
    if added is not None:
        expected = expected + np.einsum(f"{letters[2]},{letters[3]}->{letters[3]}", w, np.ones_like(expected))
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


SUMS = [
    "a b c, a c d -> b d",
    "a b c, c a d -> b d",
    "b a c, a d c -> d b",
    "a b c e, a c e d -> b d",
    "a f c b, a c d -> f b d",
]


@BOTH
@pytest.mark.parametrize("spelt", SUMS)
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_sum_is_made_place_by_place_onto_a_state(library, spelt, length):
    lengths = dict(a=length, b=5, c=2, d=7, e=3, f=2)
    (first, second), out = spelt.split(" -> ")[0].split(", "), spelt.split(" -> ")[1]
    rng = np.random.default_rng(0)
    spellings = [first, second, out]
    arrays = [rng.normal(size=[lengths[n] for n in spelling.split()]) for spelling in spellings]
    x, z, w = (register(n, spelling) for n, spelling in zip("xzw", spellings, strict=True))
    step = Contract(register("y", out), x, z, Summand(w, (1, 1)), Index("a"))
    assert product_of(step).apart == (Index("a"),)
    inputs = {n: (spelling, "float64") for n, spelling in zip("xzw", spellings, strict=True)}
    (found,) = call(library, kernel(inputs, (step,), (step.out,)), *arrays)
    letters = [spelling.replace(" ", "") for spelling in spellings]
    expected = arrays[2] + np.einsum("{},{}->{}".format(*letters), *arrays[:2])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@BOTH
def test_a_sum_that_is_added_to_nothing_is_one_product(library):
    x, z, y = register("x", "a b c"), register("z", "a c d"), register("y", "b d")
    step = Contract(y, x, z, None, Index("a"))
    assert product_of(step).apart == ()
    rng = np.random.default_rng(0)
    arrays = rng.normal(size=(3, 5, 2)), rng.normal(size=(3, 2, 7))
    (found,) = call(library, kernel({"x": ("a b c", "float64"), "z": ("a c d", "float64")}, (step,), (y,)), *arrays)
    np.testing.assert_allclose(found, np.einsum("abc,acd->bd", *arrays), rtol=0, atol=1e-12)


@BOTH
@pytest.mark.parametrize("into", [False, True])
@pytest.mark.parametrize("places", [0, 1, 4])
def test_products_are_added_up(library, into, places):
    rng = np.random.default_rng(0)
    a, b, total = rng.normal(size=(places, 5, 3)), rng.normal(size=(places, 3, 7)), rng.normal(size=(5, 7))
    functions, wrap = (numpy_functions, np.array) if library == "numpy" else (tiles, torch.tensor)
    state = wrap(total)
    found = functions.add_products(wrap(a), wrap(b), state, state if into else None)
    assert (found is state) is into
    np.testing.assert_allclose(np.asarray(found), total + np.einsum("xij,xjk->ik", a, b), rtol=0, atol=1e-12)
    if not into:
        np.testing.assert_array_equal(np.asarray(state), total)


@BOTH
@pytest.mark.parametrize("floor", [False, True])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("order", ["c a b", "b a c", "a b c"])
def test_weights_lie_as_their_register_says(library, floor, masked, order):
    """The score, the mask, the maxima and the sums each in an order of their own."""
    rng = np.random.default_rng(0)
    score, least, mask = rng.normal(size=(3, 5, 2)), rng.normal(size=(2, 3)), rng.random((5, 2, 3)) < 0.7
    given_ = {"s": ("a b c", "float64"), "f": ("c a", "float64"), "p": ("b c a", "bool")}
    out, greatest, total = register("w", order), register("m", "a c"), register("l", "c a")
    where = register("p", "b c a", "bool") if masked else None
    kept = register("f", "c a") if floor else None
    step = Weigh(out, greatest, total, axes("b"), register("s", "a b c"), where, "e", kept)
    results = (out, greatest, total)
    found = call(library, kernel(given_, (step,), results), score, least, mask)
    admitted = np.where(mask.transpose(2, 0, 1), score, -np.inf) if masked else score
    most = np.maximum(admitted.max(1), least.T if floor else -np.inf)
    weights = np.exp(admitted - most[:, None])
    wanted = (np.einsum("abc->" + order.replace(" ", ""), weights), most, weights.sum(1).T)
    for ours, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-12)


# Loops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", FORMULAS)
def test_whatever_leads_all_derivatives_are_the_same(eager, text):
    check(text, given(text, FORMULAS[text]))


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("text", FORMULAS)
def test_whatever_leads_values_are_the_same_without_gradients(eager, text, library):
    x = given(text, FORMULAS[text])
    expected = ta.compile(text, plan="dense")(x)
    found = ta.compile(text, plan="streamed")({n: a.numpy() for n, a in x.items()} if library == "numpy" else x)
    torch.testing.assert_close(torch.as_tensor(found), expected, rtol=0, atol=1e-11)


@hypothesis.given(examples())
@hypothesis.settings(SETTINGS, max_examples=6)
def test_random_loops_too(eager, example):
    arrays = {
        n: torch.tensor(a, dtype=torch.float64 if a.dtype.kind == "f" else None) for n, a in example.inputs.items()
    }
    check(example.text, arrays, example.names, example.sizes)


def test_the_axis_of_the_loop_leads_and_no_operand_is_copied():
    sizes = dict(h=1, mu=256, nu=256, rho=256, i=32, j=32, l=32, n=32)
    loop = loop_of(adjoint(OPERATOR, sizes).body)
    assert loop.axis.name == "nu"
    weights = next(i.out for i in loop.body if isinstance(i, Apply) and i.function == "exp2")
    assert [index.name for index in weights.axes] == ["h", "nu", "mu", "rho"]
    steps = [i for i in loop.body if isinstance(i, Contract)]
    assert len(steps) == 8
    assert not any(product_of(i).copies(r.axes) for i in steps for r in (i.a, i.b))


def test_a_sum_over_two_axes_that_an_operand_holds_apart_is_made_place_by_place():
    sizes = dict(mu=64, nu=96, rho=80, i=32, m=32, l=1)
    loop = loop_of(adjoint(RELATIONS, sizes).body)
    apart = [i for i in loop.body if isinstance(i, Contract) and product_of(i).apart]
    assert apart
    assert all(i.added and i.added.register in {c.state for c in loop.carry} for i in apart)
    few = dict(sizes, nu=5, rho=6, i=2, m=2)  # a call would cost more than a copy
    body = adjoint(RELATIONS, few).body
    assert not any(i.along for i in inner(body) if isinstance(i, Contract))


def test_what_is_made_of_short_slices_is_made_before_the_loop():
    sizes = dict(b=192, h=4, mu=192, nu=192, i=32, n=32)
    kernel_ = adjoint(BIASED, sizes)
    loop = loop_of(kernel_.body)
    assert loop.axis.name == "b"
    small = [i for i in loop.body if isinstance(i, Apply) and len(i.out.axes) == 3]
    read = {r for i in loop.body if isinstance(i, Slice) for r in (i.source,)}
    before = [i for i in kernel_.body if isinstance(i, Apply) and i.out in read]
    assert [i.out.name for i in before if i.function == "in_twos"], "the log-sum-exp in units of ln 2"
    assert not [i for i in small if i.function in ("in_twos", "equal", "select")]


def test_what_is_large_as_a_whole_stays_in_the_loop():
    """The scaled query of all of b has more entries than half a tile of scores."""
    sizes = dict(b=192, h=4, mu=192, nu=192, i=32, n=32)
    loop = loop_of(adjoint(BIASED.replace("k^<b h nu>_i", "k^<b h nu>_i / sqrt(|i|)"), sizes).body)
    assert [i for i in loop.body if isinstance(i, Apply) and i.function == "divide" and len(i.out.axes) == 4]


def test_what_depends_on_a_state_or_multiplies_across_rows_stays_in_the_loop():
    """Beside it, what is made of a slice, or of nothing that a round changes, goes before the loop."""
    state, part, merged = (register(n, "i") for n in ("s", "p", "t"))
    cut, left, right = register("cut", "a"), register("left", "i a"), register("right", "i a")
    of_state, of_slice, of_all = register("u", "i"), register("w", "a"), register("c", "i")
    matrix = register("m", "i a")
    body = (
        Slice(cut, register("x", "a"), Index("a")),
        Slice(left, register("y", "i a"), Index("a")),
        Slice(right, register("z", "i a"), Index("a")),
        Apply(of_state, "exp", (state,)),
        Apply(of_slice, "exp", (cut,)),
        Apply(of_all, "exp", (register("b", "i"),)),
        Apply(matrix, "exp", (left,)),
        Contract(part, matrix, right),
        Contract(register("large", "i j a"), register("f", "i j a"), right),
        Apply(register("d", "i"), "add", (of_state, of_all)),
        Apply(register("e", "a"), "exp", (of_slice,)),
    )
    merge = (Apply(merged, "add", (state, part)),)
    carry = Carry(state, 0, part), Carry(register("sd", "i"), 0, register("d", "i"))
    stream = Stream(Index("a"), Size.of("a"), 2, body, carry, merge, (merged, register("d", "i")))
    *before, loop = hoisting.hoisted((stream,), dict(a=8, i=3, j=50))
    assert [i.out.name for i in before] == ["wall", "c", "eall"]
    inside = {i.out.name: i for i in loop.body}
    assert {"u", "m", "d"} <= inside.keys()
    assert not {"w", "c"} & inside.keys(), "nothing reads slices of them any more"


def test_nothing_moves_that_an_instruction_of_another_kind_reads():
    """A whole softmax in a slice, which may want its score in one order."""
    q, k, out, copied = register("q", "c i"), register("k", "m i"), register("s", "m c"), register("y", "c m")
    v, moved = register("v", "c m j"), register("z", "c j")
    steps = (Contract(out, q, k), Contract(moved, out, v), Apply(copied, "exp", (out,)))
    loop = Stream(Index("c"), Size.of("c"), 2, steps, (), (), ())
    sizes = dict(c=9, m=50, i=4, j=3)
    assert orienting._Loop(loop, sizes)._led(steps) != steps
    guarded = (*steps, Normalised(register("w", "m c"), "softmax", (Index("m"),), out, None))
    assert orienting._Loop(Stream(Index("c"), Size.of("c"), 2, guarded, (), (), ()), sizes)._led(guarded) == guarded


@hypothesis.given(st.integers(1, 9), st.integers(0, 4), st.integers(1, 9))
@hypothesis.settings(max_examples=20, deadline=None)
def test_short_slices_of_any_length(b, mu, nu):
    sizes = dict(b=b, h=2, mu=mu, nu=nu, i=2, n=3)
    x = given(BIASED, sizes)
    scores = torch.einsum("bhmi,bhni->bhmn", x["q"], x["k"]) + x["B"]
    expected = scores.softmax(-1) @ x["v"]
    found = ta.compile(BIASED, plan="streamed")(x)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_weights_lie_as_their_scores_do():
    """A score that is only broadcast along the axis of the loop stays as it is."""
    text = "y_n = softmax[nu rho](a^nu_i b_i ones_rho) v^<rho nu>_n"
    x = given(text, dict(nu=2, rho=5, i=2, n=2))
    weights = (x["a"] @ x["b"])[None, :, None].expand(5, 2, 1).flatten().softmax(0)
    for library in (torch.tensor, np.asarray):
        found = ta.compile(text, plan="streamed")({n: library(a.numpy()) for n, a in x.items()})
        np.testing.assert_allclose(np.asarray(found), weights @ x["v"].flatten(0, 1), rtol=0, atol=1e-12)


# Guarded functions ------------------------------------------------------------------------------------------------


def test_what_a_guarded_function_gives_is_not_computed_again_for_its_slope():
    """The soft cap below a predicate: its tanh once in the backward pass, with 1 − y² made over y."""
    text = "y^mu_n = softmax[nu : nu <= mu](20 tanh(q^mu_i k^nu_i / 20)) v^nu_n"
    sizes = dict(mu=256, nu=256, i=16, n=16)
    kernel_ = adjoint(text, sizes)
    loop = next(i for i in inner(kernel_.body) if isinstance(i, Stream))
    branches = [i for i in loop.body if isinstance(i, IfFinite)]
    caps = [b for b in branches if any(isinstance(i, Apply) and i.function == "tanh" for i in b.fast)]
    assert len(caps) == 1
    slope = next(b for b in branches if any(isinstance(i, Apply) and i.function == "negate" for i in b.fast))
    square = next(i.out for i in slope.fast if isinstance(i, Apply) and i.function == "multiply")
    assert places(loop).of[square.name] == caps[0].out


@pytest.mark.parametrize("function", ["tanh", "sigmoid", "exp", "silu", "softplus"])
@pytest.mark.parametrize("bad", [None, math.nan, math.inf])
def test_slopes_of_guarded_functions(function, bad):
    """Of finite scores, and where an excluded one is not finite."""
    text = f"y^mu_n = softmax[nu : nu <= mu](2 {function}(q^mu_i k^nu_i + B^<mu nu>)) v^nu_n"
    x = {n: a.requires_grad_() for n, a in given(text, dict(mu=9, nu=9, i=2, n=3)).items()}
    if bad is not None:
        with torch.no_grad():
            x["B"][2, 5] = bad
    found = ta.compile(text, plan="streamed")(x)
    admitted = torch.ones(9, 9, dtype=torch.bool).tril()
    raw = torch.where(admitted, x["q"] @ x["k"].T + torch.where(admitted, x["B"], 0.0), 0.0)
    own = {"silu": torch.nn.functional.silu, "softplus": torch.nn.functional.softplus}
    capped = 2 * (own.get(function) or getattr(torch, function))(raw)
    expected = torch.where(admitted, capped, -math.inf).softmax(1) @ x["v"]
    bar = torch.randn_like(expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    slopes = [torch.autograd.grad(y, list(x.values()), bar) for y in (found, expected)]
    for ours, theirs in zip(*slopes, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11)
