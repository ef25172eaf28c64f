"""One step against enumeration: the branch rule, the verified length, what begins."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.guidance.worlds import EVIDENCE, table, view

from recguide.guidance.beliefs import Beliefs
from recguide.guidance.market import Market
from recguide.guidance.step import solve
from recguide.guidance.view import Head

BELIEFS = Beliefs(table())
BLOCKS = np.array(BELIEFS.table.blocks)


def market(price, *, rate=1.0):
    token = np.ones(BELIEFS.table.cells)
    return Market(price, rate, price / 2, 0.0, BELIEFS.menus, BELIEFS.options, token)


def time_at(price, *, rate=1.0, fixed=5.0):
    return lambda n, _: fixed + price / rate * n


def solved(seen, prices):
    cell = BELIEFS.cell(seen)
    hand = BELIEFS.in_hand(seen, cell)
    return solve(seen, cell, hand, BELIEFS, prices, time_at(prices.price)), hand


margins = st.lists(st.sampled_from([0.2, 0.9]), min_size=8, max_size=8)
prices = st.floats(0.01, 0.6)


@given(margins, prices, st.sampled_from([4, 8]))
@settings(deadline=None)
def test_a_verification_is_worth_what_the_best_of_all_is(margins, price, block):
    """Every verified length and every set of branches, each of its best length."""
    seen = view(draft=block, margin=margins[:block])
    at = market(price)
    plan, hand = solved(seen, at)
    worth = at.worth[BELIEFS.cell(seen)[0]]
    alive, failing = hand.alive[0], hand.failing[0]
    chance = {
        (slot, rank): alive[slot - 1]
        * failing[slot]
        * BELIEFS.candidates(rank, hand.place)[0, slot, rank - 1]
        for slot in range(1, block)
        for rank in (1, 2)
    }
    chance[block, int(Head.CONTINUATION)] = alive[-1] * BELIEFS.continuation

    def profit(verified, branches):
        """`branches` (slot, head, block)."""
        gains = [
            chance[slot, head] * min(worth[np.searchsorted(BLOCKS, size)], size) - price * size
            for slot, head, size in branches
        ]
        return alive[:verified].sum() - price * verified + sum(gains)

    best = -np.inf
    for verified in range(1, block + 1):
        fitting = [key for key in chance if key[0] <= verified]
        pays = [
            (*key, int(BLOCKS[(chance[key] * np.minimum(worth, BLOCKS) - price * BLOCKS).argmax()]))
            for key in fitting
        ]
        for count in range(3):
            best = max(best, *(profit(verified, some) for some in combinations(pays, count)), -np.inf)
        best = max(best, profit(verified, [one for one in pays if profit(0, [one]) > 0]))
    branches = zip(
        plan.branches.slot.tolist(), plan.branches.head.tolist(), plan.branches.block.tolist(), strict=True
    )
    assert profit(int(plan.verified[0]), list(branches)) == pytest.approx(best, abs=1e-9)


@given(margins, prices)
@settings(deadline=None)
def test_a_branch_opens_iff_its_chance_is_worth_its_tokens(margins, price):
    """q·(g + μB) ≥ μ·b, with g + μB what a draft in hand is worth."""
    seen = view(draft=8, margin=margins)
    at = market(price)
    plan, hand = solved(seen, at)
    opened = {
        (slot, head): size
        for slot, head, size in zip(
            plan.branches.slot.tolist(),
            plan.branches.head.tolist(),
            plan.branches.block.tolist(),
            strict=True,
        )
    }
    for slot, rank in product(range(1, 8), (1, 2)):
        q = (
            hand.alive[0, slot - 1]
            * hand.failing[0, slot]
            * BELIEFS.candidates(rank, hand.place)[0, slot, rank - 1]
        )
        pays = (q * np.minimum(at.worth[BELIEFS.cell(seen)[0]], BLOCKS) > price * BLOCKS * (1 + 1e-9)).any()
        assert ((slot, rank) in opened) == pays


def test_the_worth_of_a_draft_is_the_best_mean_and_its_price():
    """Where the best plan begins with a draft, the cycle breaks even at g: worth − μB = g."""
    price = 0.02
    beliefs = Beliefs(table(evidence=replace(EVIDENCE, step=10.0)))  # continuations beside AR are no use
    net = beliefs.menus.net(price)[0]
    best = (beliefs.menus.worth(price)[0] - price * BLOCKS).max()
    assert best == pytest.approx(net)
    assert net > 1 - price


@given(prices, prices)
@settings(deadline=None)
def test_dearer_tokens_never_verify_more(one, other):
    low, high = sorted((one, other))
    seen = view(3, draft=[4, 16, 32], margin=0.7)
    cheap, dear = solved(seen, market(low))[0], solved(seen, market(high))[0]
    assert (dear.verified <= cheap.verified).all()


def test_free_tokens_run_everything_and_dear_ones_plain_decoding():
    """Everything: two candidates of every slot, and the continuation."""
    seen = view(2, draft=[0, 8], margin=0.4)
    free, dear = solved(seen, market(1e-6))[0], solved(seen, market(0.99))[0]
    assert free.block[0] == 32
    assert free.verified[1] == 8
    heads = zip(free.branches.slot.tolist(), free.branches.head.tolist(), strict=True)
    assert [*heads] == [*product(range(1, 8), (1, 2)), (8, Head.CONTINUATION)]
    assert (dear.block == 0).all()
    assert (dear.verified == 1).all()
    assert not len(dear.branches.request)


@given(st.integers(1, 6), st.integers(0, 8), st.floats(1e-4, 0.5))
@settings(deadline=None)
def test_nothing_is_planned_past_the_cap(remaining, draft, price):
    draft = draft if draft > 1 else 0
    seen = view(draft=draft, remaining=remaining)
    plan, _ = solved(seen, market(price))
    assert plan.block[0] + plan.verified[0] >= 1
    assert max(plan.block[0], plan.verified[0]) <= remaining
    assert (plan.branches.slot + plan.branches.block <= remaining).all()
    assert (plan.branches.block >= 2).all()
    assert (plan.branches.slot <= plan.verified[0]).all()
