"""Pictures show what the rows say, and are the same for the same rows."""

from __future__ import annotations

import re

import pytest

from recguide.bench.figures import roofline, round_bars
from recguide.bench.guided.figures import bars

pytest.importorskip("matplotlib")


def row(query_tokens, ms, series="tokens", limit=None):
    return {
        "series": series,
        "query_tokens": query_tokens,
        "ms": ms,
        "over_floor": ms / 3.71,
        "limit_ms": limit,
    }


ROWS = {"nld-8b": [row(1, 4.2, limit=4.6), row(64, 4.9, limit=5.0), row(1, 40.0, "load")]}


def test_a_roofline_has_floor_targets_and_the_line_measured_before(tmp_path):
    file = tmp_path / "deep" / "roof.svg"
    roofline(file, ROWS)
    text = file.read_text()
    for words in ("nld-8b", "bytes floor 3.71 ms", "target", "products alone", "query tokens N"):
        assert words in text
    roofline(tmp_path / "again.svg", ROWS)
    assert (tmp_path / "again.svg").read_text() == text


def test_bars_have_a_name_for_each_round_and_part(tmp_path):
    file = tmp_path / "round.svg"
    round_bars(file, {"nld-8b, recguide": {"products": 4.1, "attention": 0.3, "gaps": 0.1}})
    text = file.read_text()
    for words in ("nld-8b, recguide", "products", "attention", "picks", "gaps"):
        assert words in text


def test_a_bar_says_its_value_inside_unless_it_is_too_short(tmp_path):
    file = tmp_path / "bars.svg"
    bars({"ar": 1548.3, "slow": 43.1}, "tokens a second", "throughput", file, {"asked": 1600.0})
    style = {}
    for line in file.read_text().splitlines():
        found = re.search(r"<text style=\"([^\"]*)\".*> *([\d.,]+) *</text>", line)
        if found is not None:
            style[found[2]] = found[1]
    assert "text-anchor: end" in style["1,548"]
    assert "fill: #ffffff" in style["1,548"]
    assert "fill: #ffffff" not in style["43.1"]
