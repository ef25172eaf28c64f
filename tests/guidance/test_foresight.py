"""Plans that are made before the outcome of the forward before is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guidance.test_price import POLICIES, drawn, made
from tests.guidance.test_simulation import Coins
from tests.guidance.worlds import EVIDENCE, clock, cost, table, view

from recguide.guidance.batching import ragged
from recguide.guidance.clock import Clock
from recguide.guidance.courses import Course
from recguide.guidance.few import solve_ahead_few
from recguide.guidance.fixed import Fixed
from recguide.guidance.foresight import solve_ahead, solve_evenly, solve_in_a_hurry
from recguide.guidance.host import Host, Kind
from recguide.guidance.lately import FORGOTTEN, WINDOW
from recguide.guidance.load import Load
from recguide.guidance.market import _Offer
from recguide.guidance.outlook import Choice
from recguide.guidance.price import Price
from recguide.guidance.simulation import simulate
from recguide.guidance.step import solve
from recguide.guidance.sweep import Cut
from recguide.guidance.view import Branches, Plan, behind


def blind(seen, verifying=0):
    slots = np.broadcast_to(np.asarray(verifying, np.int64), len(seen)).copy()
    return replace(seen, blind=True, verifying=slots)


def bare(policy, seen):
    """A market in which nothing is chosen of drafts in hand."""
    return replace(made(policy, seen), menus=policy._beliefs.menus_of(Choice.NOTHING))


def ahead(policy, seen):
    market = bare(policy, seen)
    return solve_ahead(seen, policy._beliefs, market, policy._clock.of_step(seen))


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([*POLICIES]))
@settings(deadline=None)
def test_drafts_are_verified_whole_and_others_begin_what_fits(seed, requests, name):
    seen = blind(drawn(seed, requests))
    plan = ahead(POLICIES[name], seen)
    drafted = seen.draft > 0
    assert not len(plan.branches.request)
    np.testing.assert_array_equal(plan.verified[drafted], np.minimum(seen.draft, seen.remaining)[drafted])
    assert (plan.block[drafted] == 0).all()
    begun = plan.block[~drafted]
    assert ((begun == 0) | ((begun >= 2) & (begun <= seen.remaining[~drafted]))).all()
    np.testing.assert_array_equal(plan.verified[~drafted], begun == 0)


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([*POLICIES]))
@settings(deadline=None)
def test_what_begins_is_what_would_be_begun_if_nothing_were_unknown(seed, requests, name):
    policy, seen = POLICIES[name], drawn(seed, requests)
    seen = blind(replace(seen, draft=np.zeros_like(seen.draft)))
    beliefs, market = policy._beliefs, bare(policy, seen)
    cell, time = beliefs.cell(seen), policy._clock.of_step(seen)
    known = solve(seen, cell, beliefs.in_hand(seen, cell), beliefs, market, time)
    assert solve_ahead(seen, beliefs, market, time).block.tolist() == known.block.tolist()


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([*POLICIES]), st.sampled_from([0.0, 1.0]))
@settings(deadline=None)
def test_a_few_requests_are_planned_ahead_as_many_are(seed, requests, name, detour):
    policy, seen, random = POLICIES[name], drawn(seed, requests), np.random.default_rng(seed)
    verifying = np.where(seen.draft, 0, random.choice([0, 4, 7, 16, 32], requests))
    margins = np.round(random.random((requests, 32)), 2)
    remaining = random.choice([1, 2, 3, 9, 33, 500], requests)
    seen = blind(replace(seen, margins=margins, remaining=remaining), verifying)
    beliefs, market, cell = policy._beliefs, bare(policy, seen), policy._beliefs.cell(seen)
    many = solve_ahead(seen, beliefs, market, policy._clock.of_step(seen, detour))
    few = solve_ahead_few(seen, cell.tolist(), beliefs, market, policy._clock, detour)
    assert few.all_tokens == many.all_tokens  # which of two equal requests begins more does not matter
    assert sorted(few.block.tolist()) == sorted(many.block.tolist())
    np.testing.assert_array_equal(few.verified > 1, many.verified > 1)


@given(st.integers(0, 10_000), st.integers(1, 40), st.sampled_from([*POLICIES]))
@settings(deadline=None)
def test_in_a_hurry_everyone_begins_what_the_market_pays_most_for(seed, requests, name):
    policy, seen, random = POLICIES[name], drawn(seed, requests), np.random.default_rng(seed)
    verifying = np.where(seen.draft, 0, random.choice([0, 4, 16, 32], requests))
    seen = blind(replace(seen, remaining=random.choice([1, 2, 5, 500], requests)), verifying)
    beliefs, market = policy._beliefs, bare(policy, seen)
    plan = solve_in_a_hurry(seen, beliefs, market)
    failed = replace(
        seen, previous=np.where(verifying, verifying, seen.previous), full=seen.full & (verifying == 0)
    )
    for row, cell in enumerate(beliefs.cell(failed).tolist()):
        draft, left, block = (int(each[row]) for each in (seen.draft, seen.remaining, plan.block))
        assert plan.verified[row] == (min(draft, left) if draft else not block)
        assert 2 <= block <= left or not block
        if draft or left < 500:
            continue
        net = market.worth[cell] - market.price * beliefs.options.blocks
        found = dict(zip(beliefs.options.sizes, net.tolist(), strict=True))
        found[0] = float(market.token[cell] - market.price)
        assert found[block] == pytest.approx(max(found.values()))


def test_in_a_hurry_no_more_is_planned_than_a_forward_holds():
    policy = Price(table(0.02), clock(fixed=1.0, each=0.0))
    policy._host.add(64, 1.0, 2.0, 0.1, Kind.AHEAD, late=True)
    weighed(policy, 5.0)
    policy._host.add(64, 1.0, 2.0, 0.1, Kind.AHEAD, late=True)
    for most in (4096, 1024):
        plan = policy.ahead(replace(blind(view(64)), most=most))
        assert plan is not None
        assert plan.all_tokens <= most
        assert plan.block.any()


# --- the same for all ---------------------------------------------------------------------------------------


def evenly(policy, seen):
    """A market in which everyone drafts the same."""
    policy._courses.share = lambda _, course, *__: 0.5 + (course is Course.EVEN)
    policy.decide(replace(seen, runs_ahead=True))
    return policy._markets._maker.made(seen, policy._beliefs.cell(seen))


@given(st.integers(0, 10_000), st.integers(1, 24))
def test_evenly_everyone_drafts_one_block_and_verifies_all_of_it(seed, requests):
    policy = weighed(Price(table(0.05), clock(free=256)), 3.0)
    random = np.random.default_rng(seed)
    market = evenly(policy, view(requests))
    assert market.course is Course.EVEN
    assert market.even in policy._beliefs.options.sizes
    remaining, draft = random.choice([1, 2, 5, 500], requests), random.choice([0, 0, 8], requests)
    seen = view(requests, draft=draft, remaining=remaining)
    for one in (seen, blind(seen)):
        plan = solve_evenly(one, market)
        assert plan.even == market.even
        assert not len(plan.branches.request)
        for had, left, begins, verifies in zip(draft, remaining, plan.block, plan.verified, strict=True):
            if had:
                assert (begins, verifies) == (0, min(had, left))
            else:
                assert (begins, verifies) == ((min(market.even, left), 0) if left > 1 else (0, 1))


def test_the_same_for_all_is_held_to_the_exact_time_of_its_step():
    """A mean over steps of about as many tokens would lie beyond the bucket's end."""
    policy = weighed(Price(table(0.02), Clock(cost(5.0, 0.1, tokens=(1, 256, 512), stepped=True))), 3.0)
    seen = view(32, runs_ahead=True, prefix=0)
    even, cell = policy._markets._maker._even, np.zeros(32, np.int64)
    offers = {offer.block: offer for offer in even(seen, cell, 0.25)}
    assert offers[8].cut.tokens == 256
    assert offers[8].cut.ms == pytest.approx(5.0 + 25.6 + 0.25)
    assert offers[8].cut.gain == pytest.approx(32 * (0.98 ** np.arange(8)).sum() / 2, rel=0.02)
    assert {*offers} == {*policy._beliefs.options.sizes}
    # More does not fit into a forward.
    assert max(offer.block for offer in even(replace(seen, most=300), cell, 0.0)) == 8


