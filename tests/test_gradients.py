"""`ta.grad`: the rules, names, masks, second derivatives, memory, and what is refused."""

from __future__ import annotations

import json
import tracemalloc

import numpy as np
import pytest
import torch
from click.testing import CliRunner

import tensorattn as ta
from tensorattn.cli import main
from tensorattn.ir import Normalise, walk
from tensorattn.lowering import streaming
from tests.gradients import agree, by_program, by_torch, close, differences, normal, seed_of

SOFTMAX = "y^mu_n = W^<mu bar(nu)> v^nu_n"
JOINT = "W^<mu nu rho> = k^mu_i q^nu_i r^rho_i\ny^mu_n = W^<mu bar(nu rho)> v^nu_n w^rho_n"
pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")


# What is printed ----------------------------------------------------------------------------------------------------


def test_the_gradient_of_attention_reads_as_it_is_written_by_hand() -> None:
    assert str(ta.grad("y_<i e> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|)) V_<j e>", ["Q", "K", "V"])) == (
        "yWeights_<i j> = softmax[j](Q_<i d> K_<j d> / sqrt(|d|))\n"
        "y_<i e> = yWeights_<i j> V_<j e>\n"
        "dyWeights_<i j> = dy_<i e> V_<j e>\n"
        "dyMean_i = yWeights_<i j> dyWeights_<i j>\n"
        "dyScore_<i j> = yWeights_<i j> (dyWeights_<i j> - dyMean_i)\n"
        "dQ_<i d> = dyScore_<i j> K_<j d> / sqrt(|d|)\n"
        "dK_<j d> = dyScore_<i j> Q_<i d> / sqrt(|d|)\n"
        "dV_<j e> = dy_<i e> yWeights_<i j>"
    )


def test_nothing_divides_by_a_sum_of_exponentials() -> None:
    gradient = ta.grad(JOINT, ["k", "q", "r", "v", "w"])
    assert "exp" not in str(gradient)
    assert " / " not in str(gradient)
    assert sum(isinstance(n, Normalise) for s in gradient.statements for n in walk(s.body)) == 1


def test_names_that_exist_get_a_number() -> None:
    gradient = ta.grad("y_i = dx_i x_i + dy_i yWeights_i * softmax[i](x_i)", "x")
    assert set(gradient.inputs) == {"dx", "x", "dy", "yWeights", "dy1"}
    assert gradient.defined[-1] == "dx1"


def test_a_name_is_no_constant_and_no_index() -> None:
    assert ta.grad("y_<i j> = elta_<i j>**2", "elta").defined[-1] == "delta1"
    assert ta.grad("y_<dk> = k * x_<dk> * dk", "k").defined[-1] == "dk1"


def test_gradients_are_the_last_statements_in_the_order_asked_for() -> None:
    gradient = ta.grad(SOFTMAX, ["v", "W"])
    assert gradient.defined[-2:] == ("dv", "dW")
    assert gradient.statement("dW").axes == gradient.statement("yWeights").axes


def test_values_and_gradients_are_outputs_of_one_program() -> None:
    arrays = normal(W=(3, 4), v=(4, 2), dy=(3, 2))
    results = ta.compile(ta.grad(SOFTMAX, "v"), outputs=["y", "dv"])(arrays)
    np.testing.assert_allclose(results["y"], ta.compile(SOFTMAX)(W=arrays["W"], v=arrays["v"]), atol=1e-12)


def test_several_outputs_have_a_cotangent_each() -> None:
    text = "a_i = x_i**2\nb = a_i x_i"
    gradient = ta.grad(text, "x", output=["a", "b"])
    arrays = normal(x=(3,), da=(3,)) | {"db": np.float64(0.5)}
    x, da = arrays["x"], arrays["da"]
    close([ta.compile(gradient)(arrays)], [2 * x * da + 0.5 * 3 * x**2])


# Normalisers, reductions, slots -------------------------------------------------------------------------------------

