"""Hulls and sweeps against brute force over small menus."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.guidance.hull import hulls
from recguide.guidance.sweep import Base, Increments, best_profit, best_rate

item = st.tuples(st.integers(2, 40), st.floats(0.1, 20))
menu = st.lists(item, min_size=0, max_size=4).map(lambda items: [(1, 1.0), *items])
menus = st.lists(menu, min_size=1, max_size=4)


def arrays(menus):
    width = max(map(len, menus))
    n = np.array([[float(n) for n, _ in menu] + [1.0] * (width - len(menu)) for menu in menus])
    y = np.array([[y for _, y in menu] + [1.0] * (width - len(menu)) for menu in menus])
    return n, y


def increments(found):
    there = found.tokens > 0
    return Increments(
        found.tokens[there], found.gain[there], np.zeros(there.sum()), np.ones(there.sum())
    ), np.nonzero(there)[0]


@given(menus, st.floats(0.0, 5.0))
@settings(deadline=None)
def test_at_any_price_the_best_item_is_a_vertex(menus, price):
    n, y = arrays(menus)
    found = hulls(n, y)
    rows = np.arange(len(n))[:, None]
    best = (y - price * n).max(1)
    assert (y - price * n)[rows, found.item].max(1) == pytest.approx(best)


@given(menus)
@settings(deadline=None)
def test_slopes_never_rise_along_a_hull(menus):
    slope = hulls(*arrays(menus)).slope
    assert (np.diff(slope, axis=1) <= 1e-9 * np.abs(slope[:, :-1])).all()


def test_what_is_not_on_offer_is_no_vertex():
    found = hulls(np.array([[1.0, 4.0, 8.0]]), np.array([[1.0, -np.inf, 3.0]]))
    assert found.item.tolist() == [[0, 2]]


@given(menus, st.floats(0.5, 10), st.floats(0.001, 2))
@settings(deadline=None)
def test_the_best_rate_is_that_of_the_best_of_all_combinations(menus, fixed, each):
    """T straight: then an optimum lies at a vertex, and the merged hulls have it."""
    n, y = arrays(menus)
    found, _ = increments(hulls(n, y))
    cut = best_rate(Base(len(n), 0, len(n)), found, lambda tokens, _: fixed + each * tokens)
    best = max(
        sum(y for _, y in chosen) / (fixed + each * sum(n for n, _ in chosen)) for chosen in product(*menus)
    )
    assert cut.gain / cut.ms == pytest.approx(best)
    assert cut.following <= cut.last


@given(menus, st.floats(0.01, 3), st.floats(0.001, 2))
@settings(deadline=None)
def test_the_best_profit_is_that_of_the_best_of_all_combinations(menus, rate, each):
    n, y = arrays(menus)
    found = hulls(n, y)
    steps, of = increments(found)
    taken = best_profit(Base(len(n), 0, len(n)), steps, lambda tokens, _: each * tokens, rate)
    count = np.bincount(of[taken], minlength=len(n))
    chosen = found.item[np.arange(len(n)), count]
    rows = np.arange(len(n))
    profit = (y - rate * each * n)[rows, chosen].sum()
    assert profit == pytest.approx((y - rate * each * n).max(1).sum())


def test_equal_requests_are_split_at_a_kink():
    """Eight requests may each add 10 tokens; T is flat up to N = 48 and steep beyond."""
    one = Increments(np.array([80.0]), np.array([16.0]), np.zeros(1), np.ones(1))
    cut = best_rate(Base(8, 0, 8), one, lambda n, _: 5 + np.maximum(0, n - 48.0))
    assert 45 <= cut.tokens <= 50
    assert cut.last == cut.following == pytest.approx(0.2)


def test_tokens_over_long_prefixes_come_last_and_cost_more():
    both = Increments(np.full(2, 10.0), np.full(2, 5.0), np.array([1e5, 0.0]), np.array([1.5, 1.0]))
    seen = []

    def time(n, x):
        seen.append((n.tolist(), x.tolist()))
        return 1 + 0.03 * n + 1e-6 * x

    taken = best_profit(Base(2, 0, 2), both, time, 10.0)
    assert seen == [([2, 12, 22], [0, 0, 1e6])]
    assert taken.tolist() == [False, True]
