"""Compiled objects: calls, specialisations, out=, several outputs, pickles, threads, budgets, torch.compile."""

from __future__ import annotations

import gc
import pickle
import random
import threading
import weakref

import numpy as np
import pytest
import torch

import tensorattn as ta
import tensorattn.nn
from tensorattn.plan import Plan

ATTEND = "W^<mu nu> = q^mu_i k^nu_i / sqrt(|i|)\ny^mu_n = W^<mu bar(nu)> v^<bar(nu)>_n"


def inputs(m=3, n=5, d=4, e=2, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=s).astype(dtype) for name, s in (("q", (m, d)), ("k", (n, d)), ("v", (n, e)))}


def dense(q, k, v):
    s = q @ k.T / np.sqrt(q.shape[1])
    w = np.exp(s - s.max(1, keepdims=True))
    return (w / w.sum(1, keepdims=True)) @ v


def test_a_bare_expression_is_a_program():
    rng = np.random.default_rng(0)
    W, v = rng.normal(size=(2, 3, 4)), rng.normal(size=(3, 4, 5))
    compiled = ta.compile("W^<mu bar(nu rho)> v^<bar(nu rho)>_n")
    e = np.exp(W)
    expected = np.einsum("mnr,nre->me", e / e.sum((1, 2), keepdims=True), v)
    assert compiled.signature.outputs == {"out": ("mu", "n")}
    np.testing.assert_allclose(compiled(W=W, v=v), expected, atol=1e-12)


def test_a_mapping_keywords_and_keywords_of_python_work_alike():
    compiled = ta.compile("y_i = lambda_i as_i")
    x = np.arange(3.0)
    assert (compiled({"lambda": x, "as": x}) == x * x).all()
    assert (compiled({"lambda": x}, **{"as": x}) == x * x).all()


def test_one_compile_serves_all_sizes_in_any_order():
    compiled = ta.compile(ATTEND)
    for m, n, d in ((2, 3, 4), (7, 2, 1), (1, 1, 1), (2, 3, 4), (0, 3, 2), (3, 0, 2), (11, 13, 0)):
        x = inputs(m, n, d)
        y = compiled(x)
        assert y.shape == (m, 2)
        if d and n:
            np.testing.assert_allclose(y, dense(**x), atol=1e-12)
        elif not n:
            assert (y == 0).all()
        else:
            np.testing.assert_allclose(y, np.broadcast_to(x["v"].mean(0), (m, 2)), atol=1e-12)


def test_a_plan_is_searched_once_for_many_sizes(monkeypatch):
    compiled, planned = ta.compile(ATTEND), []
    import tensorattn.kinds as kinds

    original = kinds.make_plan
    monkeypatch.setattr(kinds, "make_plan", lambda *a, **more: planned.append(a) or original(*a, **more))
    for n in range(3, 40):
        compiled(inputs(3, n))
    assert len(planned) == 1


def test_a_plan_changes_where_another_order_is_far_cheaper():
    compiled = ta.compile("y_<i l> = A_<i j> B_<j k> C_<k l>")
    rng = np.random.default_rng(0)
    for i, j, k, m in ((2, 50, 50, 50), (50, 50, 50, 2), (2, 50, 50, 50), (20, 3, 40, 5)):
        A, B, C = rng.normal(size=(i, j)), rng.normal(size=(j, k)), rng.normal(size=(k, m))
        np.testing.assert_allclose(compiled(A=A, B=B, C=C), A @ B @ C, atol=1e-9)
    assert len(compiled._table) == 2, "one plan for each end"


