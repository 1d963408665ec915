"""Each instruction on small hand-built kernels, in both back ends, against NumPy loops."""

import itertools

import numpy as np
import pytest

from tensorattn import backends
from tensorattn.errors import ShapeError
from tensorattn.ir import Index
from tensorattn.kernel import (
    Apply,
    Arrange,
    Carry,
    Cast,
    CheckRange,
    Contract,
    Fill,
    Fold,
    Gather,
    IfFinite,
    Join,
    Kernel,
    Literal,
    Load,
    Output,
    SegmentSum,
    Slice,
    Stream,
    View,
)  # fmt: skip
from tensorattn.sizes import Axis, Quotient, Size
from tests.kernels import BOTH, INF, NAN, axes, call, close, kernel, one, random, register, strided

# Reading --------------------------------------------------------------------------------------------------------


@BOTH
def test_load_casts_splits_and_takes_diagonals(library):
    x = np.arange(36, dtype=np.int32).reshape(3, 3, 4)
    load = Load(register("r", "i h d"), "x", (axes("i"), axes("i"), axes("h d")))
    sizes = (("i", Axis("x", 0)), ("h", 2), ("d", Quotient(Axis("x", 2), ("h",))))
    made = Kernel(("x",), sizes, (load,), (Output("y", load.out, (axes("d i"), axes("h")), "float32"),))
    expected = np.zeros((2, 3, 2), np.float32)
    for i, h, d in itertools.product(range(3), range(2), range(2)):
        expected[d, i, h] = x[i, i, h * 2 + d]
    close(call(library, made, x)[0], expected.reshape(6, 2))


@BOTH
def test_load_reads_a_diagonal_of_three(library):
    x = random(3, 3, 3)
    made = Kernel(
        ("x",), (("i", Axis("x", 0)),), (load := Load(register("r", "i"), "x", (axes("i"),) * 3),),
        (Output("y", load.out, (axes("i"),), "float64"),),
    )  # fmt: skip
    close(call(library, made, x)[0], [x[i, i, i] for i in range(3)])


@BOTH
def test_sizes_of_every_kind(library):
    sizes = (
        ("a", Axis("x", 0)), ("m", 2), ("j", Size.of("a") - Size.of("m")), ("t", Size.of("a") + Size.of("m")),
        ("s", Size.of("t")), ("q", Quotient(Size.of("t") * 2, ("m",))),
    )  # fmt: skip
    outs = [register(f"r{n}", n) for n in "jtsq"]
    body = tuple(Fill(out, 1.5) for out in outs)
    made = kernel({"x": ("a", "float64")}, body, outs, sizes)
    assert [r.shape for r in call(library, made, np.zeros(5))] == [(3,), (7,), (7,), (7,)]


@BOTH
@pytest.mark.parametrize("value", [2, 2.5, True])
def test_python_numbers_are_scalar_inputs(library, value):
    made = kernel({"c": ("", "float64")}, (), [register("c", "")])
    (result,) = backends.get(library).build(made, "f")(value)
    assert float(result) == value
    assert result.shape == ()


@BOTH
def test_view_arrange_cast(library):
    x = random(2, 6)
    view = View(register("v", "a b c"), register("x", "i j"), (axes("a"), axes("b c")))
    arrange = Arrange(register("w", "c n a b"), view.out)
    cast = Cast(register("z", "c n a b", "int64"), arrange.out)
    sizes = (("a", Axis("x", 0)), ("b", 3), ("c", 2), ("n", 4))
    expected = np.broadcast_to(x.reshape(2, 3, 2).transpose(2, 0, 1)[:, None], (2, 4, 2, 3))
    made = kernel({"x": ("i j", "float64")}, (view, arrange, cast), [arrange.out, cast.out], sizes)
    first, second = call(library, made, x)
    close(first, expected)
    close(second, expected.astype(np.int64))
    first[...] = 0  # a broadcast result is an array like any other


# Contractions ---------------------------------------------------------------------------------------------------

