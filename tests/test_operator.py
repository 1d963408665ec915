"""The operator of streamed formulas: gradcheck, strides, one node and one graph for many lengths."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
import torch
import torch._dynamo.testing

import tensorattn as ta

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
Function = Callable[[torch.Tensor], torch.Tensor]
FORMULAS = {
    "causal": "y^mu_n = softmax[nu : nu < mu](q^mu_i k^nu_i + b^<mu nu>) v^nu_n",
    "joint": "y^mu_n = softmax[nu rho](q^mu_i k^nu_i r^rho_i) v^nu_n w^rho_n",
}
SHAPES = {"q": (5, 3), "k": (7, 3), "r": (6, 3), "b": (5, 7), "v": (7, 2), "w": (6, 2)}
Q = torch.randn(SHAPES["q"], generator=torch.Generator().manual_seed(7), dtype=torch.float64)


def of_q(formula: str, plan: str) -> Function:
    """The formula as a function of one input, the others fixed."""
    compiled = ta.compile(formula, plan=plan)
    make = torch.Generator().manual_seed(3)
    drawn = {n: torch.randn(s, generator=make, dtype=torch.float64) for n, s in SHAPES.items()}
    rest = {n: x for n, x in drawn.items() if n in compiled.inputs and n != "q"}
    return lambda q: compiled(q=q, **rest)


@pytest.mark.parametrize("plan", ["auto", "dense", "streamed", "flattened"])
def test_gradcheck(plan: str) -> None:
    for name in ("causal", "joint"):
        q = Q.clone().requires_grad_()
        f = of_q(FORMULAS[name], plan)
        assert torch.autograd.gradcheck(f, (q,), fast_mode=True)
        assert torch.autograd.gradgradcheck(f, (q,), fast_mode=True)


def test_incoming_gradients_of_any_stride() -> None:
    ours, plain = of_q(FORMULAS["joint"], "streamed"), of_q(FORMULAS["joint"], "dense")
    for bar in (torch.ones(1, 1, dtype=torch.float64).expand(5, 2), torch.randn(2, 5, dtype=torch.float64).t()):
        found = []
        for f in (ours, plain):
            q = Q.t().contiguous().t().requires_grad_()  # not contiguous
            found.append(torch.autograd.grad(f(q), q, bar)[0])
        torch.testing.assert_close(*found, rtol=1e-9, atol=1e-10)


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attend = ta.compile(FORMULAS["joint"], plan="streamed")

    def forward(self, q, k, r, v, w):
        return self.attend(q=q, k=k, r=r, v=v, w=w)


@pytest.mark.parametrize("strict", [False, True])
def test_export_with_dynamic_sizes(strict: bool) -> None:
    make = torch.Generator().manual_seed(3)
    inputs = tuple(torch.randn(SHAPES[n], generator=make) for n in "qkrvw")
    m, n, p = (torch.export.Dim(name, min=2, max=64) for name in "mnp")
    dims = ({0: m}, {0: n}, {0: p}, {0: n}, {0: p})
    exported = torch.export.export(Module(), inputs, dynamic_shapes=dims, strict=strict)
    assert sum("tensorattn" in str(node.target) for node in exported.graph.nodes) == 1
    stored = io.BytesIO()
    torch.export.save(exported, stored)
    stored.seek(0)
    other = tuple(torch.randn(s, generator=make) for s in ((4, 3), (9, 3), (11, 3), (9, 2), (11, 2)))
    torch.testing.assert_close(torch.export.load(stored).module()(*other), Module()(*other))


def test_one_graph_for_many_lengths_with_gradients() -> None:
    torch._dynamo.reset()
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    traced = torch.compile(Module(), fullgraph=True, dynamic=True, backend=graphs)
    make = torch.Generator().manual_seed(3)
    for length in range(20):
        shapes = (5 + length % 7, 3), (12 + length, 3), (30 - length, 3), (12 + length, 2), (30 - length, 2)
        inputs = [torch.randn(s, generator=make, dtype=torch.float64).requires_grad_() for s in shapes]
        ours, plain = traced(*inputs), Module()(*inputs)
        torch.testing.assert_close(ours, plain)
        for a, b in zip(*(torch.autograd.grad(y.sin().sum(), inputs) for y in (ours, plain)), strict=True):
            torch.testing.assert_close(a, b)
    assert graphs.frame_count == 1


def test_the_operator_is_well_registered() -> None:
    from tensorattn.backends.torch.operator import run
    from tensorattn.units import key_of

    program = ta.parse(FORMULAS["causal"])
    key = key_of(program, ("y",), {}, dict.fromkeys(program.inputs, "float64"), 0, None, "streamed", None)
    tensors = [torch.randn(SHAPES[n], dtype=torch.float64) for n in program.inputs]
    torch.library.opcheck(
        run,
        (key, [x.requires_grad_() for x in tensors]),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic"),
    )


def test_a_number_that_grows_is_no_new_graph() -> None:
    torch._dynamo.reset()
    attend = ta.compile("y^mu_n = softmax[nu : nu <= mu + start](q^mu_i k^nu_i) v^nu_n")
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    traced = torch.compile(
        lambda q, k, v, start: attend(q=q, k=k, v=v, start=start), fullgraph=True, dynamic=True, backend=graphs
    )
    make = torch.Generator().manual_seed(3)
    for length in (4, 5, 6, 7, 8):
        q, k, v = (torch.randn(s, generator=make) for s in ((2, 3), (length, 3), (length, 3)))
        torch.testing.assert_close(traced(q, k, v, length - 2), attend(q=q, k=k, v=v, start=length - 2))
    assert graphs.frame_count == 1


@pytest.mark.parametrize("plan", ["auto", "dense", "streamed"])
def test_a_table_that_is_read_as_it_is_too(plan: str) -> None:
    """Planned without sizes, as an operator and while it is compiled: the axes of the table have sizes of their own."""
    formula = ta.compile("y_<n i> = softmax[j](G_<s_<n i> t_<n j>>) m_<n j> + G_<n i>", plan=plan)
    assert "softmax" in formula.explain()
    make = torch.Generator().manual_seed(0)
    G, m = (torch.randn(shape, generator=make, dtype=torch.float64) for shape in ((5, 3), (5, 7)))
    s, t = torch.randint(0, 5, (5, 3), generator=make), torch.randint(0, 3, (5, 7), generator=make)

    def ours(G: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return formula(G=G, m=m, s=s, t=t)

    def plain(G: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return torch.einsum("nij,nj->ni", G[s[:, :, None], t[:, None]].softmax(-1), m) + G

    def slopes(function: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        return torch.func.grad(lambda G, m: function(G, m).sin().sum(), argnums=(0, 1))(G, m)

    for found, expected in zip(slopes(ours), slopes(plain), strict=True):
        torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.compile(ours, backend="aot_eager", fullgraph=True)(G, m), plain(G, m))
