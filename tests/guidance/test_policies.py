"""Policies by name: eq. 3 by hand, the paper's overlap, learning, plain decoding when nothing else pays."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guidance.worlds import clock, table, view

from recguide.bench.guided.overlap import Overlap
from recguide.core import ParameterError
from recguide.guidance.beliefs import SETTLED, Beliefs
from recguide.guidance.courses import GRANTED, Course, Courses
from recguide.guidance.history import History
from recguide.guidance.host import HostClock, Kind
from recguide.guidance.lately import WINDOW
from recguide.guidance.market import MarketMaker, token_of
from recguide.guidance.markets import SERVES, SERVES_HURRIED, Markets
from recguide.guidance.paper import Paper, overlap
from recguide.guidance.policy import policy_named
from recguide.guidance.price import LEARNS, Price
from recguide.guidance.probes import FRUITLESS, PROBE_AFTER, PROBE_SHARE, Probes
from recguide.guidance.rho import best_rho, choices, round_ms, table_rho
from recguide.guidance.standing import KEPT, MOST_KEPT
from recguide.guidance.value import prior
from recguide.guidance.view import Branches, Outcome, Plan, View
from recguide.speculation.methods.recguide import branches as paper_branches
from recguide.speculation.rows import BranchKind

MIXED = Price(table(hazards=np.linspace(0.4, 0.02, 10)), clock())
CAPPED = Price(table(), clock(free=4096))
EASY_AFTER_32 = [0.3] * 9 + [0.01]


def test_the_recipe_goes_by_load():
    policy = policy_named("fixed", table(), clock())
    assert [policy.decide(view(load)).block[0] for load in (1, 4, 5, 32, 33)] == [32, 32, 16, 16, 8]


def test_plain_decoding_and_constants_go_by_name():
    assert policy_named("ar", table(), clock()).decide(view(2)).verified.tolist() == [1, 1]
    assert policy_named("fixed-12", table(), clock()).decide(view(2)).block.tolist() == [12, 12]


@pytest.mark.parametrize("name", ["", "best", "fixed-", "fixed-0", "fixed-999", "price-2"])
def test_an_unknown_policy_is_refused(name):
    with pytest.raises(ParameterError):
        policy_named(name, table(), clock())


# --- the paper ----------------------------------------------------------------------------------------------


def test_equation_3_by_hand():
    seen = view(64, previous=np.repeat([32, 8], 32), full=True)
    policy = Paper(table(hazards=EASY_AFTER_32), clock(), rho={64: 0.5})
    values = {h: {b: (1 - (1 - h) ** b) / h for b in (8, 16, 32)} for h in (0.01, 0.3)}
    ms = {b: 2 * (5 + 0.02 * 64 * b) for b in (8, 16, 32)}
    expected = [max((8, 16, 32), key=lambda b: values[h][b] - 0.5 * ms[b]) for h in (0.01, 0.3)]
    assert policy.decide(seen).block[[0, 32]].tolist() == expected
    assert expected[0] > 8 or expected == [8, 8]


def test_without_history_the_paper_takes_the_recipe():
    assert Paper(table(), clock()).decide(view(8, previous=0)).block.tolist() == [16] * 8


def test_the_best_rho_is_found_by_what_it_makes():
    """No ρ on a fine grid does better."""
    values = table(hazards=np.linspace(0.01, 0.5, 10)).values()[:, 1:]
    ms = round_ms(clock(), 16, (8, 16, 32), 0)
    rows = np.zeros(len(values), np.int64)
    weight = np.ones(len(values))

    def made(rho):
        chosen = choices(values, ms, rho)
        return values[np.arange(len(values)), chosen].sum() / ms[chosen].sum()

    best = best_rho(values, values, ms, weight, rows)
    assert made(best) >= max(made(rho) for rho in np.linspace(0, 3, 500)) - 1e-12


def test_rho_falls_with_load():
    found = [
        table_rho(prior(), (8, 16, 32), round_ms(clock(free=128), load, (8, 16, 32), 1000))
        for load in (16, 32, 128)
    ]
    assert found == sorted(found, reverse=True)
    assert found[-1] > 0


@given(st.lists(st.floats(0, 1), min_size=7, max_size=7))
def test_the_overlap_is_the_method_s(margins):
    mine = overlap(view(draft=8, margin=[1.0, *margins]), np.array([8]))
    theirs = paper_branches((1.0, *margins), range(8))
    expected = [(slot, 0 if kind is BranchKind.CONTINUATION else 1) for kind, slot, _ in theirs]
    assert list(zip(mine.slot.tolist(), mine.head.tolist(), strict=True)) == expected


def test_only_a_single_request_overlaps():
    policy = Paper(table(), clock())
    assert len(policy.decide(view(1, draft=8)).branches.request)
    assert not len(policy.decide(view(2, draft=8)).branches.request)


# --- price --------------------------------------------------------------------------------------------------


def test_idle_compute_drafts_and_full_compute_decodes_plainly():
    idle = Price(table(0.4), clock(free=256)).decide(view(1))
    assert idle.block[0] >= 8 or idle.branches.block.tolist() >= [8]
    crowded = Price(table(0.4), clock(fixed=0.1, each=0.05)).decide(view(256))
    assert (crowded.verified == 1).all()
    assert not len(crowded.branches.request)


def test_the_same_views_get_the_same_plans():
    random = np.random.default_rng(0)
    views = [
        view(24, draft=random.choice([0, 8, 16], 24), margin=random.random((24, 16)), previous=8)
        for _ in range(5)
    ]
    views = [replace(one, margins=one.margins[:, : max(1, int(one.draft.max()))]) for one in views]
    one, other = Price(prior(), clock(free=128)), Price(prior(), clock(free=128))
    for seen in views:
        mine, theirs = one.decide(seen), other.decide(seen)
        assert mine.block.tolist() == theirs.block.tolist()
        assert mine.verified.tolist() == theirs.verified.tolist()
        assert mine.branches.slot.tolist() == theirs.branches.slot.tolist()
        assert mine.price == theirs.price


@given(st.lists(st.sampled_from([4, 8, 16, 32]), min_size=1, max_size=12), st.floats(0.01, 0.5))
@settings(deadline=None)
def test_tokens_of_the_slow_count_more_and_of_all_one_in_the_mean(previous, price):
    beliefs = MIXED._beliefs
    cells = beliefs.cell(view(len(previous), previous=previous, full=True))
    token = token_of(beliefs.menus, cells, price)[cells]
    assert token.min() <= 1 + 1e-9
    assert token.max() >= 1 - 1e-9
    rent = float(beliefs.menus.net(price)[cells].mean())
    best = beliefs.menus.cost(price, rent).argmin(0)
    pace = beliefs.menus.y[best, np.arange(len(best))]
    assert (np.diff(token[np.argsort(pace[cells])]) <= 1e-9).all()


@given(st.lists(st.sampled_from([4, 8, 16, 32]), min_size=1, max_size=12), st.floats(0.01, 0.5))
@settings(deadline=None)
def test_what_tokens_cost_a_few_is_what_it_costs_many(previous, price):
    menus = MIXED._beliefs.menus
    cell = MIXED._beliefs.cell(view(len(previous), previous=previous, full=True))
    few, many = token_of(menus, cell, price), token_of(menus, np.tile(cell, 13), price)
    np.testing.assert_allclose(few, many, rtol=1e-9)


def test_among_equals_a_token_counts_one():
    cell = MIXED._beliefs.cell(view(5, previous=8))
    token = token_of(MIXED._beliefs.menus, cell, 0.1)
    assert token[cell] == pytest.approx(1.0)


def test_a_long_context_pays_for_its_prefix():
    """Its query tokens cost twice as much; with the same promise it does less."""
    priced = Price(table(0.05), clock(fixed=0.5, each=0.02, pair_ms=1e-6))
    seen = view(64, draft=np.full(64, 16), margin=0.7, prefix=np.repeat([10, 20_000], 32))
    plan = priced.decide(seen)
    assert plan.verified[32:].mean() < plan.verified[:32].mean()


@given(st.integers(1, 40), st.integers(0, 1000))
@settings(deadline=None, max_examples=25)
def test_a_forward_holds_no_more_than_it_may(requests, seed):
    random = np.random.default_rng(seed)
    draft = random.choice([0, 8, 32], requests)
    seen = view(requests, draft=draft, margin=0.8, most=3 * requests)
    plan = CAPPED.decide(seen)
    assert plan.query_tokens.sum() <= 3 * requests


@pytest.mark.parametrize("requests", [1, 16, 64, 256])
def test_idle_requests_probe_and_hardly_cost_anything(requests):
    """Under load they do so in company: the steps in between are plain, and plain steps run ahead."""
    policy = Price(table(0.9), clock(fixed=0.1, each=0.05))
    tokens = probed = drafting = 0
    for _ in range(4000 // requests + 400):
        plan = policy.decide(view(requests, idle=np.arange(requests) + PROBE_AFTER, previous=1))
        tokens += plan.query_tokens.sum()
        probed += 2 * plan.block.sum()
        drafting += plan.block.any()
    assert 0 < probed <= PROBE_SHARE * tokens * 1.1
    assert drafting <= 0.03 * (4000 // requests + 400)
    fresh = policy.decide(view(requests, previous=1))
    assert not fresh.block.any()


def test_probes_of_which_nothing_comes_grow_seldom_until_a_draft_is_chosen():
    probes, seen = (
        Probes(clock(fixed=1.0, each=0.02), HostClock()),
        view(4, idle=np.full(4, PROBE_AFTER), previous=1),
    )
    nothing, ones = np.zeros(4, np.int64), np.ones(4, np.int64)
    plain = Plan(nothing, ones, Branches.none())
    drafts = Plan(np.array([8, 8, 8, 8]), nothing, Branches.none())

    def gaps(count):
        steps = []
        for _ in range(count):
            gap = 1
            while not probes.among(seen, plain).block.any():
                gap += 1
            steps.append(gap)
        return steps

    fruitless = gaps(8)[1:]
    assert fruitless[1] == pytest.approx(2 * fruitless[0], rel=0.02)
    assert fruitless[-1] == pytest.approx(fruitless[-2], rel=0.02)
    assert fruitless[-1] == pytest.approx(FRUITLESS / 2 * fruitless[0], rel=0.02)
    assert probes.among(seen, drafts) is drafts
    assert gaps(2)[1] == pytest.approx(fruitless[0], rel=0.02)


def test_plain_steps_go_on_unasked_and_longer_each_time_until_a_probe_is_due():
    policy = Price(table(0.9), clock(fixed=0.1, each=0.05))

    def stands(requests=1, **facts):
        policy.decide(view(requests, previous=1, **facts))
        return sum(policy.again(requests) for _ in range(2 * MOST_KEPT))

    steps = [stands() for _ in range(30)]
    assert steps[:3] == [KEPT, 2 * KEPT, 4 * KEPT]
    assert max(steps) == MOST_KEPT
    assert 1 + KEPT > min(steps) > 0  # when one is due, and when nobody may
    idle = PROBE_AFTER + np.zeros(1, np.int64)
    assert policy.decide(view(1, previous=1, idle=idle)).block[0]
    assert stands() == KEPT


def test_plain_steps_of_many_more_or_fewer_are_planned_anew():
    policy = Price(table(0.9), clock(fixed=0.1, each=0.05))
    policy.decide(view(8, previous=1))
    assert policy.again(8)
    assert policy.again(10)
    assert not policy.again(11)
    assert not policy.again(5)


def test_a_market_of_many_serves_for_some_steps_of_like_requests():
    beliefs, at = Beliefs(table(hazards=np.linspace(0.4, 0.02, 10))), clock(free=128)
    host = HostClock()
    maker = MarketMaker(beliefs, at, host)
    seen, others, many = view(8, previous=16), view(9, previous=4), view(20, previous=16)
    markets = Markets(maker, at, host)

    def price_now(of):
        return markets.now(of, beliefs.cell(of)).price

    def price_made(of):
        return maker.made(of, beliefs.cell(of)).price

    for of, expected in ((others, seen), (many, many)):
        markets.prepare(seen, beliefs.cell(seen))
        assert [price_now(of) for _ in range(SERVES)] == [price_made(expected)] * SERVES
        assert price_now(of) == price_made(of)
        assert price_made(seen) != price_made(of)
    assert price_now(seen) == price_made(seen)  # 8 of 20
    for _ in range(WINDOW):
        host.add(8, 2.0, 5.0, 3.0, Kind.DRAFTS)
    assert price_now(others) == price_made(others)  # the host takes another time


@pytest.mark.parametrize("course", Course)
def test_what_any_course_has_made_makes_another_market(course):
    beliefs, at, courses = Beliefs(table(hazards=np.linspace(0.4, 0.02, 10))), clock(free=128), Courses()
    markets = Markets(MarketMaker(beliefs, at, courses=courses), at, courses=courses)
    for requests in (2, 8):
        seen = view(requests)
        first = markets.now(seen, beliefs.cell(seen))
        assert markets.now(seen, beliefs.cell(seen)) is first
        for _ in range(8):
            courses.passed(requests, course, GRANTED)
        courses.made(requests, course, 0.0)
        assert markets.now(seen, beliefs.cell(seen)) is not first


def test_a_host_in_a_hurry_has_markets_serve_longer():
    beliefs, at, host = Beliefs(table(hazards=np.linspace(0.4, 0.02, 10))), clock(free=128), HostClock()
    markets = Markets(MarketMaker(beliefs, at, host), at, host)

    def serves(requests):
        """Steps of requests in ever other cells until another market is made."""
        found, first = 0, None
        for step in range(100):
            seen = view(requests, previous=[4, 16, 32][step % 3], full=step % 2)
            market = markets.now(seen, beliefs.cell(seen))
            first = first or market
            if market is not first:
                break
            found += 1
        return found

    assert [serves(requests) for requests in (2, 8)] == [1, SERVES]
    host.add(99, 1.0, 2.0, 0.1, Kind.PLAIN, late=True)
    markets = Markets(MarketMaker(beliefs, at, host), at, host)
    assert [serves(requests) for requests in (1, 2, 8)] == [1, SERVES, SERVES_HURRIED]


def test_a_market_that_served_before_the_host_had_time_serves_no_more():
    beliefs, at, host = Beliefs(table(hazards=np.linspace(0.4, 0.02, 10))), clock(free=128), HostClock()
    markets, seen = Markets(MarketMaker(beliefs, at, host), at, host), view(4, previous=4)

    def now():
        return markets.now(seen, beliefs.cell(seen))

    host.add(99, 1.0, 2.0, 0.1, Kind.PLAIN, late=True)
    hurried = now()
    host.add(99, 1.0, 1.1, 0.1, Kind.PLAIN, steps=WINDOW)
    assert now() is not hurried
    host.add(99, 1.0, 2.0, 0.1, Kind.PLAIN, late=True)
    assert now() is not hurried


def test_blocks_that_are_sure_to_fail_are_no_matter_for_the_arithmetic():
    beliefs = Beliefs(table(0.9))
    beliefs._likely[:] = np.where(beliefs._likely > 0, 1e30, 0.0)
    seen = view(3)
    with np.errstate(all="raise", under="ignore"):
        found = beliefs.passing(np.full(3, 32), beliefs.cell(seen), np.zeros((3, 32)))
    assert found.tolist() == [0.0] * 3


def test_a_few_requests_that_were_met_before_have_their_own_market():
    beliefs, at = Beliefs(table(hazards=np.linspace(0.4, 0.02, 10))), clock(free=128)
    markets = Markets(MarketMaker(beliefs, at), at)
    one, other = view(2, previous=[16, 4]), view(2, previous=4)
    first = markets.now(one, beliefs.cell(one))
    markets.prepare(other, beliefs.cell(other))
    again = view(2, previous=[4, 16])
    assert markets.now(again, beliefs.cell(again)) is first


# --- learning -----------------------------------------------------------------------------------------------


def test_in_a_hurry_seldom_is_anything_learned_once_little_is_new():
    policy, seen = Price(table(0.05), clock()), view(8, draft=4, margin=0.5)
    plan = Plan(np.zeros(8, np.int64), np.full(8, 4), Branches.none())
    outcome = Outcome(np.full(8, 4), np.zeros(8, np.int64), np.full(8, -1))
    policy._host.add(8, 5.0, 9.0, 0.1, Kind.AHEAD, late=True)
    learned = []
    policy._beliefs.observe = lambda *_: learned.append(1)

    def told_of(steps):
        learned.clear()
        for _ in range(steps):
            policy.observe(seen, plan, outcome)
        return len(learned)

    assert told_of(2 * LEARNS) == 2 * LEARNS
    policy._beliefs._age = SETTLED
    assert told_of(2 * LEARNS) == 2
    for _ in range(WINDOW):
        policy._host.add(8, 5.0, 5.1, 0.1, Kind.AHEAD)
    assert told_of(2 * LEARNS) == 2 * LEARNS


def told(beliefs, hazard, rounds, *, verified=None, seed=0):
    """Drafts of 16 that fail with this hazard, eight a step, margins uninformative."""
    random = np.random.default_rng(seed)
    seen = view(8, draft=16, margin=0.9)
    for _ in range(rounds):
        slots = np.full(8, 16) if verified is None else random.integers(2, verified + 1, 8)
        failed = random.random((8, 15)) < hazard
        first = np.where(failed.any(1), failed.argmax(1) + 1, 16)
        outcome = Outcome(np.minimum(first, slots), np.zeros(8, np.int64), np.full(8, -1))
        beliefs.observe(seen, Plan(np.zeros(8, np.int64), slots, Branches.none()), outcome)
        beliefs.refresh()
    return beliefs


@pytest.mark.parametrize("hazard", [0.02, 0.1, 0.3, 0.8])
@pytest.mark.parametrize("verified", [None, 6])
def test_what_traffic_says_is_followed_however_much_is_verified(hazard, verified):
    """Margins of 0.9 alone would say 0.2 of the table's odds; traffic corrects that too."""
    beliefs = told(Beliefs(table(0.1)), hazard, 80, verified=verified)
    hand = beliefs.in_hand(view(1, draft=16, margin=0.9), beliefs.cell(view(1)))
    assert hand.failing[0, 1:].mean() == pytest.approx(hazard, rel=0.25, abs=0.01)


