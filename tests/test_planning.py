"""Plans: the order of contractions, its price, what it depends on, and the rewrites made before."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Mapping
from math import prod
from types import SimpleNamespace

import opt_einsum
import pytest

import tensorattn as ta
from tensorattn import ordering
from tensorattn.expanding import expand
from tensorattn.extents import size_reads
from tensorattn.guarding import chooser
from tensorattn.ir import Constant, Index, Normalise, Product, Reduce, walk
from tensorattn.ordering import Network, search
from tensorattn.plan import Order, Plan
from tensorattn.planning import plan
from tensorattn.rewriting import RULES


def planned(text: str, sizes: Mapping[str, int] | None = None) -> Plan:
    program = ta.parse(text)
    return plan(program, (program.statements[-1].name,), sizes)


def only(text: str, sizes: Mapping[str, int] | None = None) -> Order:
    ((_, order),) = planned(text, sizes).orders
    return order


def exhaustive(network: Network) -> int:
    """The least price of any pairwise order."""

    def best(operands: tuple[frozenset[Index], ...]) -> int:
        if len(operands) == 1:
            return 0
        prices = []
        for n, a in enumerate(operands):
            for m, b in enumerate(operands[:n]):
                rest = tuple(o for k, o in enumerate(operands) if k not in (n, m))
                out = (a | b) & network.result.union(*rest)
                prices.append(network.step_price(a, b, out) + best((*rest, out)))
        return min(prices)

    return best(network.factors)


def random_network(rng: random.Random, factors: int, indices: int) -> Network:
    names = [Index(f"i{n}") for n in range(indices)]
    sets = [frozenset(rng.sample(names, rng.randint(1, min(3, indices)))) for _ in range(factors)]
    used = sorted(frozenset().union(*sets))
    result = frozenset(rng.sample(used, min(len(used), 2)))
    # what stands in one factor only is summed before an order is looked for
    count = {i: sum(i in s for s in sets) for i in used}
    sets = [frozenset(i for i in s if count[i] > 1 or i in result) for s in sets]
    sizes = {i.name: rng.choice((2, 3, 5, 50, 300)) for i in names}
    return Network(tuple(sets), result, sizes, {i: n for n, i in enumerate(names)})


@pytest.mark.parametrize("seed", range(40))
def test_orders_are_near_the_best_there_is(seed: int) -> None:
    rng = random.Random(seed)
    network = random_network(rng, rng.randint(2, 5), rng.randint(2, 6))
    found = search(network)
    prices = [network.price(path.pairs) for path in found]
    assert prices == sorted(prices)
    assert prices[0] <= 2 * exhaustive(network), found


@pytest.mark.parametrize("seed", range(10))
def test_every_path_uses_every_operand_once(seed: int) -> None:
    rng = random.Random(seed)
    network = random_network(rng, rng.randint(3, 16), 8)
    for path in search(network):
        used = [n for pair in path.pairs for n in pair]
        assert sorted(used) == list(range(2 * len(network.factors) - 2))
        assert network.outcomes(path.pairs)[-1] == network.result & frozenset().union(*network.factors)


def test_scores_times_mask_never_form_the_largest_intermediate() -> None:
    sizes = dict(b=8, g=64, k=64, d=32)
    order = only("y_<b g d> = S_<b g k> V_<b k d> m_<b k>", sizes)
    assert max(step.entries.value(sizes) for step in order.steps) <= 8 * 64 * 64


def test_factors_over_the_same_indices_come_first() -> None:
    order = only("y_<i l> = A_<i j> B_<j k> C_<k l> D_<j k>")
    assert {order.steps[0].left, order.steps[0].right} == {1, 3}
    assert all(len(step.indices) <= 3 for step in order.steps)


def test_terms_of_a_sum_keep_to_their_own_indices() -> None:
    found = planned("y_<mu nu> = a_d c^mu_d + b_d q^nu_d + e_d c^mu_d q^nu_d")
    assert all(len(step.out) <= 2 for _, order in found.orders for step in order.steps)


def test_a_chain_is_evaluated_from_its_thin_side() -> None:
    order = only("y_i = A_<i j> B_<j k> v_k", dict(i=100, j=100, k=100))
    assert order.flops.value(dict(i=100, j=100, k=100)) == 2 * 100**2


def test_an_order_depends_on_the_sizes_and_knows_when_it_ceases_to_hold() -> None:
    text = "y_<i l> = A_<i j> B_<j k> C_<k l>"
    wide, thin = dict(i=500, j=500, k=500, l=2), dict(i=2, j=500, k=500, l=500)
    program = ta.parse(text)

    def holds(found: Plan, sizes: dict[str, int]) -> bool:
        """What a call asks, of inputs that have nothing but shapes."""
        test = chooser(found, program, size_reads(program, {}), frozenset())
        assert test is not None
        shapes = {t.name: tuple(sizes[i.name] for i in t.slots) for t in program.tensors}  # type: ignore[union-attr]
        return test(*(SimpleNamespace(shape=shapes[name]) for name in program.inputs))

    first = planned(text, wide)
    assert holds(first, wide)
    assert not holds(first, thin)
    again = planned(text, thin)
    assert holds(again, thin)
    assert again.orders[0][1].flops.value(thin) < first.orders[0][1].flops.value(thin)


@pytest.mark.parametrize("seed", range(5))
def test_a_plan_depends_neither_on_names_nor_on_the_order_of_writing(seed: int) -> None:
    rng = random.Random(seed)
    names, sizes = list("abcdefgh"), [2, 3, 5, 7, 11, 13, 17, 19]
    factors = [(f"T{n}x", names[n], names[(n + rng.randint(1, 3)) % 8]) for n in range(8)]
    count = {name: sum(name in f[1:] for f in factors) for name in names}
    free = [name for name in names if count[name] == 1] or [names[0]]

    def price(rename: dict[str, str], order: list[int]) -> int:
        right = " ".join(f"{factors[n][0]}_<{rename[factors[n][1]]} {rename[factors[n][2]]}>" for n in order)
        text = f"y_<{' '.join(rename[f] for f in free)}> = {right}"
        known = {rename[n]: s for n, s in zip(names, sizes, strict=True)}
        return only(text, known).price.value(known)

    same = {name: name for name in names}
    wanted = price(same, list(range(8)))
    for _ in range(4):
        other = dict(zip(names, rng.sample("pqrstuvw", 8), strict=True))
        assert price(other, rng.sample(range(8), 8)) == wanted


def test_an_order_is_the_same_in_every_process() -> None:
    text = "y_<a h> = A_<a b> B_<b c> C_<c d> D_<d e> E_<e f> F_<f g> G_<g h> H_<b d> K_<c f>"
    code = (
        f"import tensorattn as ta; from tensorattn.planning import plan;print(plan(ta.parse({text!r}), ('y',), None))"
    )
    printed = set()
    for seed in ("1", "2", "3"):
        result = subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        printed.add(result.stdout)
    assert len(printed) == 1


def test_forty_factors_take_a_fixed_number_of_trials_and_leave_the_random_state_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = [f"{chr(97 + n % 26)}{n // 26}" for n in range(41)]
    text = f"y_<{names[0]} {names[40]}> = " + " ".join(f"T{n}x_<{names[n]} {names[n + 1]}>" for n in range(40))
    program = ta.parse(text)
    trials, search_once = [], opt_einsum.paths.ssa_greedy_optimize

    def counted(*arguments: object) -> object:
        trials.append(random.getstate())
        return search_once(*arguments)

    monkeypatch.setattr(opt_einsum.paths, "ssa_greedy_optimize", counted)
    random.seed(7)
    state = random.getstate()
    found = plan(program, ("y",), None)
    random.random()  # what other threads draw does not matter
    assert plan(program, ("y",), None) == found
    assert len(trials) == 2 * ordering.TRIALS
    assert set(trials[: ordering.TRIALS]) == {state}, "no trial touches the generator that all threads share"
    assert len(found.orders[0][1].steps) == 39
    assert all(len(step.indices) == 3 for step in found.orders[0][1].steps)


def test_two_factors_need_no_search() -> None:
    code = (
        "import sys, tensorattn as ta; from tensorattn.planning import plan;"
        "plan(ta.parse('y_<i k> = A_<i j> B_<j k>'), ('y',), None);"
        "print([m for m in ('numpy', 'opt_einsum', 'sympy', 'torch') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_more_than_52_indices() -> None:
    names = [f"{chr(97 + n % 26)}{n // 26}" for n in range(60)]
    pairs = zip(names, names[1:] + names[:1], strict=True)
    order = only(" ".join(["y =", *(f"T{n}x_<{a} {b}>" for n, (a, b) in enumerate(pairs))]))
    assert len(order.steps) == 59


def test_a_plan_prints_its_steps_and_its_reasons() -> None:
    found = planned("W^<mu nu rho> = k^mu_i q^nu_j r^rho_l M_<i j l>")
    words = str(found)
    assert "plan: dense, for W" in words
    assert "order by" in words
    assert "largest intermediate" in words
    numbers = found.explain(dict(mu=10, nu=11, rho=12, i=2, j=3, l=4))
    assert f"{2 * prod((10, 11, 12, 2, 3, 4)) * 3:,} FLOPs" in numbers
    assert planned("W^<mu nu rho> = k^mu_i q^nu_j r^rho_l M_<i j l>") == found or str(found) == words


def test_sizes_that_are_not_given_stay_symbols() -> None:
    compiled = ta.compile("P^<mu nu> = q^mu_i k^nu_i / sqrt(|i|)\ny^mu_n = P^<mu bar(nu)> v^nu_n")
    words = compiled.explain(mu=3)
    assert "t1[mu nu]: 6*i*nu FLOPs, 3*nu entries" in words
    assert "t1[mu n]: 6*n*nu FLOPs, 3*n entries" in words
    assert words.index("q[mu i]") < words.index("v[nu n]")
    heads = ta.compile("y_<h i e> = softmax[j](q_<i (h d)> k_<j (h d)>) v_<j h e>", sizes={"h": 2}).explain()
    scores, values = (line for line in heads.splitlines() if "->" in line)
    assert "4*d*i*j FLOPs, 2*i*j entries" in scores, "what is used comes first"
    assert "4*e*i*j FLOPs" in values
    assert "1,200 FLOPs, 60 entries" in compiled.explain(mu=6, nu=10, i=10, n=3)


def test_a_plan_names_indices_and_numbers_plainly() -> None:
    words = planned("W^<mu nu> = q^mu_i k^nu_i\ny^mu = W^<mu bar(nu)> v^nu_n w_n").explain(dict(mu=2, nu=3, i=4, n=5))
    assert "#" not in words
    assert "q[mu i], k[nu i] -> t1[mu nu]: 48 FLOPs, 6 entries" in words
    chain, sizes = "y_<a d> = A_<a b> B_<b c> C_<c d>", dict(a=2, b=300, c=4, d=500)
    price = 2 * 300 * 4 + 8 * 2 * 4 + 2 * 4 * 500 + 8 * 2 * 500
    assert f"price {price:,} (multiply-adds + 8 per entry written); by" in planned(chain, sizes).explain(sizes)
    assert "price" not in planned(chain).explain(dict(a=2, b=2, c=2, d=2)), "both orders cost the same"


def test_two_indices_of_one_name_in_one_contraction_are_told_apart() -> None:
    words = str(planned("y_i = (A_<i j> u_j) (B_<i j> v_j)"))
    assert "A[i j#" in words
    assert "v[j#" in words


def test_statements_that_no_output_needs_are_dropped() -> None:
    program = ta.parse("a_i = x_i\nb_i = exp(z_i)\nc_i = a_i a_i")
    assert plan(program, ("c",), None).program.defined == ("a", "c")


def test_rank_zero_and_more_of_the_batch() -> None:
    program = ta.parse("y^<... mu>_n = q^<... mu>_i M_<i n> + b_<...>")
    for rank in range(4):
        statement = expand(program, rank).statements[0]
        assert len(statement.axes) == rank + 2
        assert statement.upper == rank + 1
        assert not expand(program, rank).batched


# rewriting --------------------------------------------------------------------------------------------------------


def body(text: str) -> object:
    return planned(text).program.statements[-1].body


@pytest.mark.parametrize(
    "text",
    [
        "a_<i j> = exp(s_<i j>) / sum[p](exp(s_<i p>))",
        "a_<i j> = exp(x_<i c> x_<j c>) / sum[p](exp(x_<i c> x_<p c>))",
        "a_<i j> = exp(x_<i c> x_<j c>) / sum[p](exp(x_<i d> x_<p d>))".replace("d>", "c>"),
        "a_<i j k> = exp(s_<i j k>) / sum[p q](exp(s_<i p q>))",
        "a_<i j> = l1norm[j](exp(s_<i j>))",
    ],
)
def test_ratios_of_exponentials_become_a_softmax(text: str) -> None:
    assert [n.kind for n in walk(body(text)) if isinstance(n, Normalise)] == ["softmax"]


@pytest.mark.parametrize(
    "text",
    [
        "a_j = exp(x_<j j>) / sum[p](exp(x_<p j>))",  # j is open in the sum
        "a_<i j> = exp(s_<i j>) / sum[p](exp(2 s_<i p>))",
        "a_<i j> = exp(s_<i j>) / sum[p : p <= i](exp(s_<i p>))",
        "a_j = exp(j) / sum[p](exp(p)) + x_j + z_p w_p",  # nothing says that |p| = |j|
        "a_<i j> = l1norm[j; eps=0.1](exp(s_<i j>))",
    ],
)
def test_what_is_no_softmax_stays(text: str) -> None:
    assert not [n for n in walk(body(text)) if isinstance(n, Normalise) and n.kind == "softmax"]


def test_deltas_are_eliminated() -> None:
    for text in ("y_<i k> = delta_<i j> x_<j k>", "W^<mu nu> = k^mu_i q^nu_j delta_<i j>", "y = delta_<i j> a_i b_j"):
        assert not [n for n in walk(body(text)) if isinstance(n, Constant) and n.kind == "delta"]


def test_nested_sums_are_one_product() -> None:
    found = body("y_i = sum[j](A_<i j> sum[k](B_<j k> v_k))")
    assert isinstance(found, Product)
    assert len(found.factors) == 3
    assert not [n for n in walk(found) if isinstance(n, Reduce)]


def test_a_plan_says_which_rules_were_applied_to_what() -> None:
    found = planned("y^mu = softmax[nu rho](a^<mu nu> + b^<mu rho>) v_nu u_rho")
    assert [(statement, rule) for statement, rule, _ in found.applied] == [("y", "split")]
    assert "y[mu]\n  split: " in str(found)
    assert not planned("y_i = A_<i j> x_j").applied


def test_every_rule_has_a_reason() -> None:
    assert all(rule.name and rule.reason for rule in RULES)
