"""Derivatives and transforms of factored plans: of the ratio, and of the weights where it underflows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

import pytest
import torch

import tensorattn as ta
from tensorattn.cost import kernel_cost
from tensorattn.kernel import Attempt, Normalised
from tensorattn.lowering import streaming
from tensorattn.units import key_of, stepped, unit
from tests.operators import of_floats, operation

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
Function = Callable[..., torch.Tensor]
Tensors = tuple[torch.Tensor, ...]
TRIANGLE = "y^mu_n = softmax[nu rho{}](A^<mu nu> + B^<nu rho> + C^<mu rho>) v^nu_n w^rho_n"
FORMULAS = {
    "plain": TRIANGLE.format(""),
    "masked": TRIANGLE.format(" : m_<nu rho> and nu != mu"),
    "ordered": TRIANGLE.format(" : rho <= nu"),
    "sink": TRIANGLE.format("; sink=s_mu"),
    "definitions": "S^<mu nu rho> = q^mu_i k^nu_i + k^nu_i r^rho_i + q^mu_i r^rho_i\n"
    "z^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n\ny^mu_n = softmax[nu](z^mu_p v^nu_p) v^nu_n",
}  # fmt: skip
SHAPES = {
    "A": (5, 7), "B": (7, 3), "C": (5, 3), "v": (7, 2), "w": (3, 2), "s": (5,), "q": (5, 2), "k": (7, 2), "r": (3, 2)
}  # fmt: skip


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """The outcome of every test that a factored kernel makes, for kernels built from here on."""
    from tensorattn.backends.torch import functions

    outcomes: list[bool] = []

    holds = functions.holds

    def counted(test: torch.Tensor) -> bool:
        outcomes.append(holds(test))
        return outcomes[-1]

    monkeypatch.setattr(functions, "holds", counted)
    unit.cache_clear()  # it holds kernels that are built
    yield outcomes
    unit.cache_clear()


def drawn(text: str, size: float = 0, dtype: torch.dtype = torch.float64) -> dict[str, torch.Tensor]:
    """Inputs; with a `size` each term of a triangle wants another tuple, so that the product of all underflows."""
    make = torch.Generator().manual_seed(2)
    found = {n: torch.randn(s, generator=make, dtype=dtype) for n, s in SHAPES.items()}
    found["A"][:, 0] += size
    found["C"][:, 2] += size
    found["B"][6, 0] += size
    mask = torch.rand((7, 3), generator=make) < 0.7
    return {n: mask if n == "m" else found[n] for n in ta.parse(text).inputs}


def pair(text: str, x: Mapping[str, torch.Tensor]) -> tuple[Function, Function, Tensors]:
    """The factored and the dense program as functions of their floats."""
    both = [ta.compile(text, plan=plan) for plan in ("factored", "dense")]
    (ours, inputs), (plain, _) = (of_floats(lambda f=f, **named: f(named), x) for f in both)
    return ours, plain, inputs


def modes(f: Function, inputs: Tensors) -> Iterator[torch.Tensor]:
    """Every first derivative, two second ones, and the mapped function."""
    places = tuple(range(len(inputs)))

    def loss(*xs: torch.Tensor) -> torch.Tensor:
        return f(*xs).sin().sum()

    yield from torch.func.grad(loss, places)(*inputs)
    steps = tuple(x.cos() for x in inputs)
    yield torch.func.jvp(f, inputs, steps)[1]
    yield from torch.func.jvp(torch.func.grad(loss, places), inputs, steps)[1]
    yield torch.vmap(lambda x: f(x, *inputs[1:]))(torch.stack([inputs[0], 2 * inputs[0], -inputs[0]]))
    yield torch.func.jacfwd(lambda x: f(x, *inputs[1:]))(inputs[0])


def agree(found: Iterable[torch.Tensor], expected: Iterable[torch.Tensor], digits: int = 9) -> None:
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=10.0**-digits, atol=10.0**-digits)


@pytest.mark.parametrize("name", FORMULAS)
def test_the_ratio_has_every_derivative(name: str, held: list[bool]) -> None:
    text = FORMULAS[name]
    ours, plain, inputs = pair(text, drawn(text))
    agree(modes(ours, inputs), modes(plain, inputs))
    assert set(held) == {True}


@pytest.mark.parametrize(("size", "dtype", "outcomes"), [
    (80, torch.float32, {False, True}), (1e3, torch.float64, {False}),
])  # fmt: skip
def test_where_it_underflows_the_weights_have(
    size: float, dtype: torch.dtype, outcomes: set[bool], held: list[bool]
) -> None:
    text = FORMULAS["plain" if dtype == torch.float32 else "masked"]
    x = drawn(text, size, dtype)
    ours, plain, inputs = pair(text, x)
    exact = modes(plain, tuple(i.double() for i in inputs))
    agree((y.double() for y in modes(ours, inputs)), exact, 9 if dtype == torch.float64 else 3)
    assert set(held) == outcomes


def test_one_of_many_underflows(held: list[bool]) -> None:
    text = FORMULAS["plain"]
    x, opposed = drawn(text), drawn(text, 1e3)
    both = {n: torch.stack([x[n], opposed[n]]) for n in x}
    f, plain = ta.compile(text, plan="factored"), ta.compile(text, plan="dense")
    agree([torch.vmap(f)(both)], [torch.vmap(plain)(both)])
    slopes = [torch.vmap(torch.func.grad(lambda b, g=g: g(b).sin().sum()))(both) for g in (f, plain)]
    agree(*(found.values() for found in slopes))
    assert not any(held)


@pytest.mark.parametrize("plan", [{"z": "factored", "y": "streamed"}, {"z": "factored"}])
def test_one_statement_of_two(plan: dict[str, str], held: list[bool]) -> None:
    text = FORMULAS["plain"] + "\n" + FORMULAS["plain"].replace("y", "z").replace("+ C", "- C")
    x = drawn(text)
    f, plain = (ta.compile(text, outputs=["y", "z"], plan=p) for p in (plan, "dense"))
    for mode in (torch.func.grad, lambda g: torch.compile(g, fullgraph=True, backend="aot_eager")):
        found, expected = (
            mode(lambda a, g=g: torch.stack([*g(x | {"A": a}).values()]).sin().sum())(x["A"]) for g in (f, plain)
        )
        torch.testing.assert_close(found, expected)
    assert set(held) == {True}


def test_exported(held: list[bool]) -> None:
    text = FORMULAS["masked"]
    x, opposed = drawn(text), drawn(text, 1e3)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = ta.compile(text, plan="factored")

        def forward(self, x: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return self.attend(x)

    exported = torch.export.export(Module(), (x,)).module()
    for given, outcome in ((x, True), (opposed, False)):
        held.clear()
        torch.testing.assert_close(exported(given), ta.compile(text, plan="dense")(given))
        assert set(held) == {outcome}


def test_gradcheck() -> None:
    text = FORMULAS["masked"]
    x = drawn(text)
    ours, inputs = of_floats(operation(text, x, plan="dense", ratios=None), x)
    inputs = tuple(i.requires_grad_() for i in inputs)
    assert torch.autograd.gradcheck(ours, inputs, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(ours, inputs, fast_mode=True)


@pytest.mark.parametrize("step", [(), ("adjoint",), ("tangent",), ("vmap",), ("adjoint", "vmap")])
def test_no_derivative_holds_all_weights(step: tuple[str, ...]) -> None:
    """Every step takes some matrix products of n × n, of whose entries none is an exponential."""
    text, n = FORMULAS["plain"], 256
    key = key_of(ta.parse(text), ("y",), {}, dict.fromkeys("ABCvw", "float64"), 0, None, "dense", None, ratios=None)
    for word in step:
        arguments = {"adjoint": ((True,), ("A", "B", "C", "v", "w")), "tangent": ((True,) * 5,)}
        made = unit(key)
        key = stepped(key, word, *arguments.get(word, ((True,) * len(made.kernel.inputs),)))
    made = unit(key)
    sizes = {name: n if name in ("mu", "nu", "rho") else 2 for name, _ in made.kernel.sizes}
    kernel = made.planned("torch", sizes)
    assert any(isinstance(i, Attempt) for i in kernel.body)
    assert not any(isinstance(i, Normalised) for i in kernel.body)
    cost = kernel_cost(kernel, "torch").at(sizes)
    assert cost.flops < 100 * 2 * n**3 * (2 if "vmap" in step else 1)
    assert cost.exps < 100 * n**2
    assert cost.peak_bytes < 8 * n**3 / 4


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Tiles of a few entries: every ratio runs in slices, which the operator makes again for gradients."""
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 6)
    unit.cache_clear()
    yield
    unit.cache_clear()


