"""The cost of the backward pass against what torch does: the peak of its allocator, and the products it makes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import tensorattn as ta
from benchmarks.measuring import alive_bytes_torch
from tensorattn import backends, backward, cost
from tensorattn.backends.torch import functions
from tensorattn.kernel import Contract, Instruction, Kernel
from tensorattn.kinds import Draft
from tensorattn.rounds import looped, placed, tiled, with_tiles
from tensorattn.sizes import Size
from tests import corpus

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

TWO = "y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n"
CAUSAL = "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n"
HEADS = "y_<h i e> = softmax[j](q_<h i d> k_<h j d>) v_<h j e>"
TRILINEAR = """W^<mu nu rho> = k^mu_i q^nu_i r^rho_i / sqrt(|i|)
y^mu_n = W^<mu bar(nu rho)> a^nu_n b^rho_n"""
BIASED = """W^<h mu nu> = q^<h mu>_i k^<h nu>_i + B^<h mu nu>
y^<h mu>_n = W^<h mu bar(nu)> v^<h nu>_n"""
TRIANGLE = "y^mu_n = softmax[nu rho](q^mu_i k^nu_i + r^nu_i s^rho_i + t^rho_i u^mu_i + B^<mu nu>) v^nu_n w^rho_n"
ORDERED = "y^mu_n = softmax[nu rho : rho <= nu](k^mu_i q^nu_i + l^mu_i r^rho_i) v^nu_n u^rho_n"
COEFFICIENTS = """S^<mu nu rho> = q^mu_i k^nu_j r^rho_p A_<i j p>
y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n"""
FOUR = """W^<mu nu rho sigma> = k^mu_i q^nu_i r^rho_i t^sigma_i
y^mu_n = W^<mu bar(nu rho sigma)> a^nu_n b^rho_n c^sigma_n"""
NESTED = """c^<mu nu>_n = softmax[rho](q^mu_i k^rho_i + t^nu_i k^rho_i) v^rho_n
y^mu_n = softmax[nu](c^<mu nu>_n u_n) w^nu_n"""
SYMMETRIC = """W^<mu nu rho> = k^mu_i q^nu_i q^rho_i / sqrt(|i|)
y^mu_n = W^<mu bar(nu rho)> a^nu_n b^rho_n"""
CAPPED = "y^mu_n = softmax[nu rho](3 tanh(k^mu_i q^nu_i r^rho_i)) a^nu_n b^rho_n"
TERMS = "y^mu_n = sum[rho](softmax[nu rho](A^<mu nu> + B^<nu rho> + C^<mu rho>) v^nu_n)"
PAIR = dict(mu=900, nu=800, i=16, n=16)
CUBE = dict(mu=120, nu=110, rho=100, i=8, j=8, p=8, n=8)
LOOPS, FUSED, RATIO, DENSE = "streamed", "flattened", "factored", "dense"
CASES = {
    "two": (TWO, PAIR, [DENSE]),
    "wide keys": (TWO, PAIR | dict(i=64), [FUSED]),
    "causal": (CAUSAL, PAIR | dict(nu=900), [LOOPS, FUSED, DENSE]),
    "heads": (HEADS, dict(h=4, i=700, j=600, d=16, e=16), [LOOPS, FUSED]),
    "trilinear": (TRILINEAR, CUBE, [LOOPS, FUSED, DENSE]),
    "biased": (BIASED, dict(h=4, mu=600, nu=500, i=8, n=8), [LOOPS, FUSED]),
    "triangle": (TRIANGLE, CUBE, [LOOPS, FUSED, RATIO, DENSE]),
    "coefficients": (COEFFICIENTS, CUBE, [LOOPS, FUSED, DENSE]),
    "four": (FOUR, dict(mu=40, nu=38, rho=36, sigma=34, i=4, n=4), [LOOPS, FUSED]),
    "nested": (NESTED, CUBE, [LOOPS, FUSED, DENSE]),
    "symmetric": (SYMMETRIC, CUBE | dict(rho=110), [LOOPS]),
    "ratio in slices": (TRIANGLE, dict(mu=127, nu=131, rho=113, i=8, n=79), [RATIO]),
    "running sums in slices": (ORDERED, dict(mu=131, nu=127, rho=127, i=8, n=79), [RATIO]),
    "terms": (TERMS, dict(mu=150, nu=140, rho=130, n=8), [RATIO, DENSE]),
    "capped": (CAPPED, CUBE, [LOOPS]),
    "packed": ("y^mu_n = softmax[nu : b_mu - b_nu <= 1](q^mu_i k^nu_i) v^nu_n", PAIR | dict(nu=900), [FUSED]),
    "sink": ("y^mu_n = softmax[nu; sink=s](q^mu_i k^nu_i) v^nu_n", PAIR, [DENSE]),
    "lse": ("y_i = lse[j](q_<i d> k_<j d>)", dict(i=1500, j=1400, d=8), [DENSE]),
    "weights": ("P^<mu nu> = softmax[nu](q^mu_i k^nu_i)", PAIR, [DENSE]),
    "l1norm": ("y^mu_n = l1norm[nu](exp(q^mu_i k^nu_i + 1) + 1) v^nu_n", PAIR, [DENSE]),
    "sparsemax": ("y^mu_n = sparsemax[nu](q^mu_i k^nu_i) v^nu_n", PAIR, [DENSE]),
    "functions": ("y_i = sum[j](gelu(x_<i j>) + silu(x_<i j> + 1) + log(1 + x_<i j>**2))", dict(i=900, j=900), [DENSE]),
    "no weights": ("y^mu_n = relu(q^mu_i k^nu_i) v^nu_n", PAIR, [LOOPS]),
    "read twice": ("y_<i j> = tanh(x_<i k> x_<j k>)", dict(i=900, j=900, k=500), [DENSE]),
}


def tensors(compiled: ta.Compiled, sizes: Mapping[str, int]) -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(0)
    shapes = {name: [sizes[axis] for axis in axes] for name, axes in compiled.signature.inputs.items()}
    return {n: (torch.randn(s, generator=make) / 2).requires_grad_() for n, s in shapes.items()}


def measured(call: Callable[[], torch.Tensor], inputs: list[torch.Tensor]) -> int:
    """The peak of the backward pass, with what is kept since the forward pass, in bytes beyond inputs, the result, its
    cotangent and the gradients."""
    bar = torch.ones_like(call())
    result, forward = alive_bytes_torch(call)
    found, back = alive_bytes_torch(lambda: torch.autograd.grad(result, inputs, bar, allow_unused=True))
    gradients = {g.untyped_storage().data_ptr(): g.untyped_storage().nbytes() for g in found if g is not None}
    kept = forward[-1] - result.untyped_storage().nbytes()
    return kept + max(back) - sum(gradients.values())


def predicted(compiled: ta.Compiled, sizes: Mapping[str, int]) -> cost.Cost:
    dtypes = dict.fromkeys(compiled.inputs, "float32")
    found = compiled.cost(dict(sizes), backend="torch", dtypes=dtypes).backward
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "plan"), [(name, plan) for name, (_, _, plans) in CASES.items() for plan in plans], ids=str
)
def test_the_predicted_peak_of_the_backward_pass_is_the_measured_one(name: str, plan: str) -> None:
    text, sizes, _ = CASES[name]
    compiled = ta.compile(text, plan=plan)
    sizes = {n: s for n, s in sizes.items() if n in compiled.program.indices}
    inputs = tensors(compiled, sizes)
    compiled(**inputs).sum().backward()
    found = measured(lambda: compiled(**inputs), list(inputs.values()))
    peak = predicted(compiled, sizes).at({}).peak_bytes
    assert abs(peak - found) <= max(0.25 * found, 1e6), (peak, found)


# Products and exponentials ----------------------------------------------------------------------------------------


def multiplied(kernel: Kernel, body: tuple[Instruction, ...], sizes: Mapping[str, int], *, outer: bool = False) -> int:
    """The FLOPs of the matrix products alone, which torch's own counter counts. `outer`: of outer products too, which
    the derivatives of matrix products may be."""
    _, tiles, _ = tiled(kernel)
    known = with_tiles(tiles, sizes)
    total = 0
    for made, around in placed(body, tiles):
        if isinstance(made, Contract) and (outer or set(made.a.axes) & set(made.b.axes) - set(made.out.axes)):
            total += looped(cost.flops(replace(made, added=None)), around).value(known)
    return total


RUNNING = ("rho <= nu", "nu - 3 <= rho <= nu", "rho != nu")
COUNTED = (
    (TWO, dict(mu=31, nu=29, i=5, n=7)),
    (TRILINEAR, dict(mu=83, nu=97, rho=89, i=5, n=7)),
    (FOUR, dict(mu=27, nu=25, rho=23, sigma=21, i=5, n=13)),
    (COEFFICIENTS, dict(mu=83, nu=97, rho=89, i=5, j=3, p=2, n=7)),
    (TRIANGLE, dict(mu=83, nu=97, rho=89, i=5, n=7)),
    (NESTED, dict(mu=83, nu=97, rho=89, i=5, n=7)),
)


@pytest.mark.parametrize(("text", "sizes"), COUNTED)
def test_the_products_of_a_dense_plan_are_those_that_torch_counts(text: str, sizes: dict[str, int]) -> None:
    compiled = ta.compile(text, plan="dense")
    inputs = tensors(compiled, sizes)
    result = compiled(**inputs)
    with FlopCounterMode(display=False) as counter:
        torch.autograd.grad(result, list(inputs.values()), torch.ones_like(result))
    dtypes = dict.fromkeys(inputs, "float32")
    kernel = compiled.kernel(sizes, backend="torch", dtypes=dtypes)
    both, start = backward.recorded_pass(Draft(compiled.plan(sizes), kernel), dtypes)
    assert multiplied(both, both.body[start:], sizes, outer=True) == counter.get_total_flops()
    own = sum(cost.flops(i).value(sizes) for i in both.body[start:])
    twice = text == NESTED  # k is read in two places, whose gradients are added
    assert predicted(compiled, sizes).at({}).flops == own + (sizes["rho"] * sizes["i"] if twice else 0)


@pytest.mark.parametrize(("text", "sizes", "plan"), [
    *((text, sizes, LOOPS) for text, sizes in COUNTED), (*CASES["ratio in slices"][:2], RATIO),
    *((ORDERED.replace("rho <= nu", where), CASES["running sums in slices"][1], RATIO) for where in RUNNING),
])  # fmt: skip
def test_the_products_of_a_stream_are_those_that_torch_counts(
    text: str, sizes: dict[str, int], plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: list[Kernel] = []
    priced = backward.kernel_cost
    monkeypatch.setattr(backward, "kernel_cost", lambda k, *rest: kernels.append(k) or priced(k, *rest))
    compiled = ta.compile(text, plan=plan)
    sizes = {n: s for n, s in sizes.items() if n in compiled.program.indices}
    assert predicted(compiled, sizes).flops
    (kernel,) = kernels
    inputs = tensors(compiled, sizes)
    taken: list[torch.Tensor] = []
    result = compiled(**inputs)
    keep = torch.autograd.graph.saved_tensors_hooks(lambda x: taken.append(x) or x, lambda x: x)
    with keep:
        result = compiled(**inputs)
    arrays = [x.detach() for x in (*taken, torch.ones_like(result))]
    assert len(arrays) == len(kernel.inputs)
    # A counter sees every operation, so that no value would be looked at: it would see the slow sides as well.
    monkeypatch.setattr(functions, "holds", lambda test: bool(test.item()))
    monkeypatch.setattr(functions, "all_finite", lambda *values: all(bool(v.isfinite().all()) for v in values))
    with FlopCounterMode(display=False) as counter:
        backends.get("torch").build(kernel, "formula")(*arrays)
    body, _, _ = tiled(kernel)
    assert multiplied(kernel, body, sizes) == counter.get_total_flops()


def products(price: cost.Cost, *axes: str) -> Size:
    """The FLOPs that go with all these sizes."""
    return Size(tuple((m, c) for m, c in price.flops.terms if {name for name, _ in m} == set(axes)))


def predicted_open(compiled: ta.Compiled) -> cost.Cost:
    found = compiled.cost(backend="torch").backward
    assert found is not None
    return found


@pytest.mark.parametrize(("plan", "counts"), [("dense", (2, 2)), ("streamed", (3, 2))])
def test_a_dense_plan_takes_four_products_and_a_stream_five(plan: str, counts: tuple[int, int]) -> None:
    """Of the scores one for each side, and the scores again in a loop; of the values one for each side."""
    price = predicted_open(ta.compile(TWO, plan=plan))
    pairs = Size.product(("mu", "nu"))
    assert [products(price, "mu", "nu", width) for width in "in"] == [
        pairs * Size.of(width) * (2 * count) for width, count in zip("in", counts, strict=True)
    ]
    assert price.exps == (pairs if plan == "streamed" else Size())


@pytest.mark.parametrize("text", [TWO, TRILINEAR, FOUR])
def test_an_attention_kernel_takes_five_products_whatever_the_arity(text: str) -> None:
    price = predicted_open(ta.compile(text, plan="flattened"))
    scores = Size.product(n for n in ta.compile(text).program.indices if n not in ("i", "n"))
    assert [c for m, c in price.flops.terms if {n for n, _ in m} > scores.symbols] == [10]
    assert price.exps == scores


def test_what_is_read_in_two_places_is_added_up() -> None:
    once, twice = (ta.compile(f"y = sum[i](exp(x_i) + {two}_i)") for two in "zx")
    sizes = dict(i=1000)
    apart, added = (predicted(compiled, sizes).at({}).flops for compiled in (once, twice))
    assert added == apart + 1000


# What it is a cost of ---------------------------------------------------------------------------------------------


def test_nothing_is_done_for_it_until_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise AssertionError("asked for")

    monkeypatch.setattr(backward, "operator_cost", refused)
    monkeypatch.setattr(backward, "recorded_cost", refused)
    for plan in ("streamed", "dense"):
        found = ta.compile(TWO, plan=plan).cost(mu=500, nu=600, i=8, n=8)
        assert found.given({}).at({}).flops > 0
        with pytest.raises(AssertionError, match="asked for"):
            _ = found.backward


def test_symbols_and_numbers_agree() -> None:
    for plan in ("streamed", "flattened", "dense"):
        found = ta.compile(TRILINEAR, plan=plan).cost(backend="torch")
        sizes = dict(mu=23, nu=19, rho=17, i=5, n=3)
        price = found.backward
        assert price is not None
        assert found.given(sizes).backward.at({}) == price.at(sizes)
        peak = price.peak_bytes
        assert int(peak.subs({s: sizes[s.name] for s in peak.free_symbols})) == price.at(sizes).peak_bytes


def test_its_tiles_are_its_own() -> None:
    """The loops of the two passes need not be the same: each cost says what its symbols stand for."""
    found = ta.compile(CAUSAL, plan="streamed").cost(backend="torch")
    data = found.data
    assert data["tiles"]["tile_nu"].startswith("min(max(1048576 // ")
    assert data["backward"]["tiles"]["tile_nu"].startswith("min(max(262144 // ")
    lines = str(found).splitlines()
    assert [line.startswith("  ") for line in lines] == [False] * lines.index("backward") + [False] + [True] * (
        len(lines) - lines.index("backward") - 1
    )
    assert sum("where tile_nu = " in line for line in lines) == 2


def test_half_precision_is_computed_in_float32_and_returned_in_half() -> None:
    sizes = dict(mu=700, nu=600, i=8, n=8)
    wide, half = (
        ta.compile(TWO, plan="dense").cost(sizes, backend="torch", dtypes=dict.fromkeys("qkv", dtype)).backward.at({})
        for dtype in ("float32", "bfloat16")
    )
    assert half.flops == wide.flops
    assert abs(half.peak_bytes - wide.peak_bytes) < 0.1 * wide.peak_bytes


def test_what_has_no_rule_is_a_price_all_the_same() -> None:
    """A product over an index, and an exponent that is an input: torch has their derivatives, no kernel does."""
    for text in ("y_i = prod[j](x_<i j>)", "y_i = sum[j](entmax[j; a](x_<i j>) v_j)"):
        for plan in ("dense", "streamed"):
            try:
                found = ta.compile(text, plan=plan).cost(backend="torch", i=300, j=400).backward.at({})
            except ta.PlanError:
                continue
            assert found.flops >= 300 * 400
            assert found.peak_bytes > 0


def test_integers_and_constants_have_no_gradients() -> None:
    for text in ("y_<i j> = i + 2 j", "y_i = sum[j : j < i](1)"):
        found = ta.compile(text).cost(i=5, j=7).backward.at({})
        assert (found.flops, found.exps, found.bytes_moved, found.peak_bytes) == (0, 0, 0, 0)


def test_a_pass_that_does_not_fit_is_refused_where_it_is_read() -> None:
    sizes = {n: s for n, s in CUBE.items() if n not in "jp"}
    with pytest.raises(ta.BudgetError) as refused:
        ta.compile(CAPPED, plan="streamed", memory=1000).cost(sizes, backend="torch")
    assert refused.value.hint is not None
    least = int(refused.value.hint.removeprefix("memory="))
    found = ta.compile(CAPPED, plan="streamed", memory=least).cost(sizes, backend="torch")
    with pytest.raises(ta.BudgetError, match="no plan fits"):
        _ = found.backward
    assert "no plan fits" in found.data["backward"]["refused"]
    assert "refused: no plan fits" in str(found)


def test_every_formula_of_the_corpus_has_a_price() -> None:
    for entry in corpus.load("accept"):
        compiled = ta.compile(corpus.formula(entry), sizes=entry.get("sizes"))
        price = compiled.cost(backend="torch").backward
        assert price is not None
        parts = [s for t in price.tiles for s in (t.size, t.most, t.rule.per)]
        symbols = set().union(*(s.symbols for s in (price.flops, price.bytes_moved, *price.peaks, *parts)))
        found = price.at(dict.fromkeys(symbols, 3))
        assert min(found.flops, found.exps, found.bytes_moved, found.peak_bytes) >= 0
