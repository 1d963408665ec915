"""What a round of a loop costs beside its arithmetic: no copies, no passes, no views that an earlier round had."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tensorattn as ta
from benchmarks.measuring import peak_bytes_numpy, peak_bytes_torch
from tensorattn import backends, units
from tensorattn.backends.numpy import functions as numpy_functions
from tensorattn.backends.torch import tiles
from tensorattn.ir import Index
from tensorattn.kernel import Apply, Contract, Fold, IfBounded, Slice, Stream, Weigh
from tensorattn.lowering.products import repeating
from tensorattn.parts import Carry, Literal
from tensorattn.peaks import peaks
from tensorattn.sizes import Size
from tests.kernels import BOTH, call, kernel, one, register

SHARED = """
W^<mu nu rho> = q^mu_i k^nu_i r^rho_i
a^<mu nu>_n   = softmax[rho](W^<mu nu rho>) v^rho_n
b^<mu rho>_n  = softmax[nu](W^<mu nu rho>) v^nu_n
"""


def names(text: str) -> tuple[Index, ...]:
    return tuple(map(Index, text.split()))


class Copies(TorchDispatchMode):
    """Counts the entries that are copied to another order."""

    def __init__(self) -> None:
        super().__init__()
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten.clone.default, torch.ops.aten.copy_.default):
            self.entries += args[0].numel()
        return func(*args, **(kwargs or {}))


# products ---------------------------------------------------------------------------------------------------------

SHAPES = ["a b c, b d -> a c d", "b d, a b c -> a d c", "a b c, b c d -> a d", "a b c e, c d -> a b e d",
          "a b c e, b e d -> a c d", "c a b, c d -> d a b", "a b c, b c -> a"]  # fmt: skip


@BOTH
@pytest.mark.parametrize("spelt", SHAPES)
@pytest.mark.parametrize("length", [0, 1, 3])
def test_a_product_whose_operand_is_cut_by_what_is_summed(library, spelt, length):
    lengths = dict(a=2, b=length, c=5, d=7, e=2)
    (first, second), out = spelt.split(" -> ")[0].split(", "), spelt.split(" -> ")[1]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=[lengths[n] for n in axes.split()]) for axes in (first, second)]
    step = Contract(register("y", out, "float64"), register("x", first, "float64"), register("z", second, "float64"))
    result = one(library, {"x": (first, "float64"), "z": (second, "float64")}, step, *arrays)
    letters = [axes.replace(" ", "") for axes in (first, second, out)]
    np.testing.assert_allclose(result, np.einsum("{},{}->{}".format(*letters), *arrays), rtol=0, atol=1e-12)


def test_which_products_are_made_place_by_place():
    out = names("a c d")
    assert repeating(names("b d"), names("a b c"), out) == Index("a")
    assert repeating(names("a b c"), names("b d"), out) is None  # the other one is to be repeated
    assert repeating(names("c d"), names("a b c"), names("a b d")) is None  # one matrix as it lies
    assert repeating(names("a b d"), names("a b c"), out) is None  # has a batch already
    assert repeating(names("b"), names("b a c"), names("a c")) is None
    assert repeating(names("b d"), names("c a b e"), names("c a e d")) is None  # still to be copied
    pairs = names("a c d e")
    assert repeating(names("a b c"), names("d b e"), pairs) is None  # each pair of places would be a product
    assert repeating(names("d b e"), names("a b c"), pairs) is None


def test_an_operand_between_whose_rows_the_sum_stands_is_not_copied():
    x, z, out = (register(name, axes, "float32") for name, axes in (("x", "a b c"), ("z", "b d"), ("y", "a c d")))
    made = kernel({"x": ("a b c", "float32"), "z": ("b d", "float32")}, (Contract(out, x, z),), (out,))
    run = backends.get("torch").build(made, "formula")
    x, z = torch.randn(3, 50, 40), torch.randn(50, 7)
    with Copies() as copied:
        (found,) = run(x, z)
    torch.testing.assert_close(found, torch.einsum("abc,bd->acd", x, z))
    assert copied.entries < x.numel()


PRODUCTS = ["a b e c, b d e -> a c d", "a e b c, e b d -> a c d", "a b c, d b e -> a c d e"]


@BOTH
@pytest.mark.parametrize("spelt", PRODUCTS)
def test_a_product_place_by_place_holds_no_more_than_predicted(library, spelt):
    """The value, whose memory has another order, is brought into order once, not once for each place."""
    lengths = dict(a=60, b=6, c=30, d=20, e=5)
    (first, second), spelt_out = spelt.split(" -> ")[0].split(", "), spelt.split(" -> ")[1]
    x, z, out = (register(n, axes, "float32") for n, axes in (("x", first), ("z", second), ("y", spelt_out)))
    made = kernel({"x": (first, "float32"), "z": (second, "float32")}, (Contract(out, x, z),), (out,))
    arrays = [np.ones([lengths[i] for i in axes.split()], np.float32) for axes in (first, second)]
    arrays[1] = arrays[1].T.copy().T
    run = backends.get(library).build(made, "formula")
    if library == "numpy":
        measured = peak_bytes_numpy(lambda: run(*arrays)[0])
    else:
        measured = peak_bytes_torch(lambda: run(*map(torch.from_numpy, arrays)))
    predicted = max(size.value(lengths) for size in peaks(made, made.body, library))
    assert measured <= predicted + arrays[1].nbytes + 8000


def test_a_value_that_is_repeated_behind_heads_is_counted():
    """torch copies it for every place: the axis of these is no outer one."""
    lengths = dict(h=3, c=8, m=60, n=20, r=2)
    spelt = dict(x="h m n", z="h c r n", y="h c m r")
    x, z, y = (register(n, axes, "float32") for n, axes in spelt.items())
    step = Contract(y, x, z, None, Index("c"))
    made = kernel({n: (spelt[n], "float32") for n in "xz"}, (step,), (y,))
    run = backends.get("torch").build(made, "formula")
    arrays = [torch.ones([lengths[i] for i in spelt[n].split()]) for n in "xz"]
    measured = peak_bytes_torch(lambda: run(*arrays))
    predicted = max(size.value(lengths) for size in peaks(made, made.body, "torch"))
    assert 0.8 * measured <= predicted <= 1.2 * measured
    assert predicted >= 8 * arrays[0].nbytes


# exponentials -----------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
def test_softmaxes_that_share_scores_both_use_exp2():
    sizes = dict(mu=112, nu=112, rho=112, i=8, n=8)
    compiled = ta.compile(SHARED, plan="streamed", outputs=["a", "b"])
    program, dtypes = ta.parse(SHARED), dict.fromkeys(compiled.inputs, "float32")
    unit = units.unit(units.key_of(program, ("a", "b"), {}, dtypes, 0, sizes, "streamed", None))
    (branch,) = [i for i in unit.planned("torch", sizes).body if isinstance(i, IfBounded)]
    fast, safe = (next(i for i in side if isinstance(i, Stream)).body for side in (branch.fast, branch.safe))
    assert [i.base for i in safe if isinstance(i, Weigh)] == ["2", "2"]
    assert sum(isinstance(i, Apply) and i.function == "exp2" for i in fast) == 2
    for body in (fast, safe):
        assert sum(isinstance(i, Contract) and len(i.out.axes) == 3 for i in body) == 3  # scores once, and two sums
    rng = np.random.default_rng(1)
    x = {n: rng.normal(size=(112, 8)) for n in compiled.inputs}
    x["q"][3] = 40  # far from 0, so that a wrong unit shows
    a, b = compiled({n: torch.from_numpy(a) for n, a in x.items()}).values()
    score = np.einsum("mi,ni,ri->mnr", *(x[n] for n in "qkr"))
    for found, axis, spelt in ((a, 2, "mnr,rk->mnk"), (b, 1, "mnr,nk->mrk")):
        weights = np.exp(score - score.max(axis, keepdims=True))
        expected = np.einsum(spelt, weights / weights.sum(axis, keepdims=True), x["v"])
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-11)


def test_weights_made_again_from_shared_scores_all_use_exp2():
    """Each alone would need the scores in both units."""
    sizes = dict(mu=112, nu=112, rho=112, i=8, n=8)
    program = ta.parse(SHARED)
    dtypes = dict.fromkeys(program.inputs, "float32")
    key = units.key_of(program, ("a", "b"), {}, dtypes, 0, sizes, "streamed", None)
    given = tuple(n < 2 for n in range(len(units.unit(key).outputs)))
    unit = units.unit(units.stepped(key, "adjoint", given, tuple(program.inputs)))
    planned = unit.planned("torch", {name: sizes[name] for name, _ in unit.kernel.sizes})
    (body,) = [i.body for i in planned.body if isinstance(i, Stream)]
    functions = [i.function for i in body if isinstance(i, Apply)]
    assert (functions.count("exp2"), functions.count("exp")) == (2, 0)


@pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
def test_the_log_sum_exp_of_softmaxes_by_exp2_is_in_its_own_unit():
    """Gradients make the weights again from it; scores are too large for the branch that needs no maximum."""
    dense, plans = {}, {}
    for plan, grads in (("dense", dense), ("streamed", plans)):
        compiled = ta.compile(SHARED, plan=plan, outputs=["a", "b"])
        rng = np.random.default_rng(3)
        x = {n: torch.tensor(6 * rng.normal(size=(112, 8)), requires_grad=True) for n in compiled.inputs}
        a, b = compiled(x).values()
        grads.update(zip(x, torch.autograd.grad((a.square().sum() + b.sum()), list(x.values())), strict=True))
    for name, expected in dense.items():
        torch.testing.assert_close(plans[name], expected, rtol=0, atol=1e-9 * float(expected.abs().max()))


# sums into a state ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 3, 9])
@pytest.mark.parametrize("dims", [(0,), (1,), (2,), (0, 2)])
@pytest.mark.parametrize("own", [True, False])
def test_a_sum_is_added_to_what_there_is(length, dims, own):
    rng = np.random.default_rng(2)
    shape = [4, 5, 6]
    shape[dims[0]] = length
    x = rng.normal(size=shape)
    total = rng.normal(size=[size for n, size in enumerate(shape) if n not in dims])
    expected = total + x.sum(dims)
    held = torch.from_numpy(total.copy())
    found = tiles.add_sum(held, torch.from_numpy(x), dims, own)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)
    assert (found is held) == own
    np.testing.assert_allclose(numpy_functions.add_sum(total, x, dims, own), expected, rtol=0, atol=1e-13)


@BOTH
def test_a_sum_that_something_else_reads_too_is_made(library):
    state, other = register("state", "i"), register("other", "i")
    part, twice = register("part", "i"), register("twice", "i")
    sums = register("sum", "i"), register("others", "i")
    cut = register("cut", "i t")
    body = (
        Slice(cut, register("x", "i t"), Index("t")),
        Fold(part, "sum", cut),
        Apply(twice, "multiply", (part, Literal(2))),
    )
    carry = Carry(state, 0, part), Carry(other, 0, twice)
    merge = tuple(Apply(s, "add", (c.state, c.part)) for s, c in zip(sums, carry, strict=True))
    loop = Stream(Index("t"), Size.of("t"), 2, body, carry, merge, sums)
    made = kernel({"x": ("i t", "float64")}, (loop,), (state, other))
    x = np.random.default_rng(4).normal(size=(3, 7))
    for found, expected in zip(call(library, made, x), (x.sum(1), 2 * x.sum(1)), strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-14)


def test_rooms_keep_few_views_of_their_memory():
    room = tiles.Room(torch.zeros(100))
    first = tiles.fit(room, (3, 4))
    assert first is tiles.fit(room, (3, 4))
    first.fill_(1)
    assert tiles.fit(room, (2, 10)).flatten().tolist() == [1.0] * 12 + [0.0] * 8
    for n in range(50):
        tiles.fit(room, (n, 2))
    assert len(room) <= 4
    assert tiles.fit(None, (3, 4)) is None


# exponentials ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_exponentials_by_exp2_are_as_exact_as_weights_have_to_be(dtype):
    x = -torch.linspace(0, 200, 100_001, dtype=dtype)
    wanted = torch.exp(x.double())
    assert (tiles.exp_(x.clone()).double() - wanted).abs().max() <= torch.finfo(dtype).eps
    odd = torch.tensor([0.0, -math.inf, math.nan], dtype=dtype)
    assert tiles.exp_(odd.clone()).tolist()[:2] == [1.0, 0.0]
    assert tiles.exp_(odd)[2].isnan()


def test_exponentials_that_are_followed_keep_their_derivatives():
    x = torch.tensor([-1.0, -3.0], requires_grad=True)
    (slope,) = torch.autograd.grad(tiles.exp_(x * 1).sum(), x)
    torch.testing.assert_close(slope, x.detach().exp())
    _, tangent = torch.func.jvp(lambda x: tiles.exp_(x * 1), (x.detach(),), (torch.ones(2),))
    torch.testing.assert_close(tangent, x.detach().exp())