KEEP = np.array([[True, True, False, True], [False, False, False, False], [True, False, True, True]])
NORMALISERS = [f"{kind}[j{{}}](s_<i j>)" for kind in ("softmax", "softmax1", "sparsemax", "l1norm", "l2norm")]
NORMALISERS += ["softmax[j{}; sink=b_i](s_<i j>)", "entmax[j{}; 1.5](s_<i j>)", "entmax[j{}; 1.25](s_<i j>)"]
NORMALISERS += ["l1norm[j{}; eps=b_i](s_<i j>**2)", "softmax[i j{}](s_<i j>)", "entmax[j{}; 1](s_<i j>)"]


@pytest.mark.parametrize("masked", ["", " : keep_<i j>", " : top[j; 2](s_<i j>)"])
def test_normalisers(masked: str) -> None:
    arrays = normal(s=(3, 4), v=(4, 2), b=(3,), c=(len(NORMALISERS), 2)) | {"keep": KEEP}
    arrays["b"] = abs(arrays["b"])
    chosen = NORMALISERS[:3] if "top" in masked else NORMALISERS
    lines = [f"w{n}_<i j> = {weights.format(masked)}" for n, weights in enumerate(chosen)]
    total = " + ".join(f"c_<{n}, n> w{n}_<i j> v_<j n>" for n in range(len(chosen)))
    program = ta.parse("\n".join([*lines, f"y_<i n> = {total}"]))
    given = {n: arrays[n] for n in program.inputs}
    gradient = agree(program, [n for n in ("s", "v", "b") if n in given], given)
    if "keep" in masked:
        found = by_program(gradient, 3, {**given, "dy": np.ones((3, 2))})
        assert (found[0][~KEEP] == 0).all()


@pytest.mark.parametrize("exponent", [1.0, 1 + 1e-4, 1.3, 2.0])
def test_the_exponent_of_entmax(exponent: float) -> None:
    arrays = normal(s=(3, 4), v=(4, 2)) | {"keep": KEEP, "a": np.array([exponent, 1.7, exponent])}
    program = ta.parse("y_<i n> = entmax[j : keep_<i j>; a_i](s_<i j>) v_<j n>")
    seed = seed_of(program, arrays)
    found = by_program(ta.grad(program, ["s", "v", "a"]), 3, {**arrays, "dy": seed})
    close(found, by_torch(program, ["s", "v", "a"], arrays, seed), 1e-8 if exponent == 1 + 1e-4 else 1e-10)
    if exponent > 1:  # below 1 there is none
        close(found[2:], [differences(program, "a", arrays, seed)], 1e-6)


def test_the_exponent_of_entmax_has_second_derivatives() -> None:
    arrays = normal(s=(2, 4)) | {"a": np.array(1.4), "dy": np.ones(2)}
    once = ta.grad("y_i = max[j](entmax[j; a](s_<i j>))", "a")
    found = by_program(ta.grad(once, ["a", "s"], output="da"), 2, {**arrays, "dda": np.array(1.0)})
    close(found, [differences(once, n, arrays, np.float64(1)) for n in ("a", "s")], 1e-6)


@pytest.mark.parametrize("masked", ["", " : keep_<i j>", " : j <= i"])
def test_reductions(masked: str) -> None:
    arrays = normal(x=(3, 4), a=(3,), c=(6,)) | {"keep": KEEP | np.eye(3, 4, dtype=bool)}
    arrays["x"][0, 1] = arrays["x"][2, 2] = 0
    kinds = ("sum", "mean", "max", "min", "lse", "prod")
    total = " + ".join(f"c_<{n}> {kind}[j{masked}](x_<i j>)" for n, kind in enumerate(kinds))
    program = ta.parse(f"y_i = a_i * ({total})")
    agree(program, ["x", "a", "c"], {n: arrays[n] for n in program.inputs})