@given(st.integers(0, 10_000), st.integers(1, 6))
@settings(deadline=None, max_examples=60)
def test_a_few_requests_teach_what_arrays_of_them_do(seed, requests):
    few, many = (Beliefs(table(hazards=np.linspace(0.4, 0.02, 10))) for _ in range(2))
    random = np.random.default_rng(seed)
    for _ in range(4):
        draft = random.choice([0, 2, 4, 7, 8, 16, 32], requests)
        verified = np.where(
            draft, random.integers(1, np.maximum(draft, 1) + 1), random.integers(0, 2, requests)
        )
        seen = view(
            requests,
            draft=draft,
            margin=np.round(random.random((requests, max(1, int(draft.max())))), 2),
            previous=random.choice([0, 1, 4, 8, 16, 32], requests),
            full=random.random(requests) < 0.3,
            remaining=random.choice([1, 3, 500], requests),
        )
        acceptance = np.where(verified, random.integers(0, verified + 1), 0)
        outcome = Outcome(acceptance, np.zeros(requests, np.int64), random.integers(-1, 2, requests))
        plan, cell = Plan(np.zeros(requests, np.int64), verified, Branches.none()), few.cell(seen)
        if draft.any():
            few._learn_few(seen, cell, plan, outcome)
            many._learn_slots(seen, cell, plan, outcome)
    few, many = (
        [
            (shift.value, shift.precision)
            for shifts in (beliefs._learner.before, beliefs._learner.given)
            for shift in (shifts._all, *shifts._block.values())
        ]
        for beliefs in (few, many)
    )
    np.testing.assert_allclose(few, many, atol=1e-9, rtol=0)


