"""Profiles: known terms are found again, and times that cannot be true make no table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.guidance.test_cost import HERE

from recguide.bench.profile import ImplausibleProfile, Point, expected_s, grid, profile
from recguide.bench.profile_plot import plot_profile
from recguide.kv.pages import pages_for

SIZES = (1, 8, 16, 32, 64, 96, 128, 192, 256, 512)
POINTS = grid(SIZES, most_requests=64, pages=3_125, page_size=64, most_positions=16_384)


def base(n):
    """Flat while memory-bound, then linear: an H200 with an 8B model."""
    return max(4.2 + 0.004 * n, 0.024 * n + 1.2)


def timer(*, prefix_ms=4e-5, pair_ms=4e-8, noise=0.01, base=base, seed=0):
    rng = np.random.default_rng(seed)

    def time(point):
        true = base(point.tokens) + prefix_ms * point.read + pair_ms * point.pairs
        return true * (1 + noise * np.abs(rng.standard_normal(15)))

    return time


def profiled(time, points=POINTS):
    return profile(time, points, HERE, stepped=True)


def test_known_terms_are_found_again():
    found = profiled(timer())
    table = found.table
    assert table.tokens == SIZES
    assert table.base_ms == pytest.approx([base(n) for n in SIZES], rel=0.03)
    assert table.prefix_ms == pytest.approx(4e-5, rel=0.1)
    assert table.pair_ms == pytest.approx(4e-8, rel=0.2)
    assert table.residual < 0.02
    assert found.terms.prefix_error_ms < 1e-5
    assert all(row["table_ms"] == pytest.approx(row["ms"], rel=0.05) for row in found.rows())


@given(st.floats(1e-6, 1e-3), st.floats(1e-9, 1e-6))
def test_any_terms_are_found_without_noise(prefix_ms, pair_ms):
    table = profiled(timer(prefix_ms=prefix_ms, pair_ms=pair_ms, noise=0.0)).table
    assert table.prefix_ms == pytest.approx(prefix_ms, rel=1e-3, abs=1e-9)
    assert table.pair_ms == pytest.approx(pair_ms, rel=1e-3, abs=1e-12)
    assert table.base_ms == pytest.approx([base(n) for n in SIZES], rel=1e-6)


def test_a_term_that_is_nothing_is_not_below_nothing():
    for seed in range(6):
        table = profiled(timer(pair_ms=0.0, seed=seed)).table
        assert table.pair_ms >= 0
        assert table.pair_ms * 192 * 4096 < 0.03  # ms, of 5
        assert table.prefix_ms == pytest.approx(4e-5, rel=0.1)


def test_a_flat_table_is_refused():
    with pytest.raises(ImplausibleProfile, match="flat: 512 query tokens"):
        profiled(timer(base=lambda _: 4.0, noise=0.002))


def test_a_falling_table_is_refused():
    with pytest.raises(ImplausibleProfile, match=r"128 query tokens cost .* but 96"):
        profiled(timer(base=lambda n: base(n) * (0.5 if n == 128 else 1)))


def test_noise_is_refused():
    with pytest.raises(ImplausibleProfile, match="noise"):
        profiled(timer(noise=3.0))


def test_a_prefix_that_saves_time_is_refused():
    with pytest.raises(ImplausibleProfile, match="prefix token"):
        profiled(timer(prefix_ms=-1e-5, pair_ms=0.0))


@pytest.mark.parametrize("samples", [[], [1.0, -1.0], [float("nan")], [0.0]])
def test_times_that_are_none_are_refused(samples):
    with pytest.raises(ImplausibleProfile, match="a time is positive"):
        profiled(lambda _: samples)


def test_times_that_the_terms_do_not_explain_are_refused():
    def time(point):
        return [base(point.tokens) * (3.0 if point.prefix == 1024 else 1.0)] * 5

    with pytest.raises(ImplausibleProfile, match="miss what was measured"):
        profiled(time)


def test_three_forwards_say_how_long_all_will_take():
    asked = []

    def once(point):
        asked.append(point)
        return 70 + 3.6 * point.tokens + 0.04 * point.read

    assert expected_s(once, POINTS, times=13) == pytest.approx(13e-3 * sum(once(point) for point in POINTS))
    assert len(asked[: -len(POINTS)]) == 3
    assert max(point.tokens for point in asked[:3]) < SIZES[-1]


def test_one_forward_alone_is_expected_to_take_what_it_took():
    assert expected_s(lambda _: 50.0, [Point(1, 1, 16)], times=13) == pytest.approx(0.65)


def test_progress_counts_points():
    seen = []
    profile(timer(), POINTS, HERE, stepped=False, progress=lambda *state: seen.append(state))
    assert [done for _, done, _ in seen] == list(range(len(POINTS)))
    assert {total for _, _, total in seen} == {len(POINTS)}


@given(
    st.lists(st.sampled_from(SIZES), min_size=2, unique=True).map(sorted),
    st.integers(1, 100),
    st.integers(10, 10**5),
    st.sampled_from((1, 16, 64)),
    st.integers(600, 10**5),
)
def test_a_grid_fits_the_cache_and_the_positions(sizes, requests, pages, page_size, positions):
    for point in grid(
        sizes, most_requests=requests, pages=pages, page_size=page_size, most_positions=positions
    ):
        assert point.requests <= min(requests, point.tokens)
        assert point.prefix % 16 == 0
        assert point.prefix > 0
        longest = point.prefix + -(-point.tokens // point.requests)
        assert longest <= positions
        assert point.requests * pages_for(longest, page_size) <= pages


def test_a_grid_has_every_size_and_tells_the_terms_apart():
    assert {point.tokens for point in POINTS} == set(SIZES)
    varied = [(point.read, point.pairs) for point in POINTS if point.prefix > 128]
    assert np.linalg.matrix_rank(np.array(varied, dtype=float)) == 2
    assert Point(32, 2, 100).read == 200
    assert Point(32, 2, 100).pairs == 3200


def test_the_plot_is_a_picture(tmp_path):
    pytest.importorskip("matplotlib")
    plot_profile(profiled(timer()), tmp_path / "new" / "cost.png")
    assert (tmp_path / "new" / "cost.png").read_bytes().startswith(b"\x89PNG")