def test_ties_share_and_zeros_leave_the_other_factors() -> None:
    arrays = {"x": np.array([[2.0, 5.0, 5.0]]), "dy": np.ones(1)}
    assert by_program(ta.grad("y_i = max[j](x_<i j>)", "x"), 1, arrays)[0].tolist() == [[0, 0.5, 0.5]]
    arrays["x"] = np.array([[0.0, 3.0, 4.0]])
    assert by_program(ta.grad("y_i = prod[j](x_<i j>)", "x"), 1, arrays)[0].tolist() == [[12, 0, 0]]


SLOTS = [
    ("s_<i j> = R_<i - j + |j| - 1> + a_i b_j", {"R": (8,), "a": (5,), "b": (4,)}, None),
    ("y_<t c> = sum[s](x_<t + s, d> w_<s d c>)", {"x": (7, 3), "w": (3, 3, 2)}, {"t": 5}),
    ("y_t = sum[s : 0 <= t - s](x_<t - s> w_s)", {"x": (6,), "w": (6,)}, {"t": 6}),
    ("y_<mu n> = sum[nu : mu >= 1 and nu <= mu](x_<mu - 1, n> a_<mu nu>)", {"x": (5, 2), "a": (5, 5)}, None),
    ("l = sum[i : i >= 1]((x_<i - 1> - t_i)**2)", {"x": (5,), "t": (5,)}, None),
    ("y_<i d> = x_<2*i + 1, d>", {"x": (10, 2)}, {"i": 5}),
    ("y_d = x_<0, d> + 2 * x_<2, d>", {"x": (4, 3)}, None),
    ("s = z_<a b> z_<b a>", {"z": (3, 3)}, None),
    ("y_i = x_<i i> a_i + b", {"x": (3, 3), "a": (3,), "b": ()}, None),
    ("y_<t (h d)> = x_<t (h d)> z_<t h> + x_<t f> u_f", {"x": (2, 6), "z": (2, 2), "u": (6,)}, {"d": 3}),
    ("C_<i a> = cat[a = m + j](X_<i m>, Y_<i j>**2)", {"X": (2, 3), "Y": (2, 4)}, None),
    ("z_<t (h d)> = q_<t h d>**2\ny_<t o> = z_<t f> W_<f o>", {"q": (2, 3, 2), "W": (6, 2)}, None),
]


@pytest.mark.parametrize(("text", "shapes", "sizes"), SLOTS)
def test_slots(text: str, shapes: dict[str, tuple[int, ...]], sizes: dict[str, int] | None) -> None:
    if text.startswith("y_<t (h d)> = x_<t (h d)>"):
        text = "y_<t f> = x_<t f> u_f\nw_<t (h d)> = x_<t (h d)> z_<t h>\nr_<t f> = y_<t f> + w_<t f>"
    agree(text, list(shapes), normal(**shapes), sizes)


def test_a_gather_scatters() -> None:
    arrays = normal(bias=(2, 3)) | {"D": np.array([[0, 2, 2], [1, 1, 2]])}
    gradient = agree("B_<h i j> = bias_<h, D_<i j>>", ["bias"], arrays)
    assert "sum[i j : p == D_<i j>](dB_<h i j>)" in str(gradient)


def test_an_input_without_influence_has_the_gradient_zero() -> None:
    arrays = {"x": np.array([np.nan, 1.0]), "w": np.ones(2, dtype=np.float32), "dy": np.ones(2)}
    gradient = ta.grad("y_i = w_i * (x_i > 0)", "x")
    found = ta.compile(gradient)(arrays)
    assert found.tolist() == [0, 0]
    assert ta.compile(ta.grad("y_i = x_i\nz_i = sign(w_i)", "w"))(w=arrays["w"], dz=arrays["w"]).dtype == np.float32


# Masks --------------------------------------------------------------------------------------------------------------


