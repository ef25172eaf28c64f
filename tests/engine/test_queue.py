"""Deadlines, and a queue that is no longer than it may be."""

from __future__ import annotations

import pytest
from tests.fake import FakeBackbone, Script, decode, encode, run

from recguide.core import FinishReason, ParameterError, SamplingParams
from recguide.engine import engine as engine_module
from recguide.engine.deadlines import Deadlines
from recguide.engine.departures import LONGEST_S, SHORTEST_S, Departures
from recguide.engine.engine import Engine, EngineConfig
from recguide.engine.errors import DeadlineExceeded, QueueFull

PROMPT = tuple(encode("Say it: "))
ANSWER = tuple(encode("the quick brown fox jumps over the lazy dog, and then it naps in the warm sun."))
SCRIPT = Script(PROMPT, ANSWER)
PARAMS = SamplingParams(max_tokens=40, method="linear", block_size=8)


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(engine_module, "monotonic", clock)
    return clock


def engine(**config):
    return Engine(FakeBackbone(SCRIPT), decode, EngineConfig(**config))


@pytest.mark.parametrize("steps", range(6))
def test_a_running_request_ends_at_its_deadline_and_the_others_go_on(clock, steps):
    machine = engine()
    (late,) = machine.add(PROMPT, PARAMS, deadline=110.0)
    (kept,) = machine.add(PROMPT, PARAMS, deadline=200.0)
    (free,) = machine.add(PROMPT, PARAMS)
    for _ in range(steps):
        machine.step()
    emitted = list(late.emitted)
    clock.now = 111.0
    run(machine)
    assert isinstance(late.error, DeadlineExceeded)
    assert late.finish_reason is FinishReason.ABORT
    assert late.emitted == emitted
    assert kept.completion().text == free.completion().text == decode(ANSWER[:40])
    assert machine.runner.pool.used_pages == 0


def test_one_that_waits_ends_at_its_deadline_and_is_never_run(clock):
    machine = engine(max_running=1)
    (first,) = machine.add(PROMPT, PARAMS)
    (waits,) = machine.add(PROMPT, PARAMS, deadline=105.0)
    machine.step()
    clock.now = 106.0
    machine.step()
    assert "while it waited" in str(waits.error)
    run(machine)
    assert first.error is None
    assert machine._backbone.forwards == first.stats.forwards + first.stats.prefill_forwards


def test_all_choices_share_a_deadline_and_one_in_time_is_left_alone(clock):
    machine = engine()
    choices = machine.add(PROMPT, SamplingParams(max_tokens=40, n=3), deadline=105.0)
    machine.step()
    clock.now = 105.0
    machine.step()
    assert all(isinstance(choice.error, DeadlineExceeded) for choice in choices)
    (done,) = machine.add(PROMPT, PARAMS, deadline=106.0)
    run(machine)
    clock.now = 107.0
    machine.step()
    assert (done.finish_reason, done.error) == (FinishReason.LENGTH, None)


def test_ended_requests_are_not_kept_for_their_deadlines():
    deadlines, machine = Deadlines(), engine()
    for _ in range(400):
        (request,) = machine.add(PROMPT, PARAMS)
        deadlines.add(request, 1e9)
        machine.abort(request)
    assert len(deadlines._heap) <= 65


def test_no_more_wait_than_may_and_those_that_can_start_do_not_wait():
    machine = engine(max_running=2, max_waiting=3)
    taken = [machine.add(PROMPT, PARAMS)[0] for _ in range(5)]
    with pytest.raises(QueueFull, match="5 requests wait and 3 may") as full:
        machine.add(PROMPT, PARAMS)
    assert full.value.retry_after_s == SHORTEST_S  # nobody has ended yet
    machine.step()
    with pytest.raises(QueueFull, match="3 requests wait"):
        machine.add(PROMPT, PARAMS)
    machine.abort(taken[-1])
    taken.append(machine.add(PROMPT, PARAMS)[0])
    with pytest.raises(QueueFull):
        machine.add(PROMPT, PARAMS)
    run(machine)
    finished = [request for request in taken if request.finish_reason is FinishReason.LENGTH]
    assert len(finished) == 5


def test_choices_are_queued_all_or_none():
    machine = engine(max_running=2, max_waiting=3)
    machine.add(PROMPT, PARAMS)
    with pytest.raises(QueueFull):
        machine.add(PROMPT, SamplingParams(max_tokens=5, n=5))
    assert len(machine._scheduler.waiting) == 1
    with pytest.raises(ParameterError, match="6 choices") as error:
        machine.add(PROMPT, SamplingParams(max_tokens=5, n=6))
    assert error.value.parameter == "n"


def test_a_full_queue_tells_when_to_come_back(clock):
    machine = engine(max_running=1, max_waiting=0)
    for _ in range(4):  # one every three seconds
        clock.now += 3.0
        machine.add(PROMPT, PARAMS)
        run(machine)
    machine.add(PROMPT, PARAMS)
    clock.now += 1.0
    with pytest.raises(QueueFull) as full:
        machine.add(PROMPT, PARAMS)
    assert full.value.retry_after_s == pytest.approx(10 / 4)


def test_what_a_client_is_told_is_neither_at_once_nor_never():
    departures = Departures()
    assert departures.wait_s(10, 0.0) == SHORTEST_S
    departures.note(0.0)
    departures.note(50.0)
    assert departures.wait_s(3, 51.0) == LONGEST_S
    for at in range(1000):
        departures.note(60.0 + at / 1000)
    assert departures.wait_s(3, 61.0) == SHORTEST_S


@pytest.mark.parametrize("most", [-1, -5])
def test_a_negative_queue_is_refused(most):
    with pytest.raises(ParameterError) as error:
        EngineConfig(max_waiting=most)
    assert error.value.parameter == "max_waiting"
