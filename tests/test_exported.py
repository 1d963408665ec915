"""Programs that torch.export made: in them the operator stands alone, and it has all its derivatives there too."""

from __future__ import annotations

import io
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorattn as ta

FORMULA = "y^mu_n = softmax[nu rho : nu <= mu](sum[i](q^mu_i k^nu_i r^rho_i)) v^nu_n w^rho_n"
SHAPES = {"q": (5, 3), "k": (7, 3), "r": (6, 3), "v": (7, 2), "w": (6, 2)}
Function = Callable[..., torch.Tensor]


def drawn(seed: int) -> tuple[torch.Tensor, ...]:
    make = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(s, generator=make, dtype=torch.float64) for s in SHAPES.values())


X, STEP = drawn(3), drawn(4)
STACKED = tuple(torch.stack([X[n], STEP[n]], dim=n // 2) if n in (0, 2) else X[n] for n in range(5))


class Module(torch.nn.Module):
    def __init__(self, plan: str) -> None:
        super().__init__()
        self.attend = ta.compile(FORMULA, plan=plan)

    def forward(self, q, k, r, v, w):
        return self.attend(q=q, k=k, r=r, v=v, w=w)


PLAIN = Module("dense")


def stored(plan: str = "streamed", strict: bool = False) -> io.BytesIO:
    m, n, p = (torch.export.Dim(name, min=2, max=64) for name in "mnp")
    exported = torch.export.export(
        Module(plan), X, dynamic_shapes=({0: m}, {0: n}, {0: p}, {0: n}, {0: p}), strict=strict
    )
    targets = [str(node.target) for node in exported.graph.nodes if "tensorattn" in str(node.target)]
    assert targets == ["tensorattn.run.default"]
    file = io.BytesIO()
    torch.export.save(exported, file)
    file.seek(0)
    return file


@pytest.fixture(scope="module", params=["non-strict", "strict"])
def program(request) -> Function:
    return torch.export.load(stored(strict=request.param == "strict")).module()


def of_q(f: Function, make: Callable[[Function], Any]) -> Any:
    return make(lambda q: f(q, *X[1:]))(X[0])


def jvp(f: Function) -> Function:
    return lambda q: torch.func.jvp(f, (q,), (STEP[0],))[1]


def loss(f: Function) -> Function:
    return lambda *x: f(*x).sin().sum()


def recorded(f: Function, second: bool) -> list[torch.Tensor]:
    """The gradients of all inputs, or those of a function of them."""
    x = [a.clone().requires_grad_() for a in X]
    first = torch.autograd.grad(loss(f)(*x), x, create_graph=second)
    return list(torch.autograd.grad(sum(g.square().sum() for g in first), x) if second else first)


def dual(f: Function) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        y = f(*(torch.autograd.forward_ad.make_dual(x, step) for x, step in zip(X, STEP, strict=True)))
        return torch.autograd.forward_ad.unpack_dual(y).tangent


MODES: dict[str, Callable[[Function], Any]] = {
    "value": lambda f: f(*X),
    "gradients": lambda f: recorded(f, second=False),
    "second gradients": lambda f: recorded(f, second=True),
    "func.grad": lambda f: of_q(f, lambda g: torch.func.grad(loss(g))),
    "grad of grad": lambda f: of_q(f, lambda g: torch.func.grad(lambda q: torch.func.grad(loss(g))(q).sin().sum())),
    "jvp": lambda f: torch.func.jvp(f, X, STEP)[1],
    "jvp of jvp": lambda f: of_q(f, lambda g: jvp(jvp(g))),
    "jvp of grad": lambda f: of_q(f, lambda g: jvp(torch.func.grad(loss(g)))),
    "jacfwd": lambda f: of_q(f, torch.func.jacfwd),
    "jacrev": lambda f: of_q(f, torch.func.jacrev),
    "hessian": lambda f: of_q(f, lambda g: torch.func.hessian(loss(g))),
    "vmap": lambda f: torch.vmap(f, in_dims=(0, None, 1, None, None))(*STACKED),
    "linearize": lambda f: of_q(f, lambda g: lambda q: torch.func.linearize(g, q)[1](STEP[0])),
    "forward mode": dual,
}  # fmt: skip


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.filterwarnings("ignore:.*get_attr.*")  # of torch's own linearize
def test_modes(program: Function, mode: str) -> None:
    expected = MODES[mode](PLAIN)
    torch.testing.assert_close(MODES[mode](program), expected, rtol=1e-9, atol=1e-10)
    assert all(x.abs().max() > 0 for x in ([expected] if isinstance(expected, torch.Tensor) else expected))


@pytest.mark.parametrize("mode", ["gradients", "jvp", "jvp of jvp", "hessian", "vmap"])
def test_modes_inside_a_compiled_region(mode: str) -> None:
    torch._dynamo.reset()
    program = torch.export.load(stored()).module()
    if mode == "gradients":  # a compiled callable has gradients; transforms have to stand inside
        compiled = torch.compile(program, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(recorded(compiled, second=False), recorded(PLAIN, second=False))
        return
    compiled = torch.compile(lambda: MODES[mode](program), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(), MODES[mode](PLAIN), rtol=1e-9, atol=1e-10)


@pytest.mark.filterwarnings("ignore:`isinstance:FutureWarning")  # of torch's own decompositions
def test_exported_again() -> None:
    program = torch.export.load(stored()).module()
    twice = torch.export.export(program, X).run_decompositions({}).module()
    torch.testing.assert_close(recorded(twice, second=True), recorded(PLAIN, second=True), rtol=1e-9, atol=1e-10)


def test_what_torch_has_no_rule_for_is_refused(program: Function) -> None:
    with pytest.raises(ta.BackendError, match=r"E-BACKEND: torch\.func\.functionalize"):
        torch.func.functionalize(program)(*X)


LOAD = """
import sys, torch
import tensorattn.nn
program = torch.export.load(sys.argv[1]).module()
x = [a.requires_grad_() for a in torch.load(sys.argv[2])]
y = program(*x)
torch.save([y.detach(), *torch.autograd.grad(y.sin().sum(), x)], sys.argv[3])
"""


def test_a_process_that_knows_nothing_of_the_formula(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("program.pt2", "inputs.pt", "found.pt")]
    Path(files[0]).write_bytes(stored().getvalue())
    torch.save(list(X), files[1])
    subprocess.run([sys.executable, "-c", LOAD, *files], check=True, timeout=120)
    torch.testing.assert_close(torch.load(files[2]), [PLAIN(*X), *recorded(PLAIN, second=False)])
