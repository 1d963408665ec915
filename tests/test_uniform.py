"""`uniform`: the hash of a seed and positions, its bits, its statistics, its place in plans, and what it refuses."""

import math
from contextlib import suppress

import numpy as np
import pytest
import torch

import tensorattn as ta
from tensorattn.reference import evaluate, magnitude

SEEDS = (0, 1, -1, 12345, 2**63 - 1, -(2**63))
MASK = 2**64 - 1


def splitmix(state):
    """The finaliser of splitmix64, from its published C code, in Python's own integers."""
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK
    return state ^ (state >> 31)


def expected(seed, *positions):
    """What the page of the notation says: the stream of splitmix64 that starts at the hash of the keys before."""
    state = splitmix((seed + 0x9E3779B97F4A7C15) & MASK)
    for position in positions:
        state = splitmix((state + 0x9E3779B97F4A7C15 * (position + 1)) & MASK)
    return (state >> 40) / 2**24


def table(formula, **inputs):
    return np.asarray(ta.compile(formula)(**inputs))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_bits_are_those_of_splitmix64_in_every_back_end(library, dtype, seed):
    x = np.ones((3, 5), dtype)
    given = x if library == "numpy" else torch.from_numpy(x)
    got = ta.compile("y_<i j> = x_<i j> * uniform(seed, i, 2*j - 3)")(x=given, seed=seed)
    want = np.array([[expected(seed, i, 2 * j - 3) for j in range(5)] for i in range(3)])
    assert np.asarray(got).dtype == dtype
    np.testing.assert_array_equal(np.asarray(got), want)
    program = ta.parse("y_<i j> = x_<i j> * uniform(seed, i, 2*j - 3)")
    np.testing.assert_array_equal(evaluate(program, {"x": x, "seed": seed})["y"], want)


def test_first_number_of_splitmix64_is_the_published_one():
    assert splitmix(0x9E3779B97F4A7C15) == 0xE220A8397B1DCDAF  # the stream of seed 0, as in every listing of it
    assert float(ta.compile("y = uniform(s)")(s=0)) == (0xE220A8397B1DCDAF >> 40) / 2**24


def test_literals_alone_and_index_tensors_are_keys():
    assert float(ta.compile("y = x * uniform(7, 3)")(x=1.0)) == expected(7, 3)
    ids = np.array([5, 5, 900, -4], np.int32)
    got = table("y_i = uniform(s, id_i, 2)", s=np.int64(3), id=ids)
    np.testing.assert_array_equal(got, [expected(3, int(n), 2) for n in ids])
    flags = table("y_i = uniform(s, keep_i)", s=3, keep=np.array([True, False]))
    np.testing.assert_array_equal(flags, [expected(3, 1), expected(3, 0)])


@pytest.mark.parametrize("seed", [0, 1, 99])
def test_entries_are_uniform_and_neighbours_independent(seed):
    x = np.ones((128, 128))
    draw = ta.compile("y_<i j> = x_<i j> * uniform(seed, i, j)")
    u = draw(x=x, seed=seed)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=64, range=(0, 1))[0]
    chi = ((counts - u.size / 64) ** 2 / (u.size / 64)).sum()  # 63 degrees of freedom: 63 ± 11
    assert 63 - 5 * 11.3 < chi < 63 + 5 * 11.3
    bound = 5 / math.sqrt(u.size)
    others = (u[1:, :], u[:, 1:], u[1:, 1:], draw(x=x, seed=seed + 1), u.T)
    mates = (u[:-1, :], u[:, :-1], u[:-1, :-1], u, u)
    for a, b in zip(mates, others, strict=True):
        off = ~np.eye(128, dtype=bool) if a.shape == (128, 128) else np.ones(a.shape, bool)
        assert abs(np.corrcoef(a[off], b[off])[0, 1]) < 1.5 * bound  # half the pairs of the transpose are the others
    pairs = np.histogram2d(u[:, :-1].ravel(), u[:, 1:].ravel(), bins=8, range=[[0, 1]] * 2)[0]
    even = pairs.sum() / 64
    assert ((pairs - even) ** 2 / even).sum() < 63 + 5 * 11.3
    low = (u * 2**24).astype(np.int64) & 1
    assert abs(low.mean() - 0.5) < 5 * 0.5 / math.sqrt(u.size)


FORMULA = "y^mu_n = softmax[nu rho : nu <= mu](a^<mu nu> + b^<mu rho>) * uniform(s, mu, nu, rho) v^<nu rho>_n"


