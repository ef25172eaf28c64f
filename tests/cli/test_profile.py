from __future__ import annotations

import json

import pytest

from recguide.bench.forwards import ForwardTimer
from recguide.guidance.cost import CostTable


@pytest.fixture
def timed(monkeypatch):
    """Forwards take what these say, not what the machine does."""

    def say(base):
        monkeypatch.setattr(
            ForwardTimer, "__call__", lambda _, point: [base(point.tokens) + 1e-4 * point.read] * 5
        )

    say(lambda n: 1 + 0.1 * n)
    return say


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("RECGUIDE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.mark.usefixtures("timed")
def test_the_table_is_saved_where_it_is_found_and_printed(cli, cache):
    result = cli("profile", "toy", "--largest", "32")
    assert result.exit_code == 0, result.output
    (file,) = (cache / "costs").iterdir()
    assert CostTable.read(file).tokens[-1] == 32
    assert str(file) in result.stderr
    assert "per 1,000 prefix tokens read   0.1000" in result.stdout
    assert "query tokens" in result.stdout


@pytest.mark.usefixtures("timed")
def test_a_long_wait_is_announced_and_a_short_one_is_not(cli, monkeypatch):
    for seconds, said in ((5.0, None), (60.0, "about 60 seconds"), (420.0, "about 7 minutes")):
        monkeypatch.setattr(ForwardTimer, "expected_s", lambda *_, s=seconds: s)
        result = cli("profile", "toy", "--largest", "32")
        assert result.exit_code == 0, result.output
        assert ("this will take" in result.stderr) == (said is not None)
        assert said is None or said in result.stderr


@pytest.mark.usefixtures("timed")
def test_json_is_one_object_and_the_file_can_be_named(cli, tmp_path):
    file = tmp_path / "mine.json"
    result = cli("profile", "toy", "--largest", "32", "--output", str(file), "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["file"] == str(file)
    assert found["tokens"] == list(CostTable.read(file).tokens)
    assert found["terms"]["prefix_ms"] == pytest.approx(1e-4)
    assert {"tokens", "requests", "prefix", "ms", "table_ms"} <= set(found["rows"][0])


@pytest.mark.usefixtures("timed")
def test_a_plot_is_drawn(cli, tmp_path):
    pytest.importorskip("matplotlib")
    result = cli("profile", "toy", "--largest", "32", "--plot", str(tmp_path / "cost.png"))
    assert result.exit_code == 0, result.output
    assert (tmp_path / "cost.png").stat().st_size > 0


def test_an_implausible_table_is_not_saved_and_the_reason_is_said(cli, cache, timed):
    timed(lambda _: 5.0)
    result = cli("profile", "toy", "--largest", "32")
    assert result.exit_code == 2
    assert "flat" in result.stderr
    assert not cache.exists()


def test_a_forward_of_one_size_makes_no_table(cli):
    result = cli("profile", "toy", "--largest", "1")
    assert result.exit_code == 2
    assert "at least 2" in result.stderr
