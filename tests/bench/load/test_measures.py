"""Latencies of single requests and of many: what several tokens a chunk, failures and turns do to them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.bench.load.records import record

from recguide.bench.load.agreement import agreement
from recguide.bench.load.distribution import Distribution
from recguide.bench.load.measures import counted_by, e2e_ms, inter_token_ms, tpot_ms, ttft_ms
from recguide.bench.load.slo import Slo
from recguide.bench.load.summary import summarise
from recguide.core import ParameterError


def test_latencies_count_from_the_due_time_not_from_sending():
    late = record([(5.5, 1, None)], scheduled_s=1.0, sent_s=5.0, ended_s=6.0)
    assert ttft_ms(late) == 4500
    assert e2e_ms(late) == 5000


def test_a_chunk_of_several_tokens_shares_its_gap():
    several = record([(1.0, 2, 1), (1.02, 8, 4), (1.03, 2, 1)], output_tokens=6)
    assert counted_by(several) == "server"
    assert inter_token_ms(several) == [(pytest.approx(5.0), 4), (pytest.approx(10.0), 1)]
    assert tpot_ms(several) == pytest.approx(30 / 5)


def test_usage_is_shared_out_by_characters_where_chunks_are_not_counted():
    shared = record([(1.0, 5, None), (1.02, 10, None), (1.03, 5, 1)], output_tokens=4)
    assert counted_by(shared) == "characters"
    assert inter_token_ms(shared) == [(pytest.approx(10.0), 2.0), (pytest.approx(10.0), 1.0)]


def test_without_usage_only_what_is_known_is_said():
    silent = record([(1.0, 5, None), (1.02, 10, None)])
    assert counted_by(silent) is None
    assert inter_token_ms(silent) == []
    assert tpot_ms(silent) is None
    summary = summarise([silent], [], None)
    assert summary.output_tokens_per_s is None
    assert summary.tokens.unknown == 1
    assert summary.gap_ms is not None


@given(st.lists(st.tuples(st.floats(0, 1e6), st.integers(1, 9)), min_size=1, max_size=60))
def test_a_weighted_percentile_is_that_of_repeated_values(pairs):
    values, weights = zip(*pairs, strict=True)
    repeated = np.repeat(values, weights)
    found = Distribution.of(values, weights)
    assert found is not None
    for share, value in ((50, found.p50), (90, found.p90), (99, found.p99)):
        assert value == np.percentile(repeated, share, method="inverted_cdf")
    assert found.mean == pytest.approx(repeated.mean())
    assert (found.count, found.max) == (len(repeated), max(values))


def test_failures_are_counted_and_miss_every_slo():
    good = record([(0.1, 1, None), (0.2, 1, None)], ended_s=0.2, output_tokens=2)
    slow = record([(0.9, 1, None)], number=1, ended_s=1.0, output_tokens=1)
    failed = record([], number=2, ended_s=0.5, error="http 500")
    summary = summarise([good, slow, failed], [], Slo.parse("ttft=500"))
    assert summary.errors == {"http 500": 1}
    assert (summary.requests, summary.whole) == (3, 2)
    assert summary.goodput is not None
    assert summary.goodput.share == pytest.approx(1 / 3)
    assert summary.goodput.per_s == pytest.approx(1 / 1.0)
    assert summary.e2e_ms is not None
    assert summary.e2e_ms.count == 2


def test_an_slo_on_tpot_cannot_be_judged_without_usage():
    summary = summarise([record()], [], Slo.parse("tpot=20"))
    assert summary.goodput is not None
    assert summary.goodput.share is None


def test_rates_divide_by_the_turns_alone():
    records = [
        record(turn=0, scheduled_s=0.0, ended_s=1.0, output_tokens=10),
        record(turn=1, scheduled_s=100.0, ended_s=101.0, output_tokens=10),
    ]
    summary = summarise(records, [], None)
    assert summary.busy_s == pytest.approx(2.0)
    assert summary.output_tokens_per_s == pytest.approx(10.0)


def test_speculation_adds_up():
    report = {
        "num_spec_steps": 2,
        "num_draft_tokens": 30,
        "num_accepted_draft_tokens": 4,
        "acceptance_histogram": [0, 1, 0, 1],
    }
    found = summarise(
        [record(speculation=report), record(speculation=report), record()], [], None
    ).speculation
    assert found is not None
    assert (found.answers, found.rounds, found.acceptance) == (2, 4, {2: 2, 4: 2})
    assert found.mean_acceptance == 3.0


def test_agreement_pairs_requests_and_shows_where_texts_part():
    ones = [record(number=0, text="a b"), record(number=1, text="same"), record(number=2, error="timeout")]
    others = [record(number=0, text="a c"), record(number=1, text="same"), record(number=2, text="x")]
    found = agreement(ones, others)
    assert (found.compared, found.equal) == (2, 1)
    assert (found.examples[0].at, found.examples[0].one, found.examples[0].other) == (2, "a b", "a c")


@pytest.mark.parametrize("text", ["", "ttft", "ttft=fast", "ttft=-1", "itl=5", "ttft=1,ttft=2", "e2e=nan"])
def test_what_is_no_slo_is_refused(text):
    with pytest.raises(ParameterError, match="slo"):
        Slo.parse(text)
