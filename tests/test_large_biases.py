"""Additive masks as large as numbers are: streamed and flattened plans say what dense ones do, in every derivative."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.backends.torch import functions
from tensorattn.backends.torch.functions import are_fine
from tensorattn.units import exactly, key_of, stepped, unit

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
N, M, D, E = 4, 11, 3, 2
FORMULAS = {
    "one": "y_<i e> = softmax[j](q_<i d> k_<j d> + b_<i j>) v_<j e>",
    "shared": "S_<i j> = q_<i d> k_<j d> - b_<i j>\n"
    "y_<i e> = softmax[j](S_<i j>) v_<j e> - softmax[j](S_<i j>) w_<j e>",
    "keys": "y_<i e> = softmax[j](q_<i d> k_<j d> + c_j) v_<j e> + softmax[j](q_<i d> k_<j d> + c_j) w_<j e>",
    "joint": "y_<i e> = softmax[j l](q_<i d> k_<j d> k_<l d> + b_<i j>) v_<j e> w_<l e>",
    "sink": "y_<i e> = softmax[j; sink=s_i](q_<i d> k_<j d> + b_<i j>) v_<j e>",
}
AXES = dict(q=(N, D), k=(M, D), v=(M, E), w=(M, E))


def drawn(program: ta.Program, large: float, where: str, dtype: str) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    arrays = {name: rng.normal(size=shape) for name, shape in AXES.items()}
    b, c = np.zeros((N, M)), np.zeros(M)
    if where == "all":
        b[:], c[:] = large, large
    else:
        b[1], b[2, ::2], c[::3] = large, large, large
    arrays |= dict(b=b, c=c, s=rng.normal(size=N))
    return {name: arrays[name].astype(dtype) for name in program.inputs}


def derivatives(program: ta.Program, plan: str, arrays: dict[str, np.ndarray], compiled: bool = False):
    """The value, its gradients, and those of a sum of them."""
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays.values()]
    made = ta.compile(program, plan=plan)

    def function(*x: torch.Tensor) -> torch.Tensor:
        return made(dict(zip(arrays, x, strict=True)))

    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    y = function(*tensors)
    first = torch.autograd.grad(y.sin().sum(), tensors, create_graph=not compiled)
    if compiled:
        return y, *first
    total = sum((g * torch.cos(torch.arange(g.numel(), dtype=g.dtype)).reshape(g.shape)).sum() for g in first)
    return y, *first, *torch.autograd.grad(total, tensors)


@pytest.mark.parametrize("where", ["all", "some"])
@pytest.mark.parametrize("size", ["inf", "1e9", "max"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FORMULAS)
def test_streamed_plans_agree_with_dense_ones(name: str, dtype: str, size: str, where: str) -> None:
    program = ta.parse(FORMULAS[name])
    large = -{"inf": np.inf, "1e9": 1e9, "max": np.finfo(dtype).max}[size] * (-1 if name == "shared" else 1)
    arrays = drawn(program, large, where, dtype)
    exact = 1e9 if size == "1e9" else 1.0  # scores of 1e9 have few digits, and each plan rounds its own
    room = 1e-4 if dtype == "float32" else 1e-15 * exact + 1e-10
    if exact > 1 and dtype == "float32":
        arrays |= {"q": np.zeros_like(arrays["q"])}  # all of them alike
    wanted = derivatives(program, "dense", arrays)
    for found, value in zip(derivatives(program, "streamed", arrays), wanted, strict=True):
        assert value.isfinite().all()
        torch.testing.assert_close(found, value, rtol=room, atol=room * (1 + float(value.detach().abs().max())))


def test_keys_of_minus_infinity_in_a_flattened_plan() -> None:
    program = ta.parse("y_<i e> = softmax[j](q_<i d> k_<j d> + c_j) v_<j e>\nz_<i e> = y_<i e> + y_<i e> y_<i e>")
    arrays = drawn(program, -np.inf, "some", "float64")
    wanted = derivatives(program, "dense", arrays)
    for found, value in zip(derivatives(program, "flattened", arrays), wanted, strict=True):
        torch.testing.assert_close(found, value, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["one", "keys"])
def test_first_derivatives_in_a_compiled_region(name: str) -> None:
    program = ta.parse(FORMULAS[name])
    arrays = drawn(program, np.finfo("float32").min, "all", "float32")
    wanted = derivatives(program, "dense", arrays)
    for found, value in zip(derivatives(program, "streamed", arrays, compiled=True), wanted, strict=False):
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sink_as_large_as_the_scores_takes_its_share(plan: str, dtype: str) -> None:
    compiled = ta.compile("y_i = softmax[j; sink=s_i](x_<i j> + b_j) v_j", plan=plan)
    least = np.finfo(dtype).min
    given = dict(s=np.full(2, least), x=np.zeros((2, 3)), b=np.full(3, least), v=np.ones(3))
    arrays = {name: array.astype(dtype) for name, array in given.items()}
    for made in (arrays, {name: torch.tensor(array) for name, array in arrays.items()}):
        np.testing.assert_allclose(np.asarray(compiled(made)), [0.75, 0.75], rtol=1e-6)


# Where nobody may look at values before the operator runs ------------------------------------------------------------

MODES = {
    "sink": FORMULAS["sink"],
    "total": "S_<i j> = q_<i d> k_<j d> + b_<i j>\nL_i = lse[j](S_<i j>)\n"
    "y_<i e> = softmax[j : j != i](S_<i j>) v_<j e> L_i / 1000000000",
}


def alike(dtype: torch.dtype, names: tuple[str, ...]) -> tuple[torch.Tensor, ...]:
    """Inputs with equal scores of −10⁹, of which nothing is rounded."""
    large = dict(q=np.zeros((N, D)), b=np.full((N, M), -1e9), s=np.full(N, -1e9))
    drawn = np.random.default_rng(5)
    arrays = {name: large[name] if name in large else drawn.normal(size=AXES[name]) for name in names}
    return tuple(torch.tensor(a.astype(np.float32)).to(dtype) for a in arrays.values())


def scalar(program: ta.Program, plan: str):
    compiled = ta.compile(program, plan=plan)

    def total(*x: torch.Tensor) -> torch.Tensor:
        return compiled(dict(zip(program.inputs, x, strict=True))).sin().sum()

    return total


def slopes(function):
    return lambda *x: torch.func.grad(function, tuple(range(len(x))))(*x)


def second(function):
    def total(*x: torch.Tensor) -> torch.Tensor:
        return sum((g * g.cos()).sum() for g in slopes(function)(*x))

    return slopes(total)


def mapped(function):
    return lambda *x: tuple(g[1] for g in torch.vmap(function)(*(torch.stack([a, a]) for a in x)))


def tangent(function):
    return lambda *x: torch.func.jvp(function, x, tuple(a.sin() + 1 for a in x))[1]


WAYS = {
    "grad": slopes,
    "second": second,
    "vmap": lambda f: mapped(slopes(f)),
    "vmap of second": lambda f: mapped(second(f)),
    "jvp": lambda f: lambda *x: (tangent(f)(*x),),
    "jvp of grad": lambda f: tangent(slopes(f)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("name", "compiled"), [("sink", False), ("total", False), ("total", True)])
def test_equal_scores_have_equal_weights_in_every_derivative(name: str, way: str, compiled: bool) -> None:
    program = ta.parse(MODES[name])
    function = WAYS[way](scalar(program, "streamed"))
    if compiled:
        torch._dynamo.reset()
        function = torch.compile(function, fullgraph=True, backend="aot_eager")
    found = function(*alike(torch.float32, program.inputs))
    wanted = WAYS[way](scalar(program, "dense"))(*alike(torch.float64, program.inputs))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other.to(one.dtype), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("plan", ["auto", "dense"])
def test_the_slopes_of_a_large_log_sum_exp_add_up_to_one(plan: str) -> None:
    x = torch.full((2, 5), -1e9, requires_grad=True)
    ta.compile("y_i = lse[j](x_<i j>)", plan=plan)(x=x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((2, 5), 0.2))


def test_the_exact_derivatives_take_and_give_what_the_others_do() -> None:
    program = ta.parse(MODES["total"])
    dtypes = dict.fromkeys(program.inputs, "float32")
    first = key_of(program, ["y"], {}, dtypes, 0, None, "streamed", None)
    count, names = len(unit(first).outputs), tuple(program.inputs)
    adjoint = stepped(first, "adjoint", (True,) * count, names)
    found = unit(adjoint)
    wanted = tuple(n for n, real in zip(found.kernel.inputs, found.floats, strict=True) if real)
    keys = [adjoint, stepped(adjoint, "adjoint", (True,) * len(found.outputs), wanted)]
    keys += [stepped(key, "vmap", (True,) * len(unit(key).kernel.inputs)) for key in keys]
    for key in (*keys, stepped(adjoint, "tangent", found.floats)):
        one, other = unit(key), unit(exactly(key))
        assert (one.kernel.inputs, one.gradients, one.takes) == (other.kernel.inputs, other.gradients, other.takes)
        assert [(o.axes, o.dtype) for o in one.outputs] == [(o.axes, o.dtype) for o in other.outputs]
        assert (len(one.logarithms), other.logarithms) == (1, ())


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a device of CUDA."""

    is_cuda = True


@pytest.mark.parametrize("captured", [False, True])
def test_what_a_captured_graph_runs_on_is_not_looked_at(captured: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: captured)
    monkeypatch.setattr(functions, "type", lambda x: torch.Tensor, raising=False)
    near, far = torch.zeros(3), torch.zeros(3).as_subclass(Elsewhere)
    assert [are_fine([x]) for x in (near, far)] == [True, not captured]
    assert [functions.all_finite(x) for x in (near, far)] == [True, not captured]
    assert [functions.holds(x.sum() == 0) for x in (near, far)] == [True, not captured]


def test_only_large_numbers_are_coarse() -> None:
    found = {x: are_fine([torch.zeros(3), torch.full((2,), x)]) for x in (0.0, 1e3, -1e9, -np.inf, np.inf)}
    assert found == {0.0: True, 1e3: True, -1e9: False, -np.inf: True, np.inf: True}
    assert are_fine([])