@pytest.mark.usefixtures("cut")
@pytest.mark.parametrize(("name", "size"), [*((name, 0) for name in FORMULAS), ("masked", 1e3)])
def test_what_is_sliced_has_the_gradients_of_the_weights(name: str, size: float, held: list[bool]) -> None:
    """By `backward`, of one term in two orders."""
    text = FORMULAS[name]
    ours, plain, inputs = pair(text, drawn(text, size))
    found = []
    for f in (ours, plain):
        result = f(*(i.requires_grad_() for i in inputs))
        assert ("Formula" in type(result.grad_fn).__name__) == (f is ours)
        once = torch.autograd.grad(result.sin().sum(), inputs, create_graph=name == "plain")
        twice = torch.autograd.grad(sum(x.cos().sum() for x in once), inputs) if name == "plain" else ()
        found.append((*once, *twice))
    agree(*found)
    assert set(held) == {not size}


@pytest.mark.usefixtures("cut")
def test_gradcheck_in_slices() -> None:
    text = FORMULAS["ordered"]
    ours, _, inputs = pair(text, drawn(text))
    assert torch.autograd.gradcheck(ours, tuple(i.requires_grad_() for i in inputs))


def test_a_sink_of_the_rows_beside_several_factors() -> None:
    """The ratio has the indices of the sink, which the sums of exponentials have not."""
    text = "y^mu_n = softmax[nu rho; sink=s_mu](B^<nu rho>) v^nu_p w^rho_p u_n g_n"
    make = torch.Generator().manual_seed(2)
    x = {n: torch.randn(s, generator=make, dtype=torch.float64) for n, s in SHAPES.items() if n in "Bvws"}
    x |= {n: torch.randn(4, generator=make, dtype=torch.float64) for n in "ug"}
    weights = x["B"].exp() / (x["B"].exp().sum() + x["s"].exp()[:, None, None])
    expected = torch.einsum("mab,ap,bp,n,n->mn", weights, x["v"], x["w"], x["u"], x["g"])
    torch.testing.assert_close(ta.compile(text, plan="factored")(x), expected)
