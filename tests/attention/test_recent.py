"""A work list that is used again does what the one would that is made for its rows."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.listing import RowColumns, work_list
from tests.attention.test_work import by_tile

from recguide.attention import recent, work
from recguide.attention.packing import Flat
from recguide.attention.recent import KEPT, RecentWork, most_spare
from recguide.attention.structure import KEPT_TOKENS, Structure, structure_of
from recguide.attention.work import Tiling
from recguide.core import Row

TILING = Tiling(
    share=2, kv_heads=2, rows=8, keys=4, programs=6, resident=2, grain=1, exact=False, partial_rows=2 * 6 * 8
)

FIXED = [work.QUERY, work.TOKENS, work.HEAD, work.REQUEST, work.DRAFT, work.DRAFT_END]
"""Of an item, what does not move with its rows."""


LONGEST = 6
"""Tokens of a row."""


@st.composite
def growing(draw):
    """Rows of a few requests in packed order, and the prefixes and stems that they have in turn."""
    requests = draw(st.integers(2, 3))
    causal, draft = [], []
    for request in range(requests):
        length = draw(st.integers(0, LONGEST))
        if length:
            causal.append((request, 0, True, length))
        for _ in range(draw(st.integers(0 if length else 1, 2))):
            draft.append((request, draw(st.integers(0, length)), False, draw(st.integers(1, LONGEST))))
    rows = [*causal, *draft]
    stems = st.tuples(*[st.just(0) if is_causal else st.integers(0, stem) for _, stem, is_causal, _ in rows])
    turn = st.tuples(st.tuples(*[st.integers(0, 40)] * requests), stems)
    return rows, draw(st.lists(turn, min_size=1, max_size=6))


def flat_of(rows, prefixes):
    """Rows (request, stem, causal, length) in packed order where these prefixes are cached."""
    rows = [
        Row(request, prefixes[request], (0,) * length, causal, stem=stem)
        for request, stem, causal, length in rows
    ]
    return Flat(rows, [range(2000)] * len(prefixes), 1)


def listed_by(known, rows, prefixes, tiling):
    flat = flat_of(rows, prefixes)
    return known.work_list(flat.structure, flat.begins, tiling)


@settings(max_examples=150, deadline=None)
@given(st.lists(growing(), min_size=1, max_size=3), st.booleans())
def test_it_lists_what_the_rows_alone_give_and_little_more(batches, exact):
    known, tiling = RecentWork(), replace(TILING, exact=exact, partial_rows=8 * TILING.partial_rows)
    for rows, turns in batches:
        for prefixes, stems in turns:
            now = [(*row[:1], stem, *row[2:]) for row, stem in zip(rows, stems, strict=True)]
            flat = flat_of(now, prefixes)
            listed = known.work_list(flat.structure, flat.begins, tiling)
            _, fresh = work_list(RowColumns.of(flat.packed_rows), tiling)
            found, expected = by_tile(listed, tiling), by_tile(fresh, tiling)
            assert found.keys() == expected.keys()
            for tile, items in found.items():
                assert all(item[FIXED].tolist() == expected[tile][0][FIXED].tolist() for item in items)
                ends = [0, *(item[work.END] for item in items)]
                assert [item[work.BEGIN] for item in items] == ends[:-1]
                more = 0 if exact else most_spare(tiling) + -(-LONGEST // tiling.keys)
                assert 0 <= ends[-1] - expected[tile][-1][work.END] <= more


OTHER = (1, 0, True, 1)
"""A row of another request: one that runs alone is not listed here (see test_alone)."""


def noted(monkeypatch):
    """The lists that are made from now on."""
    made = []
    for module, name in ((recent, "work_of"), (recent, "shared_out")):
        make = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, make=make: made.append(args) or make(*args))
    return made


def lists_made(monkeypatch, calls):
    made = noted(monkeypatch)
    known = RecentWork()
    for rows, prefix in calls:
        listed_by(known, rows, [prefix, 0], TILING)
    return len(made)


def test_a_prefix_that_grows_takes_a_new_list_only_when_the_spare_blocks_are_full(monkeypatch):
    calls = [([(0, 0, True, 1), OTHER], prefix) for prefix in range(3 * recent.SPARE)]
    assert lists_made(monkeypatch, calls) == 1 + 3


def test_who_refreshes_between_waits_for_no_list_but_the_first(monkeypatch):
    known = RecentWork()
    rows = [(0, 0, True, 3), OTHER, (0, 2, False, 2)]

    def work_list_at(prefix):
        return listed_by(known, rows, [prefix, 0], TILING)

    for prefix in (0, 1):
        work_list_at(prefix)
    made = noted(monkeypatch)
    for prefix in range(2, 400, 5):
        before = len(made)
        work_list_at(prefix)
        assert len(made) == before
        known.refresh()
    assert 2 <= len(made) < 40


def test_rows_that_are_about_to_move_get_a_list_that_serves_them_then(monkeypatch):
    known, rows = RecentWork(), [(0, 0, True, 3), OTHER]
    made = noted(monkeypatch)
    listed_by(known.lasting, rows, [7, 0], TILING)
    listed_by(known, rows, [7 + recent.SOON, 0], TILING)
    assert len(made) == 1


def test_stems_that_move_take_no_new_list(monkeypatch):
    calls = [([(0, 0, True, 4), OTHER, (0, stem, False, 2)], 5) for stem in range(5)]
    assert lists_made(monkeypatch, calls) == 1 + 1


def test_who_moves_rows_in_place_gets_a_list_that_serves_them():
    known = RecentWork()
    flat = flat_of([(0, 0, True, 3), OTHER], [0, 0])
    for prefix in range(0, 300, 7):
        flat.begins[1] = prefix
        listed = known.work_list(flat.structure, flat.begins, TILING)
        last = max(item[work.END] for items in by_tile(listed, TILING).values() for item in items)
        assert last * TILING.keys >= prefix + 3


def test_only_so_many_are_kept():
    known = RecentWork()
    for length in range(1, KEPT + 10):
        rows = [(0, 0, True, length), OTHER]
        for _ in range(2):
            listed_by(known, rows, [0, 0], TILING)
    assert len(known._known) == len(known._met) == KEPT


def test_what_runs_alone_is_listed_elsewhere():
    known = RecentWork()
    for _ in range(2):
        listed_by(known, [(0, 0, True, 2)], [9], TILING)
    assert not known._met


@pytest.mark.parametrize("exact", [False, True])
def test_nothing_is_kept_of_what_never_lies_the_same_way_again(exact):
    known, tiling = RecentWork(), replace(TILING, exact=exact)

    def structures():
        gc.collect()
        return sum(type(one) is Structure for one in gc.get_objects())

    before = structures()
    for requests in (1, 1, 2, 2, 3):
        lies = structure_of([Row(at, 0, (0,) * (KEPT_TOKENS + 1), True) for at in range(requests)])
        known.work_list(lies, np.zeros((2, requests), np.int32), tiling)
        del lies
    assert structures() == before


def test_of_chunks_beside_rows_that_move_the_last_one_s_list_is_kept():
    known, made = RecentWork(), []
    rows = [(0, 0, True, KEPT_TOKENS), OTHER]
    for prefix in range(3):
        flat = flat_of(rows, [prefix, 0])
        listed = known.lasting.work_list(flat.structure, flat.begins, TILING)
        assert known.work_list(flat.structure, flat.begins + 1, TILING) is listed
        made.append(flat.structure)
    assert len({id(lies) for lies in made}) == 3
    assert [lies in [key[0] for key in known._known] for lies in made] == [False, False, True]
