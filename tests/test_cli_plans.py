"""The command line: plans, budgets and costs."""

import json

import pytest

from tensorattn.kinds import KINDS
from tests.test_cli import ATTENTION, VALUE, run

LARGE = ("-d", "mu=2000", "-d", "nu=3000", "-d", "n=8")


def test_explain_says_what_is_taken_and_what_is_not():
    text = run("explain", VALUE, *LARGE).stdout
    assert text.startswith("plan: streamed, for y\nsoftmax over nu in y: streamed, its 6,000,000 weights")
    assert "dense: about" in text
    data = json.loads(run("explain", VALUE, *LARGE, "--format", "json").stdout)
    assert (data["plan"], data["text"]) == ("streamed", text.rstrip("\n"))
    assert {c["name"] for c in data["candidates"]} == {"dense", *KINDS}
    assert [c["name"] for c in data["candidates"] if c["taken"]] == ["streamed"]
    assert data["reductions"][0]["weights"] == 6_000_000
    assert all(isinstance(c["peak_bytes"], int) for c in data["candidates"] if c["name"] in ("dense", "streamed"))
    symbolic = json.loads(run("explain", VALUE, "--format", "json").stdout)
    assert symbolic["reductions"][0]["weights"] == "mu*nu"


def test_a_plan_and_a_budget_on_the_command_line():
    assert "asked for" in run("explain", VALUE, *LARGE, "--plan", "dense").stdout
    assert run("explain", VALUE, "--plan", "y=streamed").stdout.startswith("plan: streamed")
    wide, narrow = (run("explain", VALUE, *LARGE, *more).stdout for more in ((), ("--memory", "2M")))
    assert "loop over nu: 12 tiles" in wide
    assert "within the budget" in narrow
    assert "about" in run("explain", VALUE, *LARGE, "--dtype", "float32", "--backend", "torch").stdout


@pytest.mark.parametrize(("options", "status", "words"), [
    (("--plan", "fast"), 1, "E-PLAN: there is no plan 'fast'"),
    (("--plan", "z=dense"), 1, "names 'z', which is no statement"),
    (("--plan", "y=dense", "--plan", "y=streamed"), 2, "the plan of y is given twice"),
    (("--plan", "y=dense", "--plan", "streamed"), 2, "not of the form STATEMENT=PLAN"),
    (("--memory", "1K"), 1, "E-BUDGET: no plan fits in 1,024 bytes"),
    (("--memory", "-1"), 2, "no number of bytes"),
    (("--memory", "3X"), 2, "no number of bytes"),
    (("--memory", ""), 2, "no number of bytes"),
    (("--dtype", "int8"), 2, "int8"),
])  # fmt: skip
@pytest.mark.parametrize("command", ["explain", "cost"])
def test_wrong_plans_and_budgets_are_refused(command, options, status, words):
    result = run(command, VALUE, *LARGE, *options, status=status)
    assert words in result.stderr
    assert result.stdout == ""


def test_cost_forward_and_backward():
    data = json.loads(run("cost", VALUE, *LARGE, "--plan", "dense", "--format", "json").stdout)
    product = 2 * 2000 * 3000 * 8
    assert data["exps"] == 6_000_000
    assert product < data["flops"] < data["backward"]["flops"]
    assert data.keys() == {"flops", "exps", "bytes_moved", "peak_bytes", "backward"}
    open_sizes = json.loads(run("cost", VALUE, "--plan", "streamed", "--format", "json").stdout)
    assert "tile_nu" in open_sizes["tiles"]
    assert "tile_nu" in open_sizes["peak_bytes"]


def test_explain_prints_the_plan():
    text = run("explain", ATTENTION, "-d", "mu=8", "-d", "nu=8", "-d", "i=4", "-d", "n=4").stdout
    assert text.strip()
    sizes = ("-d", "mu=8", "-d", "nu=8", "-d", "i=4", "-d", "n=4")
    assert json.loads(run("explain", ATTENTION, *sizes, "--format", "json").stdout)["plan"] in text


def test_cost_is_symbolic_until_sizes_are_given():
    symbolic = json.loads(run("cost", VALUE, "--format", "json").stdout)
    assert symbolic.keys() == {"flops", "exps", "bytes_moved", "peak_bytes", "backward"}
    assert "mu" in symbolic["flops"]
    numbers = json.loads(run("cost", VALUE, "-d", "mu=10", "-d", "nu=20", "-d", "n=5", "--format", "json").stdout)
    assert numbers["exps"] == 200
    assert numbers["flops"] >= 2 * 10 * 20 * 5
    words = run("cost", VALUE, "-d", "mu=10", "-d", "nu=20", "-d", "n=5").stdout.split()
    assert words[:2] == ["flops", str(numbers["flops"])]