@pytest.mark.parametrize("plan", ["dense", "streamed", "factored"])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_every_plan_draws_the_same_numbers(library, plan):
    rng = np.random.default_rng(0)
    arrays = {"a": rng.normal(size=(5, 7)), "b": rng.normal(size=(5, 11)), "v": rng.normal(size=(7, 11, 2))}
    want = evaluate(ta.parse(FORMULA), {**arrays, "s": 17})["y"]
    given = {n: torch.from_numpy(x) for n, x in arrays.items()} if library == "torch" else arrays
    got = ta.compile(FORMULA, plan=plan)(**given, s=17)
    np.testing.assert_allclose(np.asarray(got), want, rtol=0, atol=1e-12)


def test_tiles_draw_what_the_whole_draws():
    rng = np.random.default_rng(1)
    q, k, v = rng.normal(size=(300, 4)), rng.normal(size=(701, 4)), rng.normal(size=(701, 3))
    formula = "y^mu_n = softmax[nu](q^mu_i k^nu_i) * uniform(s, mu, nu) v^nu_n"
    dense = ta.compile(formula, plan="dense")(q=q, k=k, v=v, s=5)
    small = ta.compile(formula, plan="streamed", memory=600_000)
    np.testing.assert_allclose(small(q=q, k=k, v=v, s=5), dense, rtol=0, atol=1e-12)
    assert "for " in small.source("numpy", mu=300, nu=701, i=4, n=3)


