"""Rules that a plan carries out by the order of its sums and by what it shares: what is contracted with what at which
sizes as golden text, the FLOPs that are due, and the values at random sizes, where other orders are the cheapest."""

from __future__ import annotations

import random
from math import prod

import numpy as np
import pytest

import tensorattn as ta
from tensorattn import reference
from tensorattn.reference import evaluate
from tests import goldens, programs

pytestmark = pytest.mark.filterwarnings("ignore::tensorattn.NotationWarning")
CUBED, SQUARED = 128, 2048  # rows and columns where weights have three indices, and where they have two
JOINT = "y^mu_n = softmax[nu rho]({}) v^nu_n w^rho_n"
CP, DENSE = "k^mu_i q^nu_j r^rho_p A_<i c> B_<j c> C_<p c>", "k^mu_i q^nu_j r^rho_p M_<i j p>"
WIDTHS = dict.fromkeys("ijp", 32)
NESTED = "y^mu_n = softmax[nu](a^mu_i b^nu_i) softmax[rho](c^nu_j d^rho_j) v^rho_n"
PROJECTED = "y^mu_n = softmax[nu](x^mu_a Q_<a i> z^nu_b K_<b i>) v^nu_n"
TWO = "S^<mu nu rho> = sum[i](q^mu_i k^nu_i r^rho_i)\na^<mu rho> = S^<mu bar(nu) rho> v^nu\n"
TWO += "b^<mu nu> = S^<mu nu bar(rho)> w^rho\ny^mu = a^<mu rho> b^<mu nu> c_<nu rho>"

# formula, the sizes of the features, and the multiply-adds over all rows and columns that are due for each of them
RULES = {
    "bond, delta": (JOINT.format("k^mu_i q^nu_i r^rho_i ones_i"), dict(i=32), 32 + 32),
    "bond, of low rank": (JOINT.format(CP), dict(WIDTHS, c=4), 4 + 32),
    "bond, of high rank": (JOINT.format(CP), dict(WIDTHS, c=128), 32 + 32),
    "bond, of high rank, rows thin": (JOINT.format(CP), dict(WIDTHS, c=64, i=8), 8 + 32),
    "bond, of high rank, a column thin": (JOINT.format(CP), dict(WIDTHS, c=64, p=4), 4 + 32),
    "bond, dense, rows thin": (JOINT.format(DENSE), dict(WIDTHS, i=4), 4 + 32),
    "bond, dense, columns thin": (JOINT.format(DENSE), dict(i=64, j=4, p=2), 2 + 32),
    "bond, dense, by head": (
        "y^<h mu>_n = softmax[nu rho](k^<h mu>_i q^<h nu>_j r^<h rho>_p M_<h i j p>) v^<h nu>_n w^<h rho>_n",
        dict(i=16, j=4, p=16),
        4 + 32,
    ),
    "map, a map after": ("y^mu_o = softmax[nu](q^mu_i k^nu_i) v^nu_n O_<n o>", dict(i=32, n=8, o=256), 32 + 8),
    "map, a map before": ("y^mu_o = softmax[nu](q^mu_i k^nu_i) v^nu_n O_<n o>", dict(i=32, n=256, o=8), 32 + 8),
    "map, maps absorbed by the keys": (PROJECTED, dict(a=8, b=64, i=64), 8 + 32),
    "map, maps absorbed by the queries": (PROJECTED, dict(a=64, b=8, i=64), 8 + 32),
    "map, maps to few features": (PROJECTED, dict(a=64, b=64, i=8), 8 + 32),
    "chain, from the values": (NESTED, dict(i=8, j=8, n=4), 8 + 8 + 4 + 4),
    "chain, from the rows": (NESTED, dict(i=8, j=8, n=512, mu=4), 8 + 4 + (8 + 512) * 4 / SQUARED),
    "scores, two normalisations": (TWO, dict(i=32), 32 + 1 + 1),
    "values, features apart": ("y^mu_<a b> = softmax[nu rho](sum[i](q^mu_i k^nu_i r^rho_i)) v^nu_a w^rho_b",
        dict(i=16, a=8, b=32), 16 + 8 + 32 * 8 / CUBED),
}  # fmt: skip
PLANS = ("dense", "streamed", "flattened", "factored")


def sized(name: str) -> dict[str, int]:
    text, features, _ = RULES[name]
    length = SQUARED if name.startswith(("map", "chain")) else CUBED
    known = dict.fromkeys(("mu", "nu", "rho"), length) | dict(n=32, h=4) | features
    return {index: known[index] for index in ta.parse(text).indices}


def test_what_is_contracted_with_what(pytestconfig: pytest.Config) -> None:
    parts = []
    for name, (text, features, _) in RULES.items():
        words = ta.compile(text, plan="dense").explain(sized(name)).splitlines()
        steps = [line.split(":")[0].strip() for line in words if " -> " in line]
        parts.append("\n".join([f"== {name}, {features}", text, *(f"  {step}" for step in steps)]))
    goldens.agree("planned_rules.txt", "\n\n".join(parts) + "\n", pytestconfig)


@pytest.mark.parametrize("name", RULES)
def test_no_plan_takes_more_flops_than_are_due(name: str) -> None:
    """A third more for maps, bonds and last sums, which run over fewer indices; six for each weight."""
    (text, _, due), sizes = RULES[name], sized(name)
    rows = [n for i, n in sizes.items() if i in ("mu", "nu", "rho", "h")]
    weights = sizes["nu"] * sizes["rho"] if name.startswith("chain") else prod(rows)
    assert ta.compile(text).cost(**sizes).at({}).flops <= 1.33 * 2 * weights * due + 6 * weights


@pytest.mark.parametrize("name", RULES)
def test_values_at_random_sizes(name: str) -> None:
    text, program = RULES[name][0], ta.parse(RULES[name][0])
    for seed in range(3):
        sizes = programs.some_sizes(program, random.Random(seed))
        arrays = programs.inputs(program, sizes, np.random.default_rng(seed))
        wanted, scale = evaluate(program, arrays, sizes)["y"], reference.magnitude(program, arrays, sizes)["y"]
        for plan in PLANS:
            try:
                found = ta.compile(text, plan=plan)(arrays)
            except ta.PlanError:
                continue
            programs.close(found, wanted, scale)
