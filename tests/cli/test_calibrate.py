from __future__ import annotations

import json

import pytest
from tests.guidance.test_value import many
from tests.toy import toy_model

from recguide.guidance.conditions import Conditions
from recguide.guidance.trace_file import read_trace, write_trace
from recguide.guidance.value import ValueTable, found

HEADER = {"policy": "price", "conditions": {"model": "m", "fingerprint": "print"}}
SMALL = ("--max-tokens", "36", "--temperature", "1.5")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def prompts(tmp_path):
    file = tmp_path / "prompts.jsonl"
    lines = [{"prompt": f"Say {n}.", "task": "ab"[n % 2]} for n in range(5)]
    file.write_text("\n".join(map(json.dumps, lines)))
    return file


def test_the_table_is_saved_where_engines_find_it(cli, cache, prompts, tmp_path):
    trace, picture = tmp_path / "rounds.jsonl.zst", tmp_path / "value.png"
    arguments = ("calibrate", "toy", "--prompts", str(prompts), *SMALL)
    result = cli(*arguments, "--trace", str(trace), "--plot", str(picture))
    assert result.exit_code == 0, result.output
    (file,) = (cache / "values").iterdir()  # and no work file any more
    wanted = Conditions("toy", toy_model().fingerprint, "any device", {}, {"dtype": "float64"})
    table = found(wanted)
    assert table is not None
    assert str(file) in result.stderr
    assert f"{table.rounds} rounds are few" in result.stderr
    assert "mean A" in result.stdout
    header, records = read_trace(trace)
    assert header["conditions"]["fingerprint"] == wanted.fingerprint
    assert table.rounds == len(records)
    assert picture.stat().st_size > 0


def test_json_is_one_object_and_the_file_can_be_named(cli, tmp_path):
    trace, file = tmp_path / "served.jsonl.zst", tmp_path / "mine.json"
    write_trace(trace, HEADER, many(50))
    result = cli("calibrate", "--from-trace", str(trace), "--output", str(file), "--json")
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    assert said["file"] == str(file)
    assert said["rounds"] == ValueTable.read(file).rounds == 200
    assert set(said["values"]) == set(said["reliability"]["value_error"]) == {"4", "8", "16", "32"}
    assert said["policies"] == {"price": 200}


def test_traces_make_a_table_and_say_what_they_lack(cli, cache, tmp_path):
    trace = tmp_path / "served.jsonl.zst"
    write_trace(trace, HEADER, many(100))
    result = cli("calibrate", "--from-trace", str(trace))
    assert result.exit_code == 0, result.output
    assert ValueTable.read(cache / "values" / "print.json").conditions.model == "m"
    assert "price (400 rounds)" in result.stdout
    assert "block 32: 100 rounds; 100%" in result.stdout


def test_a_trace_without_a_block_is_refused_by_name(cli, tmp_path):
    trace = tmp_path / "served.jsonl.zst"
    records = [one for one in many(20) if one.block != 32]
    write_trace(trace, HEADER, records)
    result = cli("calibrate", "--from-trace", str(trace))
    assert result.exit_code == 2
    assert "no round has a block of 32" in result.stderr
    assert "fixed-32" in result.stderr


@pytest.mark.parametrize(
    "arguments", [(), ("toy",), ("--prompts", "x"), ("toy", "--prompts", "x", "--from-trace", "y")]
)
def test_a_model_with_prompts_or_traces(cli, arguments):
    result = cli("calibrate", *arguments)
    assert result.exit_code == 2
    assert "--from-trace" in result.output


def test_a_model_that_does_not_draft_is_refused(cli, prompts, monkeypatch):
    monkeypatch.setattr("recguide.cli.opening.load", lambda *_, **__: toy_model(drafts=False))
    result = cli("calibrate", "toy", "--prompts", str(prompts), *SMALL)
    assert result.exit_code == 2
    assert "does not draft" in result.stderr
