"""What torch can do with a formula, whatever its plan: every mode of differentiation, alone and inside torch.compile,
and every other way to call it, against the same attention written by hand in torch."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import pytest
import torch
from torch.autograd import forward_ad

import tensorattn as ta

Function = Callable[[torch.Tensor], torch.Tensor]
FORMULAS = {
    "masked": "y^mu_n = softmax[nu : nu < mu](q^mu_i k^nu_i + b^<mu nu>) v^nu_n",
    "joint": "y^mu_n = softmax[nu rho](sum[i](q^mu_i k^nu_i r^rho_i)) v^nu_n w^rho_n",
    "pairs": "y^mu_n = softmax[nu rho](q^mu_i k^nu_i + k^nu_i r^rho_i + q^mu_i r^rho_i) v^nu_n w^rho_n",
    "nested": "c^<mu nu>_n = softmax[rho](q^mu_i r^rho_i + k^nu_i r^rho_i) w^rho_n\n"
    "y^mu_n = softmax[nu](sum[p](c^<mu nu>_p)) v^nu_n",
    "sink": "y^<... mu>_n = softmax[nu; sink=0.5](q^<... mu>_i k^nu_i) v^nu_n",
    "gather": "y^mu_n = softmax[nu](q^mu_i k^nu_i + E_<t_nu>) v^nu_n",
    "product": "y^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n prod[i : i != 1](q^mu_i)",
    "exponent": "y^mu_n = entmax[nu; alpha=1.2 + sum[p](q^mu_p ** 2) / 8](q^mu_i k^nu_i) v^nu_n",
    "lse": "S^<mu nu> = q^mu_i k^nu_i + b^<mu nu>; y^mu_n = S^<mu bar(nu)> v^nu_n; L^mu = lse[nu](S^<mu nu>)",
}
REFUSED = {(n, "factored") for n in FORMULAS if n not in ("pairs", "nested")} | {("exponent", "flattened")}
SHAPES = {"q": (5, 3), "k": (7, 3), "r": (6, 3), "b": (5, 7), "v": (7, 2), "w": (6, 2), "E": (4,)}
STEP = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)


def drawn() -> dict[str, torch.Tensor]:
    make = torch.Generator().manual_seed(3)
    found = {n: torch.randn(s, generator=make, dtype=torch.float64) for n, s in SHAPES.items()}
    return found | {"t": torch.tensor([0, 3, 1, 1, 0, 2, 3])}


X = drawn()
Q = X["q"]


def weighed(scores: torch.Tensor, *values: torch.Tensor, mask: torch.Tensor | None = None, sink: float = 0.0):
    """Σ exp(s) values / (Σ exp(s) + sink), 0 for a row that has nothing."""
    e = scores.exp() if mask is None else scores.exp() * mask
    e = e.flatten(-len(values))
    total = e.sum(-1, keepdim=True) + sink
    v = values[0] if len(values) == 1 else (values[0][:, None] * values[1]).flatten(0, 1)
    return e @ v / torch.where(total == 0, 1, total)


def bent(scores: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    """entmax with the exponent 1 + t, by Newton steps whose last ones carry the derivatives."""
    tau = scores.amax(-1, keepdim=True).detach() - 1 / t.detach()
    for n in range(40):
        base = 1 + t * (scores - tau)
        inside = base > 0
        base = torch.where(inside, base, 1)
        total, slope = (torch.where(inside, base ** (p / t), 0).sum(-1, keepdim=True) for p in (1, 1 - t))
        tau = tau + (total - 1) / slope
        tau = tau.detach() if n < 37 else tau
    base = 1 + t * (scores - tau)
    inside = base > 0
    return torch.where(inside, torch.where(inside, base, 1) ** (1 / t), 0)


def by_hand(name: str, q: torch.Tensor) -> torch.Tensor:
    k, r, b, v, w = (X[n].to(q) for n in "krbvw")
    match name:
        case "masked":
            return weighed(q @ k.T + b, v, mask=torch.ones(5, 7).tril(-1).to(q))
        case "joint":
            return weighed(torch.einsum("mi,ni,ri->mnr", q, k, r), v, w)
        case "pairs":
            return weighed((q @ k.T)[:, :, None] + k @ r.T + (q @ r.T)[:, None], v, w)
        case "nested":
            return weighed(weighed((q @ r.T)[:, None] + k @ r.T, w).sum(-1), v)
        case "sink":
            return weighed(q @ k.T, v, sink=math.exp(0.5))
        case "product":
            return weighed(q @ k.T, v) * q[:, :1] * q[:, 2:]
        case "exponent":
            return bent(q @ k.T, 0.2 + (q * q).sum(-1, keepdim=True) / 8) @ v
        case "gather":
            return weighed(q @ k.T + X["E"].to(q)[X["t"]], v)
    return weighed(q @ k.T + b, v) + (q @ k.T + b).exp().sum(-1, keepdim=True).log()


@cache
def compiled(name: str, plan: str) -> ta.Compiled:
    return ta.compile(FORMULAS[name], plan=plan, outputs=["y", "L"] if name == "lse" else "y")


def of_q(f: ta.Compiled) -> Function:
    """A formula as a function of one input, the others fixed."""
    fixed = {n: X[n] for n in f.inputs if n != "q"}

    def function(q: torch.Tensor) -> torch.Tensor:
        y = f(q=q, **{n: x.to(q) if x.is_floating_point() else x for n, x in fixed.items()})
        return y["y"] + y["L"][:, None] if isinstance(y, dict) else y

    return function


def pair(name: str, plan: str) -> tuple[Function, Function]:
    return of_q(compiled(name, plan)), lambda q: by_hand(name, q)


def loss(f: Function) -> Function:
    return lambda q: f(q).sin().sum()


def slope(f: Function) -> Function:
    return torch.func.grad(loss(f))


def tangent(f: Function) -> Function:
    return lambda q: torch.func.jvp(f, (q,), (STEP.to(q),))[1]


def of_two(f: Function) -> Function:
    return lambda q: torch.vmap(f)(torch.stack([q, 2 * q]))


def recorded(q: torch.Tensor) -> torch.Tensor:
    return q.detach().clone().requires_grad_()


def backward(f: Function) -> Function:
    return lambda q: torch.autograd.grad(loss(f)(q := recorded(q)), q)[0]


def double_backward(f: Function) -> Function:
    def second(q: torch.Tensor) -> torch.Tensor:
        first = torch.autograd.grad(loss(f)(q := recorded(q)), q, create_graph=True)[0]
        return torch.autograd.grad(first.square().sum(), q)[0]

    return second


def batched_backward(f: Function) -> Function:
    def two(q: torch.Tensor) -> torch.Tensor:
        y = f(q := recorded(q))
        bars = torch.stack([torch.ones_like(y), y.detach()])
        first = torch.autograd.grad(y, q, bars, is_grads_batched=True, create_graph=True)[0]
        return torch.cat([first, torch.autograd.grad(first.sin().sum(), q)[0][None]])

    return two


def dual(f: Function) -> Function:
    def forward(q: torch.Tensor) -> torch.Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(q, STEP.to(q)))).tangent

    return forward


MODES: dict[str, Callable[[Function], Function]] = {
    "value": lambda f: f,
    "grad": slope,
    "jvp": tangent,
    "vmap": of_two,
    "jacrev": torch.func.jacrev,
    "jacfwd": torch.func.jacfwd,
    "hessian": lambda f: torch.func.hessian(loss(f)),
    "grad of grad": lambda f: slope(slope(f)),
    "vmap of grad": lambda f: of_two(slope(f)),
    "jvp of jvp": lambda f: tangent(tangent(f)),
    "jvp of a tangent": lambda f: tangent(lambda q: torch.func.jvp(f, (Q.to(q),), (q * q,))[1]),
    "jvp of grad": lambda f: tangent(slope(f)),
    "vmap of jvp": lambda f: of_two(tangent(f)),
}
OUTSIDE: dict[str, Callable[[Function], Function]] = {  # those of torch.autograd, which stand around a compiled region
    "backward": backward,
    "double backward": double_backward,
    "is_grads_batched": batched_backward,
    "forward mode": dual,
    "jacobian": lambda f: lambda q: torch.autograd.functional.jacobian(f, q, vectorize=True),
    "jacobian forward": lambda f: (
        lambda q: torch.autograd.functional.jacobian(f, q, vectorize=True, strategy="forward-mode")
    ),
}
PLANS = ("auto", "dense", "streamed", "flattened", "factored")


def close(found: torch.Tensor, expected: torch.Tensor, what: str, digits: int = 9) -> None:
    assert expected.abs().max() > 0, what
    torch.testing.assert_close(
        found, expected, rtol=10**-digits, atol=10 ** -(digits + 1), msg=lambda m: f"{what}: {m}"
    )


ALONE = [(n, p) for n in FORMULAS for p in PLANS if (n, p) not in REFUSED and (p != "auto" or n == "masked")]


@pytest.mark.parametrize(("name", "plan"), ALONE)  # at these sizes auto is dense
def test_every_mode(name: str, plan: str) -> None:
    ours, plain = pair(name, plan)
    for word, mode in {**MODES, **OUTSIDE}.items():
        close(mode(ours)(Q), mode(plain)(Q), word)


def test_which_plans_there_are() -> None:
    for name, plan in REFUSED:
        with pytest.raises(ta.PlanError):
            compiled(name, plan)


def _cases() -> list[tuple[str, str, str]]:
    """Every mode, formula and plan with some others, not with each pair of them; the plain modes twice."""
    names, plans = list(FORMULAS), ("streamed", "flattened", "auto", "dense")
    twice = [*MODES, "grad", "jvp", "vmap", "hessian"]
    factored = [("vmap of grad", "pairs", "factored"), ("hessian", "nested", "factored")]
    return [(mode, names[n % len(names)], plans[(n + n // 4) % 4]) for n, mode in enumerate(twice)] + factored


@pytest.mark.parametrize(("mode", "name", "plan"), _cases())
def test_inside_a_compiled_region(mode: str, name: str, plan: str) -> None:
    torch._dynamo.reset()
    ours, plain = pair(name, plan)
    traced = torch.compile(MODES[mode](ours), fullgraph=True, backend="aot_eager")
    close(traced(Q), MODES[mode](plain)(Q), mode)


@pytest.mark.parametrize("name", ["masked", "nested", "gather", "lse"])
def test_around_a_compiled_region(name: str) -> None:
    torch._dynamo.reset()
    ours, plain = pair(name, "streamed")
    close(backward(torch.compile(ours, fullgraph=True, backend="aot_eager"))(Q), backward(plain)(Q), name)


# Other ways to call ------------------------------------------------------------------------------------------------

every_plan = pytest.mark.parametrize(("name", "plan"), [("joint", p) for p in PLANS[:-1]] + [("pairs", "factored")])


@every_plan
def test_settings_of_torch(name: str, plan: str) -> None:
    ours, plain = pair(name, plan)
    expected = plain(Q)
    with torch.no_grad():
        assert not ours(recorded(Q)).requires_grad
        close(ours(recorded(Q)), expected, "no_grad")
    with torch.inference_mode():
        close(ours(Q), expected, "inference_mode")
        close(ours(Q.clone()), expected, "an inference tensor")
        inference = Q.clone()
    close(ours(inference), expected, "an inference tensor outside")
    with torch.set_grad_enabled(False):
        close(slope(ours)(Q), slope(plain)(Q), "func.grad under no_grad")


@every_plan
def test_copies_and_threads(name: str, plan: str) -> None:
    f = compiled(name, plan)
    for copied in (copy.deepcopy(f), copy.copy(f), pickle.loads(pickle.dumps(f))):
        close(backward(of_q(copied))(Q), backward(pair(name, plan)[1])(Q), "a copy")
    modes = [
        MODES["grad"],
        MODES["jacrev"],
        OUTSIDE["backward"],
        MODES["vmap"],
    ] * 2  # torch has one forward mode at a time
    fresh = of_q(pickle.loads(pickle.dumps(f)))
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda mode: mode(fresh)(Q), modes))
    for mode, ours in zip(modes, found, strict=True):
        close(ours, mode(pair(name, plan)[1])(Q), "in a thread")


@every_plan
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_narrow_dtypes(name: str, plan: str, dtype: torch.dtype) -> None:
    ours, plain = pair(name, plan)
    digits = {torch.bfloat16: 1, torch.float16: 2, torch.float32: 4}[dtype]
    narrow = (Q / 4).to(dtype)
    for word in ("value", "grad", "jvp", "vmap"):
        found = MODES[word](ours)(narrow)
        assert found.dtype == dtype, word
        close(found.double(), MODES[word](plain)(narrow.double()), word, digits)


@every_plan
def test_autocast_changes_nothing(name: str, plan: str) -> None:
    """Not the dtype of the result, and not a digit of it."""
    ours, _ = pair(name, plan)
    q = Q.float()
    traced = torch.compile(ours, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", torch.bfloat16):
        assert (q @ q.T).dtype == torch.bfloat16
        found = [ours(q), traced(q), ours(recorded(q))]
        cast = ours(recorded(q))
    for y in found:
        torch.testing.assert_close(y, ours(q), rtol=1e-6, atol=1e-6, check_dtype=True)
    tangents = MODES["jvp"](ours)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(tangents(q), MODES["jvp"](ours)(q))
    x = recorded(q)
    with torch.autocast("cpu", torch.bfloat16):
        y = ours(x)
    torch.testing.assert_close(torch.autograd.grad(y.sin().sum(), x)[0], backward(ours)(q))
    assert cast.requires_grad