def test_drafts_that_turn_worthless_and_good_again_are_followed():
    beliefs = Beliefs(table(0.1))
    good = beliefs.menus.y[0].max()
    bad = told(beliefs, 0.95, 40).menus.block[16].acceptance[0].max()
    again = told(beliefs, 0.05, 300).menus.y[0].max()
    assert bad < 1.2
    assert again > 0.8 * good


# --- what a request remembers -------------------------------------------------------------------------------


def test_history_is_equation_2():
    history = History()
    assert np.isnan(history.signals[0])
    history.add(8, 8, [0.1] * 7)
    assert history.full
    history.add(16, 12, [0.2] * 7 + [1.0] * 5)
    first, every, _ = history.signals
    assert first == pytest.approx(-(0.1 + 0.2) / 2)
    assert every == pytest.approx(-(0.1 + (1.4 + 5) / 12) / 2)
    assert (history.previous, history.full) == (16, False)
    history.add(1, 1, [3.0])
    assert history.signals[0] == pytest.approx(-(0.2 + 3.0) / 2)
    assert (history.previous, history.full, history.idle) == (1, False, 1)


def test_a_failing_record_is_harder_than_a_passing_one():
    failing, passing = History(), History()
    for _ in range(5):
        failing.add(8, 1, [0.1])
        passing.add(8, 8, [0.1])
    assert passing.signals[2] > failing.signals[2] + 1