def test_what_was_said_before_the_hosts_time_was_known_is_forgotten():
    policy = Price(table(0.05), clock(free=1024))
    maker, host, seen = policy._markets._maker, policy._host, view(128, runs_ahead=True)
    cell = policy._beliefs.cell(seen)
    policy.decide(seen)
    for _ in range(100):
        assert maker.made(seen, cell).course is Course.FREE
    policy._courses.share = lambda _, course, *__: float(course is not Course.EVEN)
    for _ in range(WINDOW):
        host.add(128, 5.0, 25.0, 20.0, Kind.BRANCHES)
    assert maker.made(seen, cell).course is Course.AHEAD


def word(policy, requests, rate, *, prefill=0):
    """What a course of that rate makes, times plain steps, which make 1."""
    maker = policy._markets._maker
    offer = _Offer(Course.FREE, maker.menus, Cut(1.0, rate, 1.0, 0.0, 0.0), 0.0)
    return maker._makes(view(requests, tokens=prefill), offer, 1.0) / policy._courses.share(1, Course.FREE)


@pytest.mark.parametrize("requests", [16, 64, 128])
def test_luck_of_a_step_does_not_choose_a_course_for_many(requests):
    policy = Price(table(0.05), clock())
    said = [word(policy, requests, 1.0 + 0.2 * (-1) ** n) for n in range(200)]
    assert np.ptp(said[-100:]) < 0.15
    assert np.mean(said[-100:]) == pytest.approx(1.0, abs=0.02)
    assert word(Price(table(0.05), clock()), 2, 1.2) == pytest.approx(1.2)


