"""Products under a predicate: what it excludes reaches neither a result nor a gradient, divisors and sums included."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import reference

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

N = 3
QUOTIENTS = {  # by hand for uniform weights over j <= i: rows 0 and 1; row 2 admits the bad entry
    "y_i = A_<i bar(j : j <= i)> / z_j": [1, 0.75],
    "y_i = A_<i bar(j : j <= i)> (1 / z_j)": [1, 0.75],
    "y_i = (1 / z_j) A_<i bar(j : j <= i)>": [1, 0.75],
    "y_i = -A_<i bar(j : j <= i)> / z_j": [-1, -0.75],
    "y_i = A_<i bar(j : keep_<i j>)> / z_j": [1, 0.75],
    "y_i = A_<i bar(j : j <= i)> v_j / z_j": [1, 1],
    "y_i = A_<i bar(j : j <= i)> v_j / (2 z_j)": [0.5, 0.5],
    "y_i = A_<i bar(j : j <= i)> v_j z_j**(-1)": [1, 1],
    "y_i = A_<i bar(j : j <= i)> exp(-log(z_j))": [1, 0.75],
    "y_<i e> = A_<i bar(j : j <= i)> V_<j e> / z_j": [[1, 2], [1.25, 2]],
    "W_<i j> = A_<i bar(j : j <= i)>; y_i = W_<i j> / z_j": [1, 0.75],
    "W_<i j> = A_<i bar(j : j <= i)> / z_j; y_i = W_<i j> v_j": [1, 1],
    "W_<i j> = A_<i bar(j : j <= i)> / z_j; y_<i e> = W_<i j> V_<j e>": [[1, 2], [1.25, 2]],
    "u_j = v_j / z_j; y_i = A_<i bar(j : j <= i)> u_j": [1, 1],
}
REDUCED = {
    "y_i = sum[j : keep_<i j>](v_j / z_j)": [1, 2],
    "y_i = sum[j : keep_<i j>](1 / z_j)": [1, 1.5],
    "y_i = mean[j : keep_<i j>](v_j / z_j)": [1, 1],
}
DIFFERENCES = {
    "y_i = (A_<i bar(j : j <= i)> - lam B_<i bar(j : j <= i)>) z_j": [0.5, 0.75],
    "y_i = (A_<i bar(j : j <= i)> - lam * B_<i bar(j : keep_<i j>)>) v_j / z_j": [0.5, 0.5],
    "y_i = -(lam B_<i bar(j : j <= i)> / 2 - A_<i bar(j : j <= i)>) z_j": [0.75, 1.125],
    "D_<i j> = A_<i bar(j : j <= i)> - lam B_<i bar(j : j <= i)>; y_i = D_<i j> z_j": [0.5, 0.75],
    "W_<i j> = B_<i bar(j : j <= i)>; y_i = (A_<i bar(j : j <= i)> - lam W_<i j>) z_j": [0.5, 0.75],
    "y_i = (A_<i bar(j : j < i)> + lam B_<i bar(j : i <= j <= i)>) z_j": [0.5, 2],  # either term admits
}
BAD = [0.0, np.nan, np.inf, -np.inf]


def arrays(program: ta.Program, bad: float) -> dict[str, np.ndarray]:
    found = {
        "A": np.zeros((N, N)),
        "B": np.ones((N, N)),
        "lam": np.array(0.5),
        "keep": np.tril(np.ones((N, N), bool)),
        "v": np.array([1.0, 2.0, 4.0]),
        "V": np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        "z": np.array([1.0, 2.0, bad]),
    }
    return {name: found[name] for name in program.inputs}


def compiled(program: ta.Program, plan: str) -> ta.Compiled:
    return ta.compile(program, plan="streamed") if plan == "streamed" else ta.compile(program)


def check(text: str, bad: float, plan: str, wanted: object) -> None:
    """Rows 0 and 1 exclude the bad entry; row 2 is what the reference says."""
    program = ta.parse(text)
    given = arrays(program, bad)
    expected = reference.evaluate(program, given)["y"]
    np.testing.assert_allclose(expected[:2], wanted)
    run = compiled(program, plan)
    np.testing.assert_allclose(run(given), expected, rtol=1e-12)
    tensors = {name: torch.tensor(a, requires_grad=a.dtype == float) for name, a in given.items()}
    result = run(tensors)
    np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-12)
    result[:2].sum().backward()
    gradient = tensors["z"].grad
    assert gradient is not None
    assert gradient[2] == 0
    assert gradient[:2].isfinite().all()
    for name in tensors.keys() & {"A", "B", "v", "V", "lam"}:
        found = tensors[name].grad
        rows = found[:2] if name in ("A", "B") else found
        assert rows.isfinite().all(), name


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("text", QUOTIENTS)
def test_an_excluded_divisor_reaches_nothing(text: str, bad: float, plan: str) -> None:
    check(text, bad, plan, QUOTIENTS[text])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("text", REDUCED)
def test_in_a_reduction_under_a_predicate(text: str, bad: float) -> None:
    check(text, bad, "dense", REDUCED[text])


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("text", DIFFERENCES)
def test_a_sum_of_masked_terms_brings_their_disjunction(text: str, bad: float) -> None:
    check(text, bad, "dense", DIFFERENCES[text])


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("text", QUOTIENTS)
def test_an_admitted_zero_below_is_nan_in_every_order(text: str, plan: str) -> None:
    program = ta.parse(text)
    given = arrays(program, 0.0)
    assert np.isnan(compiled(program, plan)(given)[2]).all()


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("text", ["y_i = A_<i bar(j : j < i)> v_j / z_i", "y_i = A_<i bar(j : j < i)> v_j / c"])
def test_a_divisor_of_the_result_is_nan_at_zero_and_unread_where_nothing_is_admitted(text: str, plan: str) -> None:
    program = ta.parse(text)
    given = {"A": np.zeros((N, N)), "v": np.ones(N), "z": np.zeros(N), "c": np.array(0.0)}
    given = {name: given[name] for name in program.inputs}
    np.testing.assert_array_equal(reference.evaluate(program, given)["y"], [0, np.nan, np.nan])
    np.testing.assert_array_equal(compiled(program, plan)(given), [0, np.nan, np.nan])
    tensors = {name: torch.tensor(a, requires_grad=True) for name, a in given.items()}
    np.testing.assert_array_equal(compiled(program, plan)(tensors).detach().numpy(), [0, np.nan, np.nan])


@pytest.mark.parametrize(
    "text", ["y_i = (A_<i bar(j : j <= i)> - B_<i j>) z_j", "y_i = (A_<i bar(j : j <= i)> + 1) z_j"]
)
def test_a_term_without_a_predicate_admits_everything(text: str) -> None:
    program = ta.parse(text)
    given = arrays(program, np.nan)
    assert np.isnan(reference.evaluate(program, given)["y"]).all()
    assert np.isnan(ta.compile(program)(given)).all()


def test_weights_beside_a_masked_sum_are_guarded_too() -> None:
    """A NaN score spoils its row only where the other factor's predicate admits it as well."""
    program = ta.parse("y_i = A_<i bar(j : j <= i)> sum[k : m_<j k>](v_k)")
    given = {"A": np.zeros((N, N)), "m": np.ones((N, N), bool), "v": np.array([1.0, 2.0, 4.0])}
    given["A"][0, 0] = np.nan
    given["m"][0] = False
    expected = reference.evaluate(program, given)["y"]
    np.testing.assert_allclose(expected, [0, 3.5, 14 / 3])
    np.testing.assert_allclose(ta.compile(program)(given), expected)
    tensors = {name: torch.from_numpy(array) for name, array in given.items()}
    np.testing.assert_allclose(ta.compile(program)(tensors).numpy(), expected)


