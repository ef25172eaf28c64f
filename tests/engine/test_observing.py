"""What a step reports agrees with what the requests say of themselves."""

from __future__ import annotations

from collections import Counter
from time import monotonic

import pytest
from tests.engine.device import device_engine
from tests.fake import EOS, FakeBackbone, Script, Slip, decode, encode, engine, run

from recguide.core import SamplingParams
from recguide.engine.observing import DRAFT

PROMPT = tuple(encode("Say it: "))
ANSWER = (*encode("the quick brown fox jumps over the lazy dog, and then it naps."), EOS)
SLIPS = {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in (3, 9, 20, 31, 44)}
SCRIPT = Script(PROMPT, ANSWER, SLIPS)
VERIFYING = ("ar", "linear", "tidar", "recguide")


def by_device(script):
    return device_engine(FakeBackbone(script), decode)


def observed(machine, *params):
    """Runs a prompt with each of the parameters; the requests and the reports of all steps."""
    reports = []
    machine.observer = reports.append
    requests = [request for one in params for request in machine.add(PROMPT, one)]
    run(machine)
    return requests, reports


def rounds_of(reports, request):
    return [one for report in reports for one in report.rounds if one.request == request.arrival]


@pytest.mark.parametrize("make", [engine, by_device])
@pytest.mark.parametrize("method", VERIFYING)
def test_rounds_add_up_to_the_statistics(make, method):
    machine = make(SCRIPT)
    # One ends by its cap in the middle of a block, one by end-of-sequence, one by a stop string.
    params = [
        SamplingParams(max_tokens=21, method=method),
        SamplingParams(max_tokens=90, method=method),
        SamplingParams(max_tokens=90, method=method, stop=["lazy"]),
    ]
    requests, reports = observed(machine, *params)
    for request in requests:
        rounds, stats = rounds_of(reports, request), request.stats
        drafts = [one for one in rounds if one.drafted_by is not None]
        assert sum(one.emitted for one in rounds) == len(request.emitted) - 1  # prefill emits the first
        assert sum(one.acceptance for one in rounds) == stats.untrimmed
        assert sum(one.verified - 1 for one in rounds) == stats.drafted
        assert sum(min(one.acceptance - 1, one.emitted) for one in rounds) == stats.accepted
        assert Counter(one.emitted for one in drafts) == stats.acceptance
        assert Counter(min(one.acceptance - 1, one.emitted) for one in drafts) == stats.matched
        assert Counter(one.verified for one in rounds) == stats.blocks
        assert Counter(kind for one in drafts for kind in one.branches) == stats.branches
        assert Counter(one.covered for one in drafts if one.covered) == stats.covered
        assert Counter(one.reused for one in drafts if one.reused) == stats.reused
        assert [one.finished for one in rounds] == [False] * (len(rounds) - 1) + [True]


@pytest.mark.parametrize("method", VERIFYING)
def test_drafted_accepted_and_emitted_are_what_their_names_say(method):
    """A draft never has one slot more than could be accepted, nor a round a token that nobody counts."""
    (request,), reports = observed(engine(SCRIPT), SamplingParams(max_tokens=90, method=method))
    rounds = rounds_of(reports, request)
    for one in rounds:
        matched, full = one.acceptance - 1, one.acceptance == one.verified
        assert 0 <= matched <= one.drafted - 1
        correction, bonus = int(not full), int(full)
        assert one.acceptance == matched + correction + bonus
        assert one.finished or one.emitted == one.acceptance
    stats = request.stats
    assert sum(count for count in stats.matched.values()) == stats.rounds
    assert sum(matched * count for matched, count in stats.matched.items()) == stats.accepted
    assert stats.accepted <= stats.drafted
    assert stats.drafted == sum((block - 1) * count for block, count in stats.blocks.items())


def test_a_reused_branch_is_named_in_the_round_that_verifies_its_draft():
    (request,), reports = observed(engine(SCRIPT), SamplingParams(max_tokens=90, block_size=16))
    rounds = rounds_of(reports, request)
    reused = [one.reused for one in rounds[:-1]]
    assert any(reused)
    assert [one.drafted_by for one in rounds[1:]] == [kind or DRAFT for kind in reused]


def test_steps_count_phases_tokens_and_pages():
    machine = engine(SCRIPT, max_running=2, kv_cache_tokens=4096)
    params = SamplingParams(max_tokens=30, method="linear")
    _, reports = observed(machine, params, params, params)
    backbone = machine._backbone
    assert len(reports) == backbone.forwards
    assert sum(report.query_tokens for report in reports) == backbone.query_tokens
    assert sum(report.emitted for report in reports) == 90
    assert (reports[0].prefill, reports[0].draft, reports[0].verify) == (2, 0, 0)
    assert (reports[0].running, reports[0].waiting) == (2, 1)
    assert reports[0].prefix_tokens == 0
    assert reports[1].prefix_tokens == 2 * len(PROMPT)
    assert all(report.pages_used <= report.pages for report in reports)
    last = reports[-1]
    assert (last.running, last.waiting, last.pages_used) == (0, 0, 0)
    assert all(report.step_ms > 0 for report in reports)


def test_preemptions_are_counted_once():
    machine = engine(SCRIPT, kv_cache_tokens=192, page_size=16)
    params = SamplingParams(max_tokens=80, method="linear")
    _, reports = observed(machine, params, params, params)
    assert sum(report.preempted for report in reports) == machine._scheduler.preemptions > 0


def test_each_wait_in_the_queue_is_told_once_whatever_becomes_of_the_request():
    machine = engine(SCRIPT, kv_cache_tokens=128, page_size=16, max_running=2)
    params = SamplingParams(max_tokens=80, method="linear")
    reports = []
    machine.observer = reports.append
    machine.add(PROMPT, params, arrived=monotonic() - 100)
    machine.add(PROMPT, params, arrived=monotonic() + 100)  # clocks of two processes may disagree
    machine.add(PROMPT, params, arrived=monotonic() - 200)
    (left,) = machine.add(PROMPT, params)
    machine.step()
    machine.abort(left)
    run(machine)
    first, *_ = waits = [seconds for report in reports for seconds in report.queued_s]
    assert 100 <= first < 150
    assert waits[1:] == [0.0, pytest.approx(225, abs=25)]
    assert machine._scheduler.preemptions > 0
    assert reports[0].queued_s == tuple(waits[:2])


def test_nobody_is_told_without_an_observer():
    machine = engine(SCRIPT)
    reports = []
    machine.observer = reports.append
    machine.observer = None
    machine.add(PROMPT, SamplingParams(max_tokens=5))
    run(machine)
    assert not reports


def test_diffusion_has_no_rounds_to_report():
    _, reports = observed(engine(SCRIPT), SamplingParams(max_tokens=40, method="diffusion"))
    assert sum(report.emitted for report in reports) == 40
    assert not any(report.rounds for report in reports)
