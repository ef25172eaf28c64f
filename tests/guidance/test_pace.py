"""Pace: a clock that goes with what forwards really take, and what a policy makes of that."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guidance.test_simulation import Coins
from tests.guidance.worlds import cost, table

from recguide.guidance.batching import ragged
from recguide.guidance.clock import Clock
from recguide.guidance.lately import FORGOTTEN, PATIENT, WINDOW
from recguide.guidance.load import Load
from recguide.guidance.pace import EVERY, Pace
from recguide.guidance.price import Price
from recguide.guidance.simulation import simulate

SIZES = 1, 16, 64, 256
TABLE = cost(4.0, 0.02, tokens=SIZES, stepped=True)
ALL = np.arange(1, 2 * SIZES[-1] + 1)
sizes = st.sampled_from(range(len(SIZES)))
times = st.floats(0.7, 1.5)


def met(clock, tokens, times, forwards=WINDOW):
    for _ in range(forwards):
        clock.learn(tokens, times * float(TABLE.ms(tokens)))
    return clock


def told(clock):
    return clock.ms(ALL) / TABLE.ms(ALL)


@given(times)
def test_nothing_is_said_of_a_few_forwards(found):
    assert told(met(Clock(TABLE), 64, found, WINDOW - 1)) == pytest.approx(1.0)


@given(st.dictionaries(sizes, times, min_size=1))
def test_sizes_take_what_they_took(found):
    clock = Clock(TABLE)
    for size, each in found.items():
        met(clock, SIZES[size], each)
    said = told(clock)
    for size, each in found.items():
        # A graph serves all sizes up to its own.
        of_it = said[SIZES[size - 1] if size else 0 : SIZES[size]]
        assert of_it == pytest.approx(each, abs=0.0201)
        assert clock.at(SIZES[size]) == pytest.approx(clock.known[SIZES[size]])
    # What was not met lies between what was; one token takes no longer than the table says.
    assert min(1.0, *found.values()) - 0.0201 <= said.min() <= said.max() <= max(found.values()) + 0.0201
    assert 0 in found or said[0] <= 1.0
    assert clock.slope_ms(1e6) == pytest.approx(said[-1] * TABLE.slope_ms)


@given(times, times)
def test_what_became_of_it_is_followed(before, after):
    clock = met(met(Clock(TABLE), 64, before), 64, after)
    assert told(clock)[63:] == pytest.approx(after, abs=0.0201)


@given(times, st.permutations([*[1.0] * (WINDOW - 4), 0.1, 1.9, 25.0, 0.0]))
def test_what_interrupts_a_forward_now_and_then_is_not_its_own(found, outliers):
    clock = Clock(TABLE)
    for each in (*outliers, *[1.0] * 4):
        met(clock, 64, min(found * each, 1.99) if each < 2 else each, 1)
    assert told(clock)[63:] == pytest.approx(found, abs=0.0201)


def test_a_size_that_was_slow_for_a_while_is_tried_again():
    """Each time that it was in vain it takes twice as long."""
    pace = Pace(SIZES)
    for times in (1, 2, 4, 8, PATIENT, PATIENT):
        for _ in range(WINDOW):
            pace.add(256, 1.5)
        assert pace.of(ALL)[255] == pytest.approx(1.5)
        waited = 0
        while pace.of(ALL)[255] > 1.1:
            pace.add(16, 1.0)
            waited += 1
        assert times * FORGOTTEN - WINDOW - EVERY <= waited <= times * FORGOTTEN + EVERY


@given(st.lists(st.tuples(sizes, st.floats(0.95, 1.05)), min_size=100, max_size=400))
def test_forwards_that_scatter_seldom_move_it(found):
    """Each move makes markets anew."""
    pace = Pace(SIZES)
    moved = [pace.add(SIZES[size], times) for size, times in found]
    assert not any(moved[: WINDOW - 1])
    assert sum(moved) <= len(moved) / 8
    assert pace.of(ALL) == pytest.approx(1.0, abs=0.06)


def test_a_size_of_which_the_table_says_no_time_is_left_alone():
    nothing = Clock(cost(0.0, 0.1, tokens=SIZES, free=16))
    nothing.learn(16, 1.0)
    assert nothing.at(16) == 0.0


def test_a_clock_of_ones_own_learns_alone():
    shared = Clock(TABLE)
    own = met(shared.own(), 64, 1.3)
    assert own.moved == 1
    assert shared.moved == 0
    assert told(shared) == pytest.approx(1.0)
    assert told(own.own()) == pytest.approx(1.0)


def test_a_table_in_some_unit_stays_as_it_is():
    assert told(met(Clock(TABLE, in_ms=False), 64, 1.3)) == pytest.approx(1.0)


def test_forwards_beyond_what_is_looked_up_are_left_alone():
    assert told(met(Clock(TABLE), 4 * SIZES[-1], 1.3)) == pytest.approx(1.0)


# --- what a policy makes of it ------------------------------------------------------------------------------


MANY = tuple(range(32, 1025, 32))
SAID = Clock(cost(8.0, 0.02, tokens=MANY, free=448))
TRUE = Clock(cost(8.0, 0.02, tokens=MANY, free=160))
LONG = Load(seats=32, texts=128)


def made(policy):
    """Tokens per millisecond where forwards take what TRUE says."""
    tally = simulate(Coins(0.25, length=256), policy, TRUE, LONG, ragged)
    return tally.tokens / tally.ms


def test_where_large_forwards_take_longer_than_the_table_says_less_is_drafted():
    learning, knowing, naive = Price(table(0.25), SAID), Price(table(0.25), TRUE), Price(table(0.25), SAID)
    naive.timed = lambda *_, **__: None
    assert made(learning) > 0.98 * made(knowing) > 1.2 * made(naive)
    assert SAID.moved == TRUE.moved == 0