WHOLE = [  # weights over all of t, of which the product or sum around them admits some
    "y_m = softmax[t](sqrt(A_<t m>)) sum[n : keep_t](s_<t n>)",
    "y_m = softmax[t](A_<t m> ** 2) softmax[n : mask_<t n>](s_<t n>) w_n",
    "y_m = sum[t : keep_t](l2norm[t](1 / A_<t m>) v_<t m>)",
    "y_m = sum[t : keep_t](sparsemax[t](log(A_<t m>)) v_<t m>)",
    "y_m = sum[t : keep_t](entmax[t; 1.5](E_<g_t> + A_<t m>) v_<t m>)",
    "W_<m t> = softmax[t](sqrt(A_<t m>)); y_m = sum[t : keep_t](W_<m t> v_<t m>)",
    "y_m = sum[t : keep_t](softmax[t : 1 / A_<t m> < 2](A_<t m>) v_<t m>)",
    "y_m = sum[t : keep_t](where(top[t; 1](log(A_<t m>)), v_<t m>, 0))",
    "y_m = softmax[t](sum[i]((q_<m i> - k_<t i>)**2)) sum[n : keep_t](s_<t n>)",
    "y_m = sum[t : keep_t](softmax[t; sink=sqrt(b_m)](sqrt(A_<t m>)) v_<t m>)",
]


@pytest.mark.parametrize("plan", ["dense", "streamed"])
@pytest.mark.parametrize("text", WHOLE)
def test_weights_are_normalised_over_what_the_product_around_them_excludes_too(text: str, plan: str) -> None:
    program = ta.parse(text)
    rng = np.random.default_rng(0)
    sizes = {"t": 5, "m": 4, "n": 2, "i": 3}
    axes = dict(A="t m", s="t n", v="t m", w="n", q="m i", k="t i", b="m")
    given = {name: rng.uniform(0.1, 2, [sizes[a] for a in text.split()]) for name, text in axes.items()}
    given |= {"keep": np.array([False, True, True, False, True]), "mask": rng.random((5, 2)) < 0.5}
    given |= {"E": rng.normal(size=3), "g": np.array([2, 0, 1, 2, 1])}
    given = {name: given[name] for name in program.inputs}
    try:
        run = ta.compile(program, plan=plan)
    except ta.PlanError:
        assert "top" in text
        return
    expected = reference.evaluate(program, given)["y"]
    np.testing.assert_allclose(run(given), expected, rtol=1e-10)
    tensors = {name: torch.tensor(a, requires_grad=a.dtype == float) for name, a in given.items()}
    np.testing.assert_allclose(run(tensors).detach().numpy(), expected, rtol=1e-10)
