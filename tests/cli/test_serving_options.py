"""`serve` and `deploy` tell an engine's process everything that their options say."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from recguide.cli.options import loading
from recguide.cli.serving_options import engine, recipe, server
from recguide.core import ParameterError
from recguide.engine.config import EngineConfig


def test_every_option_is_one_of_the_engines():
    told = recipe("smollm2-135m", loading(exact=False), engine())
    assert EngineConfig(**told.engine) == EngineConfig(
        max_running=64, max_batch_tokens=1024, max_waiting=1024
    )


def test_files_and_folders_are_found_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    from pathlib import Path

    told = recipe("model", loading(cost_table=Path("cost.json")), engine(method="ar", block_size=8))
    assert told.source == str(tmp_path / "model")
    assert told.engine["cost_table"] == tmp_path / "cost.json"
    assert (told.engine["method"], told.engine["block_size"]) == ("ar", 8)


def test_a_model_is_called_as_it_was_asked_for_unless_it_is_named():
    assert server().named("some/model").models == ("some/model",)
    assert server(served_model_name=["a", "b"]).named("some/model").models == ("a", "b")
    with pytest.raises(ParameterError, match="log_format"):
        server(log_format="xml")


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is here")
def test_deploy_says_which_extra_it_needs(cli):
    found = cli("deploy", "smollm2-135m")
    assert found.exit_code == 2
    assert "recguide[ray]" in found.stderr
