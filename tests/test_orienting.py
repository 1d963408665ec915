"""How loops lay out what they make: operands packed once, sums as they come, tiles transposed, sums taken along."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
import torch

import tensorattn as ta
from benchmarks.measuring import peak_bytes_torch
from benchmarks.workloads import find
from tensorattn import units
from tensorattn.backends.numpy import functions as numpy_functions
from tensorattn.backends.torch import tiles
from tensorattn.cost import kernel_cost
from tensorattn.ir import Index
from tensorattn.kernel import Apply, Arrange, Contract, IfBounded, Stream
from tensorattn.lowering import orienting, streaming
from tensorattn.lowering.buffers import places
from tensorattn.lowering.liveness import INNER, made_within
from tensorattn.lowering.products import product
from tests.strategies import examples
from tests.test_derivatives import MASKED, SETTINGS, check, masked_inputs

PAIRS = "W^<mu nu rho> = k^mu_i q^nu_i r^rho_i / sqrt(|i|); y^mu_n = W^<mu bar(nu rho)> u^nu_n v^rho_n"
OPERATOR = (
    "W^<h mu nu rho> = k^<h mu>_i q^<h nu>_j r^<h rho>_l M_<i j l>; y^<h mu>_n = W^<h mu bar(nu rho)> v^<h nu rho>_n"
)
BIASED = "W^<b h mu nu> = q^<b h mu>_i k^<b h nu>_i + B^<h mu nu>; y^<b h mu>_n = W^<b h mu bar(nu)> v^<b h nu>_n"
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


FORMULAS = {
    PAIRS: dict(mu=7, nu=5, rho=6, i=2, n=3),
    OPERATOR: dict(h=2, mu=7, nu=5, rho=6, i=2, j=3, l=2, n=2),
    BIASED: dict(b=3, h=2, mu=7, nu=11, i=2, n=3),
    "y^mu_n = softmax[nu](q^mu_i k^nu_i - c^nu - d^mu_i e^nu_i + f^mu) v^nu_n": dict(mu=7, nu=11, i=2, n=3),
    "y^mu_n = softmax[nu](c^nu - q^mu_i k^nu_i) v^nu_n": dict(mu=7, nu=11, i=2, n=3),
    "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i + B^<mu nu>) v^nu_n": dict(mu=7, nu=7, i=2, n=3),
}


def given(text: str, sizes: dict[str, int], dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    program = ta.parse(text)
    shapes = {t.name: [sizes[slot.name] for slot in t.slots] for t in program.tensors if t.name in program.inputs}
    return {name: torch.randn(shape, generator=make, dtype=dtype) for name, shape in shapes.items()}


def inner(body):
    """All instructions of a body, those of loops and branches too."""
    for instruction in body:
        yield instruction
        for name in INNER:
            yield from inner(getattr(instruction, name, ()))


def adjoint(text: str, sizes: dict[str, int], dtype: str = "float32"):
    """The kernel of the gradients of a streamed formula."""
    program = ta.parse(text)
    out = program.statements[-1].name
    key = units.key_of(program, (out,), {}, dict.fromkeys(program.inputs, dtype), 0, sizes, "streamed", None)
    first = units.unit(key)
    bars = (True, *(False for _ in first.outputs[1:]))
    unit = units.unit(units.stepped(key, "adjoint", bars, tuple(program.inputs)))
    return unit.planned("torch", {name: sizes[name] for name, _ in unit.kernel.sizes})


@pytest.fixture
def conflicts(monkeypatch):
    """As if every product of a transposed operand were slow, and every copy for one, in loops of many tiles."""
    limits = dict(CONFLICT=1, WORTH_A_COPY=0, FEWER_COLUMNS=1 << 20, FEW_COLUMNS=1 << 20, LARGER=0, A_CALL=0)
    for name, value in limits.items():
        monkeypatch.setattr(orienting, name, value)
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 48)
    units.unit.cache_clear()
    yield
    units.unit.cache_clear()


@pytest.mark.parametrize("text", FORMULAS)
def test_whatever_lies_transposed_all_derivatives_are_the_same(conflicts, text):
    check(text, given(text, FORMULAS[text]))


@pytest.mark.parametrize("name", MASKED)
def test_masked_loops_too(conflicts, name):
    check(MASKED[name], masked_inputs(name))


@hypothesis.given(examples())
@hypothesis.settings(SETTINGS, max_examples=6)
def test_random_loops_too(conflicts, example):
    arrays = {
        n: torch.tensor(a, dtype=torch.float64 if a.dtype.kind == "f" else None) for n, a in example.inputs.items()
    }
    check(example.text, arrays, example.names, example.sizes)


def test_tiles_and_results_do_lie_transposed_then(conflicts):
    kernel = adjoint(PAIRS, FORMULAS[PAIRS])
    stream = next(i for i in inner(kernel.body) if isinstance(i, Stream))
    weights = next(i.out for i in inner(stream.body) if isinstance(i, Apply) and i.function == "exp2")
    assert weights.axes[-1] == Index("mu")
    assert [i for i in inner(kernel.body) if isinstance(i, Arrange) and i.packed]


def test_rows_that_share_places_of_the_cache_are_not_read_across():
    """Pᵀ k would read across rows of which each begins a multiple of 2 KB after the other: P is kept as Pᵀ."""
    sizes = dict(mu=512, nu=512, rho=512, i=32, n=32)
    stream = next(i for i in inner(adjoint(PAIRS, sizes).body) if isinstance(i, Stream))
    loop = orienting._Loop(stream, sizes)
    products = [i for i in stream.body if isinstance(i, Contract) and product(i.a.axes, i.b.axes, i.out.axes).inner]
    assert len(products) >= 5
    assert not any(loop._slow(step) for step in products)
    weights = next(i.out for i in stream.body if isinstance(i, Apply) and i.function == "exp2")
    assert [index.name for index in weights.axes] == ["nu", "rho", "mu"]
    plain = dict(sizes, mu=300, nu=300, rho=300)  # rows of another length may be read across
    stream = next(i for i in inner(adjoint(PAIRS, plain).body) if isinstance(i, Stream))
    weights = next(i.out for i in stream.body if isinstance(i, Apply) and i.function == "exp2")
    assert [index.name for index in weights.axes] == ["mu", "nu", "rho"]


def test_a_tile_along_the_last_axis_stays_as_long_as_whole_vectors():
    """64 keys a tile, though an operand of 64 features has rows of 4096 then: 63 columns would be slower to make."""
    workload = find("W1")
    sizes = workload.sizes["full"]
    stream = next(i for i in inner(adjoint(workload.text(sizes), sizes).body) if isinstance(i, Stream))
    assert stream.axis.name == "nu"
    assert stream.tile.entries // stream.tile.per.value(sizes) == 64


@pytest.mark.parametrize(("name", "share"), [("W3", 2), ("W9", 4)])
def test_a_tile_is_as_large_as_the_arrays_of_a_round_allow(name, share):
    """Weights and their gradient are two; relations between relations hold many, of which each has a quarter."""
    workload = find(name)
    text = workload.text({})
    sizes = {n: s for n, s in workload.sizes["full"].items() if n in ta.parse(text).indices}
    stream = next(i for i in inner(adjoint(text, sizes).body) if isinstance(i, Stream))
    assert stream.tile.entries == streaming.TILE_ENTRIES // share


def test_what_no_round_changes_is_brought_into_order_once():
    """k M is read with its summed index between the others: copied before the loop, for both products."""
    sizes = dict(h=1, mu=256, nu=256, rho=256, i=32, j=32, l=32, n=32)
    kernel = adjoint(OPERATOR, sizes)
    stream = next(i for i in inner(kernel.body) if isinstance(i, Stream))
    inside = {register.name for register in made_within((stream,))}
    outer = [(i, r) for i in inner(stream.body) if isinstance(i, Contract) for r in (i.a, i.b) if r.name not in inside]
    assert outer
    assert not any(product(i.a.axes, i.b.axes, i.out.axes).copies(r.axes) for i, r in outer)
    copied = [i for i in kernel.body if isinstance(i, Arrange) and i.packed and i.out.name not in inside]
    assert [i.source.name for i in copied if any(r == i.out for _, r in outer)] == ["t5"]


def test_copies_in_other_orders_for_two_loops_have_names_of_their_own():
    text = "y^mu_n = softmax[nu](q^<i mu j> b^nu_<i j>) v^nu_n; z^mu_n = softmax[nu](q^<i mu j> c^nu_<j i>) v^nu_n"
    sizes = dict(mu=70, nu=65, i=4, j=5, n=3)
    x = given(text, sizes)
    compiled = ta.compile(text, plan="streamed", outputs=["y", "z"])
    dtypes = dict.fromkeys(x, "float64")
    kernel = compiled.choice(sizes, backend="torch", dtypes=dtypes).kernel
    copies = {i.out for i in kernel.body if isinstance(i, Arrange) and i.packed}
    assert len({copy.axes for copy in copies}) == 2
    assert len({copy.name for copy in copies}) == len(copies)
    scores = [torch.einsum("imj,nij->mn", x["q"], x["b"]), torch.einsum("imj,nji->mn", x["q"], x["c"])]
    for found, score in zip(compiled(x).values(), scores, strict=True):
        torch.testing.assert_close(found, score.softmax(1) @ x["v"], rtol=0, atol=1e-12)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("signs", [(1, 1), (1, -1), (-1, 1)])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 0)])
@pytest.mark.parametrize("into", [False, True])
def test_a_product_takes_along_what_is_added(library, signs, batch, into):
    make = np.random.default_rng(0)
    a, b = make.normal(size=(*batch, 5, 2)), make.normal(size=(*batch, 2, 7))
    functions = numpy_functions if library == "numpy" else tiles
    of = (lambda x: x) if library == "numpy" else torch.tensor
    shapes = [(5, 1), (1, 7), (1, 1), *([(5, 7)] if signs[1] > 0 else [])]
    leads = {batch, (1,) * len(batch), *([(1, 3)] if batch == (2, 3) else [])}
    for shape in [(*lead, *shape) for lead in leads for shape in shapes]:
        added = make.normal(size=shape)
        out = of(np.full((*batch, 5, 7), np.nan)) if into else None
        found = functions.add_product(of(a), of(b), of(added), signs, out)
        assert out is None or found is out
        np.testing.assert_allclose(np.asarray(found), signs[0] * a @ b + signs[1] * added, rtol=0, atol=1e-12)


@pytest.mark.parametrize("library", ["numpy", "torch"])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("batch", [(), (3,), (2, 3), (2, 0)])
@pytest.mark.parametrize("rows", [5, 700])
def test_a_product_is_added_to_what_it_lies_over(library, sign, batch, rows):
    make = np.random.default_rng(0)
    a, b, added = (make.normal(size=(*batch, *shape)) for shape in ((rows, 2), (2, 300), (rows, 300)))
    functions = numpy_functions if library == "numpy" else tiles
    of = (lambda x: x.copy()) if library == "numpy" else torch.tensor
    out = of(added)
    found = functions.add_product(of(a), of(b), out.reshape(added.shape), (sign, 1), out)
    assert found is out
    np.testing.assert_allclose(np.asarray(found), sign * a @ b + added, rtol=0, atol=1e-12)


def test_one_summand_for_several_places_is_not_copied_for_each():
    a, b, out = torch.ones(4, 3, 50, 2), torch.ones(4, 3, 2, 50), torch.empty(4, 3, 50, 50)
    for shape in [(1, 3, 50, 50), (1, 3, 50, 1)]:
        added = torch.ones(shape)

        def call(added=added):
            tiles.add_product(a, b, added, (1, 1), out)
            return ()

        assert peak_bytes_torch(call) < out.nbytes / 4
        torch.testing.assert_close(out, added + a @ b)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)])
def test_a_product_is_added_to_what_lies_in_another_order(order):
    make = np.random.default_rng(0)
    a, b, added = (torch.tensor(make.normal(size=(2, 3, *shape))) for shape in ((5, 2), (2, 7), (5, 7)))
    back = [order.index(n) for n in range(4)]
    out = added.permute(order).clone(memory_format=torch.contiguous_format).permute(back)
    found = tiles.add_product(a, b, out, (1, 1), out)
    torch.testing.assert_close(found, a @ b + added, rtol=0, atol=1e-12)


@pytest.mark.parametrize("text", [text for text in FORMULAS if ":" not in text])
def test_scores_and_slopes_take_along_what_is_constant_in_a_row(text):
    sizes = dict.fromkeys(FORMULAS[text], 64)
    kernel = adjoint(text, sizes)
    streams = [i for i in inner(kernel.body) if isinstance(i, Stream)]
    sums = [i for s in streams for i in s.body if isinstance(i, Contract) and i.added is not None]
    assert len(sums) >= 2  # the weights from log Σ exp, and ds = p (p̄ − D)


@pytest.mark.parametrize("text", [text for text in FORMULAS if ":" not in text and text != BIASED])  # a loop of heads
def test_products_are_added_to_the_sums_that_loops_carry(text):
    sizes = dict.fromkeys(FORMULAS[text], 64)
    streams = [i for i in inner(adjoint(text, sizes).body) if isinstance(i, Stream)]
    onto = 0
    for stream in streams:
        states = {carry.state: merged for carry, merged in zip(stream.carry, stream.merged, strict=True)}
        sums = [i for i in stream.body if isinstance(i, Contract) and i.added and i.added.register in states]
        for i in sums:
            assert i.out == states[i.added.register]
            assert places(stream).of[i.out.name] == i.added.register
        onto += len(sums)
    assert onto


@pytest.mark.parametrize(
    "score", ["e^<mu nu> - q^mu_i k^<nu rho>_i + B^<mu nu rho>", "q^mu_i k^<nu rho>_i + B^<rho mu nu>"]
)
def test_what_is_as_large_as_a_product_is_not_copied_for_it(score):
    """−B of e − (q k − B), or B in the order of q k, would be a tile more than the cost knows of."""
    sizes = dict(mu=64, nu=128, rho=128, i=16, n=16)
    text = f"y^mu_n = softmax[nu rho]({score}) v^<nu rho>_n"
    x = given(text, sizes, torch.float32)
    compiled = ta.compile(text, plan="streamed")
    kernel = compiled.choice(sizes, backend="torch", dtypes=dict.fromkeys(x, "float32")).kernel
    assert [i for i in inner(kernel.body) if isinstance(i, Stream)]
    found = compiled(x)
    assert peak_bytes_torch(lambda: compiled(x)) <= 1.1 * kernel_cost(kernel, "torch").at(sizes).peak_bytes
    product, bias = torch.einsum("mi,nri->mnr", x["q"], x["k"]), x["B"]
    scores = x["e"][:, :, None] - product + bias if "e" in x else product + bias.permute(1, 2, 0)
    weights = scores.flatten(1).softmax(1)
    torch.testing.assert_close(found, weights @ x["v"].flatten(0, 1), rtol=1e-4, atol=1e-5)


def test_a_sum_that_something_else_reads_stays_a_sum():
    """The score before the bias is an output of its own: the product must not become the sum."""
    text = "s^<mu nu> = q^mu_i k^nu_i; y^mu_n = softmax[nu](s^<mu nu> + c^nu) v^nu_n; z^mu = max[nu](s^<mu nu>)"
    x = given(text, dict(mu=70, nu=65, i=3, n=2))
    found = ta.compile(text, plan="streamed", outputs=["y", "z"])(x)
    scores = x["q"] @ x["k"].T
    torch.testing.assert_close(found["z"], scores.amax(1), rtol=0, atol=1e-12)
    torch.testing.assert_close(found["y"], (scores + x["c"]).softmax(1) @ x["v"], rtol=0, atol=1e-12)


def test_attention_with_a_bias_over_heads_is_one_call():
    """The keys are only views in another order: nothing has to be built, so nothing is cut into chunks."""
    sizes = dict(b=96, h=4, mu=96, nu=96, i=32, n=32)
    compiled = ta.compile(BIASED, plan="flattened")
    kernel = compiled.choice(sizes, backend="torch", dtypes=dict.fromkeys("qkvB", "float32")).kernel
    assert not any(isinstance(i, (Stream, IfBounded)) for i in inner(kernel.body))


def test_a_sum_of_products_lies_as_they_do() -> None:
    formula = "y^mu_n = softmax[nu rho](q^mu_i k^nu_i r^rho_i) (u^nu_n v^rho_n + w^nu_n z^rho_n)"
    source = ta.compile(formula, plan="streamed").source("torch", mu=512, nu=512, rho=512, i=64, n=64)
    values = [line for line in source.splitlines() if "= torch.add(" in line and line.endswith("# nu rho n")]
    assert values
    assert not any("permute" in line for line in values)
