"""What is solved at once for many requests is what loops over them find."""

from __future__ import annotations

from dataclasses import astuple, replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tests.guidance.slow_step import SlowStep, rate_and_price
from tests.guidance.worlds import clock, table, view

from recguide.guidance.few import solve_few
from recguide.guidance.hull import SharedHulls, hulls
from recguide.guidance.margins import MarginBins
from recguide.guidance.market import MarketMaker, base_of
from recguide.guidance.merged import Merged, steps_of_few
from recguide.guidance.outlook import LEVELS, Outlooks
from recguide.guidance.price import Price
from recguide.guidance.step import solve
from recguide.guidance.sweep import best_of_few
from recguide.guidance.value import prior

MIXED = table(hazards=np.linspace(0.4, 0.02, 10))
POLICIES = {
    "smooth": Price(MIXED, clock()),
    "kinked": Price(MIXED, clock(free=128)),
    "long": Price(MIXED, clock(pair_ms=1e-6)),
    "prior": Price(prior(), clock(free=128, pair_ms=2e-7)),
}


def made(policy, seen):
    return MarketMaker(policy._beliefs, policy._clock).made(seen, policy._beliefs.cell(seen))


def drawn(seed, requests):
    """Requests of every kind: with drafts in hand and without, fresh, at their caps, over long prefixes.

    Without a draft in hand they are at their caps or far from them: what begins is priced before it is cut.
    """
    random = np.random.default_rng(seed)
    far, near = random.choice([1, 500], requests), random.choice([2, 3, 7, 20, 500], requests)
    draft = np.where(random.random(requests) < 0.5, 0, random.choice([2, 4, 8, 16, 32], requests))
    return view(
        requests,
        draft=draft,
        margin=np.round(1 - random.exponential(0.15, (requests, max(1, int(draft.max())))).clip(0, 1), 3),
        previous=random.choice([0, 1, 4, 8, 16, 32], requests),
        full=random.random(requests) < 0.3,
        prefix=random.choice([10, 700, 9000], requests),
        remaining=np.where(draft > 0, near, far),
        signals=-random.exponential(0.4, (requests, 3)),
    )


@given(st.integers(0, 10_000), st.integers(1, 24), st.sampled_from([*POLICIES]))
@settings(deadline=None, max_examples=60)
def test_a_step_is_as_good_as_that_of_loops_over_requests(seed, requests, name):
    policy, seen = POLICIES[name], drawn(seed, requests)
    beliefs = policy._beliefs
    cell = beliefs.cell(seen)
    hand, market = beliefs.in_hand(seen, cell), made(policy, seen)
    time = policy._clock.of_step(seen)
    slow = SlowStep(seen, cell.tolist(), hand, beliefs, market, time)
    assume(not slow.is_ambiguous())
    best = slow.best()
    plans = [solve(seen, cell, hand, beliefs, market, time)]
    plans += [solve_few(seen, cell.tolist(), beliefs, market, policy._clock)]
    for plan in plans:
        assert slow.profit(plan) == pytest.approx(best, rel=1e-9, abs=1e-9)


@given(st.integers(0, 10_000), st.integers(1, 4), st.sampled_from([*POLICIES]), st.sampled_from([5, 1 << 30]))
@settings(deadline=None, max_examples=300)
def test_a_few_requests_get_the_plans_of_many(seed, requests, name, most):
    """Or such as are worth exactly the same: which of two equal requests gets something does not matter."""
    random = np.random.default_rng(seed)
    left = random.choice([1, 2, 3, 9, 20, 33, 64, 65, 500], requests)
    policy, seen = POLICIES[name], replace(drawn(seed, requests), remaining=left, most=most)
    beliefs, market = policy._beliefs, made(policy, seen)
    cell = beliefs.cell(seen)
    hand, time = beliefs.in_hand(seen, cell), policy._clock.of_step(seen)
    slow = SlowStep(seen, cell.tolist(), hand, beliefs, market, time)
    assume(not slow.is_ambiguous())
    many = solve(seen, cell, hand, beliefs, market, time)
    few = solve_few(seen, cell.tolist(), beliefs, market, policy._clock)
    if written(few) != written(many):
        assert slow.profit(few) == pytest.approx(slow.profit(many), rel=1e-9, abs=1e-9)


