"""Symmetric softmaxes over ordered tuples: the same values as over all of them; what is not symmetric is left alone."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tensorattn as ta
from tensorattn import reference
from tensorattn.ir import walk
from tensorattn.kernel import Apply, IfBounded, IfFinite, Normalised, Stream, Weigh
from tensorattn.lowering import streaming
from tensorattn.rewriting import CANONICAL, Rewritten, rewrite, symmetry
from tensorattn.rewriting.fusing import fuse
from tensorattn.rewriting.matching import alike
from tests import goldens

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
SETTINGS = settings(
    max_examples=10, derandomize=True, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck)
)
SHAPES = dict(q="mi", Q="hmi", k="Ni", K="hNi", u="N", c="mN", v="Nn", w="Np", x="N", T="NNn", b="mn", z="m", r="Ni")
SHAPES |= dict(o="p", s="m", f="N", g="mN", G="ei", t="N", y="Nhn", l="", B="NN", M="ii", D="mNN")
SIZES = dict(m=3, N=5, n=2, p=3, i=2, h=2, e=4)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Halved at any size, in tiles that divide none."""
    monkeypatch.setattr(symmetry, "LEAST_ROWS", 0)
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 40)


def arrays(
    program: ta.Program, sizes: dict[str, int], seed: int = 0, dtype: type = np.float64
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    found = {}
    for name in program.inputs:
        shape = tuple(sizes[axis] for axis in SHAPES[name])
        match name:
            case "f" | "g":
                found[name] = rng.random(shape) < 0.7
            case "t":
                found[name] = rng.integers(0, sizes["e"], size=shape)
            case _:
                found[name] = np.asarray(rng.normal(size=shape), dtype)
    return found


def prepared(program: ta.Program) -> Rewritten:
    """As a plan does, but the rules that see through a separable score."""
    return rewrite(fuse(program, program.defined[-1:]), CANONICAL)


def halved(program: ta.Program, sizes: dict[str, int] | None = None) -> ta.Program:
    return symmetry.symmetric_halves(prepared(program), sizes).program


def is_halved(program: ta.Program, sizes: dict[str, int] | None = None) -> bool:
    ready = prepared(program)
    return symmetry.symmetric_halves(ready, sizes) is not ready


def each(text: str, indices: tuple[str, ...], join: str = " ") -> str:
    """The text once for every index in the place of `J`."""
    return join.join(re.sub(r"\bJ\b", index, text) for index in indices)


def scores(indices: tuple[str, ...]) -> list[str]:
    a, b = indices[:2]
    found = [
        f"sum[i](q_<m i> {each('k_<J i>', indices)})",
        f"sum[i](Q_<h m i> {each('K_<h J i>', indices)}) / sqrt(|i|)",
        f"tanh(sum[i](q_<m i> {each('k_<J i>', indices)}) - 0.5)",
        each("c_<m J>", indices),
        f"sum[i](q_<m i> {each('G_<t_<J> i>', indices)})",
        each("tanh(c_<m J>)", indices, " + "),
    ]
    if len(indices) == 2:
        found += [
            f"c_<m {a}> c_<m {b}> * abs({a} - {b}) / 3",
            f"s_m - sum[i]((k_<{a} i> - k_<{b} i>)**2)",
            f"sum[i j](k_<{a} i> k_<{b} j> q_<m i> q_<m j>)",
            f"(B_<{a} {b}> + B_<{b} {a}>) s_m",
            f"maximum(c_<m {b}>, c_<m {a}>)",
        ]
    return found


def wheres(indices: tuple[str, ...]) -> list[str]:
    a, b = indices[:2]
    found = [each("J <= m", indices, " and "), each("f_<J>", indices, " and "), each("g_<m J>", indices, " or ")]
    found.append(f"not ({each('g_<m J>', indices, ' and ')})")
    if len(indices) == 2:
        found += [f"{a} != {b}", f"abs({a} - {b}) <= 1", f"{b} - {a} < 2 and {a} - {b} < 2"]
    return found


def values(indices: tuple[str, ...]) -> list[str]:
    a, b = indices[:2]
    rest = indices[1:]
    found = [
        each("v_<J n>", indices),
        f"v_<{a} n> {each('x_<J>', rest)}",
        f"{each('x_<J>', indices)} b_<m n>",
        f"v_<{a} n> {each('sum[p](w_<J p> o_p)', rest)}",
        f"{each('v_<J n>', indices)} / z_m",
        "b_<m n>",
        f"sum[p](w_<{a} p> o_p {each('v_<J n>', rest)}) l",
    ]
    if len(indices) == 2:
        found += [f"T_<{a} {b} n>", f"(v_<{a} n> - v_<{b} n>)", f"y_<{a} h n> x_<{b}>"]
    return found


@st.composite
def formulas(draw: st.DrawFn) -> tuple[str, dict[str, int]]:
    """A formula with a symmetric softmax, and sizes."""
    indices = draw(st.sampled_from([("nu", "rho"), ("nu", "rho"), ("nu", "rho", "tau")]))
    chosen = draw(st.lists(st.sampled_from(scores(indices)), min_size=1, max_size=2, unique=True))
    chosen += [each("u_<J>", indices, " + ")] * draw(st.integers(0, 1))
    where = draw(st.sampled_from(["", *(f" : {w}" for w in wheres(indices))]))
    sink = draw(st.sampled_from(["", "; sink=s_m"]))
    value = draw(st.sampled_from(values(indices)))
    over = " ".join(indices)
    if not re.search(r"\bp\b", value) and draw(st.booleans()):  # one more index, that is not permuted
        over, chosen = f"{over} p", [*chosen, "o_p s_m"]
        value = f"o_p {value}" if where else value
    body = f"sum[{over}](softmax[{over}{where}{sink}]({' + '.join(chosen)}) {value})"
    heads = "h " if re.search(r"\bh\b", body) else ""
    sizes = {name: draw(st.sampled_from([1, 2, 3])) for name in "mnpihe"}
    return f"R_<{heads}m n> = {body}", {**sizes, "N": draw(st.sampled_from([0, 1, 2, 3, 7 - len(indices)]))}


@given(formulas(), st.integers(0, 99), st.booleans())
@SETTINGS
def test_ordered_tuples_give_what_all_tuples_give(formula: tuple[str, dict[str, int]], seed: int, single: bool) -> None:
    text, sizes = formula
    program = ta.parse(text)
    assert is_halved(program), text
    x = arrays(program, sizes, seed, np.float32 if single else np.float64)
    wanted = reference.evaluate(program, x)["R"]
    room = reference.magnitude(program, x)["R"] + 1e-3
    by_definition = reference.evaluate(halved(program), x)["R"]
    assert (np.abs(by_definition - wanted) <= 1e-12 * room).all()
    compiled = ta.compile(halved(program), plan="streamed")
    for found in (compiled(x), compiled({n: torch.from_numpy(a) for n, a in x.items()}).numpy()):
        assert found.dtype == (np.float32 if single else np.float64)
        assert (np.abs(found - wanted) <= (1e-5 if single else 1e-10) * room).all(), text


@pytest.mark.parametrize("count", [2, 3])
def test_against_loops(count: int) -> None:
    """Two and three keys by NumPy alone."""
    rng = np.random.default_rng(0)
    q, k, v, w = rng.normal(size=(4, 3)), rng.normal(size=(5, 3)), rng.normal(size=(5, 2)), rng.normal(size=(5, 2))
    wanted = np.zeros((4, 2))
    for m in range(4):
        total = 0.0
        for tuple_ in product(range(5), repeat=count):
            weight = np.exp((q[m] * np.prod(k[list(tuple_)], axis=0)).sum())
            total += weight
            wanted[m] += weight * v[tuple_[0]] * np.prod(w[list(tuple_[1:])], axis=0)
        wanted[m] /= total
    names = ("nu", "rho", "tau")[:count]
    text = f"y^mu_n = softmax[{' '.join(names)}](q^mu_i {each('k_<J i>', names)}) v^nu_n {each('w_<J n>', names[1:])}"
    found = ta.compile(text, plan="streamed")(q=q, k=k, v=v, w=w)
    np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-12)


