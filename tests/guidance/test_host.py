"""The host's time: learned from steps, and weighed as the discrete cost of leaving plain decoding."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.guidance.slow_step import SlowStep
from tests.guidance.test_price import POLICIES, drawn, made
from tests.guidance.worlds import clock, table, view

from recguide.guidance.beliefs import Beliefs
from recguide.guidance.courses import Course
from recguide.guidance.few import solve_few
from recguide.guidance.host import STAYS, Host, HostClock, Kind
from recguide.guidance.lately import AGAIN, FORGOTTEN, PATIENT, WINDOW
from recguide.guidance.market import MarketMaker
from recguide.guidance.price import Price
from recguide.guidance.probes import INTERRUPTED, PROBE_AFTER, PROBE_SHARE
from recguide.guidance.step import solve
from recguide.guidance.view import Branches, Plan, is_plain


def told(host, requests, *, plain=0.0, other=0.0, steps=WINDOW, forward=2.0):
    for _ in range(steps):
        host.add(requests, forward, forward + plain, plain, Kind.PLAIN)
        host.add(requests, forward, forward + other, other, Kind.DRAFTS)
    return host


# --- learning -----------------------------------------------------------------------------------------------


def test_nothing_is_said_before_steps_were_seen():
    host = told(HostClock(), 64, other=3.0, steps=WINDOW - 1)
    assert host.ms(64, Kind.DRAFTS) == host.detour_ms(64) == 0.0


def test_kinds_and_numbers_of_requests_are_told_apart():
    host = told(told(HostClock(), 1, plain=0.1, other=0.4), 64, plain=0.2, other=3.0)
    assert host.ms(1, Kind.PLAIN) == pytest.approx(0.1)
    assert host.ms(2, Kind.DRAFTS) == pytest.approx(0.4)  # nearer to 1 than to 64
    assert host.detour_ms(50) == pytest.approx(2.8)
    assert host.detour_ms(200) == pytest.approx(2.8)


def test_a_step_that_waited_for_something_else_is_not_usual():
    host = HostClock()
    for waited in (298.0, 278.0, *[1.0] * 8, 88.0, *[1.0] * 8):
        host.add(8, 2.0, 2.0 + waited, waited, Kind.DRAFTS)
    assert host.ms(8, Kind.DRAFTS) == pytest.approx(1.0)


def test_a_host_that_became_quicker_is_followed():
    host = told(HostClock(), 8, other=3.0, steps=WINDOW)
    assert told(host, 8, other=0.5, steps=WINDOW).ms(8, Kind.DRAFTS) == pytest.approx(0.5)


def test_what_a_table_says_too_little_of_is_not_the_hosts():
    """Else large forwards, of which tables know least, would make all drafting look alike."""
    host = HostClock()
    for _ in range(WINDOW):
        host.add(8, 35.0, 51.0, 3.0, Kind.DRAFTS)
    assert host.ms(8, Kind.DRAFTS) == pytest.approx(3.0)


@pytest.mark.parametrize("plain", [0, WINDOW])
def test_where_forwards_are_assumed_they_take_what_the_table_says(plain):
    host = HostClock(in_ms=False)
    for _ in range(plain):
        host.add(4, 1.0, 10.0, 0.0, Kind.PLAIN)
    for _ in range(2 * WINDOW):
        host.add(4, 2.0, 50.0, 30.0, Kind.DRAFTS)
    assert host.ms(4, Kind.PLAIN) == pytest.approx(0.0)
    assert host.ms(4, Kind.DRAFTS) == pytest.approx(3.0)


def test_a_host_is_hurried_until_it_has_not_been_late_for_a_while():
    host = HostClock()
    assert not host.hurried
    host.add(4, 1.0, 2.0, 0.1, Kind.AHEAD, late=True)
    for _ in range(WINDOW):
        assert host.hurried
        host.add(4, 1.0, 1.1, 0.1, Kind.AHEAD)
    assert not host.hurried


@pytest.mark.parametrize("kind", [Kind.DRAFTS, Kind.AHEAD, Kind.BRANCHES])
def test_what_was_not_chosen_for_long_is_tried_again_as_if_it_cost_nothing(kind):
    host = HostClock()
    for _ in range(WINDOW):
        host.add(16, 1.0, 4.0, 3.0, kind)
    assert host.ms(16, kind) == pytest.approx(3.0)
    assert host.knows(16, kind)
    for times in (1, 2, 4, 8, PATIENT, PATIENT):
        for _ in range(WINDOW):
            host.add(16, 1.0, 4.0, 3.0, kind)
        host.add(16, 1.0, 1.1, 0.1, Kind.PLAIN, steps=times * FORGOTTEN // 2)
        assert host.ms(16, kind) == pytest.approx(3.0)
        host.add(16, 1.0, 1.1, 0.1, Kind.PLAIN, steps=times * FORGOTTEN - times * FORGOTTEN // 2)
        assert host.ms(16, kind) == 0.0
        assert not host.knows(16, kind)
    for _ in range(WINDOW):
        host.add(16, 1.0, 4.0, 3.0, kind)
    host.add(16, 1.0, 1.1, 0.1, Kind.PLAIN, steps=PATIENT * FORGOTTEN - 1)
    assert host.knows(16, kind)  # it has been tried in vain so often
    assert host.ms(16, Kind.PLAIN) == pytest.approx(0.1)


def test_a_few_steps_say_again_what_was_forgotten():
    host = HostClock()
    for steps in (WINDOW, AGAIN):
        for _ in range(steps):
            assert not host.knows(16, Kind.AHEAD)
            host.add(16, 1.0, 4.0, 3.0, Kind.AHEAD)
        assert host.ms(16, Kind.AHEAD) == pytest.approx(3.0)
        host.add(16, 1.0, 1.1, 0.1, Kind.PLAIN, steps=PATIENT * FORGOTTEN)


def test_what_was_forgotten_is_not_taken_from_other_numbers_of_requests():
    """Else what was slow once at one load would deter from it at another for ever."""
    host = HostClock()
    for requests, waited in ((4, 30.0), (16, 3.0)):
        for _ in range(WINDOW):
            host.add(requests, 1.0, 1.0 + waited, waited, Kind.AHEAD)
    assert host.ms(64, Kind.AHEAD) == pytest.approx(3.0)
    host.add(16, 1.0, 1.1, 0.1, Kind.PLAIN, steps=FORGOTTEN)
    assert host.ms(16, Kind.AHEAD) == 0.0
    assert host.ms(4, Kind.AHEAD) == pytest.approx(30.0)


def waiting(requests=4, waits=2.0):
    """A host that many steps wait for, and none that is planned ahead."""
    host = HostClock()
    host.may_run_ahead(True)
    for _ in range(WINDOW):
        host.add(requests, 4.0, 4.0 + waits, waits, Kind.DRAFTS)
        host.add(requests, 4.0, 4.1, 0.1, Kind.AHEAD)
    return host


@pytest.mark.parametrize("stay", [1, 2, 5, 20])
def test_steps_that_wait_cost_their_share_of_the_way_back(stay):
    host = waiting()
    for _ in range(400):
        for _ in range(stay):
            host.stayed(4, returns=False)
        host.stayed(4, returns=True)
    assert host.return_ms(4) == pytest.approx(1.9 / stay, rel=0.25)
    assert host.return_ms(64) == pytest.approx(1.9 / STAYS)  # nothing was seen there
    for _ in range(1000):
        host.stayed(4, returns=False)
    assert host.return_ms(4) < 0.05
    host.may_run_ahead(False)
    assert host.return_ms(64) == 0.0


def test_branches_take_no_longer_than_drafts_that_nobody_met():
    host = HostClock()
    for _ in range(WINDOW):
        host.add(4, 1.0, 1.7, 0.7, Kind.BRANCHES)
    assert host.ms(4, Kind.DRAFTS) == pytest.approx(0.7)
    assert host.fork_ms(4) == 0.0


def test_where_some_steps_wait_and_others_do_not_all_wait_as_long_as_that_makes():
    """A median would say the one now and the other then."""
    host = HostClock()
    for waited in (0.4, 0.0) * WINDOW:
        host.add(16, 1.0, 1.0 + waited, waited, Kind.AHEAD)
    assert host.ms(16, Kind.AHEAD) == pytest.approx(0.2)


def test_probes_say_nothing_of_drafts_that_all_make():
    """Few steps among plain ones are slower by far: the host has not done the like for long."""
    policy, seen = Price(table(0.05), clock(fixed=1.0, each=0.002)), view(16, draft=4)
    some = Plan(np.zeros(16, np.int64), np.full(16, 4), Branches.none(), rate=9.0, course=Course.PLAIN)
    for _ in range(WINDOW):
        policy.timed(seen, some, 9.0, 8.0)
    assert policy._host.ms(16, Kind.PROBE) == pytest.approx(8.0)
    assert policy._host.bare_ms(16) == 0.0


def test_branches_are_as_quick_as_drafts_until_they_are_tried_and_are_tried_again():
    host = told(HostClock(), 1, other=0.4)
    assert host.fork_ms(1) == 0.0
    for _ in range(WINDOW - 1):
        host.add(1, 2.0, 2.7, 0.7, Kind.BRANCHES)
    assert host.fork_ms(1) == 0.0  # the first ones meet cold caches
    host.add(1, 2.0, 2.7, 0.7, Kind.BRANCHES)
    assert host.fork_ms(1) == pytest.approx(0.3)
    told(host, 1, other=0.4, steps=FORGOTTEN)
    assert host.fork_ms(1) == 0.0


# --- weighing -----------------------------------------------------------------------------------------------


@given(
    st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([*POLICIES]), st.floats(0.0, 40.0, width=16)
)
@settings(deadline=None, max_examples=60)
def test_a_detour_is_made_if_all_that_it_brings_is_worth_it(seed, requests, name, detour):
    """All or nothing: the best that can be done beyond the first slots, or nothing of it."""
    policy, seen = POLICIES[name], drawn(seed, requests)
    beliefs = policy._beliefs
    cell = beliefs.cell(seen)
    hand, market = beliefs.in_hand(seen, cell), made(policy, seen)
    slow = SlowStep(seen, cell.tolist(), hand, beliefs, market, policy._clock.of_step(seen))
    assume(not slow.is_ambiguous())
    nothing = Plan(np.zeros(requests, np.int64), np.ones(requests, np.int64), Branches.none())
    least, cost = slow.profit(nothing), market.rate * detour
    plans = [
        solve(seen, cell, hand, beliefs, market, policy._clock.of_step(seen, detour)),
        solve_few(seen, cell.tolist(), beliefs, market, policy._clock, detour),
    ]
    for plan in plans:
        more = plan.all_tokens > requests
        assert slow.profit(plan) - cost * more == pytest.approx(max(least, slow.best() - cost), abs=1e-6)


@pytest.mark.parametrize("requests", [1, 64])
def test_a_market_is_plain_iff_plain_steps_make_more(requests):
    beliefs, at, seen = Beliefs(table(0.2)), clock(fixed=1.0, each=0.0), view(requests)
    cell = beliefs.cell(seen)
    free = MarketMaker(beliefs, at).made(seen, cell)
    gain = free.rate / requests  # over plain decoding, as forwards take a millisecond
    for other, expected in ((0.9 * (gain - 1), False), (1.1 * (gain - 1), True)):
        market = MarketMaker(beliefs, at, told(HostClock(), requests, other=other)).made(seen, cell)
        assert market.plain is expected
        assert market.rate == pytest.approx(requests * (1 if expected else gain / (1 + other)), rel=0.02)


@pytest.mark.parametrize("requests", [1, 64])
def test_a_market_without_branches_drafts_and_verifies_alone(requests):
    """Where what they bring does not pay for what any at all cost."""
    policy = Price(table(0.2), clock(fixed=1.0, each=0.0))
    seen = view(requests, draft=8, margin=0.2)
    assert len(policy.decide(seen).branches.request)
    for _ in range(WINDOW):
        policy._host.add(requests, 1.0, 1.1, 0.1, Kind.DRAFTS)
        policy._host.add(requests, 1.0, 9.0, 8.0, Kind.BRANCHES)
    plan = policy.decide(seen)
    assert not len(plan.branches.request)
    assert (plan.verified > 1).all()
    begun = policy.decide(view(requests))
    assert begun.block.all()
    assert not len(begun.branches.request)


@given(
    st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([*POLICIES]), st.floats(0.0, 20.0, width=16)
)
@settings(deadline=None, max_examples=60)
def test_branches_of_a_few_open_if_all_that_they_bring_is_worth_it(seed, requests, name, fork):
    policy, seen = POLICIES[name], drawn(seed, requests)
    beliefs = policy._beliefs
    cell = beliefs.cell(seen)
    hand, market = beliefs.in_hand(seen, cell), made(policy, seen)
    slow = SlowStep(seen, cell.tolist(), hand, beliefs, market, policy._clock.of_step(seen))
    free = solve_few(seen, cell.tolist(), beliefs, market, policy._clock)
    plan = solve_few(seen, cell.tolist(), beliefs, market, policy._clock, fork_ms=fork)
    opened = bool((plan.branches.request[:, None] == hand.rows).any())
    if opened:
        assert plan.branches.request.tolist() == free.branches.request.tolist()
    assert slow.profit(plan) >= slow.profit(free) - market.rate * fork - 1e-6


def test_a_plain_market_begins_nothing_and_verifies_what_is_there():
    policy = Price(table(0.2), clock(fixed=1.0, each=0.0))
    told(policy._host, 8, other=50.0)
    seen = view(8, previous=1)
    assert is_plain(seen, policy.decide(seen))
    plan = policy.decide(view(8, draft=[8, 0, 0, 0, 0, 0, 0, 0]))
    assert plan.verified[0] > 4
    assert not plan.block.any()
    assert not len(plan.branches.request)


def test_a_step_is_plain_without_drafts_branches_and_prefill():
    ones, none = np.ones(2, np.int64), np.zeros(2, np.int64)
    plain = Plan(none, ones, Branches.none())
    beside = Branches(none[:1], ones[:1], none[:1], 4 * ones[:1])
    assert is_plain(view(2), plain)
    assert not is_plain(view(2, draft=[0, 8]), plain)
    assert not is_plain(view(2, tokens=7), plain)
    assert not is_plain(view(2), replace(plain, branches=beside))
    assert not is_plain(view(2), Plan(np.array([4, 0]), np.array([0, 1]), Branches.none()))


@pytest.mark.parametrize("requests", [1, 16, 64, 256])
@pytest.mark.parametrize("detour", [0.5, 5.0, 100.0])
def test_probes_bunch_where_the_host_takes_long(requests, detour):
    """Their tokens, and the tokens of plain steps that the host's time would have been, share one budget."""
    policy = Price(table(0.9), clock(fixed=1.0, each=0.002))
    told(policy._host, requests, other=detour)
    spent = tokens = 0.0
    seen = view(requests, idle=np.arange(requests) + PROBE_AFTER, previous=1)
    for _ in range(4_000 if detour > 10 else 400):
        plan = policy.decide(seen)
        tokens += plan.all_tokens
        while policy.again(requests):
            tokens += requests
        if plan.block.any():
            lost = INTERRUPTED * detour * requests / (1.0 + 0.002 * requests)
            spent += 2 * plan.block.sum() + lost
            assert 2 * plan.block.sum() >= min(lost, 16 * requests)
    assert 0 < spent <= PROBE_SHARE * tokens * 1.1


def test_a_given_host_takes_its_time_by_step_and_request():
    host = Host(plain=(0.1, 0.01), other=(0.5, 0.02))
    assert host.ms(10, Kind.PLAIN) == pytest.approx(0.2)
    assert host.ms(10, Kind.DRAFTS) == pytest.approx(0.7)