CONTRACTIONS = [
    ("i d", "j d", "i j"), ("i d", "d", "i"), ("d", "d j", "j"), ("d", "d", ""), ("i", "j", "j i"),
    ("i j", "i j", "j i"),
    ("b i d", "b j d", "b i j"), ("i d b", "j d b", "b j i"), ("b i d", "d e", "b i e"), ("b d", "b d", "b"),
    ("b d", "b d j", "j b"), ("a b i d e", "e b d j k a", "k i a j b"), ("i j", "k", "k"), ("i d z", "d j w", "j i"),
    ("", "i", "i"), ("", "", ""), ("i j", "i j", ""), ("d i", "e", ""), ("h i c", "i h c k", "k"),
    ("a d", "b a d", "b a"),
]  # fmt: skip
EXTENT = dict(zip("abcdehijkwz", (2, 3, 5, 4, 2, 3, 5, 2, 3, 2, 3), strict=True))


@BOTH
@pytest.mark.parametrize("dtype", ["float64", "float32", "int64"])
@pytest.mark.parametrize(("a", "b", "out"), CONTRACTIONS)
def test_contract(library, a, b, out, dtype):
    contract = Contract(register("r", out, dtype), register("x", a, dtype), register("y", b, dtype))
    made = kernel({"x": (a, dtype), "y": (b, dtype)}, (contract,), [contract.out])
    function = backends.get(library).build(made, "contract")
    for zero in ("", *sorted({*a.split(), *b.split()})):
        extent = {**EXTENT, zero: 0}
        x, y = (np.round(random(*(extent[i] for i in t.split()), seed=n) * 4) for n, t in enumerate((a, b)))
        (result,) = function(strided(library, x), strided(library, y))
        expected = np.einsum(f"{a},{b}->{out}".replace(" ", ""), x, y)
        close(np.asarray(result), np.asarray(expected).astype(dtype), 1e-5)


@BOTH
def test_contract_more_indices_than_letters(library):
    left = [f"l{n}" for n in range(28)]
    right = [f"r{n}" for n in range(28)]
    a, b = " ".join([*left, "d"]), " ".join(["d", *right])
    x, y = random(*(1,) * 28, 3), random(3, *(1,) * 28)
    contract = Contract(register("r", " ".join([*left, *right])), register("x", a), register("y", b))
    result = one(library, {"x": (a, "float64"), "y": (b, "float64")}, contract, x, y)
    assert result.ndim == 56
    close(result.reshape(()), np.asarray(x.ravel() @ y.ravel()))


@BOTH
def test_one_index_a_group_needs_no_reshape(library):
    contract = Contract(register("r", "b j i"), register("x", "b i d"), register("y", "d b j"))
    made = kernel({"x": ("b i d", "float64"), "y": ("d b j", "float64")}, (contract,), [contract.out])
    assert "reshape" not in backends.get(library).render(made, "f")


# Positions ------------------------------------------------------------------------------------------------------


@BOTH
def test_gather(library):
    table, p = random(3, 5, 4), np.array([[0, 4], [2, 2], [1, 3]], np.int32)
    inputs = {"t": ("h x d", "float64"), "p": ("i j", "int64")}
    t, position = register("t", "h x d"), register("p", "i j", "int64")
    gather = Gather(register("r", "j h i d"), t, (*axes("h"), position, *axes("d")))
    close(one(library, inputs, gather, table, p), table[:, p].transpose(2, 0, 1, 3))
    same = Gather(register("r", "j i d"), t, (*axes("i"), position, *axes("d")))
    close(one(library, inputs, same, table, p), np.array([[table[i, p[i, j]] for i in range(3)] for j in range(2)]))
    both = Gather(register("r", "i j"), t, (*axes("i"), position, register("q", "j", "int64")))
    expected = np.array([[table[i, p[i, j], (0, 3)[j]] for j in range(2)] for i in range(3)])
    close(one(library, {**inputs, "q": ("j", "int64")}, both, table, p, [0, 3]), expected)


