"""The benchmark of chained attention at small sizes, with the peer's place taken by the package itself."""

from __future__ import annotations

import importlib.util
import json
from concurrent.futures import Future

import pytest
from click.testing import CliRunner

from benchmarks import chained


class Here:
    """Runs in this process what a peer's process would."""

    def submit(self, function, *arguments):
        done = Future()
        done.set_result(function(*arguments))
        return done

    def shutdown(self):
        pass


@pytest.fixture
def here(monkeypatch):
    monkeypatch.setattr(chained, "ProcessPoolExecutor", lambda *arguments: Here())
    monkeypatch.setattr(chained, "_benches", {})


def test_it_runs_and_names_a_peer_that_is_not_installed(here, tmp_path):
    path = tmp_path / "chained.json"
    done = CliRunner().invoke(chained.main, ["--small", "--repeat", "1", "--json", str(path)])
    assert done.exit_code == 0, done.output
    installed = importlib.util.find_spec("mixle") is not None
    assert ("mixle is not installed: make benchmark-mixle" in done.output) != installed
    results = json.loads(path.read_text())["results"]
    assert {result["case"] for result in results} == {str(case) for case in chained.SMALL}
    for result in results:
        assert min(result["step_ms"]) > 0
        assert result["peak_bytes"] > 0
        assert 0 <= result["fit"]["keys_right"] <= 1


def test_peers_are_compared_and_a_difference_is_refused(here, monkeypatch):
    monkeypatch.setattr(chained, "PEERS", dict.fromkeys(chained.PEERS, "tensorattn.latent"))
    results = chained.run(chained.SMALL[:1], 1, 0.0)
    assert [result.peer for result in results] == ["tensorattn", "mixle"]
    assert [result.error for result in results] == [0, 0]
    steps = chained.Bench.moment_steps
    monkeypatch.setattr(chained, "_benches", {})
    calls = iter([0.0, 1.0])
    monkeypatch.setattr(chained.Bench, "moment_steps", lambda bench: [steps(bench)[0] + next(calls)])
    with pytest.raises(ValueError, match="the statistics differ at S=4 N=5 n=30 L=2"):
        chained.run(chained.SMALL[:1], 1, 0.0)
