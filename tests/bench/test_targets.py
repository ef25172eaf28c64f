"""Targets are read from whatever result files there are; a file that is none is named, not skipped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import targets as script
from recguide.bench.results import Target, write_result
from recguide.bench.targets import MalformedResult, read_result, read_results, targets_table

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def written(folder: Path, name: str, *targets: Target) -> Path:
    file = folder / f"{name}.json"
    write_result(file, settings={"quick": True}, rows=[{"a": 1}], targets=targets)
    return file


def test_the_table_has_every_target_of_every_file(tmp_path):
    written(tmp_path, "b", Target.at_least("speed", 5.9, 6.0))
    written(tmp_path, "a", Target.at_most("ms", 4.0, 4.5), Target.at_most("bugs", 0, 0))
    results, faults = read_results(tmp_path)
    lines = targets_table(results).splitlines()
    assert not faults
    assert [line.split()[0] for line in lines[:4]] == ["result", "a", "a", "b"]
    assert "no" in lines[3].split()
    assert "CPU" in lines[3]
    assert lines[-1] == "2 of 3 targets met"


def test_unmet_targets_are_no_failure(tmp_path, capsys):
    written(tmp_path, "a", Target.at_least("speed", 1.0, 6.0))
    assert script.main(tmp_path) == 0
    assert "0 of 1" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda result: result.pop("targets"), "targets"),
        (lambda result: result["provenance"].pop("device"), "device"),
        (lambda result: result["targets"][0].pop("met"), "met"),
        (lambda result: result["targets"][0].update(value=True), "value"),
        (lambda result: result["targets"].append(3), "name"),
        (lambda result: result.update(rows={}), "rows"),
    ],
)
def test_a_malformed_file_fails_by_name_and_the_others_are_shown(tmp_path, capsys, spoil, message):
    written(tmp_path, "good", Target.at_least("speed", 7.0, 6.0))
    file = written(tmp_path, "spoilt", Target.at_least("speed", 7.0, 6.0))
    result = json.loads(file.read_text())
    spoil(result)
    file.write_text(json.dumps(result))
    with pytest.raises(MalformedResult, match=message):
        read_result(file)
    assert script.main(tmp_path) == 1
    shown = capsys.readouterr()
    assert "good" in shown.out
    assert "spoilt.json" in shown.err


def test_a_file_that_is_no_json_fails(tmp_path):
    (tmp_path / "a.json").write_text("{")
    assert script.main(tmp_path) == 1


def test_the_results_of_this_checkout_are_well_formed():
    results, faults = read_results(RESULTS)
    assert not faults
    assert {"cpu_profile", "demo_adapter"} <= {result.name for result in results}