@BOTH
def test_gather_of_single_positions_and_plain_indices(library):
    table = random(3, 4)
    inputs, t = {"t": ("h d", "float64"), "p": ("", "int64")}, register("t", "h d")
    fixed = Gather(register("r", "h"), t, (*axes("h"), register("p", "", "int64")))
    close(one(library, inputs, fixed, table, 2), table[:, 2])
    plain = Gather(register("r", "d h"), t, axes("h d"))
    close(one(library, {"t": inputs["t"]}, plain, table), table.T)
    diagonal = Gather(register("r", "i"), register("t", "a b"), axes("i i"))
    square = {"t": ("a b", "float64"), "x": ("i", "float64")}
    close(one(library, square, diagonal, table[:, :3], np.zeros(3)), table.diagonal())


@BOTH
def test_check_range(library):
    inputs = {"p": ("i", "int64"), "w": ("i j", "bool"), "t": ("n", "float64")}
    p, w = register("p", "i", "int64"), register("w", "i j", "bool")
    masked = CheckRange(register("r", "i j", "int64"), p, Size.of("n"), w, "the slot `t_<p>`")
    positions, mask = np.array([0, 7, 2]), np.array([[1, 1], [0, 0], [0, 1]], bool)
    got = one(library, inputs, masked, positions, mask, np.zeros(4))
    assert got.tolist() == [[0, 0], [0, 0], [0, 2]]
    some = CheckRange(register("r", "i", "int64"), p, Size.of("n"), w, "the slot")
    assert one(library, inputs, some, positions, mask, np.zeros(4)).tolist() == [0, 0, 2]
    plain = CheckRange(register("r", "i", "int64"), p, Size.of("n"), None, "the slot `t_<p>`")
    for bad in ([0, -1, 2], [4, 0, 0]):
        with pytest.raises(ShapeError) as caught:
            one(library, inputs, plain, bad, mask, np.zeros(4))
        assert caught.value.code == "E-RANGE"
        assert "the slot `t_<p>`" in str(caught.value)
        assert f"position {bad[0] or bad[1]}" in str(caught.value)
        assert "0..3" in str(caught.value)
    with pytest.raises(ShapeError):
        one(library, inputs, masked, positions, np.ones((3, 2), bool), np.zeros(4))
    with pytest.raises(ShapeError, match="E-RANGE"):
        one(library, inputs, plain, [0, 0, 0], mask, np.zeros(0))


@BOTH
@pytest.mark.parametrize("segments", ["n", "n b"])
@pytest.mark.parametrize("length", [5, 0])
def test_segment_sum(library, segments, length):
    x = random(2, length, 3)
    s = np.random.default_rng(1).integers(0, 4, size=(length, 2)[: len(segments.split())])
    instruction = SegmentSum(
        register("r", "c b s"), register("x", "b n c"), register("p", segments, "int64"), Index("n"), Index("s")
    )
    expected = np.zeros((3, 2, 4))
    for b, n in itertools.product(range(2), range(length)):
        expected[:, b, s[n] if s.ndim == 1 else s[n, b]] += x[b, n]
    inputs = {"x": ("b n c", "float64"), "p": (segments, "int64")}
    close(one(library, inputs, instruction, x, s, sizes=(("s", 4),)), expected)


@BOTH
def test_join(library):
    x, y = random(2, 3), random(4)
    join = Join(register("r", "a i"), Index("a"), (register("x", "i m"), register("y", "j")), (Index("m"), Index("j")))
    sizes = (("i", Axis("x", 0)), ("m", Axis("x", 1)), ("j", Axis("y", 0)), ("a", Size.of("m") + Size.of("j")))
    inputs = {"x": ("i m", "float64"), "y": ("j", "float64")}
    expected = np.concatenate([x.T, np.broadcast_to(y[:, None], (4, 2))])
    close(one(library, inputs, join, x, y, sizes=sizes), expected)


