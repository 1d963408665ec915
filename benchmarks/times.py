"""Start-up, compile and planning times: `python -m benchmarks.times` (it prints and never asserts)."""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from time import perf_counter

HEAVY = ("numpy", "torch", "sympy", "opt_einsum", "lark", "jax", "scipy")

FIVE = """
    q^mu_i    = x^mu_d Q_<d i>
    k^mu_i    = x^mu_d K_<d i>
    v^mu_n    = x^mu_d V_<d n>
    W^<mu nu> = q^mu_i k^nu_i / sqrt(|i|)
    y^mu_n    = W^<mu bar(nu : nu <= mu)> v^nu_n
"""


def main() -> None:
    """Print one line a measurement."""
    _start_up()
    _five_statements()
    _forty_factors()
    _new_sizes()


def _print(what: str, value: str) -> None:
    print(f"{what:58}{value}")


def _milliseconds(action: Callable[[], object], repeats: int = 7) -> str:
    times = []
    for _ in range(repeats):
        start = perf_counter()
        action()
        times.append((perf_counter() - start) * 1e3)
    return f"{min(times):9.3f} ms (median {statistics.median(times):.3f}, {repeats} times)"


def _start_up() -> None:
    code = (
        "import sys, time; bare = set(sys.modules); start = time.perf_counter(); import tensorattn;"
        "print((time.perf_counter() - start) * 1e3); new = set(sys.modules) - bare;"
        f"print(len(new), *(m for m in {HEAVY!r} if m in new))"
    )
    times, loaded = [], ""
    for _ in range(7):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        time, loaded = done.stdout.splitlines()
        times.append(float(time))
    count, *heavy = loaded.split()
    _print("import tensorattn, fresh process", f"{min(times):9.3f} ms (median {statistics.median(times):.3f}, 7 times)")
    _print("  modules it loads", f"{count:>9}; heavy ones: {' '.join(heavy) or 'none'}")


def _five_statements() -> None:
    import tensorattn

    start = perf_counter()
    tensorattn.compile(tensorattn.parse(FIVE))
    _print("parse, check, compile of 5 statements, first", f"{(perf_counter() - start) * 1e3:9.3f} ms")

    # A comment makes each text new, so that no cache of texts answers.
    texts = iter(f"{FIVE}# {number}\n" for number in range(100))
    _print("parse of 5 statements, after the first", _milliseconds(lambda: tensorattn.parse(next(texts))))
    program = tensorattn.parse(FIVE)
    _print("check, after the first", _milliseconds(lambda: tensorattn.check(program)))
    names = iter(range(100))
    fresh = [tensorattn.parse(FIVE.replace("y^", f"y{next(names)}^")) for _ in range(7)]
    waiting = iter(fresh)
    _print("compile, after the first", _milliseconds(lambda: tensorattn.compile(next(waiting))))


def _forty_factors() -> None:
    import tensorattn

    factors = " ".join(f"A{n}_<i{n} i{n + 1}>" for n in range(40))
    program = tensorattn.parse(f"y_<i0 i40> = {factors}")
    sizes = {f"i{n}": 2 + (7 * n) % 11 for n in range(41)}
    compiled = tensorattn.compile(program)
    tensorattn.compile("y_i = A_<i j> B_<j k> x_k").plan(i=2, j=3, k=4)  # loads what planning needs
    random.seed(1)
    before = random.getstate()
    _print("planning 40 factors", _milliseconds(lambda: compiled.plan(**sizes)))
    _print("  state of `random` untouched", f"{random.getstate() == before!s:>9}")


def _new_sizes() -> None:
    import numpy as np

    import tensorattn

    attend = tensorattn.compile("y^mu_n = softmax[nu](q^mu_i k^nu_i / sqrt(|i|)) v^nu_n")
    rng = np.random.default_rng(0)

    def inputs(size: int) -> dict[str, np.ndarray]:
        return {"q": rng.normal(size=(size, 8)), "k": rng.normal(size=(16, 8)), "v": rng.normal(size=(16, 8))}

    start = perf_counter()
    attend(inputs(16))
    _print("first call", f"{(perf_counter() - start) * 1e3:9.3f} ms")
    same, new = inputs(16), iter([inputs(size) for size in range(17, 17 + 50)])
    _print("call with the same sizes, 16 x 16 x 8", _milliseconds(lambda: attend(same), 50))
    _print("call with new sizes each time, 17 to 66", _milliseconds(lambda: attend(next(new)), 50))


if __name__ == "__main__":
    main()
