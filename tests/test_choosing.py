"""The choice of a plan: by price, by name, by statement, within a budget of memory; and what is said about it."""

from __future__ import annotations

import pickle
from types import MappingProxyType

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn import kinds
from tensorattn.choosing import SMALL
from tensorattn.kernel import Apply, Normalised
from tensorattn.kinds import Draft, Kind, Refusal
from tensorattn.parts import Literal
from tensorattn.reference import evaluate
from tests import goldens

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

ATTEND = "y_<m n> = softmax[k](q_<m i> k_<k i>) v_<k n>"
JOINT = "S^<mu nu rho> = q^mu_i k^nu_i r^rho_i; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n"
TWO = (
    "a_<m n> = softmax[k](q_<m i> k_<k i>) v_<k n>; b_<m n> = softmax[l](q_<m i> r_<l i>) w_<l n>; "
    "y_<m n> = a_<m n> b_<m n>"
)
SPLIT = "S_<m k> = q_<m i> k_<k i>; P_<m k> = softmax[k](S_<m k>); y_<m n> = P_<m k> v_<k n>"
CAUSAL = "y_<m n> = softmax[k : k <= m](q_<m i> k_<k i>) v_<k n>"


def inputs(compiled, sizes, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {t.name: tuple(sizes[i.name] for i in t.slots) for t in compiled.program.tensors}
    return {n: (rng.normal(size=shapes[n]) * 0.5).astype(dtype) for n in compiled.inputs}


def kinds_of(compiled):
    return [entry.plan.kind for entry in compiled._table.values()]


def wide(m=600, k=700, i=8, n=8, **more):
    return dict(m=m, k=k, l=k, i=i, n=n, **more)


# By price ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_small_is_dense_and_large_is_not_held(backend):
    compiled = ta.compile(JOINT)
    for n, held in ((8, True), (40, True), (256, False)):
        choice = compiled.choice(dict(mu=n, nu=n, rho=n, i=32, n=32), backend=backend)
        assert (choice.plan.kind == "dense") == held
        assert (choice.chosen.peak >= 8 * n**3) == held
        assert {choice.plan.kind, *(r.name for r in choice.rejected)} == {"dense", *kinds.KINDS}
        assert all(r.why and (r.candidate is not None or r.name == "factored") for r in choice.rejected)


def test_what_is_said_is_what_a_call_does():
    compiled = ta.compile(ATTEND)
    for m, k in ((10, 10), (300, 400), (1500, 1500)):
        sizes = wide(m, k)
        called = ta.compile(ATTEND)
        called(inputs(called, sizes))
        assert kinds_of(called) == [compiled.choice({n: sizes[n] for n in "mkin"}).plan.kind]


def test_few_weights_are_planned_without_a_look_at_other_kinds(monkeypatch):
    def unwanted(*_):
        raise AssertionError

    monkeypatch.setattr("tensorattn.choosing.KINDS", MappingProxyType({"unwanted": Kind(unwanted, "")}))
    compiled = ta.compile(ATTEND)
    compiled(inputs(compiled, wide(10, SMALL // 10)))
    with pytest.raises(AssertionError):
        compiled(inputs(compiled, wide(10, SMALL // 10 + 1)))


def test_gradients_keep_no_weights():
    """What is taken keeps less for them than dense does, and gives the same."""
    for formula in (JOINT, "y_<m n> = softmax[k](q_<m i> k_<k i> + tanh(q_<m j> k_<k j>)) v_<k n>"):
        compiled, dense = ta.compile(formula), ta.compile(formula, plan="dense")
        arrays = inputs(compiled, dict(mu=90, nu=90, rho=90, m=900, k=800, i=4, j=4, n=4))
        x = {n: torch.tensor(a, requires_grad=n == "q") for n, a in arrays.items()}
        found = [recorded(f, x) for f in (compiled, dense)]
        torch.testing.assert_close(found[0][0], found[1][0])
        assert found[0][1] < found[1][1]
        assert kinds_of(compiled)[-1] != "dense"
        with torch.no_grad():
            compiled(x)
        assert kinds_of(compiled)[-1] != "dense"


def recorded(compiled, x):
    """The gradient of q, and how many bytes are kept for it."""
    kept = {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = compiled(x).square().sum()
    return torch.autograd.grad(result, x["q"])[0], sum(storage.nbytes() for storage in kept.values())


def added(words, extra=None, **options):
    """A kind that leaves the kernel as it is, with an instruction more in front of the end, or refuses."""

    def change(case, draft, only, tile):
        if extra is None:
            return Refusal(("for no reason",))
        source = next(i.out for i in draft.kernel.body if isinstance(i, Normalised))
        more = extra(source)
        body = tuple(i for i in draft.kernel.body if not isinstance(i, Normalised))
        place = next(n for n, i in enumerate(draft.kernel.body) if isinstance(i, Normalised))
        return Draft(draft.plan, draft.kernel.__class__(
            draft.kernel.inputs, draft.kernel.sizes, (*body[:place], *more, *body[place:]), draft.kernel.outputs
        ))  # fmt: skip

    return Kind(change, words, **options)


@pytest.fixture
def table(monkeypatch):
    """Puts kinds in the table."""

    def put(**more):
        found = MappingProxyType({**kinds.KINDS, **more})
        for module in ("choosing", "wording"):
            monkeypatch.setattr(f"tensorattn.{module}.KINDS", found)

    return put


def test_a_kind_of_the_table_is_a_candidate(table):
    """One that does no normaliser at all is the cheapest there is."""

    def cheap(source):
        return (Apply(source, "multiply", (source.__class__("t3", source.axes, source.dtype), Literal(0.5))),)

    found = {}

    def change(case, draft, only, tile):
        score = next(i.score for i in draft.kernel.body if isinstance(i, Normalised))
        found["only"], found["tile"] = only, tile
        made = added("", lambda out: (Apply(out, "multiply", (score, Literal(0.5))),))
        return made.change(case, draft, only, tile)

    table(halved=Kind(change, "halved"), refusing=added(""))
    choice = ta.compile(ATTEND).choice(dict(m=600, k=700, i=8, n=8))
    assert choice.plan.kind == "halved"
    assert found == {"only": None, "tile": None}
    assert {r.name: r.why for r in choice.rejected if r.candidate is not None} == {
        "dense": "slower", "flattened": "slower", "streamed": "slower",
    }  # fmt: skip
    assert {r.name for r in choice.rejected if r.candidate is None} == {"factored", "refusing"}
    assert choice.rejected[-1].why == "for no reason"
    assert choice.chosen.reductions[0].kind == "halved"


def test_more_flops_than_dense_are_never_taken_unless_memory_forces_them(table, monkeypatch):
    def change(case, draft, only, tile):
        score = next(i.score for i in draft.kernel.body if isinstance(i, Normalised))
        many = tuple(Apply(score.__class__(f"x{n}", (), "float64"), "add", (Literal(1), Literal(1))) for n in range(3))
        return added("", lambda out: (*many, Apply(out, "negate", (score,)))).change(case, draft, only, tile)

    table(wasteful=Kind(change, ""))
    sizes = dict(m=600, k=700, i=8, n=8)
    assert ta.compile(ATTEND).choice(sizes).plan.kind == "wasteful"
    monkeypatch.setattr("tensorattn.choosing.MORE_FLOPS", 0.1)
    choice = ta.compile(ATTEND).choice(sizes)
    assert choice.plan.kind == "dense"
    assert {r.name: r.why for r in choice.rejected}["wasteful"] == "more FLOPs than dense"
    forced = ta.compile(ATTEND, memory=6_000_000).choice(sizes)
    assert forced.plan.kind != "dense"


def test_a_choice_is_made_anew_where_the_number_of_weights_leaves_its_window():
    compiled = ta.compile(ATTEND)
    for m, k in ((10, 10), (20, 90), (300, 400), (290, 410), (3, 4)):
        x = inputs(compiled, wide(m, k))
        np.testing.assert_allclose(compiled(x), evaluate(compiled.program, x)["y"], atol=1e-12)
    assert len(compiled._table) == 2


# By name ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
@pytest.mark.parametrize("plan", [
    {"a": "streamed"}, {"a": "streamed", "b": "dense"}, {"b": "streamed"}, {"a": "streamed", "b": "streamed"}, "dense",
])  # fmt: skip
def test_a_plan_for_each_statement(plan, library):
    compiled = ta.compile(TWO, plan=plan)
    for m, k in ((5, 7), (1, 0), (30, 31)):
        x = inputs(compiled, wide(m, k))
        expected = evaluate(compiled.program, x)["y"]
        np.testing.assert_allclose(np.asarray(compiled({n: library(a) for n, a in x.items()})), expected, atol=1e-12)
    left = {i.origin for i in compiled.kernel(dict(m=5, k=7, l=7, i=8, n=8)).body if isinstance(i, Normalised)}
    assert left == {s for s in "ab" if dict(plan if isinstance(plan, dict) else {}).get(s) != "streamed"}


@pytest.mark.parametrize("library", [np.asarray, torch.tensor])
@pytest.mark.parametrize(("plan", "formula"), [
    ("streamed", "y_<m n> = sum[k](exp(q_<m i> k_<k i>) v_<k n>)"),
    ("flattened", "y_<m n> = softmax[k](sum[i]((q_<m i> - k_<k i>)**2)) v_<k n>"),
    ("flattened", "y_<m n> = softmax[k l](q_<m i> k_<k i> + q_<m i> r_<l i>) v_<k n> w_<l n>"),
])  # fmt: skip
def test_a_plan_that_is_asked_for_serves_all_sizes(plan, formula, library):
    """At some there is nothing to stream or to flatten: rows or keys without entries, few features."""
    for m, k, i in ((0, 0, 1), (0, 1, 8), (1, 0, 2), (2, 1, 1), (5, 7, 3)):
        compiled = ta.compile(formula, plan=plan)
        x = inputs(compiled, wide(m, k, i))
        expected = evaluate(compiled.program, x)["y"]
        np.testing.assert_allclose(np.asarray(compiled({n: library(a) for n, a in x.items()})), expected, atol=1e-12)


def test_a_statement_that_no_output_needs_has_no_plan():
    for plan, kind in (({"a": "streamed", "b": "streamed"}, "streamed"), ({"a": "streamed"}, "dense")):
        compiled = ta.compile(TWO, outputs="b", plan=plan)
        x = inputs(compiled, wide(5, 7))
        np.testing.assert_allclose(compiled(x), ta.compile(TWO, outputs="b", plan="dense")(x), atol=1e-12)
        assert kinds_of(compiled) == [kind]


@pytest.mark.parametrize("plan", [{"P": "streamed"}, {"y": "streamed"}, {"P": "streamed", "y": "streamed"}])
def test_weights_and_their_sum_in_two_statements_are_one_reduction(plan):
    compiled = ta.compile(SPLIT, plan=plan)
    x = inputs(compiled, wide(5, 7))
    np.testing.assert_allclose(compiled(x), evaluate(compiled.program, x)["y"], atol=1e-12)
    assert kinds_of(compiled) == ["streamed"]


@pytest.mark.parametrize(("formula", "plan", "words"), [
    (TWO, "fast", "there is no plan 'fast'"),
    (TWO, "streamd", "streamed"),
    (TWO, {"c": "dense"}, "the statements are a, b, y"),
    (TWO, {"a": "stream"}, "there is no plan 'stream'"),
    (TWO, {1: "dense"}, "names 1, which is no statement"),
    (TWO, {"y": "dense"}, "no weights are made or summed in `y`"),
    (SPLIT, {"S": "dense"}, "statements with normalisers: P"),
    (SPLIT, {"P": "dense", "y": "streamed"}, "`P` and `y` are one reduction"),
    ("P_<m k> = softmax[k](s_<m k>)", {"P": "streamed"}, "asked for"),
    ("P_<m k> = softmax[k](s_<m k>)", "streamed", "asked for"),
    (ATTEND, ["streamed"], "there is no plan"),
    (ATTEND, None, "there is no plan None"),
])  # fmt: skip
def test_a_plan_that_is_not_there_says_so(formula, plan, words):
    with pytest.raises(ta.PlanError) as error:
        ta.compile(formula, plan=plan)
    assert error.value.code == "E-PLAN"
    assert words in str(error.value)


def test_a_pickle_keeps_the_plan_and_the_budget():
    compiled = pickle.loads(pickle.dumps(ta.compile(TWO, plan={"a": "streamed"}, memory=10**6)))
    x = inputs(compiled, wide(20, 30))
    np.testing.assert_allclose(compiled(x), evaluate(compiled.program, x)["y"], atol=1e-12)
    assert kinds_of(compiled) == ["streamed"]
    with pytest.raises(ta.BudgetError):
        compiled(inputs(compiled, wide(90_000, 30)))


def test_kinds_are_mixed_where_that_is_the_fastest():
    """Of two reductions one has few weights."""
    one_small = ta.compile(TWO).choice(dict(m=3000, k=3000, l=3, i=8, n=8))
    of = {r.statement: r.kind for r in one_small.chosen.reductions}
    assert of["b"] == "dense" != of["a"]
    assert one_small.chosen.peak < 8 * 3000 * 3000


# What is said -----------------------------------------------------------------------------------------------------


def explained():
    large = dict(mu=384, nu=384, rho=384, i=64, n=64)
    floats = dict.fromkeys("qkrvw", "float32")
    joint, two = ta.compile(JOINT), ta.compile(TWO)
    mixed = dict(m=2000, k=3000, l=3, i=8, n=8)
    yield "no sizes", joint.explain()
    yield "some sizes", joint.explain(mu=384, i=64)
    yield "small", joint.explain(mu=8, nu=8, rho=8, i=4, n=4)
    yield "large", joint.explain(large, dtypes=floats)
    yield "large, torch", joint.explain(large, dtypes=floats, backend="torch")
    yield "a budget", ta.compile(JOINT, memory=4 << 20).explain(large, dtypes=floats)
    yield "asked for", ta.compile(JOINT, plan="dense").explain(large)
    yield "two statements", two.explain(mixed)
    yield "by statement", ta.compile(TWO, plan={"b": "streamed"}).explain(mixed)
    yield "what cannot be streamed", ta.compile("P_<m k> = sparsemax[k](s_<m k>)").explain(m=1000, k=1000)
    yield "no weights", ta.compile("y_<i l> = A_<i j> B_<j k> C_<k l>").explain(i=5, j=6, k=7, l=8)


@pytest.mark.usefixtures("base_e")
def test_plans_in_words(pytestconfig):
    text = "\n\n".join(f"== {name}\n{words}" for name, words in explained())
    goldens.agree("explained.txt", text + "\n", pytestconfig)
    assert text == "\n\n".join(f"== {name}\n{words}" for name, words in explained())


def test_estimates_grow_with_the_sizes():
    compiled = ta.compile(ATTEND)
    times = [compiled.choice(dict(m=m, k=700, i=8, n=8)).chosen.seconds for m in (1, 10, 100, 1000, 10_000)]
    assert times == sorted(times)
    assert times[-1] > 100 * times[0]


# The cost of gradients --------------------------------------------------------------------------------------------


def test_gradients_take_four_products_of_dense_and_five_of_a_stream():
    sizes = dict(m=500, k=600, i=64, n=64)
    product = 2 * 500 * 600 * 64
    for plan, count, exps in (("dense", 4, 0), ("streamed", 5, 500 * 600)):
        cost = ta.compile(ATTEND, plan=plan).cost(sizes)
        assert cost.backward is not None
        found = cost.backward.at({})
        assert count * product <= found.flops <= 1.15 * count * product
        assert found.exps == exps
    dense, streamed = (ta.compile(ATTEND, plan=p).cost(m=5000, k=6000, i=64, n=64) for p in ("dense", "streamed"))
    assert dense.backward.at({}).peak_bytes > 2.9 * 5000 * 6000 * 8
    assert streamed.backward.at({}).peak_bytes < dense.backward.at({}).peak_bytes / 8


def test_what_has_no_gradient_costs_nothing_backward():
    cost = ta.compile("y_i = sum[j](x_<t_i j>)").cost(i=5, j=7, dtypes={"x": "float64"}).backward
    assert cost is not None
    none = ta.compile("y_<i j> = i + 2 j").cost(i=5, j=7).backward
    assert none.at({}).flops == 0


def test_costs_as_sympy_and_as_numbers_agree():
    sizes = dict(m=50, k=60, i=4, n=3)
    for plan in ("dense", "streamed"):
        cost = ta.compile(ATTEND, plan=plan).cost()
        for each in (cost, cost.backward):
            peak = each.peak_bytes
            assert int(peak.subs({s: sizes[s.name] for s in peak.free_symbols})) == each.at(sizes).peak_bytes
            assert each.given(sizes).at({}) == each.at(sizes)
