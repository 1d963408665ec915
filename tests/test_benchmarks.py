"""The benchmarks at tiny sizes: formulas and peers are right, wrong ones are caught, what is found is written well."""

import importlib.util
import io
import json
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from rich.console import Console

import tensorattn as ta
from benchmarks import aims, checking, gpu, measuring, plotting, reporting, results, running, worker
from benchmarks.__main__ import main
from benchmarks.peers import PLANS, peers_of
from benchmarks.results import Measured, Run
from benchmarks.workload import Peer, RefusedError
from benchmarks.workloads import all_workloads, find, select

FORMULAS = [w for w in all_workloads() if not w.compiles_only and not w.name.startswith(("W11", "WN"))]
REASONS = ("not installed", "no such plan", "NotImplementedError: FlexAttention does not support backward on CPU")


@pytest.fixture
def uncompiled(monkeypatch):
    """The peers that are compiled, without minutes of compilers; torch's compute the same, KeOps is left out."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "flex_attention called without torch.compile")
        yield


def outcomes(workload, gradients=True):
    """Peer → direction → what preparing it at the check sizes found; forced plans have a test of their own."""
    found = {}
    for peer in peers_of(workload):
        if peer.name != "KeOps" and peer.name not in [f"tensorattn, {plan}" for plan in PLANS]:
            answer = worker.attempt(worker.Bench(workload, peer, "check", gradients).prepare)
            found[peer.name] = {"forward": answer} if "why" in answer else answer
    return found


@pytest.mark.parametrize("workload", FORMULAS, ids=lambda w: w.name)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_every_formula_agrees_with_its_dense_meaning(workload, library):
    sizes = workload.sizes["check"]
    arrays = {name: a.astype(np.float64) for name, a in workload.arrays("check").items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ta.NotationWarning)
        compiled = ta.compile(workload.text(sizes))
    found = compiled(arrays if library == "numpy" else {n: torch.from_numpy(a) for n, a in arrays.items()})
    rows, expected = checking.dense_rows(workload, arrays, sizes)
    assert len(rows) == sizes[workload.row]
    np.testing.assert_allclose(np.asarray(found), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("workload", FORMULAS, ids=lambda w: w.name)
def test_every_peer_is_right_or_says_why_it_does_not_run(workload, uncompiled):
    found = outcomes(workload)
    for peer, directions in found.items():
        for direction, answer in directions.items():
            assert "error" in answer or answer["why"].startswith(REASONS), (peer, direction, answer)
    running_peers = [peer for peer, directions in found.items() if "error" in directions["forward"]]
    assert {"tensorattn", "dense torch", "torch.compile"} <= set(running_peers)
    assert "error" in found["tensorattn"]["backward"]


@pytest.mark.parametrize("workload", select(["WN", "W11"]), ids=lambda w: w.name)
def test_workloads_for_numpy_and_for_overhead_have_their_peers(workload, uncompiled):
    found = outcomes(workload)
    needed = {
        "WN": {"tensorattn", "np.einsum + softmax", "opt_einsum + softmax"},
        "W11": {"tensorattn", "tensorattn, array code alone", "opt_einsum, operations alone", "dense torch"},
    }
    wanted = {"tensorattn, compile"} if workload.compiles_only else needed[workload.name.split("-")[0]]
    assert wanted <= {peer for peer, directions in found.items() if "error" in directions["forward"]}


def test_forced_plans_are_peers_and_right_where_they_exist():
    found = {}
    for plan in PLANS:
        (peer,) = [p for p in peers_of(find("W4")) if p.name == f"tensorattn, {plan}"]
        found[plan] = worker.attempt(worker.Bench(find("W4"), peer, "check", False).prepare)
    assert "error" in found["dense"]["forward"]
    for answer in found.values():
        assert "error" in answer.get("forward", ()) or answer["why"].startswith("no such plan"), answer


def test_costs_are_those_of_the_contract():
    counted = {w.name: (w.flops(w.sizes["full"]), w.exps(w.sizes["full"])) for w in FORMULAS}
    expected = {
        "W1": (8.6e9, 34e6), "W3": (3.6e9, 28e6), "W4": (14.5e9, 57e6), "W4-long": (137e9, 1.07e9),
        "W5": (2.1e9, 8.4e6), "W7": (1.1e9, 1.8e6), "W9": (0.94e9, 8.4e6), "W10": (2.1e9, 17e6),
    }  # fmt: skip
    for name, costs in expected.items():
        np.testing.assert_allclose(counted[name], costs, rtol=0.04, err_msg=name)


def test_selection_by_name_family_and_library():
    assert [w.name for w in select(["w4"])] == ["W4", "W4-symmetric", "W4-long"]
    assert {w.backend for w in select(["WN"])} == {"numpy"}
    assert {w.backend for w in select(["W4"], "numpy")} == {"numpy"}
    assert find("WN-W4").sizes["full"]["mu"] == find("W4").sizes["full"]["mu"] // 2
    assert [w.name for w in select(["w4"], variants=False)] == ["W4"]
    with pytest.raises(KeyError, match="W99"):
        select(["W1", "W99"])
    with pytest.raises(KeyError, match="WN"):
        select(["WN"], variants=False)


# wrong and impossible peers ------------------------------------------------------------------------------------------


def off_by(forward, backward=0.0):
    """A peer that is W4 up to an error in the output or in its gradient."""

    def make(workload, sizes):
        def call(a):
            right = workload.torch(a, sizes)
            return (
                right
                + forward * right.detach().abs().max()
                + backward * (a["k"] - a["k"].detach()).sum() * right.detach()
            )

        return call

    return Peer("wrong", make)


@pytest.mark.parametrize("level", ["check", "small"])
def test_a_wrong_output_is_caught(level):
    answer = worker.Bench(find("W4"), off_by(1e-3), level, False).prepare()
    assert answer["forward"]["why"].startswith("wrong: a sampled row is off by ")
    with pytest.raises(RefusedError, match="the output at a small size"):
        checking.check_small(find("W4"), off_by(1e-3).make(find("W4"), {}), False)


def test_a_wrong_gradient_is_caught():
    answer = worker.Bench(find("W4"), off_by(0, 0.5), "check", True).prepare()
    assert "why" not in answer["forward"]
    assert answer["backward"]["why"].startswith("wrong: the gradient of k is off")


def test_what_cannot_run_says_so():
    workload = find("W4")

    def reason(**changes):
        peer = Peer("peer", lambda w, s: lambda a: 1 / 0, **changes)
        return worker.attempt(worker.Bench(workload, peer, "check", False).prepare)

    assert reason(needs=("no_such_module",)) == {"why": "not installed: no_such_module"}
    assert reason(predicted_bytes=lambda w, s: 10**15)["why"].startswith("out of memory: needs about 1000000.0 GB of")
    assert reason()["forward"] == {"why": "ZeroDivisionError: division by zero"}
    hungry = worker.attempt(lambda: {"bytes": torch.empty(1 << 60)})
    assert hungry["why"].startswith("out of memory: you tried to allocate")


# measuring -----------------------------------------------------------------------------------------------------------


def test_peak_memory_is_what_lies_above_the_result():
    temporary = 1 << 20

    def numpy_action():
        return np.ones(temporary, np.float32)[:16].copy()

    def torch_action():
        return (torch.ones(temporary)[:16].clone(),)

    assert 4 * temporary <= measuring.peak_bytes_numpy(numpy_action) < 4.1 * temporary
    assert 4 * temporary <= measuring.peak_bytes_torch(torch_action) < 4.1 * temporary
    assert measuring.peak_bytes_torch(lambda: (torch.ones(temporary),)) < temporary


def test_sample_keeps_single_calls_within_a_budget():
    assert len(measuring.sample(lambda: None, budget=0.0)) == 1
    assert len(measuring.sample(lambda: None, budget=10.0, most=5)) == 5


def test_a_worker_answers_lines_of_json():
    job = {"workload": "W8", "backend": "numpy", "peer": "np.einsum + softmax", "level": "check", "gradients": True}
    requests = [
        {"do": "open", "job": job},
        {"do": "prepare"},
        {"do": "memory"},
        {"do": "time", "directions": ["forward"], "sample": {"budget": 0}},
    ]
    replies = io.StringIO()
    worker.serve(io.StringIO("".join(json.dumps(r) + "\n" for r in requests)), replies, threads=1)
    opened, prepared, memory, times = map(json.loads, replies.getvalue().splitlines())
    assert opened == {}
    assert prepared["forward"]["error"] < 1e-5
    assert memory["forward"]["peak_bytes"] > 0
    assert len(times["forward"]) == 1


def test_processes_take_turns_and_limits_end_them(monkeypatch):
    workload = find("WN-W8")
    chosen = tuple(peer for peer in peers_of(workload) if peer.name in ("np.einsum + softmax", "tensorattn, dense"))
    monkeypatch.setattr(running, "peers_of", lambda workload: chosen)
    seen = []
    found = running.run_workload(workload, 1, running.Options("check", repeat=2, limit=60), seen.append)
    assert {entry.peer for entry in found} == {peer.name for peer in chosen}
    for entry in found:
        assert entry.runs, entry.why
        assert len(entry.times) >= 2
        assert entry.peak_bytes > 0
    assert len(seen) == running.steps((workload,), running.Options("check", repeat=2))
    late = running.run_workload(workload, 1, running.Options("check", repeat=1, limit=0.01), seen.append)
    assert {entry.why for entry in late} == {"over 0.01 s"}


def test_an_interrupted_run_keeps_what_it_found(monkeypatch):
    workloads = [find("WN-W8"), find("WN-W6"), find("WN-W4")]
    monkeypatch.setattr(running, "_rates", lambda threads, options: {})

    def one(workload, threads, options, report):
        if workload.name == "WN-W4":
            raise KeyboardInterrupt
        return [Measured(workload.name, "numpy", "tensorattn", "forward", threads, [0.1])]

    monkeypatch.setattr(running, "run_workload", one)
    kept = []
    found = running.run(workloads, running.Options("check", threads=(1, 2)), keep=kept.append)
    names = [(entry.workload, entry.threads) for entry in found.measured]
    assert names == [("WN-W8", 1), ("WN-W8", 2), ("WN-W6", 1), ("WN-W6", 2)]
    assert [len(run.measured) for run in kept] == [1, 2, 3, 4]
    assert kept[-1].measured == found.measured
    assert {"load", "load_after"} <= found.machine.keys()


# what is written -----------------------------------------------------------------------------------------------------


@pytest.fixture
def found():
    """A run with round numbers."""
    rate = {"gemm": 1e11, "exp": 1e9, "exp2": 2e9}
    lines = (
        Measured("W4", "torch", "tensorattn", "forward", 1, [0.4, 0.2, 0.3], 50.0, 8 << 20, 1e-6),
        Measured("W4", "torch", "flattened SDPA", "forward", 1, [0.5, 0.44], 9.0, 800 << 20, 2e-6),
        Measured("W4", "torch", "dense torch", "forward", 1, why="out of memory: needs about 99.0 GB of 1.0 GB"),
        Measured("W4", "torch", "tensorattn", "backward", 1, [0.6], 50.0, 900 << 20, 1e-6),
        Measured("W4", "torch", "flattened SDPA", "backward", 1, [0.6], 9.0, 900 << 20, 2e-6),
    )
    return Run(
        machine=measuring.machine() | {"load": [3.0, 1.0, 1.0], "load_after": [0.1, 0.1, 0.1]},
        rates={1: {"numpy": rate, "torch": rate}}, measured=lines, options={"level": "full", "repeat": 7},
    )  # fmt: skip


def test_table_shows_ratios_floors_and_reasons(found):
    text = io.StringIO()
    reporting.show(found, Console(file=text, width=160))
    shown = text.getvalue()
    (own,) = [line for line in shown.splitlines() if line.startswith("│ tensorattn") and "200" in line]
    cells = [cell.strip() for cell in own.split("│")[1:-1]]
    # the floor is 14.5 GFLOP at 100 GFLOP/s and 56.6 M exp at 1 G/s: 201 ms
    assert cells == ["tensorattn", "200", "300", "3", "1.00", "101", "8.39", "50", "1e-06"]
    assert "2.20" in shown
    assert "does not run: dense torch: out of memory: needs about 99.0 GB of 1.0 GB" in shown
    assert "The machine was not idle" in shown


def test_aims_are_judged_by_direction_and_memory(found):
    judged = {(v.text, v.aim): (v.found, v.met) for v in aims.judge(found)}
    forward, backward = "W4 forward, 1 threads: ", "W4 backward, 1 threads: "
    assert judged[forward + "time of flattened SDPA over ours", 1.1] == (pytest.approx(2.2), True)
    assert judged[backward + "time of flattened SDPA over ours", 1.4] == (pytest.approx(1.0), False)
    assert judged[forward + "our extra memory over that of flattened SDPA", 0.05] == (pytest.approx(0.01), True)
    assert judged[backward + "our extra memory over that of flattened SDPA", 0.05] == (pytest.approx(1.0), False)
    assert judged[forward + "time of dense torch over ours", 2.3] == (None, True)
    assert judged[forward + "share of the machine's rate with exp", 0.9][1]


def test_what_is_possible_at_the_rates_of_the_machine(found):
    """14.5 GFLOP at 100 GFLOP/s and 56.6 M exp2 at 2 G/s: 173 ms, and 463 ms with the backward pass."""
    most = {v.text: v.most for v in aims.judge(found)}
    assert most["W4 forward, 1 threads: time of flattened SDPA over ours"] == pytest.approx(440 / 173.3, rel=1e-3)
    assert most["W4 backward, 1 threads: time of flattened SDPA over ours"] == pytest.approx(600 / 463.2, rel=1e-3)
    assert most["W4 forward, 1 threads: time of dense torch over ours"] is None


def test_every_aim_names_workloads_and_peers_that_exist():
    for aim in aims.AIMS:
        for name in aim.workloads.split():
            backends = [replace(find(name), backend=backend) for backend in ("numpy", "torch")]
            assert aim.peer in [peer.name for w in backends for peer in peers_of(w)], (name, aim.peer)
    assert all(find(name).backend == floor.backend for floor in aims.FLOORS for name in floor.workloads.split())


def test_json_reads_back(found, tmp_path):
    results.write(found, tmp_path / "run.json")
    assert results.read(tmp_path / "run.json") == found
    first = json.loads((tmp_path / "run.json").read_text())["measured"][0]
    assert (first["min_ms"], first["median_ms"], first["calls"]) == pytest.approx((200, 300, 3))


def test_picture_has_a_bar_for_each_time(found, tmp_path):
    assert plotting.bars(found)["W4 forward, torch, 1 threads"] == [
        ("tensorattn", 200.0, (8 << 20) / 1e6),
        ("flattened SDPA", 440.0, (800 << 20) / 1e6),
    ]
    if importlib.util.find_spec("matplotlib") is None:
        with pytest.raises(plotting.PlotError, match="matplotlib is not installed"):
            plotting.draw(found, tmp_path / "run.svg")
    else:
        plotting.draw(found, tmp_path / "run.svg")
        assert (tmp_path / "run.svg").read_text().count("<svg") == 1


def test_command_line_lists_refuses_and_runs(monkeypatch, tmp_path, found):
    cli = CliRunner()
    listed = cli.invoke(main, ["--list"])
    assert listed.exit_code == 0
    assert [line.split()[0] for line in listed.output.splitlines()] == [w.name for w in all_workloads()]
    assert cli.invoke(main, ["W99"]).exit_code == 2
    assert "1,2" in cli.invoke(main, ["--threads", "all"]).output
    asked = []

    def run(chosen, options, report, keep):
        asked.append((chosen, options))
        keep(found)
        return found

    monkeypatch.setattr(running, "run", run)
    flags = ["--small", "--threads", "1,2", "--no-backward", "--json", str(tmp_path / "a.json")]
    done = cli.invoke(main, ["W4-long", *flags])
    assert done.exit_code == 0, done.output
    ((chosen, options),) = asked
    assert [w.name for w in chosen] == ["W4-long"]
    assert (options.level, options.threads, options.gradients) == ("small", (1, 2), False)
    assert "flattened SDPA" in done.output
    assert results.read(tmp_path / "a.json") == found


def test_the_gpu_script_runs_tiny_on_the_cpu(tmp_path):
    done = CliRunner().invoke(gpu.main, ["--tiny", "--device", "cpu", "--json", str(tmp_path / "gpu.json")])
    assert done.exit_code == 0, done.output
    entries = json.loads((tmp_path / "gpu.json").read_text())
    assert {entry["workload"] for entry in entries} == {"W1", "W3", "W4", "W5", "W6", "W7", "W8", "W9", "W10"}
    for entry in entries:
        assert entry["min_ms"] or entry["why"].startswith(REASONS), entry
    assert not [e for e in entries if e["peer"] == "tensorattn" and e["why"]]
    assert done.output.count("floors: GEMM") == 2 * 9


def test_the_gpu_script_keeps_to_its_time():
    found = gpu.run((find("W4"),), gpu.Options("cpu", "check", seconds=-1), Console(file=io.StringIO()))
    assert {entry.why for entry in found} == {"not reached in the time given"}


def test_gpu_floors_are_those_of_the_contract():
    expected = {"W1": (2.79, 1.10), "W3": (0.29, 0.46), "W4": (2.79, 2.20), "W6": (1.40, 1.10), "W8": (0.17, 0.14)}
    for name, numbers in expected.items():
        floor = gpu.floors(find(name), "gpu", "forward")
        assert (floor.gemm_ms, floor.exp_ms) == pytest.approx(numbers, rel=0.03), name