def test_outputs_by_name():
    x = inputs()
    both = ta.compile(ATTEND, outputs=["W", "y"])(x)
    assert list(both) == ["W", "y"]
    np.testing.assert_allclose(both["y"], dense(**x), atol=1e-12)
    scores = ta.compile(ATTEND, outputs="W")
    assert scores.inputs == ("q", "k")
    np.testing.assert_allclose(scores(q=x["q"], k=x["k"]), x["q"] @ x["k"].T / 2, atol=1e-12)
    assert scores(x).shape == (3, 5), "an input that only another output needs does no harm"
    with pytest.raises(ta.BindingError, match="no statement") as error:
        ta.compile(ATTEND, outputs="yy")
    assert error.value.code == "E-UNDEF"


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_out_is_filled_after_the_last_read(library):
    make = np.asarray if library == "numpy" else torch.tensor
    A = make(np.arange(27.0).reshape(3, 3, 3))
    P = make(np.array([1.0, 2.0, 3.0]))
    compiled = ta.compile("y_<k i> = P_j A_<i j k>")
    expected = np.einsum("j,ijk->ki", np.asarray(P), np.asarray(A))
    into = A[0]
    result = compiled(P=P, A=A, out=into)
    assert result is into
    np.testing.assert_allclose(np.asarray(A[0]), expected)
    total = make(np.array(0.0))
    ta.compile("s = P_j P_j")(P=P, out=total)
    assert float(total) == 14.0
    with pytest.raises(ta.ShapeError):
        compiled(P=P, A=A, out=make(np.zeros((2, 3))))
    with pytest.raises(ta.DTypeError):
        compiled(P=P, A=A, out=make(np.zeros((3, 3), np.float32)))


def test_out_of_several_outputs_is_a_mapping():
    x = inputs()
    out = {"W": np.empty((3, 5)), "y": np.empty((3, 2))}
    assert ta.compile(ATTEND, outputs=["W", "y"])(x, out=out) is out
    np.testing.assert_allclose(out["y"], dense(**x), atol=1e-12)
    before = {"y": np.zeros((3, 2))}
    with pytest.raises(ta.BindingError):
        ta.compile(ATTEND, outputs=["y", "W"])(x, out=before)
    assert (before["y"] == 0).all(), "nothing is half written"


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_results_never_share_memory_with_an_input(library):
    x = np.arange(6.0).reshape(2, 3) if library == "numpy" else torch.arange(6.0).reshape(2, 3)
    for formula in (
        "x_<i j>",
        "y_<j i> = x_<i j>",
        "y_<(i j)> = x_<i j>",
        "y_i = x_<i 0>",
        "y_<a b> = x_<a b>; z_<b a> = y_<a b>",
    ):
        y = ta.compile(formula)(x=x)
        before = x.copy() if library == "numpy" else x.clone()
        y[...] = -1
        assert (x == before).all()


def test_wrong_calls_say_what_is_wrong():
    compiled, x = ta.compile(ATTEND), inputs()
    cases = [
        (dict(q=x["q"], k=x["k"]), ta.BindingError, "E-INPUT", ["v"]),
        (dict(q=x["q"], k=x["k"], w=x["v"]), ta.BindingError, "E-INPUT", ["v"]),
        (dict(x, extra=1), ta.BindingError, "E-UNDEF", ["extra"]),
        (dict(x, v=x["v"][:4]), ta.ShapeError, "E-EXTENT", ["nu", "k", "v", "5", "4"]),
        (dict(x, v=x["v"][:1]), ta.ShapeError, "E-EXTENT", ["nu", "5", "1"]),
        (dict(x, v=x["v"][0]), ta.ShapeError, "E-RANK", ["v", "2", "1"]),
        (dict(x, q=x["q"] + 1j), ta.DTypeError, "E-DTYPE", ["q", "complex"]),
        (dict(x, q=torch.tensor(x["q"])), ta.BackendError, "E-BACKEND", ["q", "torch", "numpy"]),
        (dict(x, q="text"), ta.BackendError, "E-BACKEND", ["q"]),
        (dict(x, q=None), ta.BackendError, "E-BACKEND", ["q"]),
        (dict(x, q=np.array([["a"] * 4] * 3)), ta.DTypeError, "E-DTYPE", ["q"]),
    ]
    for again in (False, True):  # a specialisation that exists changes no message
        for arrays, kind, code, words in cases:
            with pytest.raises(kind) as error:
                compiled(arrays)
            assert error.value.code == code
            assert all(word in str(error.value) for word in words), str(error.value)
        if not again:
            compiled(x)


