"""A work list that is used again does what the one would that is made for its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.test_work import by_tile

from recguide.attention import recent, work
from recguide.attention.recent import KEPT, RecentWork, most_spare
from recguide.attention.work import RowColumns, Tiling, work_list

TILING = Tiling(
    share=2, kv_heads=2, rows=8, keys=4, programs=6, resident=2, grain=1, exact=False, partial_rows=2 * 6 * 8
)

FIXED = [work.QUERY, work.TOKENS, work.HEAD, work.REQUEST, work.DRAFT, work.DRAFT_END]
"""Of an item, what does not move with its rows."""


@st.composite
def growing(draw):
    """Rows of a few requests in packed order, and the prefixes and stems that they have in turn."""
    requests = draw(st.integers(2, 3))
    causal, draft = [], []
    for request in range(requests):
        length = draw(st.integers(0, 6))
        if length:
            causal.append((request, 0, True, length))
        for _ in range(draw(st.integers(0 if length else 1, 2))):
            draft.append((request, draw(st.integers(0, length)), False, draw(st.integers(1, 6))))
    rows = [*causal, *draft]
    stems = st.tuples(*[st.just(0) if is_causal else st.integers(0, stem) for _, stem, is_causal, _ in rows])
    turn = st.tuples(st.tuples(*[st.integers(0, 40)] * requests), stems)
    return rows, draw(st.lists(turn, min_size=1, max_size=6))


def columns(rows, prefixes):
    request, stem, causal, length = (np.array(column) for column in zip(*rows, strict=True))
    request = request.astype(np.int32)
    prefix = np.array(prefixes, np.int32)[request]
    return RowColumns(request, prefix, stem.astype(np.int32), causal, length.astype(np.int32))


def lying(rows):
    """What tells rows apart but for prefixes and stems."""
    return tuple((request, is_causal, length) for request, _, is_causal, length in rows)


@settings(max_examples=150, deadline=None)
@given(st.lists(growing(), min_size=1, max_size=3), st.booleans())
def test_it_lists_what_the_rows_alone_give_and_little_more(batches, exact):
    known, tiling = RecentWork(), replace(TILING, exact=exact, partial_rows=8 * TILING.partial_rows)
    for rows, turns in batches:
        for prefixes, stems in turns:
            now = [(*row[:1], stem, *row[2:]) for row, stem in zip(rows, stems, strict=True)]
            order, listed = known.work_list(lying(now), columns(now, prefixes), tiling)
            expected_order, fresh = work_list(columns(now, prefixes), tiling)
            for column in (work.TOKEN, work.OWN):
                np.testing.assert_array_equal(order[:, column], expected_order[:, column])
            found, expected = by_tile(listed, tiling), by_tile(fresh, tiling)
            assert found.keys() == expected.keys()
            for tile, items in found.items():
                assert all(item[FIXED].tolist() == expected[tile][0][FIXED].tolist() for item in items)
                ends = [0, *(item[work.END] for item in items)]
                assert [item[work.BEGIN] for item in items] == ends[:-1]
                assert 0 <= ends[-1] - expected[tile][-1][work.END] <= most_spare(tiling)


OTHER = (1, 0, True, 1)
"""A row of another request: one that runs alone is not listed here (see test_alone)."""


def lists_made(monkeypatch, calls):
    made = []
    monkeypatch.setattr(recent, "work_list", lambda *args: made.append(args) or work_list(*args))
    known = RecentWork()
    for rows, prefix in calls:
        known.work_list(lying(rows), columns(rows, [prefix, 0]), TILING)
    return len(made)


def test_a_prefix_that_grows_takes_a_new_list_only_when_the_spare_blocks_are_full(monkeypatch):
    calls = [([(0, 0, True, 1), OTHER], prefix) for prefix in range(3 * recent.SPARE)]
    assert lists_made(monkeypatch, calls) == 1 + 3


def test_who_refreshes_between_waits_for_no_list_but_the_first(monkeypatch):
    known = RecentWork()
    rows = [(0, 0, True, 3), OTHER, (0, 2, False, 2)]

    def work_list_at(prefix):
        return known.work_list(lying(rows), columns(rows, [prefix, 0]), TILING)

    for prefix in (0, 1):
        work_list_at(prefix)
    made = []
    monkeypatch.setattr(recent, "work_list", lambda *args: made.append(args) or work_list(*args))
    for prefix in range(2, 400, 5):
        before = len(made)
        work_list_at(prefix)
        assert len(made) == before
        known.refresh()
    assert 2 <= len(made) < 40


def test_rows_that_are_about_to_move_get_a_list_that_serves_them_then(monkeypatch):
    known, rows = RecentWork(), [(0, 0, True, 3), OTHER]
    made = []
    monkeypatch.setattr(recent, "work_list", lambda *args: made.append(args) or work_list(*args))
    known.lasting.work_list(lying(rows), columns(rows, [7, 0]), TILING)
    known.work_list(lying(rows), columns(rows, [7 + recent.SOON, 0]), TILING)
    assert len(made) == 1


def test_stems_that_move_take_no_new_list(monkeypatch):
    calls = [([(0, 0, True, 4), OTHER, (0, stem, False, 2)], 5) for stem in range(5)]
    assert lists_made(monkeypatch, calls) == 1 + 1


def test_only_so_many_are_kept():
    known = RecentWork()
    for length in range(1, KEPT + 10):
        rows = [(0, 0, True, length), OTHER]
        for _ in range(2):
            known.work_list(lying(rows), columns(rows, [0, 0]), TILING)
    assert len(known._known) == len(known._met) == KEPT


def test_what_runs_alone_is_listed_elsewhere():
    known = RecentWork()
    for _ in range(2):
        known.work_list("one", columns([(0, 0, True, 2)], [9]), TILING)
    assert not known._met
