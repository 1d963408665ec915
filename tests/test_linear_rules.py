"""Rules on terms and linear parts: both sides at random sizes and values, what they leave alone, and what they save."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pytest

import tensorattn as ta
from tensorattn import planning
from tensorattn.cost import cost
from tensorattn.extents import size_reads
from tensorattn.guarding import chooser
from tensorattn.ir import Map, walk
from tensorattn.plan import Plan
from tensorattn.planning import plan
from tensorattn.program import Program
from tensorattn.rewriting import RULES, rewrite
from tensorattn.rewriting.axes import split_axes
from tests import goldens, programs

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")

REWRITTEN = (
    # the bond merge
    "y^<mu nu> = a^mu_i x^nu_i + a^mu_j z^nu_j",
    "y^<mu nu> = a^mu_i x^nu_i / sqrt(|i|) - a^mu_i z^nu_i / sqrt(|i|) + b^nu",
    "y^<mu nu> = - a^mu_i x^nu_i c - z^nu_i a^mu_i",
    "y^<mu nu> = 2 * a^mu_i x^nu_i - 3 * a^mu_i x^nu_i + a^mu_i x^nu_i",
    "y^<mu nu rho> = q^mu_0 k^nu_1 r^rho_2 - q^mu_0 k^nu_2 r^rho_1 + q^mu_1 k^nu_2 r^rho_0 - q^mu_1 k^nu_0 r^rho_2"
    " + q^mu_2 k^nu_0 r^rho_1 - q^mu_2 k^nu_1 r^rho_0".replace("_0", "_<0>")
    .replace("_1", "_<1>")
    .replace("_2", "_<2>"),
    "y^mu_n = W^<mu bar(nu)> v^nu_n + W^<mu bar(nu)> w^nu_n",
    "y^mu_n = softmax[nu : nu <= mu](W^<mu nu>) v^nu_n - softmax[nu : nu <= mu](W^<mu nu>) w^nu_n",
    "y^mu_n = softmax[nu](q^mu_i k^nu_i + q^mu_i p^nu_i) v^nu_n",
    # cat then dot
    "y^<mu nu> = cat[a = m + j](A^mu_m, b^mu_j) cat[a = m + j](C^nu_m, d_j) / sqrt(|a|)",
    "y^mu_n = softmax[nu](cat[a = m + j](A^mu_m, b^mu_j) cat[a = m + j](C^nu_m, d_j)) v^nu_n",
    "y^nu = sum[a](cat[a = m + j](A_m, B^nu_j)) x^nu",
    "y^<mu nu> = cat[a = m + j + l](A^mu_m, b_j, u^mu_l) cat[a = m + j + l](C_m, d^nu_j, w^nu_l) s^mu",
    # linear attention
    "y^mu_n = l1norm[nu](exp(q^mu_i) exp(k^nu_i)) v^nu_n",
    "y^mu_n = l1norm[nu; eps=0.1](exp(q^mu_i) exp(k^nu_i)) v^nu_n",
    "y^mu = l1norm[nu rho](relu(q^mu_i) relu(k^nu_i) relu(r^rho_i)) v^nu w^rho",
    "y^mu_n = l1norm[nu](relu(q^mu_i) relu(k^nu_j) abs(M_<i j>)) v^nu_n",
    "y^mu_n = l1norm[nu](1 + 0.1 * tanh(q^mu_i) tanh(k^nu_i) / |i|) v^nu_n",
    "y^mu_n = l1norm[nu](- relu(q^mu) relu(k^nu)) v^nu_n",
)
LEFT = (
    "y^<mu nu> = a^mu_i x^nu_i + b^mu_i z^nu_i",  # nothing in common
    "y^<mu nu> = a^mu_i x^nu_i + a^mu_i z_i",  # the second term is no score of nu
    "y^<mu nu> = a^mu_i x^nu_i + a^mu_i B_<i j> x^nu_j",  # the sum over j would have to come first
    "y^<mu nu rho> = a^mu_i x^nu_i b^rho + a^mu_i z^nu_i c^rho",  # an array over nu, rho and i would be made
    "y^<mu nu> = a^mu x^<mu nu> + a^mu z^<mu nu>",  # the rests are as large as the terms
    "y_i = delta_<i j> x_j u_i + eps_<i j> x_j u_i",  # what selects is no array to add
    "y^mu_n = W^<mu bar(nu)> v^nu_n + U^<mu bar(nu)> v^nu_n",  # weights stay factors
    "y^mu_n = softmax[nu : nu <= mu](W^<mu nu>) v^nu_n + U^<mu nu> v^nu_n",  # so do predicates
    "y^mu_n = v^nu_n u^mu / W^<mu nu> + v^nu_n u^mu / U^<mu nu>",
    "y^<mu nu> = cat[a = m + j](A^mu_m, b^mu_j) cat[a = m + j](C^nu_m, d^nu_j)",  # one longer sum is the cheaper
    "y^<mu nu> = cat[a = m + j](A^mu_m, b^mu_j) cat[a = m2 + j2](C^nu_<m2>, d_<j2>)",  # parts of other lengths
    "y^mu = cat[a = m + j](A^mu_m, b^mu_j) x_a",
    "y^<mu a> = cat[a = m + j](A^mu_m, b_j) cat[a = m + j](C^mu_m, d_j)",
    "y = cat[a = m + j](W_<bar(m : m < 2)>, b_j) cat[a = m + j](C_m, 3 * d_j)",
    "y^mu_n = l1norm[nu : nu <= mu](exp(q^mu_i) exp(k^nu_i)) v^nu_n",
    "y^mu_n = l1norm[nu](exp(q^mu_i) k^nu_i b^<mu nu>) v^nu_n",  # a factor as large as the weights
    "y^mu_n = l1norm[nu](q^mu_i k^nu_i) v^<mu nu>_n",
    "y^<mu nu> = l1norm[nu](exp(q^mu_i) exp(k^nu_i))",  # the weights are asked for
    "y^mu_n = l2norm[nu](q^mu_i k^nu_i) v^nu_n",
    "y_n = l1norm[nu](a_i k^nu_i) v^nu_n",  # no rows
)
OURS = tuple(rule for rule in RULES if rule.name in ("cat then dot", "linear attention", "bond merge"))


def rewritten(text: str) -> tuple[Program, Program, Program]:
    """A program, as the other rules leave it, and as all do."""
    program = ta.parse(text)
    before = rewrite(program, tuple(rule for rule in RULES if rule not in OURS)).program
    return program, before, rewrite(before, OURS).program


def test_what_the_rules_write(pytestconfig: pytest.Config) -> None:
    texts = []
    for text in (*REWRITTEN, *LEFT):
        _, before, after = rewritten(text)
        texts.append(
            f"{text}\n  {after if after != before else 'stays'}".replace("\n", "\n  ").replace("\n    ", "\n  ")
        )
    goldens.agree("linear_rules.txt", "\n".join(texts) + "\n", pytestconfig)


@pytest.mark.parametrize("text", LEFT)
def test_near_misses_are_left_alone(text: str) -> None:
    _, before, after = rewritten(text)
    assert after == before


@pytest.mark.parametrize("text", REWRITTEN)
def test_both_sides_have_one_value(text: str) -> None:
    program, before, after = rewritten(text)
    assert before != after, "the rule applies"
    for seed in (0, 1, 2, 4):
        rnd = random.Random(seed)
        sizes = programs.some_sizes(program, rnd)
        arrays = programs.inputs(program, sizes, np.random.default_rng(seed))
        filled = [array for array in arrays.values() if array.size]
        if seed == 4 and filled:  # NaN stays NaN, and no more
            array = rnd.choice(filled)
            array[tuple(rnd.randrange(n) for n in array.shape)] = np.nan
        programs.agree(program, after, arrays, sizes)
        if seed % 4 == 0:
            programs.compiled_agrees(program, arrays, sizes)


def test_a_sum_of_zero_gives_zero_whatever_the_weighted_values_are() -> None:
    compiled = ta.compile("y^mu_n = l1norm[nu](q^mu_i k^nu_i) v^nu_n")
    q, k, v = np.array([[1.0], [0.0], [-2.0]]), np.array([[1.0], [-1.0]]), np.array([[3.0, 1.0], [5.0, np.nan]])
    assert np.array_equal(compiled(q=q, k=k, v=v), [[0, np.nan]] * 3, equal_nan=True)


# What it saves -----------------------------------------------------------------------------------------------------


def flops(text: str, *outputs: str, **sizes: int) -> int:
    """FLOPs of the dense plan of a formula at these sizes; all others are 4."""
    program = ta.parse(text)
    names = {index.name for s in program.statements for n in walk(s.body) for index in n.free}
    return (
        cost(plan(program, outputs or (program.defined[-1],), {**dict.fromkeys(names, 4), **sizes}))
        .at({**dict.fromkeys(names, 4), **sizes})
        .flops
    )


def growth(text: str, *names: str) -> float:
    """By how much the FLOPs grow when these sizes do tenfold: 10 is linear."""
    return flops(text, **dict.fromkeys(names, 100_000)) / flops(text, **dict.fromkeys(names, 10_000))


LINEAR_ATTENTION = (
    "y^mu_n = l1norm[nu](exp(q^mu_i) exp(k^nu_i)) v^nu_n",
    "y^mu_n = l1norm[nu](1 + q^mu_i k^nu_i) v^nu_n",
    "y^mu_n = (exp(q^mu_i) exp(k^nu_i) v^nu_n) / sum[rho j](exp(q^mu_j) exp(k^rho_j))",
    "a^<mu nu> = exp(q^mu_i) exp(k^nu_i)\nw^<mu nu> = a^<mu nu> / sum[rho](a^<mu rho>)\ny^mu_n = w^<mu nu> v^nu_n",
    "A^<mu nu> = exp(q^mu_i) exp(k^nu_i)\nW^<mu nu> = l1norm[nu](A^<mu nu>)\ny^mu_n = W^<mu nu> v^nu_n",
)


@pytest.mark.parametrize("text", LINEAR_ATTENTION)
def test_linear_attention_takes_time_linear_in_the_length(text: str) -> None:
    assert growth(text, "mu", "nu", "rho") < 11


def test_a_causal_linear_attention_keeps_its_weights() -> None:
    assert growth("y^mu_n = l1norm[nu : nu <= mu](exp(q^mu_i) exp(k^nu_i)) v^nu_n", "mu", "nu") > 90


def test_linear_maps_cross_the_bar() -> None:
    """The maps before the scores, before the values and after the sum take no product over all pairs more than 2."""
    text = (
        "k^nu_i = x^nu_a K_<a i>\nq^mu_i = x^mu_a Q_<a i>\nv^nu_n = x^nu_a V_<a n>\n"
        "o^mu_n = softmax[nu](q^mu_i k^nu_i) v^nu_n\ny^mu_e = o^mu_n O_<n e>"
    )
    n, wide, thin = 1000, 16, 4
    sizes = dict(mu=n, nu=n, a=thin, i=wide, n=wide, e=thin)
    pairs = 2 * n * n * (thin + thin) + 4 * n * n  # the scores from x and x, the values x, and the softmax
    assert pairs <= flops(text, **sizes) <= pairs + 8 * n * wide * wide
    sizes = dict(mu=n, nu=n, a=wide, i=thin, n=thin, e=wide)
    assert pairs <= flops(text, **sizes) <= pairs + 20 * n * wide * thin


def test_a_map_is_made_once_however_often_it_is_read() -> None:
    text = (
        "h^nu_i = x^nu_a K_<a i>\no^mu_n = softmax[nu](h^mu_i h^nu_i) v^nu_n\n"
        "z^mu_n = softmax[nu](h^mu_i g^nu_i) v^nu_n\ny^mu_n = o^mu_n + z^mu_n"
    )
    n, a = 8, 10_000
    assert flops(text, mu=n, nu=n, a=a) < 1.1 * (2 * n * a * 4)


def test_a_map_under_a_function_is_not_pulled_apart() -> None:
    text = "h^nu_i = tanh(x^nu_a K_<a i>)\ny^mu_e = softmax[nu](s^<mu nu>) h^nu_i O_<i e>"
    sizes = dict(mu=50, nu=50, a=4, i=4, e=4)
    assert flops(text, **sizes) <= 2 * 50 * 16 + 2 * 50 * 50 * 4 + 2 * 50 * 16 + 4 * 50 * 50 + 50 * 4
    assert sum(n.function == "tanh" for n in walk(planned(text).statements[-1].body) if isinstance(n, Map)) == 1


def planned(text: str) -> Program:
    program = ta.parse(text)
    return plan(program, (program.defined[-1],), None).program


def test_bars_in_a_chain_start_from_the_thin_side() -> None:
    """W (W' v) and not (W W') v: 2 N³ d where N³ is the weights of the first."""
    text = "y^mu_d = A^<mu bar(nu)> B^<nu bar(rho)> v^rho_d"
    n = 300
    assert flops(text, mu=n, nu=n, rho=n, d=2) < 2 * (2 * n * n * 2) + 2 * (4 * n * n) + n
    nested = "y^<mu nu>_d = A^<mu nu bar(rho)> B^<rho nu bar(tau)> v^tau_d"
    assert flops(nested, mu=n, nu=n, rho=n, tau=n, d=2) < 2 * (2 * n**3 * 2) + 2 * (4 * n**3) + n**3


def test_values_with_features_of_their_own_are_summed_one_after_the_other() -> None:
    """2 N³ b + 2 N² a b and not 2 N³ a b."""
    n, a, b = 200, 8, 8
    found = flops("y^mu_<a b> = W^<mu bar(nu rho)> v^nu_a w^rho_b", mu=n, nu=n, rho=n, a=a, b=b)
    assert found == 2 * n**3 * b + 2 * n * n * a * b + 4 * n**3


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("y^<mu nu> = a^mu_i x^nu_i + a^mu_i z^nu_i", 0.55),
        ("y^<mu nu> = a^mu_i x^nu_i + b^nu_i a^mu_i + a^mu_i z^nu_i", 0.4),
    ],
)
def test_terms_that_share_a_factor_are_one_product(before: str, after: float) -> None:
    sizes = dict(mu=500, nu=500, i=64)
    program = ta.parse(before)
    separate = 2 * len(program.statements[0].body.terms) * 500 * 500 * 64  # type: ignore[union-attr]
    assert flops(before, **sizes) < after * separate


def test_merged_axes_are_seen_through() -> None:
    text = "z_<t (h d)> = softmax[s](x_<t s h>) w_<s h d>\ny_<t e> = z_<t (h d)> u_<h d e>"
    assert planned(text).defined == ("y",)
    assert "z_<t h d>" in str(split_axes(ta.parse(text + "\nx2_<t h> = z_<t (h d)> ones_<d>"), ("y", "x2")))
    for other in (
        text.replace("z_<t (h d)> u", "z_<t (d h)> u"),  # not the parts that it was merged from
        text + "\nq_<t a> = z_<t a>",
    ):
        program = ta.parse(other)
        assert split_axes(program, (program.defined[-1],)) == program
    assert split_axes(ta.parse(text), ("z", "y")) == ta.parse(text), "an axis of a result stays"


@pytest.mark.parametrize(
    "text",
    [
        "z_<t (h d)> = softmax[s](x_<t s h>) w_<s h d>\ny_<t e> = z_<t (h d)> u_<h d e>",
        "z^<t (h d)>_<a (i j)> = x_<t h> w_<d a> b_<i j>\ny_<t e> = z^<t (h d)>_<a (i j)> u_<h d e> a_a c_<i j>",
    ],
)
def test_what_is_read_split_has_the_same_value(text: str) -> None:
    program = ta.parse(text)
    assert split_axes(program, ("y",)) != program
    for seed in range(4):
        sizes = programs.some_sizes(program, random.Random(seed))
        arrays = programs.inputs(program, sizes, np.random.default_rng(seed))
        programs.agree(program, split_axes(program, ("y",)), arrays, sizes)
        programs.compiled_agrees(program, arrays, sizes)


def test_a_definition_read_several_times_is_put_in_place_where_that_is_cheaper() -> None:
    text = "a^<mu nu> = q^mu_i k^nu_i\ny^mu_n = a^<mu nu> v^nu_n / sum[rho](a^<mu rho>)"
    program = ta.parse(text)

    def chosen(n: int, d: int) -> Plan:
        return plan(program, ("y",), dict(mu=n, nu=n, rho=n, i=d, n=d))

    assert chosen(4, 512).program.defined == ("a", "y")
    assert chosen(4096, 16).program.defined == ("y",)
    rng = np.random.default_rng(0)
    compiled = ta.compile(text)
    for n, d in ((4, 64), (300, 4)):  # the second call finds that the plan of the first no longer holds
        q, k = rng.random((2, n, d))
        v = rng.normal(size=(n, d))
        wanted = (q @ k.T) @ v / (q @ k.T).sum(1, keepdims=True)
        assert np.abs(compiled(q=q, k=k, v=v) - wanted).max() < 1e-12
    tests = chooser(chosen(4, 512), program, size_reads(program, {}), frozenset())
    assert tests is not None
    assert tests(*(SimpleNamespace(shape=shape) for shape in ((4, 512), (4, 512), (4, 512))))
    assert not tests(*(SimpleNamespace(shape=shape) for shape in ((4096, 16), (4096, 16), (4096, 16))))


def test_a_divisor_divides_the_smallest_array() -> None:
    """Normed keys do not cost a pass over all scores."""
    text = "k^nu_i = z^nu_i / sqrt(z^nu_j z^nu_j)\ns^<mu nu> = q^mu_i k^nu_i"
    n, d = 1000, 8
    assert flops(text, mu=n, nu=n, i=d, j=d) < 2 * n * n * d + 10 * n * d


def random_definitions(rnd: random.Random) -> str:
    """Products of inputs and of earlier statements, read once or several times, some under a function."""
    lines: list[tuple[str, list[str]]] = []
    text = ""
    for number in range(rnd.randint(2, 5)):
        free = rnd.sample("ijk", rnd.randint(1, 2))
        factors = []
        for n in range(rnd.randint(1, 3)):
            name, indices = rnd.choice(lines) if lines and rnd.random() < 0.6 else (f"T{number}{n}", [])
            indices = indices or rnd.sample("ijklm", rnd.randint(1, 3))
            factor = f"{name}_<{' '.join(indices)}>"
            factors.append(rnd.choice([factor] * 4 + [f"tanh({factor})", f"softmax[{indices[0]}]({factor})"]))
        open_indices = " ".join(sorted(set("ijklm") - set(free)))
        lines.append((f"Y{number}", free))
        text += f"Y{number}_<{' '.join(free)}> = sum[{open_indices}]({' '.join(factors)} ones_<{' '.join('ijklm')}>)\n"
    return text


def test_what_is_put_in_place_is_never_dearer() -> None:
    """But for the little that the search for an order is not exact."""
    placed = 0
    for seed in range(60):
        rnd = random.Random(seed)
        program = ta.parse(random_definitions(rnd))
        output = (program.defined[-1],)
        sizes = {name: rnd.choice((2, 3, 16, 64, 300)) for name in "ijklm"}
        found, apart = plan(program, output, sizes), apart_plan(program, output, sizes)
        assert found.price.value(sizes) <= 1.03 * apart.price.value(sizes) + 1000, program
        assert cost(found).at(sizes).flops <= 1.03 * cost(apart).at(sizes).flops + 1000, program
        placed += found.program.defined != apart.program.defined
    assert placed > 20


def apart_plan(program: Program, outputs: tuple[str, ...], sizes: Mapping[str, int]) -> Plan:
    """The plan in which every definition stays a statement."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "fuse", lambda program, *_: program)
        return plan(program, outputs, sizes)
