"""The scripts from end to end on a tiny model: a result file that `make targets` can read."""

from __future__ import annotations

import pytest
import torch
from tests.tiny import tiny_model

from benchmarks import forward_cost, single_request
from recguide.bench.targets import read_result

SMALL = ("--loads", "1", "--peer-loads", "--texts", "1", "--tokens", "24", "--prompt", "40")


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(script, *arguments):
        monkeypatch.setattr(
            script, "load", lambda *_, **__: tiny_model("nemotron_labs_diffusion", dtype=torch.float32)
        )
        file = tmp_path / "result.json"
        monkeypatch.setattr("sys.argv", ["script", "--quick", *arguments, "--output", str(file)])
        script.main()
        return read_result(file)

    return run


def test_forward_cost(run, capsys):
    result = run(forward_cost, "--replays", "1")
    assert len(result.rows) == len(forward_cost.CASES) + 3
    assert [target.name.partition(":")[0] for target in result.targets[:3]] == [
        "nld-8b, N = 1",
        "nld-8b, N = 64",
        "nld-8b, N = 128",
    ]
    assert result.settings["weights"] == "random"
    assert "bytes floor" in capsys.readouterr().out


def test_single_request(run, capsys):
    result = run(single_request, *SMALL)
    methods = [row["method"] for row in result.rows if "method" in row]
    assert methods == ["ar", "linear", "tidar", "recguide", "linear", "tidar", "recguide"]
    assert all(row["acceptance_is"] == "replayed acceptance" for row in result.rows if "method" in row)
    assert [row["load"] for row in result.rows if "engine" in row] == [1]
    assert result.settings["replay"]["figures"]
    assert "recguide" in capsys.readouterr().out
