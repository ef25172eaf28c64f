"""What a dashboard is sent: frames that agree with the requests, and the rounds of a few of them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from contextlib import aclosing

import pytest
from tests.fake import EOS, Script, Slip, encode, engine, run

from recguide.core import RoundStats, SamplingParams
from recguide.engine.reports import RoundReport, StepReport
from recguide.serving.dashboard.feed import HISTORY, UNREAD, Feed
from recguide.serving.dashboard.frames import Window
from recguide.serving.dashboard.timelines import FOLLOWED, GONE_S, ROUNDS, Timelines

PROMPT = tuple(encode("Say it: "))
ANSWER = (*encode("the quick brown fox jumps over the lazy dog, and then it naps."), EOS)
SLIPS = {len(PROMPT) + at: Slip(second_right=at % 2 == 0) for at in (3, 9, 20, 31, 44)}


def fixed(method):
    """With blocks that no policy chooses, so that all branches run beside the verification of a draft."""
    return SamplingParams(max_tokens=90, method=method, block_size=None if method == "ar" else 16)


def decoded(*watchers, methods=("recguide", "linear", "ar")):
    """Runs the script by each method, watched; the requests."""
    machine = engine(Script(PROMPT, ANSWER, SLIPS))

    def tell(report):
        for watcher in watchers:
            watcher.add(report)

    machine.observer = tell
    requests = [request for method in methods for request in machine.add(PROMPT, fixed(method))]
    run(machine)
    return requests


def report(*rounds, at=0.0):
    """A step with nothing but rounds."""
    return StepReport(at, 1.0, 0, 0, len(rounds), 0, 0, 0, 1, 0, 1, 0, 2, 0, 0.0, 0.0, (), rounds)


def one_round(request, *, finished=False):
    return RoundReport(request, 8, 8, 3, 3, "draft", (), None, None, finished)


def test_a_frame_says_what_the_requests_did():
    window = Window()
    requests = decoded(window)
    total = RoundStats()
    for request in requests:
        total.add(request.stats)
    frame = window.frame(at=10.0, seconds=2.0)
    assert frame["tokens"] == pytest.approx(total.tokens / 2, abs=0.01)
    after_first = total.tokens - len(requests)
    assert frame["acceptance"] >= total.mean_acceptance  # not cut at the end of a text
    assert frame["tpf"] == pytest.approx(after_first / total.forwards, abs=1e-3)
    assert frame["reuse"] == pytest.approx(total.reuse, abs=1e-3)
    blocks = {str(block): pytest.approx(count / 2, abs=0.01) for block, count in total.blocks.items()}
    assert frame["blocks"] == blocks
    assert sum(frame["branches"].values()) == pytest.approx(total.branches.total() / 2, abs=0.02)
    assert frame["branches"]["reused"] == pytest.approx(total.reused.total() / 2, abs=0.01)
    assert (frame["running"], frame["waiting"], frame["kv_used"]) == (0, 0, 0)


def test_flows_begin_anew_and_states_stay():
    window = Window()
    window.add(report(one_round(1)))
    first, second = window.frame(1.0, 0.5), window.frame(1.5, 0.5)
    assert first["acceptance"] == 3
    assert first["blocks"] == {"8": 2.0}
    assert (second["tokens"], second["blocks"]) == (0, {})
    assert second["acceptance"] is second["step_ms"] is None
    assert second["running"] == 1
    assert second["kv_used"] == 0.5


# --- timelines ----------------------------------------------------------------------------------------------


def test_timelines_hold_every_round_of_a_request_once():
    timelines = Timelines()
    requests = decoded(timelines)
    fresh, kept = timelines.fresh(), timelines.all()
    assert fresh == kept
    assert timelines.fresh() == {}
    for request in requests:
        rows = kept[str(request.arrival)]
        assert Counter(row[2] for row in rows) == request.stats.blocks
        assert sum(row[4] for row in rows) == len(request.emitted) - 1
        assert sum(row[5] == "reused" for row in rows) == request.stats.reused.total()
        assert [row[6] for row in rows] == [False] * (len(rows) - 1) + [True]


def test_a_place_is_taken_from_who_is_done_only():
    timelines = Timelines()
    timelines.add(report(*(one_round(i, finished=i == 3) for i in range(FOLLOWED))))
    timelines.add(report(one_round(100)))
    assert "3" not in timelines.all()
    timelines.add(report(one_round(101)))
    assert "101" not in timelines.all()
    going_on = [one_round(i) for i in range(FOLLOWED) if i not in (3, 5)]
    timelines.add(report(*going_on, one_round(102), at=GONE_S + 1))
    assert "102" in timelines.all()
    assert len(timelines.all()) == FOLLOWED


def test_only_the_newest_rounds_are_kept():
    timelines = Timelines()
    for at in range(ROUNDS + 5):
        timelines.add(report(one_round(1), at=float(at)))
    assert [row[0] for row in timelines.all()["1"]] == [float(at) for at in range(5, ROUNDS + 5)]


# --- feed ---------------------------------------------------------------------------------------------------


def parsed(event):
    name, data = event.removesuffix("\n\n").split("\n")
    return name.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@pytest.mark.asyncio
async def test_a_dashboard_gets_what_has_been_and_then_what_comes():
    feed = Feed()
    feed.add(report(one_round(1)))
    feed.beat()
    feed.add(report(one_round(1)))
    async with aclosing(feed.events()) as events:
        name, data = parsed(await anext(events))
        assert name == "history"
        assert [frame["acceptance"] for frame in data["frames"]] == [3]
        assert len(data["rounds"]["1"]) == 2
        feed.beat()
        name, data = parsed(await anext(events))
        assert name == "frame"
        assert data["frame"]["acceptance"] == 3
        assert len(data["rounds"]["1"]) == 1


@pytest.mark.asyncio
async def test_a_frame_waits_for_a_slow_step():
    now = 100.0
    feed = Feed(clock=lambda: now)
    feed.add(report(one_round(1)))
    for now in (100.5, 101.0, 101.5, 102.0, 108.0):
        if now == 102.0:
            feed.add(report(one_round(1)))
        feed.beat()
    async with aclosing(feed.events()) as events:
        _, data = parsed(await anext(events))
    assert [(frame["at"], frame["blocks"]) for frame in data["frames"]] == [
        (100.5, {"8": 2.0}),
        (102.0, {"8": 0.67}),
        (108.0, {}),
    ]


@pytest.mark.asyncio
async def test_history_is_bounded_and_a_slow_reader_is_let_go():
    feed = Feed()
    async with aclosing(feed.events()) as events:
        await anext(events)
        for _ in range(HISTORY + 5):
            feed.beat()
        assert len([event async for event in events]) == UNREAD
    async with aclosing(feed.events()) as events:
        _, data = parsed(await anext(events))
        assert len(data["frames"]) == HISTORY


@pytest.mark.asyncio
async def test_frames_are_made_while_it_runs():
    feed = Feed(seconds=0.01)
    task = asyncio.create_task(feed.run())
    async with aclosing(feed.events()) as events:
        names = [parsed(await anext(events))[0] for _ in range(3)]
    task.cancel()
    assert names == ["history", "frame", "frame"]
