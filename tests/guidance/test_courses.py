"""What markets say is held to what is made."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.guidance.test_simulation import Coins
from tests.guidance.worlds import EVIDENCE, clock, table, view

from recguide.guidance.batching import ragged
from recguide.guidance.courses import (
    GRANTED,
    LEFT_BEHIND,
    MEMORY,
    MOVED,
    RETRIED,
    STALE,
    Course,
    Courses,
    Stretches,
)
from recguide.guidance.fixed import Fixed
from recguide.guidance.host import Host, HostClock, Kind
from recguide.guidance.lately import FORGOTTEN, WINDOW
from recguide.guidance.load import Load
from recguide.guidance.price import COLD, RUN, Price, _Half
from recguide.guidance.simulation import simulate
from recguide.guidance.view import Branches, Outcome, Plan


def told(courses, course, share, tokens, requests=1, block=0):
    for _ in range(100):
        courses.passed(requests, course, tokens / 100, block)
        courses.made(requests, course, share * tokens / 100, block)
    return courses


HALF_REFUTED = (0.5 + 1 + STALE) / 2


def test_a_word_counts_until_something_is_made():
    courses = Courses()
    assert courses.share(1, Course.FREE) == 1.0 + STALE
    told(courses, Course.FREE, 0.5, GRANTED)
    assert courses.share(1, Course.FREE) == pytest.approx(HALF_REFUTED, rel=0.05)
    told(courses, Course.FREE, 0.5, 4 * MEMORY)
    assert courses.share(1, Course.FREE) < 0.65
    assert courses.share(1, Course.AHEAD) == courses.share(1, Course.PLAIN) == 1.0
    assert courses.share(8, Course.FREE) == 1.0 + STALE


def test_even_courses_are_told_apart_by_their_blocks():
    courses = Courses()
    moved = courses.moved
    told(courses, Course.EVEN, 0.5, 4 * MEMORY, requests=8, block=16)
    assert courses.share(8, Course.EVEN, 16) < 0.65
    assert courses.share(8, Course.EVEN, 8) == courses.share(64, Course.EVEN, 16) == 1 + STALE + LEFT_BEHIND
    assert courses.moved > moved


def test_steps_planned_ahead_make_less_only_until_it_is_known_what_they_make():
    courses = Courses()
    assert courses.share(8, Course.AHEAD) < courses.share(8, Course.FREE)
    for course in (Course.AHEAD, Course.FREE):
        told(courses, course, 1.0, 8 * MEMORY, requests=8)
        assert courses.share(8, course) == pytest.approx(1.0, abs=MOVED)


def test_hundreds_of_requests_refute_a_word_in_a_few_steps():
    for requests, tokens in ((16, GRANTED), (64, GRANTED), (128, 2 * GRANTED)):
        courses = told(Courses(), Course.FREE, 0.5, tokens, requests=requests)
        assert courses.share(requests, Course.FREE) == pytest.approx(HALF_REFUTED, rel=0.05)


def test_plain_steps_are_taken_where_drafts_make_much_less_than_was_said():
    policy = Price(table(0.3), clock())
    assert policy.decide(view(4)).course is Course.FREE
    for course in (Course.AHEAD, Course.FREE):
        told(policy._courses, course, 0.05, 8 * MEMORY, requests=4)
    assert policy.decide(view(4)).course is Course.PLAIN


def test_what_is_not_chosen_is_forgiven_in_time():
    courses = told(Courses(), Course.FREE, 0.5, 4 * MEMORY)
    told(courses, Course.AHEAD, 1.0, MEMORY / 4)
    assert courses.share(1, Course.FREE) < 0.7
    told(courses, Course.AHEAD, 1.0, 4 * RETRIED)
    assert courses.share(1, Course.FREE) > 0.9


def test_steps_that_make_less_than_was_said_are_left_for_others():
    """Branches are believed to be right, and never are."""
    at = clock(fixed=1.0, each=0.002, free=64)
    host = Host(plain=(0.05, 0.0), other=(0.5, 0.0), ahead=(0.05, 0.0))
    sure = table(0.1, evidence=replace(EVIDENCE, candidates=((0.95, 0.95), (0.04, 0.04))))
    load = Load(seats=1, texts=60, warm_up=0.5)

    class Never(Coins):
        def draft(self, seats, positions, block):
            drafted = super().draft(seats, positions, block)
            return replace(drafted, ranks=np.zeros_like(drafted.ranks))

    def rate(policy):
        return simulate(Never(0.1, length=384), policy, at, load, ragged, host).throughput

    assert rate(Price(sure, at)) > 0.88 * rate(Fixed(16))


def test_a_landing_that_was_there_before_is_the_hosts_time():
    """The device had nothing to do from when its forward should have been over."""
    host = HostClock()
    for _ in range(WINDOW):
        host.add(64, 1.0, 3.0, 0.1, Kind.AHEAD, late=True)
    assert host.ms(64, Kind.AHEAD) == pytest.approx(2.0)
    for _ in range(WINDOW):
        host.add(64, 1.0, 3.0, 0.1, Kind.AHEAD)
    assert host.ms(64, Kind.AHEAD) == pytest.approx(0.1)


def test_a_plan_says_what_it_was_chosen_among():
    policy = Price(table(0.05), clock())
    assert policy.decide(view(4)).course is Course.FREE
    worthless = Price(table(0.9), clock(fixed=1.0, each=1.0))
    for _ in range(WINDOW):
        worthless._host.add(4, 5.0, 15.0, 10.0, Kind.DRAFTS)
    assert worthless.decide(view(4)).course is Course.PLAIN


@pytest.mark.parametrize("course", [Course.AHEAD, Course.FREE])
def test_drafts_that_make_less_than_plain_steps_are_left_whatever_is_said(course):
    """Also where the host takes no time at all, and where plain steps make more than is said."""
    policy = Price(table(0.55), clock(fixed=2.0, each=0.03))
    maker, seen = policy._markets._maker, view(32, runs_ahead=True)
    policy.decide(seen)
    market = maker.made(seen, policy._beliefs.cell(seen))
    assert not market.plain
    gain = market.rate / maker._plain_rate(seen)
    told(policy._courses, Course.PLAIN, 1.1 * gain, 8 * MEMORY, requests=32)
    told(policy._courses, course, 1.0, MEMORY, requests=32)
    assert maker.made(seen, policy._beliefs.cell(seen)).plain


def test_plain_steps_that_are_booked_together_count_one_by_one():
    policy, seen = Price(table(0.05), clock()), view(1)
    ones = np.ones(1, np.int64)
    plan = Plan(0 * ones, ones, Branches.none(), rate=0.25, course=Course.PLAIN)
    for _ in range(WINDOW):
        policy._host.add(1, 4.0, 6.0, 2.0, Kind.BRANCHES)
        policy._host.add(1, 4.0, 4.1, 0.1, Kind.PLAIN)
    for _ in range(1 + 3 * RUN):
        policy.timed(seen, plan, 4.0, 0.1)
    booked = policy._courses._kept[0][Course.PLAIN, 0]
    assert (booked.said, booked.made) == pytest.approx((1 + 3 * RUN, 1 + 3 * RUN), rel=0.01)
    assert policy._host.ms(1, Kind.BRANCHES) == pytest.approx(2.0)
    for _ in range(FORGOTTEN - 3 * RUN):
        policy.timed(seen, plan, 4.0, 0.1)
    assert policy._host.ms(1, Kind.BRANCHES) == 0.0


def test_a_course_that_was_left_for_long_begins_anew():
    stretches = Stretches(3)
    taken = [Course.AHEAD] * 3 + [Course.FREE] * 3 + [Course.AHEAD] + [Course.FREE] * 4 + [Course.AHEAD]
    found = [stretches.step(course) for course in taken]
    assert found[:3] == [1, 2, 3]
    assert found[6] == 1
    assert found[-1] == 1
    assert [stretches.step(Course.FREE), stretches.step(Course.AHEAD)] == [8, 2]


def test_tokens_are_booked_where_their_time_was_though_a_row_is_missing():
    policy, seen = Price(table(0.05), clock()), view(33, draft=8)
    ones = np.ones(33, np.int64)
    plan = Plan(0 * ones, 8 * ones, Branches.none(), rate=0.25, course=Course.AHEAD)
    for _ in range(WINDOW):
        policy._host.add(33, 4.0, 4.1, 0.1, Kind.AHEAD)
    policy._half = _Half((Course.AHEAD, 0), 0.0, 0.0)
    policy.timed(seen, plan, 4.0, 0.1)
    most = np.arange(32)
    nothing = np.full(32, -1, np.int64)
    outcome = Outcome(8 * np.ones(32, np.int64), 0 * nothing, nothing)
    policy.observe(seen.only(most), plan.only(most), outcome)
    assert [*policy._courses._kept] == [6]


def test_who_waits_to_know_more_is_booked_for_the_way_back_and_who_comes_back_is_not():
    policy, seen = Price(table(0.05), clock()), view(8, draft=8, runs_ahead=True)
    host = policy._host
    host.may_run_ahead(True)
    for _ in range(WINDOW):
        for kind, waits in ((Kind.DRAFTS, 1.0), (Kind.BRANCHES, 1.2), (Kind.AHEAD, 0.1)):
            host.add(8, 4.0, 4.0 + waits, waits, kind)

    def said(course, seen, ms):
        """In a step, booked as one of two."""
        ones = np.ones(8, np.int64)
        policy._half = _Half((course, 0), 0.0, 0.0)
        policy.timed(seen, Plan(0 * ones, 8 * ones, Branches.none(), rate=1.0, course=course), ms, ms - 4.0)
        return policy._courses._kept[3][course, 0].said

    paid = said(Course.FREE, seen, 5.0) - 5.0
    assert paid > 0.1
    assert paid == pytest.approx(host.return_ms(8))
    # The step that comes back counts as one that was planned ahead.
    assert said(Course.AHEAD, seen, 5.0) == pytest.approx(5.0 - 0.9)
    assert host.way_back_ms(8) == pytest.approx(0.9)
    blind = replace(seen, blind=True, verifying=np.zeros(8, np.int64))
    assert said(Course.AHEAD, blind, 4.1) == pytest.approx(8.2, rel=0.01)


def drafting(policy, steps):
    """So many steps of eight requests that draft, and verify, together; how often their course was booked."""
    ones = np.ones(8, np.int64)
    courses, count = policy._courses, []
    passed = courses.passed
    courses.passed = lambda *told: (count.append(told), passed(*told))
    for step in range(steps):
        drafts = step % 2 == 0
        seen = view(8, draft=0 if drafts else 8)
        plan = Plan(8 * ones * drafts, 8 * ones * (not drafts), Branches.none(), rate=1.0, course=Course.FREE)
        policy.timed(seen, plan, 5.0, 1.0)
        if not drafts:
            policy.observe(seen, plan, Outcome(5 * ones, 0 * ones, 0 * ones - 1))
    courses.passed = passed
    return len(count)


def test_a_word_that_was_given_before_the_hosts_time_was_known_is_not_held_against_anyone():
    policy = Price(table(0.05), clock())
    assert drafting(policy, COLD + WINDOW + 1) == 0
    assert policy._host.ms(8, Kind.DRAFTS) == pytest.approx(1.0)
    assert drafting(policy, 6) == 3


@pytest.mark.parametrize("steps", [2, 3, 4, 9, 10])
def test_the_step_in_which_all_draft_counts_with_the_one_that_verifies(steps):
    """However short a stretch of drafts among plain steps is."""
    policy = Price(table(0.05), clock())
    drafting(policy, COLD + WINDOW + 1)
    ones = np.ones(8, np.int64)
    plain = Plan(0 * ones, ones, Branches.none(), rate=1.0, course=Course.PLAIN)
    for _ in range(4):
        policy._host.add(8, 5.0, 5.1, 0.1, Kind.PLAIN)
    for _ in range(4):
        assert drafting(policy, steps) == steps // 2
        policy.timed(view(8), plain, 5.0, 0.1)
    kept = policy._courses._kept[3][Course.FREE, 0]
    assert kept.made / kept.said == pytest.approx(40 / 10, rel=0.01)
