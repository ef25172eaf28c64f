"""The page and the file say what was measured, and nothing that is secret."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser

import pytest
from tests.bench.load.records import record

from recguide.bench.load.drive import ClosedLoop, Limit
from recguide.bench.load.endpoint import Asking, Endpoint
from recguide.bench.load.prompts import built_in
from recguide.bench.load.result import conclude
from recguide.bench.load.run import Outcome, Plan
from recguide.bench.load.slo import Slo

pytest.importorskip("matplotlib")

from recguide.bench.load.report.page import write_report

SPECULATION = {
    "num_spec_steps": 2,
    "num_draft_tokens": 30,
    "num_accepted_draft_tokens": 4,
    "acceptance_histogram": [0, 1, 0, 1],
}
PLAN = Plan(ClosedLoop(1), Limit(3, None), built_in(), Asking(), warm_up=0, turns=1, seed=0)


def outcome(name, *, text="<b>same</b>", speculation=None):
    records = [
        record(
            [(0.1, 4, None), (0.2, 7, None)], number=0, output_tokens=5, text=text, speculation=speculation
        ),
        record([(1.5, 4, None)], number=1, scheduled_s=1.0, ended_s=2.0, output_tokens=1, text="b"),
        record([], number=2, scheduled_s=2.0, ended_s=2.5, error="http 500"),
    ]
    endpoint = Endpoint(name, "http://h:1", "small<&>", api_key="secret")
    return Outcome(endpoint, tuple(records), (0.1, 0.2))


def result(*outcomes):
    settings = {"load": "closed loop, 1 at a time", "limit": "3 requests", "max_tokens": 9, "temperature": 0}
    return conclude(outcomes, PLAN, Slo.parse("ttft=300"), settings)


class Tags(HTMLParser):
    """Elements that are open, and addresses that a browser would fetch."""

    def __init__(self):
        super().__init__()
        self.open, self.fetched, self.ids = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in {"meta", "br"}:
            self.open.append(tag)
        self.note(attrs)

    def handle_startendtag(self, _tag, attrs):
        self.note(attrs)

    def note(self, attrs):
        for name, value in attrs:
            if name in {"src", "href", "xlink:href"} and not value.startswith("#"):
                self.fetched.append(value)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_is_well_formed(tmp_path):
    file = tmp_path / "deep" / "load.html"
    write_report(file, result(outcome("one", speculation=SPECULATION)))
    text = file.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert tags.fetched == []
    assert "<script" not in text
    assert text.count('<svg role="img"') == 4
    for words in ("small&lt;&amp;&gt;", "http 500", "goodput", "TTFT ≤ 300 ms", "acceptance A"):
        assert words in text
    assert "secret" not in text
    # Every colour of a picture is one of the page's, which are light or dark.
    pictures = "".join(re.findall(r"<svg.*?</svg>", text, re.DOTALL))
    assert not re.findall(r"#[0-9a-f]{6}", pictures)


def test_two_endpoints_stand_side_by_side(tmp_path):
    file = tmp_path / "load.html"
    write_report(file, result(outcome("one"), outcome("two", text="<b>some</b>")))
    text = file.read_text()
    assert "1 of 2 requests were answered with the same text" in text
    assert "&lt;b&gt;some" in text
    assert "<b>" not in text
    assert "second / first" in text


def test_the_file_has_every_request_and_no_key(tmp_path):
    file = tmp_path / "load.json"
    found = result(outcome("one", speculation=SPECULATION))
    found.save(file)
    saved = json.loads(file.read_text())
    (endpoint,) = saved["endpoints"]
    assert [request["error"] for request in endpoint["requests"]] == [None, None, "http 500"]
    assert endpoint["requests"][1]["ttft_ms"] == pytest.approx(500)
    assert endpoint["summary"]["errors"] == {"http 500": 1}
    assert endpoint["summary"]["goodput"]["share"] == pytest.approx(1 / 3)
    assert endpoint["summary"]["speculation"]["mean_acceptance"] == 3.0
    assert saved["provenance"]["commit"]
    assert "secret" not in file.read_text()
    assert "requests" not in found.as_object()["endpoints"][0]


def test_a_load_without_one_whole_answer_has_a_report_too(tmp_path):
    failed = Outcome(Endpoint("one", "http://h:1", "m"), (record([], ended_s=0.5, error="timeout"),), ())
    write_report(tmp_path / "load.html", result(failed))
    assert "unknown" in (tmp_path / "load.html").read_text()
