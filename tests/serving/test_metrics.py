"""The metrics of a server agree with what its engine and its requests did."""

from __future__ import annotations

import re
from pathlib import Path
from time import monotonic

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from tests.fake import EOS, Script, Slip, encode, engine, run

from recguide.core import RoundStats, SamplingParams
from recguide.serving.metrics import Metrics
from recguide.serving.metrics_route import metrics_route
from recguide.serving.vllm_names import NAMES, both

PROMPT = tuple(encode("Say it: "))
ANSWER = (*encode("the quick brown fox jumps over the lazy dog, and then it naps."), EOS)
SLIPS = {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in (3, 9, 20, 31, 44)}


def fixed(method):
    """With blocks that no policy chooses, so that all branches run beside the verification of a draft."""
    return SamplingParams(max_tokens=90, method=method, block_size=None if method == "ar" else 16)


@pytest.fixture
def metrics():
    return Metrics()


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(f"recguide:{name}", labels)


def observed(metrics, *methods):
    """Runs the script once by each method; the requests."""
    machine = engine(Script(PROMPT, ANSWER, SLIPS))
    machine.observer = metrics.observe
    requests = [request for method in methods for request in machine.add(PROMPT, fixed(method))]
    run(machine)
    return requests


def test_rounds_add_up_to_the_statistics_of_the_requests(metrics):
    requests = observed(metrics, "recguide", "linear", "tidar", "ar")
    total = RoundStats()
    for request in requests:
        total.add(request.stats)
    assert value(metrics, "emitted_tokens_total") == total.tokens
    assert value(metrics, "draft_tokens_total") == total.drafted
    assert value(metrics, "accepted_tokens_total") >= total.accepted  # not cut at the end of a text
    for block, rounds in total.blocks.items():
        assert value(metrics, "rounds_total", block=str(block)) == rounds
    assert value(metrics, "acceptance_count") == total.rounds
    for kind, ran in total.branches.items():
        fates = [
            value(metrics, "branches_total", kind=kind, outcome=outcome) or 0
            for outcome in ("missed", "covered", "reused")
        ]
        assert sum(fates) == ran
        assert fates[1] + fates[2] == total.covered[kind]
        assert fates[2] == total.reused[kind]
    by = [value(metrics, "drafts_total", by=by) or 0 for by in ("draft", *total.branches)]
    assert sum(by) == total.rounds
    assert by[1:] == [total.reused[kind] for kind in total.branches]
    forwards = [value(metrics, "request_forwards_total", phase=phase) for phase in ("draft", "verify")]
    assert sum(forwards) == total.forwards


def test_accepted_positions_fall_and_add_up(metrics):
    observed(metrics, "linear")
    positions = [value(metrics, "accepted_position_total", position=str(i)) or 0 for i in range(16)]
    assert positions == sorted(positions, reverse=True)
    assert sum(positions) == value(metrics, "accepted_tokens_total") > 0


def test_gauges_say_how_it_is_and_not_how_it_was(metrics):
    machine = engine(Script(PROMPT, ANSWER, SLIPS), max_running=2)
    machine.observer = metrics.observe
    for _ in range(3):
        machine.add(PROMPT, SamplingParams(max_tokens=30))
    machine.step()
    assert value(metrics, "running_requests") == 2
    assert value(metrics, "waiting_requests") == 1
    assert 0 < value(metrics, "kv_used_ratio") < 1
    run(machine)
    assert value(metrics, "running_requests") == value(metrics, "kv_used_ratio") == 0


def test_who_waits_for_a_place_is_seen_to_wait(metrics):
    machine = engine(Script(PROMPT, ANSWER, SLIPS), max_running=1)
    machine.observer = metrics.observe
    for waited_s in (0.0, 30.0):
        machine.add(PROMPT, SamplingParams(max_tokens=30), arrived=monotonic() - waited_s)
    machine.step()
    assert value(metrics, "request_queue_time_seconds_count") == 1
    run(machine)
    assert value(metrics, "request_queue_time_seconds_count") == 2
    assert 30 <= value(metrics, "request_queue_time_seconds_sum") < 60
    assert (
        both(metrics.registry, "tiny").get_sample_value(
            "vllm:request_queue_time_seconds_bucket", {"model_name": "tiny", "engine": "0", "le": "20.0"}
        )
        == 1
    )


def test_a_scrape_is_what_a_scraper_can_parse(metrics):
    observed(metrics, "recguide")
    metrics.arrived(prompt_tokens=8)
    metrics.first_token(0.25)
    metrics.finished("stop", 1.5)
    app = FastAPI()
    app.include_router(metrics_route(metrics.registry))
    answer = TestClient(app).get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    assert families["recguide:time_to_first_token_seconds"].type == "histogram"
    assert all(name.startswith("recguide:") for name in families)
    open_metrics = TestClient(app).get("/metrics", headers={"accept": "application/openmetrics-text"})
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    assert open_metrics.text.endswith("# EOF\n")


def test_vllm_names_say_the_same(metrics):
    observed(metrics, "recguide", "ar")
    metrics.arrived(prompt_tokens=8)
    metrics.first_token(0.25)
    metrics.tokens(0.125)
    metrics.choice(RoundStats(tokens=5, forwards=2, prefix_hit_tokens=4), 8, 0.5)
    metrics.finished("length", 1.5)
    registry = both(metrics.registry, "tiny")
    label = {"model_name": "tiny", "engine": "0"}

    def theirs(name, **labels):
        return registry.get_sample_value(f"vllm:{name}", {**label, **labels})

    assert theirs("num_requests_running") == 0
    assert theirs("generation_tokens_total") == value(metrics, "emitted_tokens_total") > 0
    assert theirs("spec_decode_num_draft_tokens_total") == value(metrics, "draft_tokens_total") > 0
    assert theirs("spec_decode_num_accepted_tokens_per_pos_total", position="0") > 0
    assert theirs("request_success_total", finished_reason="length") == 1
    assert theirs("time_to_first_token_seconds_sum") == 0.25
    assert theirs("inter_token_latency_seconds_bucket", le="0.2") == 1
    assert (theirs("prefix_cache_queries_total"), theirs("prefix_cache_hits_total")) == (8, 4)
    found = {family.name for family in registry.collect()}
    assert set(NAMES) | set(NAMES.values()) <= found


def test_queries_of_the_documentation_ask_for_metrics_that_there_are(metrics):
    observed(metrics, "recguide")
    page = Path(__file__).parents[2] / "docs" / "observability.md"
    asked = set(re.findall(r"recguide:(\w+)", page.read_text()))
    assert asked
    families = {family.name.removeprefix("recguide:") for family in metrics.registry.collect()}
    endings = ("", "_total", "_sum", "_count", "_bucket")
    assert asked <= {name + ending for name in families for ending in endings}