# what the data may hold -------------------------------------------------------------------------------------------

POISONED = [
    "R_<m n> = softmax[nu rho](sum[i](q_<m i> k_<nu i> k_<rho i>)) v_<nu n> v_<rho n>",
    "R_<m n> = softmax[nu rho](sum[i](q_<m i> k_<nu i> k_<rho i>)) sum[p](v_<nu n> w_<rho p> o_p)",
    "R_<m n> = sum[nu rho](softmax[nu rho](sum[i](q_<m i> k_<nu i> k_<rho i>)) b_<m n>)",
    "R_<m n> = sum[nu rho](softmax[nu rho; sink=s_m](c_<m nu> c_<m rho>) T_<nu rho n>) b_<m n> / z_m",
    "R_<m n> = softmax[nu rho : nu <= m and rho <= m](sum[i](q_<m i> k_<nu i> k_<rho i>)) v_<nu n> v_<rho n>",
    "R_<m n> = softmax[nu rho : g_<m nu> and g_<m rho>](tanh(c_<m nu> c_<m rho>)) T_<nu rho n>",
    "R_<m n> = softmax[nu rho : nu != rho](c_<m nu> + c_<m rho>) v_<nu n> x_<rho>",
    "R_<m n> = softmax[nu rho tau](c_<m nu> + c_<m rho> + c_<m tau>) v_<nu n> x_<rho> x_<tau>",
]


