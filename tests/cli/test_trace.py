"""`recguide trace` and the option that records what it shows."""

from __future__ import annotations

import json

import pytest


@pytest.fixture
def recorded(cli, tmp_path):
    file = tmp_path / "rounds.zst"
    result = cli(
        "generate",
        "toy",
        "abc",
        "de",
        "--max-tokens",
        "30",
        "--policy",
        "fixed-6",
        "--trace",
        str(file),
        "--json",
    )
    assert result.exit_code == 0, result.stderr
    return file


def test_a_request_is_drawn_round_by_round(cli, recorded):
    result = cli("trace", "show", str(recorded))
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].split()[:5] == ["at", "drafted", "by", "slots", "emitted"]
    assert " of 6" in result.stdout
    assert "policy price" in result.stderr


def test_a_narrow_terminal_cuts_no_row(cli, recorded, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    shown = cli("trace", "show", str(recorded)).stdout
    assert "branches" in shown.splitlines()[0]
    assert "…" not in shown


def test_the_same_for_machines(cli, recorded):
    found = json.loads(cli("trace", "show", str(recorded), "--request", "1", "--json").stdout)
    assert found["requests"] == ["0", "1"]
    assert found["request"] == "1"
    assert found["tokens"] == sum(one["acceptance"] for one in found["rounds"])
    assert {one["prompt"] for one in found["rounds"]} == {"1"}


def test_what_is_not_there_is_said(cli, recorded, tmp_path):
    assert "there are 0, 1" in cli("trace", "show", str(recorded), "--request", "7").stderr
    result = cli("trace", "show", str(tmp_path / "nothing.zst"))
    assert result.exit_code == 2
    assert "nothing.zst" in result.stderr
