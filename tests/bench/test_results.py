"""A result file says where its numbers come from; targets say whether they were met."""

from __future__ import annotations

import json
from pathlib import Path

from recguide.bench.results import Target, write_result


def test_a_result_file_holds_provenance_targets_rows_and_curve(tmp_path: Path):
    file = tmp_path / "results" / "a.json"
    targets = [Target.at_least("A", 4.5, 4.6), Target.at_most("seconds", 2.0, 2.0)]
    write_result(file, settings={"seed": 1}, rows=[{"a": 1}], targets=targets, curve=[{"step": 10}])
    result = json.loads(file.read_text())
    assert list(result) == ["provenance", "settings", "targets", "rows", "curve"]
    assert {"device", "torch", "commit", "time"} <= set(result["provenance"])
    assert [target["met"] for target in result["targets"]] == [False, True]
    assert (result["rows"], result["curve"]) == ([{"a": 1}], [{"step": 10}])


def test_without_training_there_is_no_curve(tmp_path: Path):
    write_result(tmp_path / "a.json", settings={}, rows=[])
    assert "curve" not in json.loads((tmp_path / "a.json").read_text())
