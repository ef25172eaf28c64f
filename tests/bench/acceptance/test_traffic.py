"""Traffic drawn in bulk has the law of the process, and is the same for every policy."""

from __future__ import annotations

import numpy as np
import pytest

from recguide.bench.acceptance.law import round_law
from recguide.bench.acceptance.process import fitted
from recguide.bench.acceptance.traffic import ReplayTraffic
from recguide.guidance.batching import ragged
from recguide.guidance.clock import Clock
from recguide.guidance.fixed import Fixed
from recguide.guidance.ideal import ideal_cost
from recguide.guidance.load import Load
from recguide.guidance.simulation import simulate

PROCESS = fitted("nld-8b").process


@pytest.mark.parametrize("block", [8, 32])
def test_rounds_on_policy_have_the_law_s_mean(block):
    traffic = ReplayTraffic(PROCESS, seats=48, length=512, seed=5)
    load = Load(seats=48, texts=240, warm_up=0.2)
    tally = simulate(traffic, Fixed(block), Clock(ideal_cost("ideal-8b")), load, ragged)
    rounds = sum(tally.verified.values())
    assert tally.tokens / rounds == pytest.approx(round_law(PROCESS, block).mean_acceptance, rel=0.05)


def test_a_text_is_the_same_in_every_seat():
    one, other = (ReplayTraffic(PROCESS, seats=3, length=64, seed=2) for _ in range(2))
    one.seat(0, 7)
    other.seat(2, 3)
    other.seat(2, 7)
    at = np.arange(0, 60, 7)
    mine, theirs = one.draft(at * 0, at, 16), other.draft(at * 0 + 2, at, 16)
    assert (mine.right == theirs.right).all()
    assert (mine.margins == theirs.margins).all()
    assert (one.entropy(at * 0, at, 8) == other.entropy(at * 0 + 2, at, 8)).all()


def test_margins_and_entropies_are_the_process_s():
    traffic = ReplayTraffic(PROCESS, seats=40, length=512, seed=9)
    for seat in range(40):
        traffic.seat(seat, seat)
    seats = np.repeat(np.arange(40), 500)
    positions = np.tile(np.arange(500), 40)
    drafted = traffic.draft(seats, positions, 8)
    risky = drafted.margins < 0.5
    assert risky[drafted.right].mean() == pytest.approx(PROCESS.alarm, abs=0.01)
    assert risky[~drafted.right].mean() == pytest.approx(PROCESS.recall, abs=0.03)
    ranks = drafted.ranks[~drafted.right]
    assert (ranks == 1).mean() == pytest.approx(PROCESS.second_hit, abs=0.03)
    assert (ranks == 2).mean() == pytest.approx(PROCESS.either_hit - PROCESS.second_hit, abs=0.02)
    assert not drafted.ranks[drafted.right].any()
    entropy = np.log(traffic.entropy(seats, positions, 1))
    assert entropy.mean() == pytest.approx(np.log(PROCESS.entropy_median), abs=0.1)
    assert entropy.std() == pytest.approx(PROCESS.entropy_spread, abs=0.1)