def test_what_a_predicate_excludes_has_the_gradient_zero_whatever_it_holds() -> None:
    keep = np.array([[True, False, True], [False, False, False]])
    text = "z_<j n> = exp(v_<j n>)\ny_<i n> = softmax[j : keep_<i j>](q_<i d> k_<j d>) z_<j n>"
    arrays = normal(q=(2, 2), k=(3, 2), v=(3, 2), dy=(2, 2)) | {"keep": keep}
    clean = by_program(ta.grad(text, ["q", "k", "v"]), 3, arrays)
    for bad in (np.nan, np.inf):
        poisoned = {n: a.copy() for n, a in arrays.items()}
        poisoned["k"][1] = poisoned["v"][1] = bad
        for plan in ("dense", "streamed"):
            found = by_program(ta.grad(text, ["q", "k", "v"]), 3, poisoned, plan=plan)
            close(found, clean)
            assert (found[0][1] == 0).all()
            assert (found[1][1] == 0).all()
            assert (found[2][1] == 0).all()


def test_a_masked_loss_hides_its_entries_across_statements() -> None:
    text = "e_i = (x_i - t_i)**2\nloss = sum[i : m_i](e_i)"
    arrays = {"x": np.array([1.0, np.nan, 3.0]), "t": np.zeros(3), "m": np.array([True, False, True])}
    found = by_program(ta.grad(text, ["x", "t"]), 2, {**arrays, "dloss": 1.0})
    close(found, [np.array([2.0, 0, 6]), np.array([-2.0, 0, -6])])


# Second derivatives, plans, memory ----------------------------------------------------------------------------------

TWICE = [
    ("y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n", {"q": (3, 2), "k": (3, 2), "v": (3, 2)}),
    ("y_i = log(sum[j](exp(A_<i j>))) + entmax[j; 1.5](A_<i j>) x_j", {"A": (2, 3), "x": (3,)}),
    ("h_a = tanh(W_<a b> x_b)\ns = softmax[a](h_a) h_a", {"W": (3, 2), "x": (2,)}),
    ("y_i = l2norm[j](A_<i j>) x_j + prod[j](A_<i j>)", {"A": (2, 3), "x": (3,)}),
]


@pytest.mark.parametrize(("text", "shapes"), TWICE)
def test_a_gradient_program_is_differentiated_again(text: str, shapes: dict[str, tuple[int, ...]]) -> None:
    arrays, wrt, (first, *_) = normal(**shapes), list(shapes), shapes
    program = ta.parse(text)
    once = ta.grad(program, first)
    (seed,) = set(once.inputs) - set(program.inputs)
    arrays[seed] = seed_of(program, arrays)
    twice = ta.grad(once, [*wrt, seed])
    (again,) = set(twice.inputs) - set(once.inputs)
    cotangent = np.random.default_rng(5).normal(size=arrays[first].shape)
    tensors = {n: torch.tensor(a, requires_grad=True) for n, a in arrays.items()}
    value = ta.compile(program, plan="dense")({n: t for n, t in tensors.items() if n != seed})
    (slope,) = torch.autograd.grad(value, tensors[first], tensors[seed], create_graph=True)
    wanted = torch.autograd.grad(slope, [tensors[n] for n in (*wrt, seed)], torch.tensor(cotangent), allow_unused=True)
    found = by_program(twice, len(wrt) + 1, {**arrays, again: cotangent})
    close(found, [np.zeros(f.shape) if w is None else w.numpy() for f, w in zip(found, wanted, strict=True)])


@pytest.mark.parametrize("options", [{"plan": "dense"}, {"plan": "streamed"}, {"memory": 500_000}])
def test_every_plan(options: dict[str, object]) -> None:
    shapes = dict.fromkeys(("k", "q", "r", "v", "w"), (17, 3))
    agree(JOINT, list(shapes), normal(**shapes), torch_too=True, **options)


def test_central_differences() -> None:
    text = "y_<i n> = softmax[j : j <= i; sink=b](tanh(q_<i d> k_<j d>)) v_<j n> / (1 + q_<i d> q_<i d>)"
    arrays = normal(q=(3, 2), k=(3, 2), v=(3, 2), b=())
    program = ta.parse(text)
    seed = seed_of(program, arrays)
    found = by_program(ta.grad(program, list(arrays)), 4, {**arrays, "dy": seed})
    close(found, [differences(program, n, arrays, seed) for n in arrays], tolerance=1e-7)