def written(plan):
    branches = plan.branches
    columns = plan.block, plan.verified, branches.request, branches.slot, branches.head, branches.block
    return [column.tolist() for column in columns]


@given(st.integers(0, 10_000), st.integers(1, 24), st.sampled_from([*POLICIES]))
@settings(deadline=None, max_examples=40)
def test_the_price_is_that_of_all_requests_hulls_one_by_one(seed, requests, name):
    """Costs of query tokens are told apart in steps of 3 %, and equal requests are cut at 64 places.

    The best cut at a kink of T may lie between two of these, up to 2 % above both.
    """
    policy, seen = POLICIES[name], drawn(seed, requests)
    cell, times = policy._beliefs.cell(seen), policy._clock
    read = float(seen.prefix.sum())
    market = made(policy, seen)
    rate, price = rate_and_price(
        seen,
        cell.tolist(),
        policy._beliefs.menus,
        lambda prefix: float(market.weight(np.array([prefix]))[0]),
        lambda n, x: float(times.mean_ms(np.array([n]), read, np.array([x]))[0]),
        times.slope_ms,
    )
    assert market.rate == pytest.approx(rate, rel=2e-2 if name == "kinked" else 5e-3)
    if name in ("smooth", "long"):  # at a kink of T any price between its neighbours' would do
        assert market.price == pytest.approx(price, rel=0.05)


@given(st.integers(0, 10_000), st.integers(1, 12), st.sampled_from([*POLICIES]))
@settings(deadline=None, max_examples=60)
def test_the_hulls_of_a_few_are_cut_as_those_of_all_cells(seed, requests, name):
    policy, seen = POLICIES[name], drawn(seed, requests)
    menus, cell, base = policy._beliefs.menus, policy._beliefs.cell(seen), base_of(seen)
    ratio = MarketMaker(policy._beliefs, policy._clock)._ratio
    many = Merged(menus).sweep(base, cell, seen.prefix.astype(float), 1 + ratio * seen.prefix)
    few = steps_of_few(menus, cell.tolist(), seen.prefix.tolist(), ratio)
    assume((np.diff(many.slope) < -1e-12).all())
    assert [step[0] for step in few] == pytest.approx(many.slope)
    for number, sums in enumerate((many.tokens, many.pairs, many.gain), 1):
        assert [step[number] for step in few] == pytest.approx(np.diff(sums))

    def time(n, x):
        return policy._clock.mean_ms(n, 100.0, x) + 0.5

    def at(n, x):
        return policy._clock.mean_at(n, 100.0, x) + 0.5

    one, other = many.best(time), best_of_few(base, few, time, at)
    assert other.gain / other.ms == pytest.approx(one.gain / one.ms, rel=1e-9)
    if one.tokens == pytest.approx(other.tokens):
        assert astuple(one) == pytest.approx(astuple(other))