def test_the_same_error_on_both_back_ends():
    compiled, x = ta.compile(ATTEND), inputs()
    texts = []
    for wrap in (np.asarray, torch.tensor):
        with pytest.raises(ta.ShapeError) as error:
            compiled({n: wrap(a if n != "v" else a[:2]) for n, a in x.items()})
        texts.append(str(error.value))
    assert texts[0] == texts[1]


def test_lists_and_python_numbers_are_inputs():
    compiled = ta.compile("y_i = a_i * w")
    assert compiled(a=[1, 2, 3], w=2).dtype == np.int64
    assert compiled(a=[1, 2, 3], w=0.5).tolist() == [0.5, 1.0, 1.5]
    assert compiled(a=torch.ones(2), w=0.5).dtype == torch.float32
    assert compiled(a=np.ones(2, np.float32), w=np.float64(0.5)).dtype == np.float64, "0-d arrays count"


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_a_list_is_as_wide_as_the_arrays_and_widens_nothing(make):
    compiled = ta.compile("y_i = x_i + b_i")
    for name, wide in (("float64", "float64"), ("float32", "float32"), ("float16", "float16"), ("int64", "float64")):
        x = make([0, 0], dtype=getattr(torch if make is torch.tensor else np, name))
        for given in ([0.1, 1], (0.1, 1)):
            found = compiled(x=x, b=given)
            assert str(found.dtype).removeprefix("torch.") == wide
            assert float(found[0]) == np.dtype(wide).type(0.1)
        assert compiled(x=x, b=[1, 2]).dtype == x.dtype
    typed = compiled(
        x=make([0.0, 0.0], dtype=torch.float32 if make is torch.tensor else np.float32), b=[np.float64(0.1)] * 2
    )
    assert float(typed[0]) == 0.1, "NumPy's numbers have a dtype"


def test_a_list_is_as_wide_as_what_a_module_gets():
    module = tensorattn.nn.Formula("y_i = x_i w_i b_i", parameters={"w": "i"}, sizes={"i": 2}).double()
    found = module(x=torch.ones(2, dtype=torch.float64), b=[0.1, 0.2])
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, module.w * torch.tensor([0.1, 0.2], dtype=torch.float64), rtol=1e-15, atol=0)


@pytest.mark.parametrize("make", [np.array, torch.tensor])
def test_what_stands_in_the_place_of_a_number_is_told_apart(make):
    compiled, x = ta.compile("y_i = x_i * s"), make([1.0, 2.0])
    for number in (0.5, True, 3):
        compiled(x=x, s=number)
        for bad in (make([1, 2]), [1, 2], "a", None, 1j, 2**70):
            with pytest.raises(ta.TensorattnError):
                compiled(x=x, s=bad)
        if make is np.array:
            assert compiled(x=x, s=np.bool_(True)).tolist() == [1.0, 2.0]
            continue
        with pytest.raises(ta.BackendError):
            compiled(x=x, s=np.bool_(True))


def test_batch_axes_of_any_rank():
    compiled = ta.compile("y^<... mu>_n = softmax[nu](q^<... mu>_i k^<... nu>_i) v^<... nu>_n")
    for batch in ((), (2,), (2, 3), (0, 2)):
        rng = np.random.default_rng(1)
        q, k, v = rng.normal(size=(*batch, 3, 4)), rng.normal(size=(*batch, 5, 4)), rng.normal(size=(*batch, 5, 2))
        s = np.exp(q @ np.swapaxes(k, -1, -2))
        np.testing.assert_allclose(compiled(q=q, k=k, v=v), s / s.sum(-1, keepdims=True) @ v, atol=1e-12)
    with pytest.raises(ta.ShapeError) as error:
        compiled(q=np.zeros((2, 3, 4)), k=np.zeros((3, 5, 4)), v=np.zeros((2, 5, 2)))
    assert error.value.code == "E-BATCH"