def test_a_word_for_other_numbers_of_requests_or_beside_a_prefill_is_another_one():
    policy = Price(table(0.05), clock())
    for _ in range(100):
        word(policy, 33, 2.0)
    assert word(policy, 64, 1.0) == pytest.approx(1.0)
    assert word(policy, 33, 5.0, prefill=1000) == pytest.approx(5.0)
    assert word(policy, 33, 2.0) == pytest.approx(2.0)
    # What was said by other times is forgotten.
    for _ in range(WINDOW):
        policy._host.add(33, 5.0, 7.0, 2.0, Kind.AHEAD)
    assert word(policy, 33, 1.5) == pytest.approx(1.5)


def test_who_is_never_asked_to_plan_ahead_reckons_with_it_no_longer():
    """A view says that it could be; whatever keeps the engine from it."""

    def met(policy):
        courses = Counter()

        class Asked:
            def __getattr__(self, name):
                return getattr(policy, name)

            def decide(self, seen):
                plan = policy.decide(replace(seen, runs_ahead=True))
                courses[plan.course] += 1
                return plan

        host, load = Host(plain=(0.05, 0.0), other=(3.0, 0.0), branches=(3.5, 0.0)), Load(seats=8, texts=96)
        simulate(Coins(0.1, length=256), Asked(), clock(each=0.05, free=64), load, ragged, host)
        return courses

    courses = met(Price(table(0.1), clock(each=0.05, free=64)))
    tried = courses[Course.AHEAD] + courses[Course.EVEN]
    assert 2 * WINDOW <= tried <= (WINDOW + 1) * (1 + courses.total() / FORGOTTEN)
    assert courses[Course.FREE] > 2 * FORGOTTEN - tried


