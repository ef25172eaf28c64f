"""The page says what the result files say."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import report
from recguide.bench.targets import Result, read_results

ROOT = Path(__file__).parents[2]
PROVENANCE = {"device": "NVIDIA H200", "torch": "2.11", "commit": "abc"}


def result(name, rows, **settings):
    return Result(name, PROVENANCE, settings, (), tuple(rows))


ROUND = [{"part": "products", "ms": 4.25, "share": 0.9, "launches": 170.0}, {"kernel": "attend", "ms": 0.1}]


def test_blocks_are_replaced_and_all_else_stays():
    page = "before\n<!-- table: round_profile-nld-8b -->\nold\n<!-- end -->\nafter\n"
    filled = report.fill(page, [result("round_profile-nld-8b", ROUND)])
    assert filled.startswith("before\n<!-- table: round_profile-nld-8b -->\n| part |")
    assert "| products | 4.25 | 0.9 | 170 |" in filled
    assert "attend" not in filled
    assert "old" not in filled
    assert "NVIDIA H200, torch 2.11, commit abc" in filled
    assert filled.endswith("<!-- end -->\nafter\n")
    assert report.fill(filled, [result("round_profile-nld-8b", ROUND)]) == filled


def test_a_block_without_a_result_says_so_and_an_unknown_one_is_an_error():
    assert report.NOTHING in report.fill("<!-- table: exact_cost -->\n<!-- end -->", [])
    picture = "<!-- table: round.svg -->\n<!-- end -->"
    assert report.NOTHING in report.fill(picture, [])
    assert "](figures/round.svg)" in report.fill(picture, [result("round_profile-nld-8b", ROUND)])
    with pytest.raises(KeyError):
        report.fill("<!-- table: unknown -->\n<!-- end -->", [])


def test_pictures_are_drawn_of_what_there_is(tmp_path):
    pytest.importorskip("matplotlib")
    assert report.draw([], tmp_path) == []
    found = [result("round_profile-nld-8b", ROUND, model="nld-8b", method="recguide")]
    (picture,) = report.draw(found, tmp_path)
    assert "nld-8b, recguide" in picture.read_text()


def test_every_table_has_its_place_on_the_page():
    page = report.PAGE.read_text(encoding="utf-8")
    assert {match["name"] for match in report.BLOCK.finditer(page)} == {*report.TABLES, *report.PICTURES}
    assert page.count("<!-- end -->") == len(report.TABLES) + len(report.PICTURES)


def test_the_page_is_filled_from_the_results_of_this_checkout():
    results, _ = read_results(ROOT / "benchmarks" / "results")
    page = report.PAGE.read_text(encoding="utf-8")
    assert report.fill(page, results) == page, "run: python benchmarks/report.py"