def test_immutable_picklable_equal():
    compiled = ta.compile(ATTEND, sizes={"i": 4})
    with pytest.raises(AttributeError):
        compiled.program = None
    again = pickle.loads(pickle.dumps(compiled))
    np.testing.assert_array_equal(again(inputs()), compiled(inputs()))
    assert again.program == compiled.program
    with pytest.raises(ta.ShapeError):
        again(inputs(d=3))


def test_threads_share_one_object():
    compiled, failures = ta.compile(ATTEND), []

    def work(seed: int) -> None:
        for step in range(20):
            x = inputs(3, 4 + (seed + step) % 5, seed=seed, dtype=np.float32 if seed % 2 else np.float64)
            if not np.allclose(compiled(x), dense(**x), atol=1e-5):
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_no_array_is_kept_alive():
    compiled = ta.compile(ATTEND)
    for wrap in (np.array, torch.tensor):
        x = {n: wrap(a) for n, a in inputs().items()}
        compiled(x)
        alive = [weakref.ref(a) for a in x.values()]
        del x
        gc.collect()
        assert not any(ref() is not None for ref in alive)


def test_random_is_untouched_by_planning():
    names = [f"A{n}" for n in range(40)]
    text = "y_<i0 i40> = " + " ".join(f"{a}_<i{n} i{n + 1}>" for n, a in enumerate(names))
    random.seed(5)
    state = random.getstate()
    plan = ta.compile(text).plan()
    assert isinstance(plan, Plan)
    assert random.getstate() == state


def test_more_indices_than_letters():
    text = "y_<i0 i60> = " + " ".join(f"A{n}_<i{n} i{n + 1}>" for n in range(60))
    rng = np.random.default_rng(0)
    arrays = {f"A{n}": rng.normal(size=(2, 2)) * 0.7 for n in range(60)}
    for wrap in (np.asarray, torch.tensor):
        y = ta.compile(text)({n: wrap(a) for n, a in arrays.items()})
        np.testing.assert_allclose(np.asarray(y), np.linalg.multi_dot(list(arrays.values())), rtol=1e-9)


def test_a_budget_is_kept_or_refused():
    x = inputs(50, 60)
    with pytest.raises(ta.BudgetError, match="smallest possible peak") as error:
        ta.compile(ATTEND, memory=100)(x)
    assert error.value.code == "E-BUDGET"
    generous = ta.compile(ATTEND, memory=10_000_000)
    np.testing.assert_allclose(generous(x), dense(**x), atol=1e-12)
    small = ta.compile(ATTEND, memory=240_000)  # half of the weights
    small(inputs(3, 5))
    np.testing.assert_allclose(small(inputs(200, 300)), dense(**inputs(200, 300)), atol=1e-12)
    least = ta.compile(ATTEND, memory=60_000)
    least(inputs(3, 5))
    with pytest.raises(ta.BudgetError):
        least(inputs(200, 300))


def test_unknown_options_are_refused():
    with pytest.raises(ta.PlanError):
        ta.compile(ATTEND, plan="fastest")
    with pytest.raises(ta.BindingError):
        ta.compile(ATTEND, sizes={"zz": 3})
    with pytest.raises(ta.ShapeError):
        ta.compile(ATTEND, sizes={"i": -1})
    with pytest.raises(ta.BindingError):
        ta.compile(ATTEND).cost(zz=3)


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_printed_source_stands_alone(library):
    compiled, x = ta.compile(ATTEND), inputs()
    text = compiled.source(library)
    assert "tensorattn" not in text
    space: dict[str, object] = {}
    exec(text, space)
    wrap = np.asarray if library == "numpy" else torch.tensor
    (y,) = space["formula"](*(wrap(x[n]) for n in compiled.inputs))  # type: ignore[operator]
    np.testing.assert_allclose(np.asarray(y), dense(**x), atol=1e-12)