@pytest.mark.parametrize("text", POISONED)
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_is_not_finite_means_what_it_did(text: str, poison: float) -> None:
    """What the definition says or the dense plan, which sums in another order: ∞ a + ∞ b is NaN, ∞ (a + b) is not."""
    program = ta.parse(text)
    dense, streamed = ta.compile(program, plan="dense"), ta.compile(halved(program), plan="streamed")
    rng = np.random.default_rng(1)
    places = [name for name in program.inputs if name not in "fgs"]
    bad = 0
    for seed in range(3 * len(places)):
        x = arrays(program, SIZES, seed)
        target = x[places[seed % len(places)]]
        target[tuple(rng.integers(size) for size in target.shape)] = poison
        wanted = [reference.evaluate(program, x)["R"], dense(x)]
        bad += not np.isfinite(wanted[0]).all()
        for found in (streamed(x), streamed({n: torch.from_numpy(a) for n, a in x.items()}).numpy()):
            same = [np.isclose(found, right, rtol=1e-10, atol=1e-12, equal_nan=True) for right in wanted]
            assert (same[0] | same[1]).all()
    assert bad


@pytest.mark.parametrize("value", ["b_<m n> l", "T_<nu rho n> l / z_m"])
def test_a_sum_of_nothing_is_zero_whatever_scales_it(value: str) -> None:
    program = ta.parse(f"R_<m n> = sum[nu rho](softmax[nu rho](c_<m nu> c_<m rho>) {value})")
    x = arrays(program, {**SIZES, "N": 0})
    x["l"] = np.asarray(np.inf)
    assert (ta.compile(halved(program), plan="streamed")(x) == 0).all()


def test_gradients_are_those_of_all_tuples() -> None:
    program = ta.parse(POISONED[1])
    x = {n: torch.tensor(a, requires_grad=True) for n, a in arrays(program, SIZES).items()}
    results = ta.compile(halved(program), plan="streamed")(x), ta.compile(program, plan="dense")(x)
    one, other = (torch.autograd.grad(r.square().sum(), list(x.values())) for r in results)
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b)


# where it applies -------------------------------------------------------------------------------------------------