CAUSAL = "y^mu_n = softmax[nu : nu <= mu](q^mu_i k^nu_i) v^nu_n"
SHIFTED = "y^mu_n = softmax[nu : nu >= 1 and nu <= mu](q^mu_i k^nu_i) v^<nu - 1>_n"
MEMORY = [  # 128³ weights are 16 MB, and dense takes three arrays like them; a tile is 8 MB, or what the budget leaves
    (JOINT, 128, {"plan": "streamed"}, 30 << 20),
    (JOINT, 128, {"memory": 3 << 20}, 4 << 20),
    (CAUSAL, 1536, {"plan": "streamed"}, 10 << 20),  # 18 MB
    (CAUSAL, 1536, {"memory": 2 << 20}, 3 << 20),
    (SHIFTED, 1536, {"plan": "streamed"}, 12 << 20),
]


@pytest.mark.parametrize(("text", "size", "options", "bound"), MEMORY)
def test_weights_are_never_built(text: str, size: int, options: dict[str, object], bound: int) -> None:
    names = list(ta.parse(text).inputs)
    gradient = ta.grad(text, names)
    arrays = normal(**dict.fromkeys((*names, "dy"), (size, 4)))
    outputs = [f"d{n}" for n in names]
    wanted = ta.compile(gradient, outputs=outputs, plan="dense")(arrays)
    compiled = ta.compile(gradient, outputs=outputs, **options)
    compiled(arrays)
    tracemalloc.start()
    found = compiled(arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < bound
    close(list(found.values()), list(wanted.values()))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_guarded_sums_are_carried_from_tile_to_tile(bad: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no finite number marks what it reaches in any tile, and nothing else."""
    arrays = normal(q=(40, 3), k=(40, 3), v=(40, 2), dy=(40, 2))
    arrays["k"][30], arrays["v"][35, 0], arrays["dy"][38, 1] = bad, bad, bad
    gradient = ta.grad(CAUSAL.replace("nu <= mu", "nu <= mu and mu < nu + 4"), ["q", "k", "v"])
    wanted = by_program(gradient, 3, arrays, plan="dense")
    assert all(np.isnan(w).any() and np.isfinite(w).any() for w in wanted)
    monkeypatch.setattr(streaming, "TILE_ENTRIES", 200)
    for found, same in zip(by_program(gradient, 3, arrays, plan="streamed"), wanted, strict=True):
        np.testing.assert_allclose(found, same, rtol=1e-10, atol=1e-10)


# What is refused ----------------------------------------------------------------------------------------------------

REFUSED = [
    (
        (SOFTMAX, "w", None),
        ("E-UNDEF: the program has no input `w`\n  its inputs: W, v\n  help: did you mean `W`?"),
    ),
    (
        ("a_i = x_i\ny_i = a_i**2", "a", None),
        (
            "E-UNDEF: the program has no input `a`\n  its inputs: x\n"
            "  help: `a` is a statement: give the ones after it as a program of their own, of which it is an input"
        ),
    ),
    (
        (SOFTMAX, "W", "z"),
        (
            "E-UNDEF: the program has no statement `z`\n  its statements: y\n"
            "  help: name a statement, which stands left of a `=`"
        ),
    ),
    (
        (SOFTMAX, ["W", "W"], None),
        ("E-UNDEF: wrt= names `W` twice\n  help: name it once"),
    ),
    (
        (SOFTMAX, [], None),
        ('E-UNDEF: wrt=[] names nothing\n  help: wrt="q", or wrt=["q", "k"]'),
    ),
    (
        ("B_<h i> = bias_<h, D_i>", "D", None),
        (
            "E-DTYPE: `D` is a position in `bias`, an integer without a derivative\n   1 | B_<h i> = bias_<h, D_i>\n"
            "                          ^^^\n  only real numbers have gradients\n  help: leave `D` out of wrt="
        ),
    ),
    (
        ("y_i = softmax[j : m_j](s_<i j>) v_j", ["v", "m"], None),
        (
            "E-DTYPE: `m` is a predicate here, a truth without a derivative\n"
            "   1 | y_i = softmax[j : m_j](s_<i j>) v_j\n"
            "                         ^^^\n  only real numbers have gradients\n  help: leave `m` out of wrt="
        ),
    ),
    (
        ("y^<... i> = x^<... j> A_<i j>", "A", None),
        (
            "E-GRAD: the gradient of `A` would be a sum over `...`, which the notation has not\n"
            "   1 | y^<... i> = x^<... j> A_<i j>\n                             ^^^^^^^\n"
            "  `A` has no `...`: the same numbers serve every batch entry\n"
            "  `...` stands for axes whose number is not known, and is never summed\n"
            "  help: write the batch axes as indices with names, e.g. b in the place of `...`; or give `A` the `...` "
            "as well, broadcast it at the call, and sum its gradient over these axes"
        ),
    ),
]


@pytest.mark.parametrize(("asked", "message"), REFUSED)
def test_what_is_refused(asked: tuple[str, object, str | None], message: str) -> None:
    with pytest.raises(ta.TensorattnError) as caught:
        ta.grad(*asked)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_both_ways_around_a_sum_over_the_batch() -> None:
    """That the message names: a named axis, and `...` for the shared input, too."""
    given = normal(q=(2, 3, 4), K=(5, 4), V=(5, 6), dy=(2, 3, 6))
    tensors = {name: torch.tensor(array, requires_grad=True) for name, array in given.items()}
    y = torch.softmax(tensors["q"] @ tensors["K"].T, -1) @ tensors["V"]
    wanted = torch.autograd.grad(y, tensors["K"], tensors["dy"].detach())[0].numpy()
    text = "y_<{} m n> = softmax[k](q_<{} m i> {}) V_<k n>"
    named = ta.compile(ta.grad(text.format("b", "b", "K_<k i>"), "K"))
    np.testing.assert_allclose(named(given), wanted, atol=1e-12)
    spread = ta.compile(ta.grad(text.format("...", "...", "K_<... k i>"), "K"))
    found = spread(given | {"K": np.broadcast_to(given["K"], (2, 5, 4))})
    np.testing.assert_allclose(found.sum(0), wanted, atol=1e-12)


# The command line -----------------------------------------------------------------------------------------------------


def test_the_command_prints_the_program() -> None:
    found = CliRunner().invoke(main, ["grad", "y_i = A_<i j> x_j", "--wrt", "x"])
    assert (found.exit_code, found.output) == (0, "y_i = A_<i j> x_j\ndx_j = dy_i A_<i j>\n")


def test_the_command_prints_json() -> None:
    arguments = ["grad", "a_i = x_i**2\nb_i = a_i", "--wrt", "x", "--output", "a", "--format", "json"]
    found = CliRunner().invoke(main, arguments)
    assert json.loads(found.stdout) == {
        "program": "a_i = x_i**2\nb_i = a_i\ndx_i = 2 da_i x_i",
        "inputs": ["x", "da"],
        "outputs": ["dx"],
    }


@pytest.mark.parametrize("given", [("A,x",), ("A, x",), ("A", "x"), ("A,x", "x")])
def test_the_command_takes_several_names(given: tuple[str, ...]) -> None:
    options = [text for name in given for text in ("--wrt", name)]
    found = CliRunner().invoke(main, ["grad", "y_i = A_<i j> x_j", *options, "--format", "json"])
    assert found.exit_code == 0
    assert json.loads(found.stdout)["outputs"] == ["dA", "dx"]


def test_the_command_reports_errors() -> None:
    found = CliRunner().invoke(main, ["grad", "y_i = A_<i j> x_j", "--wrt", "z"])
    assert found.exit_code == 1
    assert found.stderr.startswith("E-UNDEF: the program has no input `z`")
