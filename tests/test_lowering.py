"""Kernels: values against the definition, instructions that must (not) be there, predicates and their gradients."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import reference
from tensorattn.ir import Index
from tensorattn.kernel import Apply, Cast, CheckRange, Gather, IfFinite, Instruction, Iota, Kernel, Normalised
from tensorattn.lowering import lower
from tensorattn.lowering.building import Builder
from tensorattn.lowering.liveness import reads, without_dead
from tensorattn.lowering.slots import in_range
from tensorattn.parts import Literal
from tensorattn.planning import plan
from tensorattn.sizes import Size

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

Arrays = Mapping[str, np.ndarray]
rng = np.random.default_rng(0)


def R(*shape: int) -> np.ndarray:  # noqa: N802 - as short as the formulas beside it
    return rng.normal(size=shape)


def holed(array: np.ndarray, *place: object, value: float = np.nan) -> np.ndarray:
    array = array.copy()
    array[place] = value
    return array


KEEP = np.array([[1, 1, 0, 0, 1], [1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 0, 0]], bool)
CASES: tuple[tuple[str, dict[str, np.ndarray], dict[str, int]], ...] = (
    ("y_i = sum[j](x_i)", dict(x=R(4)), dict(j=3)),
    ("y_i = sum[j : j <= i](x_j)", dict(x=R(4)), dict(i=4)),
    ("y_i = mean[j : j < i](x_j)", dict(x=R(4)), dict(i=4)),
    ("y_i = mean[j](x_<i j>)", dict(x=R(4, 0)), {}),
    ("y_i = mean[j](x_i)", dict(x=R(4)), dict(j=3)),
    ("y_i = max[j : j < i](x_<i j>)", dict(x=R(4, 4)), {}),
    ("y_i = min[j : j < i](x_<i j>)", dict(x=R(4, 4)), {}),
    ("y_i = prod[j : j < i](x_<i j>)", dict(x=R(4, 4)), {}),
    ("y_i = lse[j : j < i](x_<i j>)", dict(x=R(4, 4)), {}),
    ("y_i = lse[j](x_i)", dict(x=R(4)), dict(j=3)),
    ("D_<i j> = a_i delta_<i j>", dict(a=holed(R(4), 1)), {}),
    ("D_<i j> = a_i b_j delta_<i j>", dict(a=holed(R(4), 1), b=holed(R(4), 2)), {}),
    ("D_<i j> = a_i ones_j", dict(a=R(4)), dict(j=3)),
    ("D_<i j> = 2 ones_<i j>", {}, dict(i=2, j=3)),
    ("D = sum[i](ones_<i>)", {}, dict(i=5)),
    ("D_<i j k> = eps_<i j k>", {}, dict(i=3, j=3, k=3)),
    ("D_<i j k l> = eps_<i j k l>", {}, dict(i=4, j=4, k=4, l=4)),
    ("c_i = eps_<i j k> a_j b_k", dict(a=R(3), b=R(3)), {}),
    ("y_i = softmax[j](x_<j k>) delta_<j i> u_k", dict(x=R(4, 3), u=R(3)), {}),
    ("y_i = sum[j](softmax[j](x_<i j>) delta_<i j>)", dict(x=R(4, 4)), {}),
    ("a_<i j> = exp(x_<i c> x_<j c>) / sum[p](exp(x_<i c> x_<p c>))", dict(x=R(4, 3)), {}),
    ("y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>", dict(Q=R(4, 3), K=R(5, 3), V=R(5, 2)), {}),
    ("P_<t (h d)> = x_<t h d>\ny_<t e> = P_<t e>", dict(x=R(2, 3, 4)), dict(e=12)),
    ("P_<t (h d)> = x_<t h d>\ny_<t e f> = P_<t (e f)>", dict(x=R(2, 3, 4)), dict(e=2, f=6)),
    ("P_<t (h d)> = x_<t h d>\ny_t = P_<t, 2*t+3>", dict(x=R(2, 3, 4)), {}),
    ("P_<t (h d e)> = x_<t h d e>\ny_<t k> = P_<t, 5*t+k>", dict(x=R(2, 3, 2, 2)), dict(k=7)),
    ("y_<i j> = R_<i-j+|j|-1> + x_<i j>", dict(R=R(7), x=R(4, 4)), {}),
    ("y_<i d> = x_<0 d> + x_<i d>", dict(x=R(3, 2)), {}),
    ("y_<i d> = E_<t_i d>", dict(E=R(5, 2), t=np.array([4, 0, 2])), {}),
    ("y_<i d> = E_<t_<u_i> d>", dict(E=R(5, 2), t=np.array([4, 0, 2]), u=np.array([2, 2, 1, 0])), {}),
    ("y_i = sum[j : j < i](x_<i-j-1> w_j)", dict(x=R(4), w=R(4)), dict(i=4)),
    ("y_<b (h d)> = x_<b (d h)>", dict(x=R(2, 6)), dict(h=2, d=3)),
    ("y_<a d> = cat[a = m + j](A_<m d>, B_<j d>)", dict(A=R(2, 3), B=R(4, 3)), {}),
    ("y_<a d> = cat[a = m + j](A_<m d>, b_j)", dict(A=R(2, 3), b=R(4)), {}),
    ("y_<i j> = top[j; 2](x_<i j>)", dict(x=R(4, 5)), {}),
    ("y_<i j> = softmax[j : top[j; 2](x_<i j>)](x_<i j>)", dict(x=R(4, 5)), {}),
    ("y_<i j> = i <= j", {}, dict(i=3, j=2)),
    ("y_<i j> = (i <= j) x_j + 2*(i == j) - 1", dict(x=R(3)), dict(i=3)),
    ("y_i = where(m_i, x_i, 0) + 2**(0-i)", dict(x=R(3), m=np.array([True, False, True])), {}),
    ("y_i = 2 x_i / 3 - 1/3 + |i| / 2", dict(x=R(3)), {}),
    ("y_i = x_j M_<i j> - 2", dict(x=np.array([1, 2, 3]), M=np.arange(6).reshape(2, 3)), {}),
    ("y_<i j> = a_d c_<i d> + b_d q_<j d> + a_d c_<i d> q_<j d>", dict(a=R(3), b=R(3), c=R(4, 3), q=R(5, 3)), {}),
    ("y_<i l> = A_<i j> B_<j k> C_<k l> D_<j k>", dict(A=R(4, 3), B=R(3, 5), C=R(5, 2), D=R(3, 5)), {}),
    ("y_i = A_<i i> / z_j * u_j", dict(A=R(4, 4), z=R(3), u=R(3)), {}),
    ("y_i = A_<i j> / z_<i j>", dict(A=R(4, 3), z=R(4, 3)), {}),
    ("y_i = 1 / (x_i z_j) * u_j", dict(x=R(4), z=R(3), u=R(3)), {}),
    ("y_<i j> = 1/x_i * 1/z_j", dict(x=R(4), z=R(3)), {}),
    ("y_i = x_i sum[j](1 / z_j)", dict(z=R(3), x=R(2)), {}),
    ("y = x_i x_i", dict(x=R(0)), {}),
    ("y_j = x_i z_<i j>", dict(x=R(0), z=R(0, 3)), {}),
    ("x_i = sum[j](a_i)\ny_k = x_i x_i c_k", dict(a=R(3), c=R(2)), dict(j=4)),
    ("y_<i j> = softmax[i j; sink=s](x_<i j>)", dict(x=R(3, 4), s=np.array(0.3)), {}),
    ("y_<i j> = softmax1[j](x_<i j>) + sparsemax[j](x_<i j>) + entmax[j; 1.5](x_<i j>)", dict(x=R(3, 4)), {}),
    ("y_<i j> = l2norm[j](x_<i j>) + l1norm[j; eps=0.1](x_<i j>**2)", dict(x=R(3, 4)), {}),
    ("y_i = max[j](x_<i j>) + min[j](x_<i j>)", dict(x=np.arange(6).reshape(2, 3)), {}),
    ("y_i = -x_i - z_i", dict(x=R(3), z=R(3)), {}),
    ("y_i = (x_i > 0.5) and not (x_i > 1) or i == 0", dict(x=R(6)), {}),
    ("y_<i j> = (A_<i bar(j)> - lam * B_<i bar(j)>) c_i", dict(A=R(3, 4), B=R(3, 4), lam=np.array(0.3), c=R(3)), {}),
    # predicates, with numbers that are none where they exclude, and where they admit
    ("y_<i e> = softmax[j : j <= i](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>",
     dict(Q=R(4, 3), K=holed(R(4, 3), 3), V=holed(R(4, 2), 2, 0, value=np.inf)), {}),
    ("y_<i e> = softmax[j : keep_<i j>](s_<i j>) V_<j e> / z_i",
     dict(s=R(4, 5), z=holed(R(4), 2, value=0), V=holed(R(5, 2), 3, 0), keep=KEEP), {}),
    ("y_<i j> = softmax[j : keep_<i j>](s_<i j>) g_<i j>", dict(s=R(4, 5), g=holed(R(4, 5), 0, 2), keep=KEEP), {}),
    ("y_<i j> = softmax[j : keep_<i j>](s_<i j>) / g_<i j>",
     dict(s=R(4, 5), g=holed(R(4, 5), 0, 2, value=0), keep=KEEP), {}),
    ("y_<i j> = softmax[j : keep_<i j>](s_<i j>) / t", dict(s=R(4, 5), t=np.array(np.nan), keep=KEEP), {}),
    ("P_<i j> = softmax[j : j <= i](s_<i j>)\ny_<i e> = P_<i j> v_<j e>",
     dict(s=R(4, 4), v=holed(R(4, 2), 2, 1)), {}),
    ("P_<i j> = softmax[j : j <= i](s_<i j>)\ny_<i e> = P_<i+0, j> v_<j e>",
     dict(s=R(4, 4), v=holed(R(4, 2), 2, 1)), {}),
    ("P_<(i j)> = softmax[j : j <= i](s_<i j>)\ny_<i e> = P_<(i j)> v_<j e>",
     dict(s=R(4, 4), v=holed(R(4, 2), 2, 1)), {}),
    ("y_<i k> = softmax[j : j <= i](s_<i j>) softmax[k : k <= j](t_<j k>)", dict(s=R(4, 4), t=holed(R(4, 4), 2)), {}),
    ("y_i = sum[j : p_<i j>](a_i + b_j)", dict(a=R(4), b=holed(R(5), 2), p=KEEP), {}),
    ("y_i = mean[j : p_<i j>](a_i b_j / c_j)", dict(a=R(4), b=holed(R(5), 2), c=holed(R(5), 3, value=0), p=KEEP), {}),
    ("y_i = sum[j : p_<i j>](a_<i k> b_<k j>)", dict(a=R(4, 2), b=holed(R(2, 5), 0, 3), p=KEEP), {}),
    ("y_i = b_i sum[j : p_<i j>](x_<i j>)", dict(b=holed(R(4), 2), x=R(4, 5), p=KEEP), {}),
    ("y_i = b_i mean[j : p_<i j>](x_<i j>) - c_i", dict(b=holed(R(4), 2), x=R(4, 5), c=R(4), p=KEEP), {}),
    ("s_i = sum[j : p_<i j>](x_<i j>)\ny_i = s_i b_i", dict(b=holed(R(4), 2, value=np.inf), x=R(4, 5), p=KEEP), {}),
    ("y_i = softmax[j : p_<i j>](s_<i j>) v_j\nz_i = y_i w_i",
     dict(s=R(4, 5), v=R(5), w=holed(R(4), 2), p=KEEP), {}),
    ("y_i = softmax[j : p_<i j>](s_<i j>) softmax[k : r_<j k>](t_<j k>) v_k\nz_i = y_i w_i",
     dict(s=R(4, 5), v=R(3), w=holed(holed(R(4), 0), 2), p=KEEP, t=R(5, 3), r=np.arange(15).reshape(5, 3) == 6), {}),
    # sums over nothing are 0, whatever they are divided by or multiplied with
    ("y_<i j> = q_<i d> k_<j d> / sqrt(|d|)", dict(q=R(3, 0), k=R(7, 0)), {}),
    ("y = x_i x_i / |i|", dict(x=R(0)), {}),
    ("y_i = t x_<i j> w_j / (2 s)", dict(x=R(3, 0), w=R(0), t=np.array(np.nan), s=np.array(0.0)), {}),
    ("y_<i k> = a_i b_<i j> c_<k j> / s", dict(a=R(3), b=R(3, 0), c=R(4, 0), s=np.array(0.0)), {}),
    ("y_i = x_<i j> w_j / z_i", dict(x=R(3, 0), w=R(0), z=np.zeros(3)), {}),
    ("y_k = a_i b_<i j> c_<j k> / z_i", dict(a=R(3), b=R(3, 0), c=R(0, 2), z=np.zeros(3)), {}),
    ("y_i = softmax[j : p_<i j>](s_<i j>) x_<j k> u_k / z_i",
     dict(s=R(4, 5), x=R(5, 0), u=R(0), z=np.zeros(4), p=KEEP), {}),
    ("s_<i j> = (q_<i d> k_<j d> + b_<i j>) / sqrt(|d|)\ny_<i e> = softmax[j : j <= i](s_<i j>) v_<j e>",
     dict(q=R(4, 2), k=R(4, 2), b=holed(R(4, 4), 2, 1, value=-np.inf), v=R(4, 2)), {}),
    ("y_<i e> = softmax[j : j <= i](lam * b_<i j>) v_<j e>",
     dict(b=holed(R(4, 4), 2, 1, value=-np.inf), lam=np.array(2.0), v=R(4, 2)), {}),
)  # fmt: skip


def tensors(arrays: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.tensor(array) for name, array in arrays.items()}


@pytest.mark.parametrize("case", [pytest.param(c, id=c[0].replace("\n", "; ")) for c in CASES])
def test_values(case: tuple[str, dict[str, np.ndarray], dict[str, int]]) -> None:
    text, arrays, sizes = case
    program = ta.parse(text)
    (wanted,) = reference.evaluate(program, arrays, sizes).values()
    compiled = ta.compile(program, sizes=sizes or None)
    for got in (compiled(arrays), compiled(tensors(arrays)) if arrays else None):
        if got is not None:
            found = np.asarray(got)
            assert found.shape == wanted.shape
            assert found.dtype == wanted.dtype
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "text", ["y_i = sum[j](x_<i j>) / |j|", "y_i = mean[j](x_<i j>)", "y_i = sum[j](x_<i j>) / z_i"]
)
def test_a_divisor_beside_a_sum_over_nothing_stands_inside_it(text: str) -> None:
    given = dict(x=np.zeros((3, 0))) | (dict(z=np.zeros(3)) if "z" in text else {})
    for arrays in (given, tensors(given)):
        assert np.asarray(ta.compile(text)(arrays)).tolist() == [0, 0, 0]


MASKED = np.array([True, True, False, True])
L = 4
GRADIENTS: tuple[tuple[str, dict[str, np.ndarray], dict[str, tuple[object, float]]], ...] = tuple(
    (text, arrays, holes)
    for text, arrays, holes in (
        ("y_<i e> = softmax[j : keep_j](q_<i d> k_<j d> / sqrt(|d|)) v_<j e>",
         dict(q=R(3, 2), k=R(L, 2), v=R(L, 2)), dict(k=(2, np.nan), v=(2, np.inf))),
        ("s_<i j> = q_<i d> k_<j d> / tau_i\ny_<i e> = s_<i bar(j : keep_j)> v_<j e>",
         dict(q=R(3, 2), k=R(L, 2), v=R(L, 2), tau=np.array([1.0, 2, 3])), dict(k=(2, np.nan), v=(2, np.nan))),
        ("s_<i j> = lam q_<i d> k_<j d> / t\ny_<i e> = s_<i bar(j : keep_j)> v_<j e>",
         dict(q=R(3, 2), k=R(L, 2), v=R(L, 2), lam=np.array(2.0), t=np.array(3.0)), dict(k=(2, np.nan))),
        ("a_<j d> = W_<d c> k_<j c>\ny_<i e> = softmax[j : keep_j](q_<i d> tanh(a_<j d>)) k_<j e>",
         dict(q=R(3, 2), k=R(L, 2), W=R(2, 2)), dict(k=(2, np.nan))),
        ("y_i = softmax[j : keep_j](log(s_<i j>)) u_j", dict(s=abs(R(3, L)), u=R(L)), dict(s=((slice(None), 2), 0.0))),
        ("l_<i j> = log(s_<i j>)\ny_i = softmax[j : keep_j](l_<i j>) u_j",
         dict(s=abs(R(3, L)), u=R(L)), dict(s=((slice(None), 2), 0.0))),
        ("y_i = sum[j : keep_j](sqrt(s_<i j>) u_j)", dict(s=abs(R(3, L)), u=R(L)), dict(s=((slice(None), 2), 0.0))),
        ("y_i = mean[j : keep_j](u_j / s_<i j>)", dict(s=abs(R(3, L)), u=R(L)), dict(s=((slice(None), 2), 0.0))),
        ("y_i = max[j : keep_j](u_j s_<i j>)", dict(s=R(3, L), u=R(L)), dict(s=((slice(None), 2), np.nan))),
        ("y_i = lse[j : keep_j](u_j s_<i j>)", dict(s=R(3, L), u=R(L)), dict(s=((slice(None), 2), np.nan))),
        ("y_i = prod[j : keep_j](s_<i j>)", dict(s=R(3, L)), dict(s=((slice(None), 2), np.nan))),
        ("y_i = softmax[j : keep_j](s_<i j>) lse[k](x_<j k>)",
         dict(s=R(3, L), x=R(L, 2)), dict(x=((2, 1), np.nan))),
        ("w_<j k> = softmax[k; sink=b_j](x_<j k>)\nm_j = w_<j k> x_<j k>\ny_i = softmax[j : keep_j](s_<i j>) m_j",
         dict(s=R(3, L), x=R(L, 2), b=R(L)), dict(x=((2, 1), np.inf), b=(2, np.nan))),
        ("y_i = l2norm[j : keep_j](s_<i j>) u_j", dict(s=R(3, L), u=R(L)), dict(s=((slice(None), 2), np.nan))),
    )
)  # fmt: skip


@pytest.mark.parametrize("case", [pytest.param(c, id=c[0].replace("\n", "; ")) for c in GRADIENTS])
def test_what_a_predicate_excludes_changes_no_value_and_no_gradient(case: object) -> None:
    text, arrays, holes = case  # type: ignore[misc]
    compiled = ta.compile(text)

    def run(fill: Mapping[str, float]) -> list[np.ndarray]:
        given = tensors(arrays)
        for name, (place, _) in holes.items():
            given[name][place] = fill[name]
        for tensor in given.values():
            tensor.requires_grad_(True)
        out = compiled(given | {"keep": torch.tensor(MASKED)})
        (out * torch.arange(1.0, out.numel() + 1).reshape(out.shape)).sum().backward()
        return [out.detach().numpy(), *(t.grad.numpy() for t in given.values())]  # type: ignore[union-attr]

    clean, dirty = run(dict.fromkeys(holes, 0.37)), run({name: value for name, (_, value) in holes.items()})
    for ours, wanted in zip(dirty, clean, strict=True):
        assert np.isfinite(wanted).all()
        np.testing.assert_allclose(ours, wanted, rtol=1e-12, atol=1e-14)
    for name, (place, _) in holes.items():
        assert (dirty[1 + list(arrays).index(name)][place] == 0).all()


# what the kernels are made of -------------------------------------------------------------------------------------


def kernel(text: str, **dtypes: str) -> Kernel:
    program = ta.parse(text)
    known = dict.fromkeys(program.inputs, "float64") | dtypes
    return lower(plan(program, (program.statements[-1].name,), None), known)


def instructions(body: tuple[Instruction, ...]) -> list[Instruction]:
    found: list[Instruction] = []
    for instruction in body:
        found.append(instruction)
        if isinstance(instruction, IfFinite):
            found += instructions(instruction.fast) + instructions(instruction.safe)
    return found


def made(text: str, kind: type, **dtypes: str) -> list[Instruction]:
    return [i for i in instructions(kernel(text, **dtypes).body) if isinstance(i, kind)]


def test_one_evaluation_of_a_shared_expression() -> None:
    assert len(made("y_<i j> = softmax[j](x_<i j>) v_j + softmax[j](x_<i j>) u_i", Normalised)) == 1
    applied = [i for i in kernel("y_i = exp(x_i) + exp(x_i) * exp(x_i)").body if getattr(i, "function", "") == "exp"]
    assert len(applied) == 1


def test_a_delta_that_is_summed_is_never_built() -> None:
    for text in ("W^<mu nu> = k^mu_i q^nu_j delta_<i j>", "y_<i k> = delta_<i j> x_<j k>"):
        assert not made(text, Iota)


def test_numbers_stay_numbers() -> None:
    body = kernel("y_i = 2 * 3 x_i / 4").body
    assert sum(isinstance(a, Literal) for i in body for a in getattr(i, "arguments", ())) == 1


def test_the_scale_goes_to_the_smallest_operand() -> None:
    divided = [
        i for i in kernel("W^<mu nu> = q^mu_i k^nu_i / sqrt(|i|)").body if getattr(i, "function", "") == "divide"
    ]
    assert [len(i.out.axes) for i in divided] == [2]
    assert "i" in {index.name for index in divided[0].out.axes}


def test_a_program_without_predicates_has_no_branches() -> None:
    assert not made("y_<i e> = softmax[j](Q_<i d> K_<j d>) V_<j e>", IfFinite)
    assert made("y_<i e> = softmax[j : j <= i](Q_<i d> K_<j d>) V_<j e>", IfFinite)


def test_only_what_a_predicate_may_exclude_is_protected() -> None:
    """The softmax that brings the predicate, and what is made of its result, need no second evaluation."""
    text = "y_<i e> = tanh(softmax[j : j <= i](Q_<i d> K_<j d>) V_<j e>)"
    branches = [i for i in kernel(text).body if isinstance(i, IfFinite)]
    assert len(branches) == 2, "the scores and the sum over values"
    assert len(made(text, Normalised)) == 1
    assert len(made("y_i = softmax[j : j <= i](S_<i j>) softmax[k](x_<j k>) w_k", Normalised)) == 4


def test_every_register_is_made_before_it_is_read_and_only_once() -> None:
    def check(body: tuple[Instruction, ...], known: set[object]) -> set[object]:
        own: set[object] = set()
        for instruction in body:
            if isinstance(instruction, IfFinite):
                for side in (instruction.fast, instruction.safe):
                    assert instruction.out in check(side, known | own)
            else:
                assert reads(instruction) <= known | own
            assert instruction.out not in own  # type: ignore[union-attr]
            own.add(instruction.out)  # type: ignore[union-attr]
        return own

    for text, arrays, _ in CASES:
        dtypes = {name: str(array.dtype) for name, array in arrays.items()}
        found = kernel(text, **dtypes)
        known = check(found.body, set())
        assert {o.register for o in found.outputs} <= known


def test_nothing_is_computed_in_vain() -> None:
    for text, arrays, _ in CASES:
        found = kernel(text, **{name: str(array.dtype) for name, array in arrays.items()})
        assert without_dead(found.body, tuple(o.register for o in found.outputs)) == found.body


@pytest.mark.parametrize(
    ("slot", "proved"),
    [
        ("i", True), ("0", True), ("1", False), ("|i|-1-i", True), ("i+1", False), ("i-1", False), ("2*i", False),
        ("|i|-1", True), ("|i|", False),
    ],
)  # fmt: skip
def test_affine_positions_proved_in_range(slot: str, proved: bool) -> None:
    text = f"y_<i k> = x_<{slot}, k> + x_<i k>"
    assert (not made(text, CheckRange)) == proved
    assert len(made(text, Gather)) == (slot != "i")


def test_relative_positions_are_proved() -> None:
    program = ta.parse("y_<i j> = R_<i-j+|j|-1> x_<i j>")
    slot = next(t for t in program.tensors if t.name == "R").slots[0]
    assert in_range(slot, Size.of("i") + Size.of("j") - 1)  # type: ignore[arg-type]
    assert not in_range(slot, Size.of("i") + Size.of("j") - 2)  # type: ignore[arg-type]


def test_only_admitted_positions_are_checked() -> None:
    table = ta.compile("y_i = softmax[j : m_<i j>](E_<t_j>) v_j")
    keep = np.array([[True, False], [True, False]])
    table(E=R(3), t=np.array([2, 9]), m=keep, v=R(2))
    for backend in (np.asarray, torch.tensor):
        with pytest.raises(ta.ShapeError, match="E-RANGE"):
            table(E=backend(R(3)), t=backend(np.array([2, 9])), m=backend(~keep), v=backend(R(2)))


def test_an_all_at_once_chain_of_sixty_indices() -> None:
    names = [f"{chr(97 + n % 26)}{n // 26}" for n in range(61)]
    factors = [f"T{n}x_<{names[n]} {names[n + 1]}>" for n in range(60)]
    arrays = {f"T{n}x": np.eye(2) + 0.1 * R(2, 2) for n in range(60)}
    wanted = np.linalg.multi_dot(list(arrays.values()))
    got = ta.compile(f"y_<{names[0]} {names[60]}> = {' '.join(factors)}")(arrays)
    np.testing.assert_allclose(got, wanted, rtol=1e-10)


def test_a_concatenation_whose_size_is_given_as_0() -> None:
    nothing = ta.compile("y_i = cat[i = u + w](A_u, B_w)", sizes={"i": 0})
    assert nothing(A=R(0), B=R(0)).shape == (0,)
    with pytest.raises(ta.ShapeError, match="E-EXTENT"):
        nothing(A=R(1), B=R(0))


def test_a_choice_of_numbers_is_cast_by_its_numbers() -> None:
    builder = Builder({})
    p, q = (builder.register((Index(name),), "bool") for name in "ij")
    inner = builder.apply("where", p, Literal(1), Literal(0.5), dtype="float64")
    outer = builder.apply("where", q, inner, Literal(2), dtype="float64")
    found = builder.cast(outer, "float32")
    assert found.dtype == "float32"
    assert not any(isinstance(i, Cast) for i in builder.body)
    kept = without_dead(tuple(builder.body), (found,))
    assert [(i.function, i.out.dtype) for i in kept if isinstance(i, Apply)] == [("where", "float32")] * 2
    truth = builder.apply("where", p, Literal(True), Literal(False), dtype="bool")
    assert isinstance(builder.body[-1], Apply)
    builder.cast(truth, "float32")
    assert isinstance(builder.body[-1], Cast), "a truth is no number"
