"""`del` in generated code: after the last use of an array, in every branch, and never of what is still needed."""

from __future__ import annotations

import ast
import gc
import threading
import time

import numpy as np
import pytest

import tensorattn as ta
from tensorattn.backends.freeing import freed

SOURCE = """\
# a comment
def f(q, m):
    n = q.shape[0]
    a = q * 2  # i
    b = a + 1
    if finite(a):
        c = a + 3
        d = c * n
    else:
        d = b
    for start in range(0, n, 2):
        e = d + m
        m = e * d
    g = d + m
    return (g,)
"""
FREED = """\
# a comment
def f(q, m):
    n = q.shape[0]
    a = q * 2  # i
    b = a + 1
    if finite(a):
        del b
        c = a + 3
        del a
        d = c * n
        del c
    else:
        del a
        d = b
        del b
    for start in range(0, n, 2):
        e = d + m
        m = e * d
        del e
    g = d + m
    return (g,)
"""


def test_arrays_are_deleted_after_their_last_use() -> None:
    assert freed(SOURCE, set("abcdeg")) == FREED


def test_what_is_no_array_is_kept() -> None:
    assert freed(SOURCE, ()) == SOURCE


def test_no_line_deletes_twice_or_right_before_the_end() -> None:
    text = "y_<i e> = softmax[j : j <= i](tanh(Q_<i d>) K_<j d>) V_<j e>"
    for backend in ("numpy", "torch"):
        source = ta.compile(text).source(backend)
        function = source[source.index("def formula") :].splitlines()
        assert any(line.strip().startswith("del ") for line in function)
        assert not function[-2].strip().startswith("del ")
        assert not [n for n, line in enumerate(function[1:]) if "del " in line and "del " in function[n]]


def test_every_deleted_name_exists_on_every_path() -> None:
    """The generated code runs, on both sides of each branch."""
    compiled = ta.compile("y_<i e> = softmax[j : j <= i](exp(Q_<i d>) K_<j d>) V_<j e> / Z_i", plan="dense")
    rng = np.random.default_rng(0)
    arrays = {n: rng.random(s) for n, s in (("Q", (4, 3)), ("K", (4, 3)), ("V", (4, 2)), ("Z", (4,)))}
    wanted = compiled(arrays)
    for name in arrays:
        holed = {n: a.copy() for n, a in arrays.items()}
        holed[name][3] = np.nan
        found = compiled(holed)
        np.testing.assert_allclose(found[:3], wanted[:3])
        assert np.isnan(found[3]).all()


TWICE = """\
def f(n, one, two):
    k = 2.0
    s = 0.0
    if one:
        for i in range(n):
            t = k + i
            s = s + t
    else:
        t = k + 3
        s = t
    z = 0.0
    if two:
        z = s
    else:
        for i in range(n):
            t = k * i
            z = z + t
        z = z + k
    return (s, z)
"""


@pytest.mark.parametrize("one", [False, True])
@pytest.mark.parametrize("two", [False, True])
@pytest.mark.parametrize("rounds", [0, 2])
def test_a_name_that_two_loops_give_to_arrays_of_theirs(one: bool, two: bool, rounds: int) -> None:
    """It need not exist where it is not read again, and is deleted within each."""
    found, source = [], freed(TWICE, {"k", "s", "t", "z"})
    for text in (TWICE, source):
        space: dict[str, object] = {}
        exec(text, space)
        found.append(space["f"](rounds, one, two))  # type: ignore[operator]
    assert found[0] == found[1]
    assert source.count("del t\n") == 3


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_an_array_that_is_another_renamed_has_no_line(backend: str) -> None:
    source = ta.compile("a_<i j> = x_<i j>\nb_<j i> = a_<j i>\ny_<i j> = b_<i j> * 2").source(backend)
    function = ast.parse(source).body[-1]
    copies = [n for n in ast.walk(function) if isinstance(n, ast.Assign) and isinstance(n.value, ast.Name)]
    assert not copies


def test_threads_may_make_functions_at_a_time():
    """Python 3.11 counts the depth of syntax trees once for all threads: a SystemError where they switch meanwhile."""
    lines = (f"    b{n} = a + ({n} * (a + (1 + (2 * a))))\n" for n in range(60))
    source = f"def f(a):\n{''.join(lines)}    return (b0,)\n"
    failures, before = [], gc.get_threshold()

    def make():
        try:
            for _ in range(8):
                freed(source, [f"b{n}" for n in range(60)])
        except SystemError as error:
            failures.append(error)

    def switch(phase, info):
        time.sleep(0)

    gc.callbacks.append(switch)
    gc.set_threshold(50)
    try:
        threads = [threading.Thread(target=make) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(switch)
    assert not failures