def test_traces_maps_and_carries_no_gradient():
    compiled = ta.compile("y_i = x_i * uniform(s, i)")
    x, s = torch.ones(6, requires_grad=True), torch.tensor(9)
    want = torch.tensor([expected(9, i) for i in range(6)])
    compiled(x=x, s=s).sum().backward()
    torch.testing.assert_close(x.grad, want, rtol=0, atol=0)
    traced = torch.compile(lambda x, s: compiled(x=x, s=s), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(traced(torch.ones(6), s), want, rtol=0, atol=0)
    many = torch.func.vmap(lambda s: compiled(x=torch.ones(6), s=s))(torch.tensor([9, 10]))
    torch.testing.assert_close(many[0], want, rtol=0, atol=0)
    assert not torch.equal(many[0], many[1])


def test_standalone_source_runs_by_itself():
    space = {}
    exec(ta.compile("y_i = x_i * uniform(s, i)").source("numpy"), space)
    found = [v for n, v in space.items() if callable(v) and getattr(v, "__module__", 0) != "numpy"]
    answer = space["formula"](np.ones(3), 4) if "formula" in space else found[-1](np.ones(3), 4)
    np.testing.assert_array_equal(np.ravel(answer), [expected(4, i) for i in range(3)])


def test_equivalence_knows_the_numbers():
    assert ta.equivalent("y_i = x_i * uniform(s, i)", "y_i = uniform(s, i) x_i")
    assert not ta.equivalent("y_i = x_i * uniform(s, i)", "y_i = x_i * uniform(s, i + 1)")
    verdict = ta.equivalent("y_i = x_i * where(uniform(3, i) < 1, 2, 0)", "y_i = 2 * x_i")
    assert verdict


def test_refusals():
    with pytest.raises(ta.DTypeError, match="`uniform` takes integers, a seed and positions, but `x_<i>` is"):
        ta.compile("y_i = uniform(x_i)")(x=np.ones(3))
    with pytest.raises(ta.DTypeError, match="an argument is float64"):
        ta.compile("y_i = x_i uniform(s, i / 2)")(x=np.ones(3), s=1)
    with pytest.raises(ta.NotationError, match=r"`uniform` takes 1 to 32 argument"):
        ta.parse("y = uniform(" + ", ".join(["s"] * 33) + ")")
    with pytest.raises(ta.NotationError, match="`uniform` must be followed by its argument"):
        ta.parse("y = uniform x")


@pytest.mark.parametrize(
    "text",
    [
        "y_i = x_i uniform(seed, i, 3)",
        "y^mu_n = W^<mu bar(nu)> where(uniform(s, mu, nu) >= p, 1 / (1 - p), 0) v^nu_n",
        "y^mu_n = sum[nu](W^<mu bar(nu)> uniform(s, mu, nu) v^nu_n)",
    ],
)
def test_prints_and_reads_back(text):
    program = ta.parse(text)
    assert str(program) == text
    assert ta.parse(str(program)) == program


def test_a_position_is_a_key_wherever_its_index_is_summed():
    W, v = np.zeros((2, 3)), np.eye(3)
    got = table("y^mu_n = W^<mu bar(nu)> uniform(s, mu, nu) v^nu_n", W=W, v=v, s=8)
    np.testing.assert_allclose(got, [[expected(8, i, j) / 3 for j in range(3)] for i in range(2)], rtol=1e-15)
    with pytest.raises(ta.NotationError, match="a position is only read where"):
        ta.parse("y^mu_n = W^<mu bar(nu)> sqrt(nu) v^nu_n")


def test_ellipsis_is_the_positions_of_the_batch_axes():
    program = ta.parse("y_<... i> = x_<... i> * uniform(s, ..., i)")
    assert str(program) == "y_<... i> = x_<... i> uniform(s, ..., i)"
    assert ta.parse(str(program)) == program
    for shape in ((3,), (2, 3), (4, 2, 3), (0, 3)):
        want = np.array([expected(6, *place) for place in np.ndindex(shape)]).reshape(shape)
        np.testing.assert_array_equal(ta.compile(program)(x=np.ones(shape), s=6), want)
        np.testing.assert_array_equal(evaluate(program, {"x": np.ones(shape), "s": 6})["y"], want)
    for wrong in ("y_<... i> = exp(...) x_<... i>", "y_<... i> = uniform(..., i) x_<... i>"):
        with pytest.raises(ta.NotationError, match="once, after the seed"):
            ta.parse(wrong)
    with pytest.raises(ta.NotationError, match="stands on the right but not on the left"):
        ta.parse("y_i = x_i * uniform(s, ...)")


PLACES = {
    "predicate": "y^mu_n = softmax[nu : uniform(s, mu, nu) >= 0.3 and nu <= mu](q^mu_i k^nu_i) v^nu_n",
    "pairs": "y^mu = softmax[nu rho : uniform(s, nu, rho) >= 0.3 and rho <= nu](a^<mu nu> + b^<mu rho>) v^nu w^rho",
    "score": "y^mu_n = softmax[nu](q^mu_i k^nu_i + uniform(s, mu - nu)) v^nu_n",
    "row": "y^mu_n = softmax[nu](q^mu_i k^nu_i) uniform(s, mu) v^nu_n uniform(s + 1, n)",
    "column": "y^mu_n = softmax[nu](q^mu_i k^nu_i) uniform(s, nu) v^nu_n",
    "distance": "y^mu_n = softmax[nu](-(uniform(s, mu) - uniform(s, nu, 3))**2 + q^mu_i k^nu_i) v^nu_n",
    "twice": "y^mu_n = sum[nu](softmax[nu](q^mu_i k^nu_i) (uniform(s, mu, nu) - uniform(s, nu, mu)) v^nu_n)",
    "split": "y^<mu>_<(h e)> = softmax[nu](q^mu_<(h i)> k^nu_<(h i)>) uniform(s, h, mu, nu) v^nu_<(h e)>",
    "triangle": "y^mu_n = sum[rho](softmax[nu rho](A^<mu nu> + B^<nu rho> + C^<mu rho>) uniform(s, nu, rho) v^nu_n)",
    "linear": "y^mu = l1norm[nu](x^mu_i z^nu_i) uniform(s, mu, nu) v^nu",
    "prefix": "y^mu = sum[nu : nu <= mu](x^nu uniform(s, nu)) + z^mu ** uniform(s, mu)",
    "joined": "C_<mu a> = cat[a = m + j](A_<mu m> uniform(s, mu, m), B_<mu j>); y_mu = C_<mu bar(a)> uniform(s, a) z_a",
}  # fmt: skip


@pytest.mark.parametrize("name", PLACES)
def test_numbers_mean_the_same_wherever_they_stand_in_every_plan(name):
    program, sizes = (
        ta.parse(PLACES[name]),
        {"mu": 5, "nu": 5, "rho": 5, "i": 3, "n": 2, "h": 2, "e": 3, "m": 4, "j": 2, "a": 6},
    )
    assert ta.parse(str(program)) == program
    rng, given, arrays = np.random.default_rng(0), {"h": 2} if name == "split" else {}, {"s": 3}
    for tensor in program.tensors:
        if tensor.name not in (*program.defined, "s"):
            shape = [math.prod(sizes[i.name] for i in getattr(slot, "indices", (slot,))) for slot in tensor.slots]
            arrays[tensor.name] = np.abs(rng.normal(size=shape))
    want, scale = (f(program, arrays, given)["y"] for f in (evaluate, magnitude))
    for plan in ("dense", "streamed", "factored", "flattened"):
        with suppress(ta.PlanError):
            got = ta.compile(program, plan=plan, sizes=given)(arrays)
            assert np.all(np.abs(got - want) <= 1e-11 * np.maximum(scale, 1)), plan
