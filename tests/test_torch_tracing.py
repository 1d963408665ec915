"""What torch does to a kernel: it traces in one graph with dynamic sizes, maps, and differentiates forward."""

import numpy as np
import pytest
import torch
import torch._dynamo.testing

from tensorattn import backends
from tensorattn.errors import ShapeError
from tensorattn.ir import Index
from tensorattn.kernel import (
    Accumulate,
    Apply,
    CheckRange,
    Contract,
    Fold,
    Gather,
    IfFinite,
    Iota,
    Join,
    Largest,
    Load,
    LogSumExp,
    Normalised,
    Output,
    SegmentSum,
    View,
)
from tensorattn.parts import Literal
from tensorattn.sizes import Axis, Size
from tests.kernels import axes, kernel, random, register


def everything(left_out=()):
    """A kernel that uses every instruction torch traces, but for the results left out."""
    x, y, s, m = register("x", "i d"), register("y", "j d"), register("s", "i j"), register("m", "i j", "bool")
    scaled, root = register("s1", "i j"), register("c", "")
    z = register("z", "i j")
    p, pi = register("p1", "j", "int64"), register("n", "i", "int64")
    body = (
        Contract(s, x, y),
        Apply(root, "sqrt", (Literal(Size.of("d")),)),
        Apply(scaled, "divide", (s, root)),
        Iota(pi, Size.of("i")),
        Apply(m, "less_equal", (register("p", "j", "int64"), pi)),
        Normalised(register("w", "i j"), "softmax", axes("j"), scaled, m),
        Normalised(register("w2", "i j"), "entmax", axes("j i"), scaled, m, (("alpha", Literal(1.5)),)),
        Normalised(register("w3", "i j"), "entmax", axes("j"), scaled, None, (("alpha", Literal(1.25)),)),
        CheckRange(p, register("p", "j", "int64"), Size.of("i"), None, "p"),
        CheckRange(register("p2", "i j", "int64"), register("p", "j", "int64"), Size.of("i"), m, "p"),
        Gather(register("g", "j d"), x, (p, *axes("d"))),
        Gather(register("g2", "i j"), s, (register("p2", "i j", "int64"), *axes("j"))),
        Largest(register("t", "i j", "bool"), axes("j"), Literal(2), s, m),
        Apply(register("s2", "i j"), "select", (register("t", "i j", "bool"), s, Literal(0))),
        LogSumExp(register("l", "i"), s, m),
        Fold(register("f", "j"), "max", s),
        Fold(register("f2", "j"), "prod", s),
        SegmentSum(register("h", "i d"), register("g", "j d"), p, Index("j"), Index("i")),
        Accumulate(register("r", "i d"), y, Index("j"), Index("i"), ((None, -1), (1, 4), (6, None))),
        Join(register("a", "a d"), Index("a"), (x, y), axes("i j")),
        View(register("v", "u d"), x, (axes("u"), axes("d"))),
        IfFinite(z, (s,), (Apply(z, "softplus", (s,)),), (Apply(z, "softplus", (s,)),)),
    )
    outs = ("w", "w2", "w3", "g", "g2", "s2", "l", "f", "f2", "h", "r", "a", "v", "z")
    body = tuple(i for i in body if i.out.name not in left_out)
    written = {i.out.name: i.out for i in body}
    inputs = {"x": ("i d", "float64"), "y": ("j d", "float64"), "p": ("j", "int64")}
    sizes = (
        ("i", Axis("x", 0)), ("j", Axis("y", 0)), ("d", Axis("x", 1)), ("a", Size.of("i") + Size.of("j")),
        ("u", Axis("x", 0)),
    )  # fmt: skip
    return kernel(inputs, body, [written[name] for name in outs if name in written], sizes)


def inputs(i, j, d):
    p = torch.tensor(np.random.default_rng(j).integers(0, i, j))
    return torch.tensor(random(i, d)).requires_grad_(), torch.tensor(random(j, d, seed=1)).requires_grad_(), p


