"""A work list that is used again is the one that would have been made."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from recguide.attention import recent
from recguide.attention.recent import KEPT, RecentWork
from recguide.attention.work import RowColumns, Tiling, work_list

TILING = Tiling(
    share=2, kv_heads=2, rows=8, keys=4, programs=6, resident=2, grain=1, exact=False, partial_rows=2 * 6 * 8
)


@st.composite
def growing(draw):
    """Rows of up to three requests in packed order, and the prefixes and stems that they have in turn."""
    requests = draw(st.integers(1, 3))
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


@settings(max_examples=150, deadline=None)
@given(st.lists(growing(), min_size=1, max_size=3))
def test_it_is_what_the_rows_alone_give(batches):
    known = RecentWork()
    for rows, turns in batches:
        for prefixes, stems in turns:
            now = [(*row[:1], stem, *row[2:]) for row, stem in zip(rows, stems, strict=True)]
            found = known.work_list(columns(now, prefixes), TILING)
            for got, expected in zip(found, work_list(columns(now, prefixes), TILING), strict=True):
                np.testing.assert_array_equal(got, expected)


def test_a_prefix_that_grows_within_a_block_takes_no_new_list(monkeypatch):
    made = []

    def counted(*args):
        made.append(args)
        return work_list(*args)

    monkeypatch.setattr(recent, "work_list", counted)
    known, rows = RecentWork(), [(0, 0, True, 1)]
    for prefix in range(20):
        known.work_list(columns(rows, [prefix]), TILING)
    assert len(made) == 20 // TILING.keys


def test_stems_that_move_within_a_block_take_no_new_list(monkeypatch):
    monkeypatch.setattr(recent, "work_list", lambda *args: made.append(args) or work_list(*args))
    made, known = [], RecentWork()
    for stem in range(1, 5):
        known.work_list(columns([(0, 0, True, 4), (0, stem, False, 2)], [6]), TILING)
    assert len(made) == 1


def test_only_so_many_are_kept():
    known = RecentWork()
    for length in range(1, KEPT + 10):
        known.work_list(columns([(0, 0, True, length)], [0]), TILING)
    assert len(known._known) == KEPT
