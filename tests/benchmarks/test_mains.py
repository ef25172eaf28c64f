"""The scripts from end to end on a tiny model: a result file that `make targets` can read."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from tests.serving.site import server_of
from tests.tiny import tiny_model

from benchmarks import forward_cost, serving, single_request
from recguide.bench.acceptance.assembly import assemble
from recguide.bench.targets import read_result
from recguide.engine.config import EngineConfig
from recguide.engine.facts import facts_of
from recguide.engine.local import LocalEngine
from recguide.serving.app import create_app
from recguide.serving.settings import ServerSettings

SMALL = ("--quick", "--loads", "1", "--peer-loads", "--texts", "1", "--tokens", "24", "--prompt", "40")


@pytest.fixture
def run(monkeypatch, tmp_path):
    def run(script, *arguments, model=None):
        tiny = model or tiny_model("nemotron_labs_diffusion", dtype=torch.float32)
        monkeypatch.setattr(script, "load", lambda *_, **__: tiny)
        file = tmp_path / "result.json"
        monkeypatch.setattr("sys.argv", ["script", *arguments, "--output", str(file)])
        script.main()
        return read_result(file)

    return run


def test_forward_cost(run, capsys):
    result = run(forward_cost, "--quick", "--replays", "1")
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


def test_serving(run, monkeypatch, capsys):
    """The server of this process in place of one of its own; both decode with replayed acceptance."""
    wide = tiny_model("nemotron_labs_diffusion", dtype=torch.float32, vocab_size=256)

    @contextmanager
    def server(options):
        model = replace(wide, name="nld-8b")
        engine = assemble(model, EngineConfig(max_model_len=options.length))
        facts = facts_of(model, engine, "replayed acceptance")
        with server_of(create_app(LocalEngine(engine, facts), ServerSettings(models=("nld-8b",)))) as url:
            yield url

    monkeypatch.setattr(serving, "server", server)
    small = ("--loads", "1", "3", "--prompt", "20", "--tokens", "12", "--length", "64")
    result = run(serving, *small, model=wide)
    assert [(row["load"], row["requests"], row["errors"]) for row in result.rows] == [(1, 4, 0), (3, 6, 0)]
    assert all(row["http_over_offline"] > 0 for row in result.rows)
    # A CPU has no graphs, so there is nothing to compare the loop's wall time with.
    assert all(row["without_graph"] == row["forwards"] > 0 for row in result.rows)
    assert all(row["efficiency"] is None for row in result.rows)
    assert result.settings["acceptance"] == "replayed acceptance"
    assert "replayed acceptance" in capsys.readouterr().out
