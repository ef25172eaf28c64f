"""`recguide verify` and `recguide doctor`: what they print, and their exit status."""

from __future__ import annotations

import json

from tests.toy import toy_model

from recguide.bench.exactness import Verdict
from recguide.bench.verify import Report


def small(tmp_path, *arguments):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "one"}\n{"prompt": "two two"}\n')
    return ("verify", "toy", "--prompts", str(file), "--max-tokens", "6", "--block-sizes", "1,4", *arguments)


def test_verify_prints_one_object(cli, tmp_path):
    result = cli(*small(tmp_path, "--methods", "linear,recguide", "--json"))
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["prompts"], found["ties"], found["bugs"]) == (2, 0, 0)
    assert found["identical"] == found["texts"] == 2 * 2 * (1 + 2 * 2)
    assert {"tpf", "acceptance"} <= set(found["methods"]["recguide"])
    assert found["divergences"] == []


def test_verify_fails_on_a_bug(cli, tmp_path, monkeypatch):
    monkeypatch.setattr(Report, "count", lambda _, verdict: int(verdict is Verdict.BUG))
    result = cli(*small(tmp_path, "--methods", "linear"))
    assert result.exit_code == 1
    assert "FAILED" in result.stdout


def test_verify_shows_a_line_a_method(cli, tmp_path):
    result = cli(*small(tmp_path))
    assert result.exit_code == 0
    assert all(method in result.stdout for method in ("ar", "linear", "tidar", "recguide"))
    assert "passed" in result.stdout


def test_verify_refuses_what_it_cannot_compare(cli, tmp_path):
    assert cli(*small(tmp_path, "--methods", "diffusion")).exit_code == 2
    assert cli(*small(tmp_path, "--temperature", "warm")).exit_code == 2


def test_doctor_finds_that_random_weights_cannot_draft(cli):
    result = cli("doctor", "toy", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert found["healthy"] is False
    levels = {finding["check"]: finding["level"] for finding in found["findings"]}
    assert levels["acceptance"] == "problem"
    assert levels["versions"] == "ok"


def test_doctor_is_content_with_a_plain_model(cli, monkeypatch):
    monkeypatch.setattr("recguide.cli.opening.load", lambda *_, **__: toy_model(drafts=False))
    result = cli("doctor", "toy")
    assert result.exit_code == 0
    assert "recguide adapt" in result.stdout


def test_doctor_explains_a_model_that_does_not_load(cli, monkeypatch, tmp_path):
    from recguide.models.loading import load

    monkeypatch.setattr("recguide.cli.opening.load", load)
    result = cli("doctor", str(tmp_path), "--json")
    assert result.exit_code == 1
    (finding,) = [one for one in json.loads(result.stdout)["findings"] if one["check"] == "model"]
    assert finding["level"] == "problem"
    assert str(tmp_path) in finding["message"]
