"""Finding a back end, names and sources of generated code, and memory that is not shared."""

import gc
import itertools
import linecache
import sys
import traceback

import numpy as np
import pytest
import torch

from tensorattn import backends
from tensorattn.backends.naming import Names, identifier
from tensorattn.errors import BackendError, DTypeError, ShapeError
from tensorattn.kernel import (
    Apply,
    Arrange,
    Cast,
    CheckRange,
    Fold,
    Gather,
    Kernel,
    Largest,
    Literal,
    Load,
    LogSumExp,
    Normalised,
    Output,
    View,
)  # fmt: skip
from tensorattn.sizes import Axis, Size
from tests.kernels import BOTH, axes, call, kernel, random, register, strided

# Naming, sources, aliasing --------------------------------------------------------------------------------------


@BOTH
def test_results_share_no_memory_with_inputs_or_each_other(library):
    x, p = strided(library, random(2, 2)), strided(library, np.array([0, 1]))
    inputs = {"x": ("i i2", "float64"), "p": ("n", "int64")}
    body = (
        Load(register("d", "i"), "x", (axes("i"), axes("i"))),
        View(register("v", "j k"), register("x", "i i2"), (axes("j"), axes("k"))),
        Cast(register("c", "j k"), register("v", "j k")),
        Gather(register("g", "i2 i"), register("x", "i i2"), axes("i i2")),
        CheckRange(register("q", "n", "int64"), register("p", "n", "int64"), Size.of("n"), None, "p"),
        Apply(register("f", "i i2"), "negate", (register("x", "i i2"),)),
        View(register("h", "j k"), register("f", "i i2"), (axes("j"), axes("k"))),
        Arrange(register("b", "n i i2"), register("f", "i i2")),
    )
    sizes = (("i", Axis("x", 0)), ("j", Axis("x", 0)), ("k", Axis("x", 1)))
    outs = [register("x", "i i2"), *(instruction.out for instruction in body)]
    results = backends.get(library).build(kernel(inputs, body, outs, sizes), "f")(x, p)
    arrays = [np.asarray(a) for a in (x, p, *results)]
    for a, b in itertools.combinations(range(len(arrays)), 2):
        assert not np.shares_memory(arrays[a], arrays[b]), (a, b)
    for result in results:
        result[...] = 0


@BOTH
def test_a_new_result_is_not_copied(library):
    apply = Apply(register("r", "i"), "negate", (register("x", "i"),))
    source = backends.get(library).render(kernel({"x": ("i", "float64")}, (apply,), [apply.out]), "f")
    assert "copy=True" not in source
    assert "np.array(" not in source


def test_identifiers():
    assert [identifier(n) for n in ("k", "i'", "d_k", "2x", "α", "...0", "")] == [
        "k", "iprime", "dk", "x2x", "u3b1", "x0", "x",
    ]  # fmt: skip
    names = Names({"np"})
    chosen = [names.of("input", n) for n in ("lambda", "np", "x", "print", "i'", "iprime", "match")]
    assert len(set(chosen)) == 7
    assert all(n.isidentifier() and n not in ("lambda", "np", "print", "match") for n in chosen)
    assert names.of("size", "x") != names.of("input", "x") == "x"


@BOTH
def test_names_of_inputs_never_clash(library):
    spelt = ("lambda", "np", "torch", "r1", "softmax", "device", "i", "f", "λ", "start")
    inputs = dict.fromkeys(spelt, ("i", "float64"))
    loads = tuple(Load(register(f"r{n}", "i"), name, (axes("i"),)) for n, name in enumerate(inputs))
    outs = tuple(Output(name, load.out, (axes("i"),), "float64") for name, load in zip(inputs, loads, strict=True))
    made = Kernel(tuple(inputs), (("i", Axis("lambda", 0)),), loads, outs)
    results = call(library, made, *(np.full(2, n) for n in range(len(inputs))))
    assert [r[0] for r in results] == list(range(len(inputs)))


@BOTH
def test_every_kernel_has_a_code_object_and_a_source_of_its_own(library):
    apply = Apply(register("r", "i j"), "add", (register("x", "i"), register("y", "j")))
    made = kernel({"x": ("i", "float64"), "y": ("j", "float64")}, (apply,), [apply.out])
    first, second = (backends.get(library).build(made, "add") for _ in range(2))
    codes = [getattr(f, "__wrapped__", f).__code__ for f in (first, second)]
    assert codes[0] is not codes[1]
    assert codes[0].co_filename != codes[1].co_filename
    with pytest.raises((AttributeError, ValueError)) as caught:
        first("no array", "neither")
    shown = [f.line for f in traceback.extract_tb(caught.value.__traceback__) if f.filename == codes[0].co_filename]
    assert len(shown) == 1
    assert shown[0] in backends.get(library).render(made, "add")
    second(*(strided(library, np.zeros(n)) for n in (2, 3)))


@BOTH
def test_the_source_of_a_kernel_goes_with_it(library):
    made = kernel({"x": ("i", "float64")}, (), [register("x", "i")])
    function = backends.get(library).build(made, "f")
    filename = getattr(function, "__wrapped__", function).__code__.co_filename
    assert linecache.getline(filename, 1)
    del function
    gc.collect()
    assert not linecache.getline(filename, 1)


@BOTH
def test_comments_cannot_leave_their_line(library):
    made = kernel({"x": ("i", "float64")}, (), [register("x", "i")])
    made = Kernel(made.inputs, made.sizes, made.body, made.outputs, ("y = x\nraise SystemExit",))
    source = backends.get(library).render(made, "f")
    assert "\n# raise SystemExit\n" in source