def test_what_everyone_drafts_at_once_is_no_more_than_a_forward_holds():
    policy = weighed(Price(table(0.02), clock(fixed=1.0, each=0.0)), 3.0)
    market = evenly(policy, view(8))
    assert market.even == 32
    # As many begin it as fit, and the others take a step.
    for most, begin in ((8 * 32, 8), (8 * 32 - 1, 7), (2 * 32 + 6, 2), (40, 1), (32 + 6, 0)):
        plan = solve_evenly(view(8, most=most), market)
        assert plan.all_tokens <= most
        assert (plan.block == 32).sum() == begin == (plan.verified == 0).sum()
        assert (plan.course, plan.even) == (Course.EVEN, 32)
    # Or smaller ones, where it is known before.
    for plan in (policy.ahead(blind(view(8, most=40))), policy.decide(view(8, most=40, runs_ahead=True))):
        assert plan.all_tokens <= 40


def test_a_block_for_all_that_a_forward_cannot_hold_is_blamed_for_what_is_done_instead():
    policy = weighed(Price(table(0.02), clock(fixed=1.0, each=0.0)), 3.0)
    seen = view(8, draft=16)
    market = evenly(policy, seen)
    tight = replace(seen, most=40)
    plan = policy._solved(tight, policy._beliefs.cell(tight), market)
    assert plan.all_tokens <= 40
    assert (plan.course, plan.even) == (Course.EVEN, market.even)


def test_where_the_same_for_all_is_best_price_drafts_it():
    at = clock(each=0.005, free=512)
    host, load = Host((0.05, 0.0), (3.0, 0.0), (3.2, 0.0), (0.1, 0.0)), Load(seats=32, texts=192)
    policy = Price(table(0.05), at)
    found, *fixed = (
        simulate(Coins(0.05, length=256), each, at, load, ragged, host).throughput
        for each in (policy, *map(Fixed, (8, 16, 32)))
    )
    assert found > 0.98 * max(fixed)
    kept = policy._courses._kept[5]
    assert kept[Course.EVEN, 16].said > 0.25 * sum(each.said for each in kept.values())


@pytest.mark.parametrize("full", [False, True])
def test_a_verification_counts_by_how_likely_it_is_to_pass(full):
    """Blocks that are sure to pass, or to fail, are as good as landed."""
    hazards = [0.1, 0.1, *(0.5, 0.02) * 4]  # after a block in part, after a full one
    policy = Price(table(hazards=hazards), clock())
    margin = 1.0 if full else 0.0
    policy._beliefs._ratio = np.array([1e9, 1e-9])
    seen = view(4, previous=8, full=not full, margins=np.full((4, 16), margin))
    seen = blind(seen, verifying=16)
    known = blind(view(4, previous=16, full=full))
    assert ahead(policy, seen).block.tolist() == ahead(policy, known).block.tolist()
    other = blind(view(4, previous=16, full=not full))
    assert ahead(policy, seen).block.tolist() != ahead(policy, other).block.tolist()


@pytest.mark.parametrize("few", [False, True])
def test_whether_a_block_passes_is_asked_of_the_state_that_it_was_drafted_in(few):
    """After plain decoding no draft fails here; behind a block that failed in part most do."""
    policy = Price(table(hazards=[0.1, 1e-6, *(0.5, 0.02) * 4]), clock())
    beliefs, market = policy._beliefs, bare(policy, view(4, previous=16))

    def begun(seen):
        if few:
            return solve_ahead_few(seen, beliefs.cell(seen).tolist(), beliefs, market, policy._clock).block
        return solve_ahead(seen, beliefs, market, policy._clock.of_step(seen)).block

    seen = blind(view(4, previous=1, margins=np.full((4, 16), 0.9)), verifying=16)
    passed, failed = (begun(blind(view(4, previous=16, full=full))) for full in (True, False))
    assert begun(seen).tolist() == passed.tolist() != failed.tolist()


