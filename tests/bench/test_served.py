"""What serving says of the host."""

from __future__ import annotations

import numpy as np
from tests.guidance.worlds import cost, view

from recguide.bench.guided.served import SLOW, Served, Timed, host_of
from recguide.guidance.host import Kind
from recguide.guidance.view import Branches, Plan

STEP = Plan(np.zeros(1, np.int64), np.ones(1, np.int64), Branches.none())
TABLE = cost(5.0, 0.0)


def steps(kind, *beyond):
    """Steps that took so many milliseconds longer than their forwards, which take 5."""
    return [Timed(kind, view(), STEP, 5.0 + ms) for ms in beyond]


def test_the_host_s_time_is_the_mean_of_each_kind_without_outliers():
    timed = [*steps(Kind.PLAIN, 1.0, 2.0, 3.0, 10 * SLOW), *steps(Kind.DRAFTS, 4.0)]
    host = host_of(Served(1, timed=timed), TABLE)
    assert np.isclose(host.ms(1, Kind.PLAIN), 2.0)
    assert np.isclose(host.ms(1, Kind.DRAFTS), 4.0)


def test_of_a_kind_that_was_given_up_in_the_warm_up_it_is_known_from_there():
    before = [*steps(Kind.DRAFTS, 3.0, 4.0, 500.0), *steps(Kind.PLAIN, 9.0)]
    host = host_of(Served(1, timed=steps(Kind.PLAIN, 1.0), before=before), TABLE)
    assert np.isclose(host.ms(1, Kind.PLAIN), 1.0)
    assert np.isclose(host.ms(1, Kind.DRAFTS), 3.5)  # an outlier is none of it
    assert host.branches is None


def test_what_steps_with_prefill_take_longer_is_the_newcomers():
    """And what those do that someone joined, whose time no policy is told."""
    usual = steps(Kind.AHEAD, 1.0, 1.0, 1.0, 1.0)
    with_prefill = [Timed(Kind.AHEAD, view(1, tokens=50), STEP, 16.0)]
    joined = [10.0]
    step_ms = [step.ms for step in (*usual, *with_prefill)] + joined
    host = host_of(Served(1, timed=[*usual, *with_prefill], step_ms=step_ms, begun=2), TABLE)
    assert np.isclose(host.ms(1, Kind.AHEAD), 1.0)
    assert np.isclose(host.newcomer, (10.0 + 4.0) / 2)
    assert host_of(Served(1, timed=usual, step_ms=[6.0] * 4), TABLE).newcomer == 0.0


def test_a_step_never_takes_less_than_its_forward():
    assert host_of(Served(1, timed=steps(Kind.PLAIN, -2.0)), TABLE).ms(1, Kind.PLAIN) == 0.0


def test_texts_that_all_decode_are_measured_by_their_own_time():
    """Whoever has begun, or not yet ended, when the time is over is not among them."""
    window = Served(4, tokens=600, step_ms=[10.0, 20.0])
    assert window.tokens_per_s == window.window_tokens_per_s == 20_000
    paired = Served(4, tokens=600, step_ms=[10.0, 20.0], decoded=[(50, 20.0), (100, 30.0)])
    assert paired.tokens_per_s == 4 * 1e3 * 150 / 50
    assert paired.request_rate == 1e3 * 150 / 50
    assert paired.window_tokens_per_s == 20_000