@BOTH
def test_standalone_source_equals_the_built_function(library):
    score, mask = register("x", "i j"), register("m", "i j", "bool")
    body = (
        CheckRange(register("p1", "i", "int64"), register("p", "i", "int64"), Size.of("j"), None, "p"),
        Gather(register("g", "i"), score, (*axes("i"), register("p1", "i", "int64"))),
        Apply(register("e", "i"), "gelu", (register("g", "i"),)),
        Normalised(register("w", "i j"), "softmax", axes("j"), score, mask, (("sink", register("g", "i")),)),
        Normalised(register("s", "i j"), "entmax", axes("j"), score, mask, (("alpha", Literal(1.3)),)),
        Normalised(register("t", "i j"), "entmax", axes("i j"), score, None, (("alpha", Literal(1.5)),)),
        LogSumExp(register("l", "i"), score, mask),
        Fold(register("m1", "i"), "max", score),
        Largest(register("k", "i j", "bool"), axes("j"), Literal(2), score, mask),
    )
    inputs = {"x": ("i j", "float64"), "m": ("i j", "bool"), "p": ("i", "int64")}
    made = kernel(inputs, body, [instruction.out for instruction in body])
    arrays = [strided(library, a) for a in (random(3, 4), random(3, 4, seed=1) > 0, [3, 0, 1])]
    text = backends.get(library).render(made, "attend", standalone=True)
    assert "import tensorattn" not in text
    assert "from tensorattn" not in text
    space = {"__name__": "alone"}
    exec(compile(text, "<alone>", "exec"), space)
    built = backends.get(library).build(made, "attend")
    for alone, ours in zip(space["attend"](*arrays), built(*arrays), strict=True):
        np.testing.assert_array_equal(np.asarray(alone), np.asarray(ours))
    with pytest.raises(ValueError, match="E-RANGE"):
        space["attend"](*arrays[:2], strided(library, [3, 0, 4]))
    with pytest.raises(ShapeError):
        built(*arrays[:2], strided(library, [3, 0, 4]))


# Finding and storing --------------------------------------------------------------------------------------------


class Foreign:
    __module__ = "jax"


def test_find():
    x, t = np.zeros(2), torch.zeros(2)
    assert backends.find({"a": x, "b": 1.0}).name == "numpy"
    assert backends.find({"a": [1, 2], "b": 1.0}).name == "numpy"
    assert backends.find({"a": np.float32(1)}).name == "numpy"
    assert backends.find({"a": [1, 2], "b": t, "c": 3}).name == "torch"
    for arrays in (
        {"a": x, "b": t},
        {"a": t, "b": t.to("meta")},
        {"a": x, "b": Foreign()},
        {"a": t, "b": np.float32(1)},
    ):
        with pytest.raises(BackendError) as caught:
            backends.find(arrays)
        assert caught.value.code == "E-BACKEND"
        assert "`b`" in str(caught.value)
    with pytest.raises(BackendError, match="did you mean"):
        backends.get("numpyy")
    assert backends.names() == ("numpy", "torch")


def test_finding_loads_no_library():
    program = (
        "import sys; from tensorattn import backends; assert 'numpy' not in sys.modules; "
        "assert backends.get('torch').render and 'torch' not in sys.modules; "
        "backends.find({'a': [1]}); assert 'torch' not in sys.modules"
    )
    import subprocess

    subprocess.run([sys.executable, "-c", program], check=True)


def test_dtypes():
    numpy, torch_ = backends.get("numpy"), backends.get("torch")
    for dtype, name in {
        "bool": "bool", "int8": "int64", "int32": "int64", "uint8": "int64", "float16": "float16", "float32": "float32",
        "float64": "float64", "complex64": "complex",
    }.items():  # fmt: skip
        assert numpy.dtype_of(np.zeros(2, dtype)) == name
        assert torch_.dtype_of(torch.zeros(2, dtype=getattr(torch, dtype))) == name
    assert torch_.dtype_of(torch.zeros(2, dtype=torch.bfloat16)) == "bfloat16"
    assert numpy.dtype_of([1, 2]) == "int64"
    assert numpy.dtype_of(1j) == torch_.dtype_of(1j) == "complex"
    for bad in (np.array(["a"]), np.array([None])):
        with pytest.raises(DTypeError, match="E-DTYPE"):
            numpy.dtype_of(bad)
    with pytest.raises(DTypeError, match="E-DTYPE"):
        numpy.as_array([[1], [1, 2]])
    assert [backends.number_dtype(v) for v in (1, 1.0, True, np.float64(1), [1])] == [
        "int",
        "float",
        "bool",
        None,
        None,
    ]


@BOTH
def test_store(library):
    backend = backends.get(library)
    zeros = np.zeros if library == "numpy" else torch.zeros
    ones, dtype = (np.ones, np.float32) if library == "numpy" else (torch.ones, torch.float64)
    out = zeros((2, 3))
    backend.store(out, ones((2, 3)))
    assert float(out.sum()) == 6
    with pytest.raises(ShapeError, match="E-EXTENT"):
        backend.store(zeros((3, 2)), ones((2, 3)))
    with pytest.raises(DTypeError, match="E-DTYPE"):
        backend.store(zeros((2, 3), dtype=dtype), ones((2, 3)))
    with pytest.raises(BackendError, match="E-BACKEND"):
        backend.store([0, 0], ones(2))


def test_store_refuses_what_cannot_be_written():
    locked = np.zeros(2)
    locked.flags.writeable = False
    with pytest.raises(BackendError, match="read-only"):
        backends.get("numpy").store(locked, np.ones(2))
    for out in (torch.zeros(1).expand(2), torch.zeros(2, requires_grad=True)):
        with pytest.raises(BackendError, match="E-BACKEND"):
            backends.get("torch").store(out, torch.ones(2))