def test_what_is_known_behind_a_plan():
    seen = view(3, draft=(0, 0, 8), margin=np.full((3, 8), 0.7), remaining=(9, 9, 5), previous=8, full=True)
    plan = replace(Fixed(4).decide(seen), block=np.array([4, 0, 0]), verified=np.array([0, 1, 5]))
    then = behind(seen, plan)
    assert then.blind
    assert then.draft.tolist() == [4, 0, 0]
    assert then.verifying.tolist() == [0, 0, 5]
    assert then.previous.tolist() == [8, 1, 8]
    assert then.full.tolist() == [True, False, True]
    assert then.remaining.tolist() == [9, 8, 2]


def weighed(policy, waits):
    """A policy that has seen steps of 8 requests wait so long, and those that are planned ahead hardly."""
    for _ in range(WINDOW):
        policy._host.add(8, 5.0, 5.0 + waits, waits, Kind.BRANCHES)
        policy._host.add(8, 5.0, 5.0 + waits, waits, Kind.DRAFTS)
        policy._host.add(8, 5.0, 5.1, 0.1, Kind.AHEAD)
    return policy


@pytest.mark.parametrize(("waits", "planned"), [(0.1, False), (5.0, True)])
def test_the_price_plans_ahead_where_that_is_worth_more_than_to_know(waits, planned):
    policy = weighed(Price(table(0.05), clock()), waits)
    seen = blind(view(8))
    plan = policy.ahead(seen)
    assert (plan is not None) == planned
    assert isinstance(policy.decide(view(8)), Plan)


def test_where_the_host_is_slow_planning_ahead_makes_more():
    at = clock(fixed=5.0, each=0.02)
    slow = Host(plain=(0.1, 0.0), other=(4.0, 0.0))
    eager = replace(slow, ahead=(0.1, 0.0))
    load = Load(seats=8, texts=72, warm_up=0.34)

    def rate(host, policy):
        return simulate(Coins(0.03, length=384), policy, at, load, ragged, host).throughput

    assert rate(eager, Price(table(0.03), at)) > 1.1 * rate(slow, Price(table(0.03), at))
    assert rate(eager, Fixed(16)) > 1.2 * rate(slow, Fixed(16))
    assert rate(eager, Price(table(0.03), at)) > 0.98 * rate(eager, Fixed(16))


def test_behind_a_verification_with_branches_it_counts_as_failed():
    seen = view(2, draft=8, margin=np.full((2, 8), 0.7), previous=4, full=True)
    plan = replace(Fixed(8).decide(seen), branches=Branches(*np.array([[1, 3, 1, 8]]).T))
    then = behind(seen, plan)
    assert then.previous.tolist() == [4, 8]
    assert then.full.tolist() == [True, False]
    assert then.verifying.tolist() == [8, 0]


def test_a_draft_behind_branches_is_planned_ahead_and_a_verification_that_may_have_some_is_not():
    # Where first slots are seldom right, no continuation runs beside a step.
    policy = Price(table(0.05, evidence=replace(EVIDENCE, step=30.0)), clock())
    assert len(policy.decide(view(1, draft=8, margin=np.full((1, 8), 0.3))).branches.request)
    assert policy.ahead(blind(view(1, previous=8))) is not None
    assert policy.ahead(blind(view(1, draft=8))) is None


@pytest.mark.parametrize("stay", [1, 50])
def test_who_seldom_waits_for_long_is_told_what_the_way_back_costs(stay):
    policy = Price(table(0.05), clock(each=0.005))
    maker, host, seen = policy._markets._maker, policy._host, view(2, runs_ahead=True)
    host.may_run_ahead(True)
    for _ in range(WINDOW):
        for kind, waits in ((Kind.DRAFTS, 0.8), (Kind.BRANCHES, 0.8), (Kind.AHEAD, 0.0), (Kind.PLAIN, 0.0)):
            host.add(2, 5.0, 5.0 + waits, waits, kind)
    policy._courses.share = lambda _, course, *__: float(course in (Course.AHEAD, Course.FREE))
    for n in range(500):
        host.stayed(2, returns=n % (stay + 1) == stay)
    course = maker.made(seen, policy._beliefs.cell(seen)).course
    assert course is (Course.AHEAD if stay == 1 else Course.FREE)
