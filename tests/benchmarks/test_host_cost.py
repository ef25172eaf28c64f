"""The host's cost of a step: what it writes, and that the device's place is really empty."""

from __future__ import annotations

import pytest

from benchmarks import host_cost
from recguide.bench.targets import read_result


@pytest.mark.parametrize("case", host_cost.CASES, ids=lambda case: case.name)
def test_steps_take_all_requests_and_the_device_is_taken_off(case):
    ticks = iter(range(10**6))  # every look at this clock is a second later
    found = host_cost.measure(case, 6, 5, clock=lambda: float(next(ticks)))
    assert len(found.host) == len(found.query_tokens) == 5
    assert all(tokens >= 6 for tokens in found.query_tokens)
    # Two looks around the step and, for the device, two within it, which are one second that is taken off.
    assert set(found.host) <= {1000.0, 2000.0}


def test_the_file_says_what_was_asked_and_how(monkeypatch, tmp_path, capsys):
    file = tmp_path / "host_cost.json"
    arguments = ["--running", "4", "--steps", "3", "--case", "0", "--cpu-time", "--output", str(file)]
    monkeypatch.setattr("sys.argv", ["script", *arguments])
    monkeypatch.setattr(host_cost, "keep_all", lambda: None)  # this process does other things too
    host_cost.main()
    result = read_result(file)
    assert [row["case"] for row in result.rows] == ["plain decoding"]
    assert [target.target for target in result.targets] == [host_cost.TARGET_MS]
    assert result.settings["clock"] == "thread"
    assert "host ms/step" in capsys.readouterr().out
