from __future__ import annotations

import json
from dataclasses import replace

import pytest
from tests.toy import toy_model
from typer.testing import CliRunner

from recguide.cli import app


@pytest.fixture
def loads(monkeypatch):
    """What `load` was asked for; it gives a toy without a tokenizer."""
    asked = []

    def load(source, **options):
        asked.append((source, options))
        return replace(toy_model(), tokenizer=None)

    monkeypatch.setattr("recguide.cli.opening.load", load)
    return asked


def test_a_shape_with_random_weights_generates_numbers(loads):
    result = CliRunner().invoke(
        app,
        ["generate", "nld-8b", "ab", "--load-format", "dummy", "--max-tokens", "5", "--ignore-eos", "--json"],
    )
    assert result.exit_code == 0, result.output
    assert loads[0][0] == "nld-8b"
    assert loads[0][1]["load_format"] == "dummy"
    (generation,) = json.loads(result.stdout)["generations"]
    (choice,) = generation["choices"]
    assert [int(word) for word in choice["text"].split()] == choice["token_ids"]


def test_streaming_needs_no_tokenizer_either(loads):
    result = CliRunner().invoke(app, ["generate", "nld-8b", "ab", "--max-tokens", "5", "--ignore-eos"])
    assert result.exit_code == 0, result.output
    assert len(loads) == 1
    assert len(result.stdout.split()) == 5


def test_a_chat_needs_one(loads):
    result = CliRunner().invoke(app, ["generate", "nld-8b", "ab", "--chat"])
    assert result.exit_code == 2
    assert "no tokenizer" in result.stderr
    assert loads