def test_a_view_of_requests_on_the_host():
    one, other = History(), History()
    one.add(8, 3, [0.5])
    seen = View.of([one, other], [(1.0, 0.3, 0.9), ()], [10, 20], [5, 6])
    assert seen.draft.tolist() == [3, 0]
    assert seen.margins.tolist() == [[1.0, 0.3, 0.9], [0, 0, 0]]
    assert seen.only(np.array([1])).prefix.tolist() == [20]


def blind(seen):
    return replace(seen, blind=True, verifying=np.zeros(len(seen), np.int64))


def test_the_paper_plans_ahead_what_it_knows_already():
    """Blocks by eq. 3 need what verification says, branches the margins of their draft."""
    chooses, fixed = Paper(table(), clock()), Paper(table(), clock(), block=16)
    assert chooses.ahead(blind(view(4))) is None
    assert chooses.ahead(blind(view(4, draft=(8, 0, 8, 8), margin=np.ones((4, 8))))) is None
    whole = chooses.ahead(blind(view(4, draft=8, margin=np.zeros((4, 8)))))
    assert whole.verified.tolist() == [8] * 4
    assert not len(whole.branches.request)
    for alone in (chooses, fixed):
        assert alone.ahead(blind(view(1, draft=16, margin=np.zeros((1, 16))))) is None
    assert fixed.ahead(blind(view(1))).block.tolist() == [16]


def test_overlaps_wait_only_for_margins_that_they_ask():
    linear, overlap = Overlap(16, 0, continuation=False), Overlap(16, 2, continuation=True)
    drafted, none = blind(view(1, draft=16, margin=np.zeros((1, 16)))), blind(view(1))
    assert overlap.ahead(drafted) is None
    assert linear.ahead(drafted).verified.tolist() == [16]
    assert linear.ahead(none).block.tolist() == overlap.ahead(none).block.tolist() == [16]
