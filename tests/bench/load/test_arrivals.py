"""Schedules: the law they promise, the same for the same seed."""

from __future__ import annotations

import random
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recguide.bench.load.arrivals import Burst, Poisson, Ramp, arrivals_named
from recguide.core import ParameterError

RATES = st.floats(0.1, 1000)
LAWS = st.one_of(
    st.builds(Poisson, RATES),
    st.builds(Ramp, st.floats(0, 100), RATES, st.floats(0.1, 100)),
    st.builds(Burst, RATES, st.integers(1, 20)),
)


def times(law, count, seed=0):
    return list(islice(law.times(random.Random(seed)), count))


@given(LAWS, st.integers(0, 2**32))
def test_times_rise_from_zero_and_repeat_with_their_seed(law, seed):
    first = times(law, 50, seed)
    assert first[0] >= 0
    assert all(a <= b for a, b in pairwise(first))
    assert times(law, 50, seed) == first


def test_poisson_gaps_are_exponential():
    gaps = np.diff(times(Poisson(5.0), 20_000))
    assert gaps.mean() == pytest.approx(1 / 5, rel=0.03)
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.05)
    assert times(Poisson(5.0), 5, 1) != times(Poisson(5.0), 5, 2)


def test_a_ramp_reaches_its_rate_and_stays():
    law = Ramp(start=0.0, rate=100.0, rise_s=50.0)
    at = np.array(times(law, 12_000))
    counts, _ = np.histogram(at, [0, 10, 20, 30, 40, 50, 60, 70])
    # Requests expected while the rate rises from 0 by 2 a second each second, then at 100 a second.
    assert counts == pytest.approx([100, 300, 500, 700, 900, 1000, 1000], rel=0.2)


def test_a_flat_ramp_is_a_poisson_process():
    assert times(Ramp(4.0, 4.0, 10.0), 100) == pytest.approx(times(Poisson(4.0), 100))


def test_bursts_keep_the_mean_rate():
    assert times(Burst(rate=2.0, size=3), 7) == [0, 0, 0, 1.5, 1.5, 1.5, 3.0]


@pytest.mark.parametrize(
    ("name", "more", "said"),
    [
        ("poisson", {"rate": 0.0}, "rate"),
        ("ramp", {"rise_s": 0.0}, "ramp"),
        ("burst", {"burst_size": 0}, "burst_size"),
        ("sometimes", {}, "poisson, ramp, burst"),
    ],
)
def test_what_is_no_schedule_is_refused(name, more, said):
    options = {"rate": 1.0, "start_rate": 0.0, "rise_s": 1.0, "burst_size": 1} | more
    with pytest.raises(ParameterError, match=said):
        arrivals_named(name, options.pop("rate"), **options)
