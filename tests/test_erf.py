"""The error function in NumPy against the one of the standard library."""

import math
import sys

import numpy as np
import pytest

from tensorattn.backends.erf import erf

PIECES = [0.0, -0.0, 1e-300, 0.84375, 1.25, 1 / 0.35, 6.0, 1e300, math.inf]


@pytest.fixture(autouse=True)
def without_scipy(monkeypatch):
    monkeypatch.delitem(sys.modules, "scipy.special", raising=False)


def test_error_is_below_one_ulp_of_one():
    x = np.concatenate([np.linspace(-7, 7, 20011), PIECES, np.negative(PIECES)])
    near = [np.nextafter(p, side) for p in PIECES[3:7] for side in (-np.inf, np.inf)]
    for points in (x, np.array(near)):
        exact = np.array([math.erf(value) for value in points])
        assert np.max(np.abs(erf(points) - exact)) < 3e-16


def test_small_arguments_keep_their_relative_precision():
    x = np.logspace(-300, -1, 500)
    exact = np.array([math.erf(value) for value in x])
    assert np.max(np.abs(erf(x) / exact - 1)) < 5e-16


def test_special_values_and_dtypes():
    assert np.isnan(erf(np.array(np.nan)))
    assert erf(np.array([np.inf, -np.inf])).tolist() == [1, -1]
    assert np.signbit(erf(np.array(-0.0)))
    assert erf(np.float32(0.5)).dtype == np.float32
    assert erf(np.zeros((0, 3))).shape == (0, 3)