def test_one_graph_serves_many_sizes():
    function = backends.get("torch").build(everything(left_out=("w2", "f2")), "everything")
    graphs = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    traced = torch.compile(function, fullgraph=True, dynamic=True, backend=graphs)
    for sizes in ((3, 5, 4), (4, 6, 2), (7, 3, 5)):
        arrays = inputs(*sizes)
        for ours, plain in zip(traced(*arrays), function(*arrays), strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-12, atol=1e-12)
        loss = [sum(r.sin().sum() for r in f(*arrays)) for f in (traced, function)]
        for ours, plain in zip(*(torch.autograd.grad(value, arrays[:2]) for value in loss), strict=True):
            torch.testing.assert_close(ours, plain, rtol=1e-10, atol=1e-10)
    assert graphs.frame_count == 1
    with pytest.raises(ShapeError, match="E-RANGE"):
        traced(*arrays[:2], arrays[2] + 100)


def test_many_kernels_do_not_share_a_recompile_limit():
    made = kernel({"x": ("i", "float64")}, (a := Apply(register("r", "i"), "exp", (register("x", "i"),)),), [a.out])
    for n in range(torch._dynamo.config.recompile_limit + 4):
        function = backends.get("torch").build(made, "f")
        traced = torch.compile(function, fullgraph=True, dynamic=True, backend="eager")
        assert traced(torch.full((n + 2,), 0.0, dtype=torch.float64))[0].tolist() == [1.0] * (n + 2)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_vmap_and_forward_mode():
    function = backends.get("torch").build(everything(), "everything")
    x, y, p = (a.detach() for a in inputs(3, 5, 4))
    xs, ps = torch.stack([x, x * 2, x - 1]), torch.stack([p, p.flip(0), p * 0])
    mapped = torch.vmap(function, in_dims=(0, None, 0))(xs, y, ps)
    shared = torch.vmap(function, in_dims=(0, None, None))(xs, y, p)
    for n in range(3):
        for ours, plain in zip(mapped, function(xs[n], y, ps[n]), strict=True):
            torch.testing.assert_close(ours[n], plain, rtol=1e-12, atol=1e-12)
        for ours, plain in zip(shared, function(xs[n], y, p), strict=True):
            torch.testing.assert_close(ours[n], plain, rtol=1e-12, atol=1e-12)
    tangent, step = torch.ones_like(x), 1e-6
    _, forward = torch.func.jvp(lambda x: function(x, y, p), (x,), (tangent,))
    differences = zip(function(x + step, y, p), function(x - step, y, p), strict=True)
    for ours, (above, below) in zip(forward, differences, strict=True):
        torch.testing.assert_close(ours, (above - below) / (2 * step), rtol=1e-6, atol=1e-7)


def test_export_with_dynamic_sizes():
    function = backends.get("torch").build(everything(), "everything")

    class Module(torch.nn.Module):
        def forward(self, x, y, p):
            return function(x, y, p)

    i, j, d = (torch.export.Dim(n, min=2, max=64) for n in "ijd")
    arrays = tuple(a.detach() for a in inputs(3, 5, 4))
    exported = torch.export.export(Module(), arrays, dynamic_shapes=({0: i, 1: d}, {0: j, 1: d}, {0: j}), strict=False)
    other = tuple(a.detach() for a in inputs(6, 4, 3))
    for ours, plain in zip(exported.module()(*other), function(*other), strict=True):
        torch.testing.assert_close(ours, plain)


def test_integers_multiply_without_a_matrix_product(monkeypatch):
    from tensorattn.backends.torch.functions import integer_matmul

    class Elsewhere:
        device = torch.device("meta")

        def __init__(self, tensor):
            self.tensor, self.dim = tensor, tensor.dim

        def __getitem__(self, key):
            return self.tensor[key]

    for a, b in (((3,), (3,)), ((2, 3), (3,)), ((3,), (3, 4)), ((2, 3), (3, 4)), ((5, 2, 3), (5, 3, 4))):
        x, y = (torch.tensor(np.random.default_rng(n).integers(-9, 9, s)) for n, s in enumerate((a, b)))
        assert torch.equal(integer_matmul(Elsewhere(x), Elsewhere(y)), x @ y)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int32])
def test_narrow_dtypes_are_cast_in_and_out(dtype):
    work = "int64" if dtype == torch.int32 else "float32"
    load = Load(register("r", "i", work), "x", (axes("i"),))
    made = kernel({}, (load,), [load.out], (("i", Axis("x", 0)),))
    name = str(dtype).removeprefix("torch.")
    made = type(made)(("x",), made.sizes, made.body, (Output("y", load.out, (axes("i"),), name),))
    (result,) = backends.get("torch").build(made, "f")(x := torch.tensor([1, 2]).to(dtype))
    assert result.dtype == dtype
    assert result.data_ptr() != x.data_ptr()
