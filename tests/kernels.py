"""Hand-built kernels for the tests of the back ends, and how both run them."""

import math
import warnings

import numpy as np
import pytest
import torch

from tensorattn import backends
from tensorattn.ir import Index
from tensorattn.kernel import Kernel, Load, Output
from tensorattn.parts import Register
from tensorattn.sizes import Axis

BOTH = pytest.mark.parametrize("library", ["numpy", "torch"])
NAN, INF = math.nan, math.inf


def axes(text):
    """`"i j"` as indices."""
    return tuple(map(Index, text.split()))


def register(name, text, dtype="float64"):
    return Register(name, axes(text), dtype)


def kernel(inputs, body, outputs, sizes=()):
    """A kernel of inputs given as `name="i j"` and a body made of their registers; sizes are read from plain axes."""
    loads, found = [], dict(sizes)
    for name, (text, dtype) in inputs.items():
        loads.append(Load(register(name, text, dtype), name, tuple((i,) for i in axes(text))))
        for position, index in enumerate(text.split()):
            found.setdefault(index, Axis(name, position))
    answers = tuple(Output(o.name, o, tuple((i,) for i in o.axes), o.dtype) for o in outputs)
    return Kernel(tuple(inputs), tuple(found.items()), (*loads, *body), answers)


def call(library, made, *arrays):
    """The outputs as NumPy arrays; the torch back end reads its inputs through non-contiguous strides."""
    function = backends.get(library).build(made, "kernel")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results = function(*(strided(library, a) for a in arrays))
    assert isinstance(results, tuple)
    if library == "numpy":
        assert all(type(r) is np.ndarray for r in results)
    return [r if library == "numpy" else r.detach().numpy() for r in results]


def strided(library, array):
    array = np.asarray(array)
    if library == "torch":
        return torch.tensor(array.T.copy()).permute(tuple(reversed(range(array.ndim))))
    return array


def one(library, inputs, instruction, *arrays, sizes=()):
    """The value of one instruction applied to loaded inputs."""
    return call(library, kernel(inputs, (instruction,), (instruction.out,), sizes), *arrays)[0]


def close(actual, expected, tolerance=1e-13):
    expected = np.asarray(expected)
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)