@given(st.integers(0, 10_000), st.sampled_from([*POLICIES]), st.floats(1e-6, 1.0), st.integers(1, 100))
@settings(deadline=None, max_examples=200)
def test_a_quote_says_of_one_cell_what_arrays_say_of_all(seed, name, chance, left):
    policy, seen = POLICIES[name], drawn(seed, 3)
    market, cell = made(policy, seen), int(policy._beliefs.cell(seen)[0])
    quote, blocks = market.quote(cell), market.options.sizes
    assert quote.least == pytest.approx(market.least[cell])
    assert quote.enough == pytest.approx(market.enough[cell])
    items, steps = quote.begin
    assert items == list(dict.fromkeys(market.begin.item[cell].tolist()))
    assert [n for n, _ in steps] == market.begin.tokens[cell][: len(steps)].tolist()
    assert [gain for _, gain in steps] == pytest.approx(market.begin.gain[cell][: len(steps)])
    block, gain = quote.branch(chance, left)
    if left < 2:
        assert not block
        return
    nets = np.minimum(market.worth[cell], quote.token * left) * chance - market.price * np.array(blocks)
    equals = np.flatnonzero(nets > nets.max() - 1e-9)
    assert block in {min(blocks[at], left) for at in equals}
    saved = min(market.worth[cell][np.searchsorted(blocks, block)], quote.token * block)
    assert gain == pytest.approx(chance * max(0.0, saved))


def test_hulls_over_the_same_tokens_are_those_of_any_menus():
    random = np.random.default_rng(0)
    n = np.array([1.0, 4, 5, 8, 9, 16, 17, 32, 33])
    y = random.random((300, 9)).cumsum(1) - random.random((300, 9))
    y[random.random(y.shape) < 0.2] = -np.inf
    y[:, 0] = 1.0
    y[:20] = np.minimum(y[:20], 0.5)  # nothing beats AR
    mine, theirs = SharedHulls(n).of(y.T), hulls(np.broadcast_to(n, y.shape).copy(), y)
    width = theirs.tokens.shape[1]
    assert mine.tokens[:, :width] == pytest.approx(theirs.tokens)
    assert mine.gain[:, :width] == pytest.approx(theirs.gain)
    assert (mine.item[:, : width + 1] == theirs.item).all()
    assert not mine.tokens[:, width:].any()
    assert not mine.gain[:, width:].any()
    for row in range(300):
        one = SharedHulls(n).of(y.T[:, [row]])
        assert one.tokens == pytest.approx(mine.tokens[[row]])
        assert one.gain == pytest.approx(mine.gain[[row]])
        assert (one.item == mine.item[[row]]).all()


@pytest.mark.parametrize("edges", [(), (0.5,), (0.05, 0.1, 0.9, 0.995, 0.999), (0.5, 0.50001, 0.50002)])
def test_margins_are_binned_as_a_search_does(edges):
    random = np.random.default_rng(0)
    margins = np.concatenate([random.random(5000), edges, np.nextafter(edges, 0), [0.0, 1.0]])
    assert (MarginBins(edges).of(margins) == np.searchsorted(np.array(edges), margins, side="right")).all()


def test_outlooks_are_sums_over_the_drawn_drafts():
    """Along levels: fewer slots and fewer branches as either bound rises, and never a reuse of 1."""
    outlooks = Outlooks(prior())
    for block in (4, 32):
        found = outlooks.at(block, 0.0)
        by_level = {level: number for number, level in enumerate(LEVELS)}
        for (slot, branch), number in by_level.items():
            for (other_slot, other_branch), other in by_level.items():
                if other_slot >= slot and other_branch >= branch:
                    assert (found.branches[:, other] <= found.branches[:, number] + 1e-9).all()
                    assert (found.verified[:, other] <= found.verified[:, number] + 1e-9).all()
                    assert (found.acceptance[:, other] <= found.acceptance[:, number] + 1e-9).all()
        everything = by_level[0.0, 0.0]
        assert found.verified[:, everything] == pytest.approx(np.full(len(found.verified), float(block)))
        most = 2.0 * (block - 1) + 1  # two corrections of every slot, and the continuation
        assert found.branches[:, everything] == pytest.approx(np.full(len(found.verified), most))
        assert (found.reuse <= 0.99).all()


def test_between_kept_shifts_outlooks_lie_on_lines():
    outlooks = Outlooks(prior())
    low, middle, high = (outlooks.at(8, shift).acceptance for shift in (1.0, 1.5, 2.0))
    assert middle == pytest.approx((low + high) / 2)
    assert (high <= low + 0.2).all()