LEFT_ALONE = {
    "two tensors": "R_<m n> = softmax[nu rho](sum[i](q_<m i> k_<nu i> r_<rho i>)) v_<nu n> v_<rho n>",
    "two sizes": "R_<m n> = softmax[nu rho](c_<m nu> + q_<m rho>) v_<nu n> q_<m rho>",
    "sizes not proven": "R_<m n> = sum[nu rho](softmax[nu rho](s_m + nu + rho) b_<m n>)",
    "a tensor that may not be symmetric": "R_<m n> = softmax[nu rho](s_m B_<nu rho>) v_<nu n> v_<rho n>",
    "a middle that may not be": "R_<m n> = softmax[nu rho](s_m sum[i j](k_<nu i> M_<i j> k_<rho j>)) T_<nu rho n>",
    "eps": "R_<m n> = softmax[nu rho](sum[i j](k_<nu i> k_<rho j> eps_<i j> s_m)) v_<nu n> v_<rho n>",
    "one predicate": "R_<m n> = softmax[nu rho : nu <= m](c_<m nu> c_<m rho>) v_<nu n> v_<rho n>",
    "ordered already": "R_<m n> = softmax[nu rho : nu <= rho](c_<m nu> c_<m rho>) v_<nu n> v_<rho n>",
    "top breaks ties": "R_<m n> = softmax[nu rho : top[nu rho; 2](x_<nu> x_<rho>)](c_<m nu> c_<m rho>) T_<nu rho n>",
    "another order of positions": "R_<m n> = softmax[nu rho](c_<m nu> c_<m rho> + nu - rho) v_<nu n> v_<rho n>",
    "an odd function": "R_<m n> = softmax[nu rho](s_m tanh(x_<nu> - x_<rho>)) v_<nu n> v_<rho n>",
    "another normaliser": "R_<m n> = sparsemax[nu rho](c_<m nu> c_<m rho>) v_<nu n> v_<rho n>",
    "weights asked for": "R_<m nu rho> = softmax[nu rho](c_<m nu> c_<m rho>)",
    "weights squared": "R_<m n> = sum[nu rho](softmax[nu rho](c_<m nu> c_<m rho>)**2 v_<nu n> v_<rho n>)",
    "one index summed": "R_<m n rho> = softmax[nu rho](c_<m nu> c_<m rho>) v_<nu n>",
    "an index that the values lack": "R_<m n> = sum[nu rho](softmax[nu rho](c_<m nu> c_<m rho>) v_<nu n>)",
    "values of every row": "R_<m n> = softmax[nu rho](c_<m nu> c_<m rho>) D_<m nu rho> x_<nu> b_<m n>",
    "a third index apart": "R_<m n> = softmax[nu rho p](c_<m nu> c_<m rho> + o_p s_m) v_<nu n> v_<rho n> o_p",
    "masked values": "R_<m n> = softmax[nu rho](c_<m nu> c_<m rho>) T_<nu rho n> sum[p : p <= nu](w_<rho p>)",
    "a truth that is a predicate": "R_<m n> = softmax[nu rho : rho <= m](nu <= m) v_<nu n> v_<rho n>",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_not_symmetric_is_left_alone(name: str) -> None:
    assert not is_halved(ta.parse(LEFT_ALONE[name]))


def test_few_rows_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mean of the values costs as much as a row of the score."""
    monkeypatch.setattr(symmetry, "LEAST_ROWS", 16)
    program = ta.parse(POISONED[1])
    assert not is_halved(program, {"m": 15})
    assert is_halved(program, {"m": 16})


def test_definitions_are_looked_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 1 << 20)
    program = ta.parse("S^<m nu rho> = q^m_i k^nu_i k^rho_i; R^m_n = S^<m bar(nu rho)> v^nu_n v^rho_n")
    assert is_halved(program)
    kernel = ta.compile(program, plan="streamed").kernel()
    (choice,) = [i for i in kernel.body if isinstance(i, IfBounded)]
    (loop,) = [i for i in choice.safe if isinstance(i, Stream)]
    (weigh,) = [i for i in loop.body if isinstance(i, Weigh)]
    makers = {i.out: i for i in loop.body if isinstance(i, Apply)}
    assert weigh.where is None, "no entry is tested"
    assert makers[weigh.score].function == "add"
    assert loop.narrowed, "but the order bounds the loop"
    assert not any(isinstance(i, IfFinite) for i in (*kernel.body, *loop.body)), "and guards nothing"
    assert not any(isinstance(i, Normalised) for i in kernel.body)


def test_only_the_order_itself_guards_nothing() -> None:
    for text, unguarded in (
        (POISONED[0], True),
        (POISONED[7], True),
        (POISONED[4], False),
        ("R_<m n> = sum[nu rho]((softmax[nu rho : nu <= rho](c_<m nu> x_<rho>) + 0) b_<m n>)", False),
        ("R_<m n> = sum[nu rho]((softmax[nu rho : nu <= rho](c_<m nu> c_<m rho> + x_<rho>) + 0) b_<m n>)", False),
        ("R_<m n> = softmax[nu rho : nu <= rho](c_<m nu> c_<m rho>) v_<nu n> v_<rho n>", False),
    ):
        body = halved(ta.parse(text)).statements[-1].body
        assert any(symmetry.mirrored(node) for node in walk(body)) == unguarded, text


def test_an_addend_that_needs_the_order_is_guarded_by_it() -> None:
    """Outside the order `x` has no entry, and the root no derivative."""
    addend = "x_<rho - nu> * sqrt(u_rho - u_nu + 1)"
    text = f"R_<m n> = sum[nu rho]((softmax[nu rho : nu <= rho](c_<m nu> c_<m rho> + {addend}) + 0) T_<nu rho n>)"
    program = ta.parse(text)
    x = arrays(program, SIZES) | {"u": 2.0 * np.arange(SIZES["N"])}
    given = {n: torch.tensor(a, requires_grad=True) for n, a in x.items()}
    found = ta.compile(program, plan="streamed")(given)
    np.testing.assert_allclose(found.detach(), reference.evaluate(program, x)["R"], rtol=1e-12)
    for bar in torch.autograd.grad(found.sum(), list(given.values())):
        assert bar.isfinite().all()


@pytest.mark.parametrize(
    ("a", "b", "one"),
    [
        ("x_i y_j + z_i", "z_i + y_j x_i", True),
        ("x_i - y_j", "y_j - x_i", False),
        ("abs(x_i - y_j)", "abs(y_j - x_i)", True),
        ("(x_i - y_j)**2", "(y_j - x_i)**2", True),
        ("(x_i - y_j)**3", "(y_j - x_i)**3", False),
        ("sum[p q](A_<i p> B_<p q> A_<j q>)", "sum[p q](A_<j q> B_<p q> A_<i p>)", True),
        ("sum[p q](A_<i p> B_<p q> A_<j q>)", "sum[p q](A_<i q> B_<p q> A_<j p>)", False),
        ("sum[p q](A_<i p> B_<p q> A_<j q>)", "sum[p q](A_<i q> B_<q p> A_<j p>)", True),
        ("max[p](A_<i p>) x_j", "x_j max[q](A_<i q>)", True),
        ("max[p](A_<i p>) x_j", "x_j min[p](A_<i p>)", False),
        ("where(i < j, x_i, 0)", "where(j > i, x_i, 0)", True),
        ("where(i < j and x_i < 0, 1, 0)", "where(x_i < 0 and i < j, 1, 0)", True),
        ("where(i <= j, x_i, 0)", "where(j <= i, x_i, 0)", False),
        ("softmax[j](A_<i j>)", "softmax[i](A_<i j>)", False),
        ("x_<i + j - 1> y_i", "y_i x_<j + i - 1>", True),
        ("x_i / y_j", "y_j / x_i", False),
        ("2 x_i y_j", "3 x_i y_j", False),
    ],
)
def test_expressions_that_are_one(a: str, b: str, one: bool) -> None:
    bodies = [ta.parse(f"R_<i j> = {text} + 0 * i + 0 * j").statements[0].body for text in (a, b)]
    assert alike(bodies[0], bodies[1], lambda name: "size") == one


def test_a_long_search_says_no() -> None:
    terms = " + ".join(f"max[p](A_<i p> + {n} B_<p j>)" for n in range(12))
    body = ta.parse(f"R_<i j> = exp({terms}) * ({terms} + 1)").statements[0].body
    other = ta.parse(f"R_<i j> = exp({terms}) * ({terms} + 2)").statements[0].body
    assert not alike(body, other, lambda name: name)


GOLDEN = {
    "joint": "S^<mu nu rho> = q^mu_i k^nu_i k^rho_i; y^mu_n = S^<mu bar(nu rho)> v^nu_n w^rho_n",
    "symmetric values": POISONED[0],
    "beside": POISONED[3],
    "predicate": POISONED[4],
    "three": POISONED[7],
}


def test_before_and_after(pytestconfig: pytest.Config) -> None:
    parts = []
    for name, text in GOLDEN.items():
        program = ta.parse(text)
        parts.append(f"== {name}\n{program}\n--\n{halved(program)}")
        ta.parse(str(halved(program)))
    goldens.agree("symmetry.txt", "\n\n".join(parts) + "\n", pytestconfig)