# Streams and branches -------------------------------------------------------------------------------------------


def streamed(tile):
    """Attention by the online softmax: the carry is (m, l, o)."""
    f = "float64"
    q, k, v = register("q", "i d"), register("k", "j d"), register("v", "j e")
    names = "kt vt s mp sh e lp op mm a b c1 c2 lm om o1 o2"
    shapes = "j d,j e,i j,i,i j,i j,i,i e,i,i,i,i,i,i,i e,i e,i e".split(",")
    r = {n: register(n, t, f) for n, t in zip(names.split(), shapes, strict=True)}
    m, total, o = register("m", "i"), register("l", "i"), register("o", "i e")
    body = (
        Slice(r["kt"], k, Index("j")), Slice(r["vt"], v, Index("j")), Contract(r["s"], q, r["kt"]),
        Fold(r["mp"], "max", r["s"]), Apply(r["sh"], "subtract", (r["s"], r["mp"])), Apply(r["e"], "exp", (r["sh"],)),
        Fold(r["lp"], "sum", r["e"]), Contract(r["op"], r["e"], r["vt"]),
    )  # fmt: skip
    merge = (
        Apply(r["mm"], "maximum", (m, r["mp"])), Apply(r["a"], "subtract", (m, r["mm"])),
        Apply(r["c1"], "exp", (r["a"],)),
        Apply(r["b"], "subtract", (r["mp"], r["mm"])), Apply(r["c2"], "exp", (r["b"],)),
        Apply(register("l1", "i"), "multiply", (total, r["c1"])),
        Apply(register("l2", "i"), "multiply", (r["lp"], r["c2"])),
        Apply(r["lm"], "add", (register("l1", "i"), register("l2", "i"))),
        Apply(r["o1"], "multiply", (o, r["c1"])), Apply(r["o2"], "multiply", (r["op"], r["c2"])),
        Apply(r["om"], "add", (r["o1"], r["o2"])),
    )  # fmt: skip
    carry = (Carry(m, -INF, r["mp"]), Carry(total, 0.0, r["lp"]), Carry(o, 0.0, r["op"]))
    stream = Stream(Index("j"), Size.of("j"), tile, body, carry, merge, (r["mm"], r["lm"], r["om"]))
    y = Apply(register("y", "e i"), "divide", (o, total))
    inputs = {"q": ("i d", f), "k": ("j d", f), "v": ("j e", f)}
    return kernel(inputs, (stream, y), [y.out, m, total])


@BOTH
@pytest.mark.parametrize("tile", [1, 3, 7, 100])
def test_stream_of_the_online_softmax(library, tile):
    q, k, v = random(2, 3), random(7, 3, seed=1), random(7, 5, seed=2)
    score = q @ k.T
    weights = np.exp(score - score.max(1, keepdims=True))
    y, m, total = call(library, streamed(tile), q, k, v)
    close(y, (weights @ v / weights.sum(1, keepdims=True)).T)
    close(m, score.max(1))
    close(total, weights.sum(1))


@BOTH
def test_stream_over_nothing_leaves_the_units(library):
    _, m, total = call(library, streamed(3), random(2, 3), random(0, 3), random(0, 5))
    assert m.tolist() == [-INF, -INF]
    assert total.tolist() == [0, 0]


@BOTH
@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, NAN), (INF, -INF)])
def test_if_finite(library, values):
    x, out = register("x", "i"), register("r", "i")
    branch = IfFinite(out, (x,), (Apply(out, "negate", (x,)),), (Apply(out, "multiply", (x, Literal(-1))),))
    close(one(library, {"x": ("i", "float64")}, branch, values), -np.array(values))
    marked = IfFinite(out, (x,), (Fill(out, 1.0),), (Fill(out, 2.0),))
    expected = 1.0 if np.isfinite(values).all() else 2.0
    assert one(library, {"x": ("i", "float64")}, marked, values).tolist() == [expected] * 2
