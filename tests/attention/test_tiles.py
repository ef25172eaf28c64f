"""Tiles that are put together are those that the rows alone give, wherever a request stands."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.batches import batches
from tests.attention.listing import RowColumns, blocks_of, tiles_of, work_list
from tests.attention.test_work import by_tile, tilings

from recguide.attention import work
from recguide.attention.packing import Flat
from recguide.attention.tiles import tiles_of_all, work_of


def begins_of(flat):
    return np.array(
        [[row.stem for row in flat.packed_rows], [row.prefix for row in flat.packed_rows]], np.int32
    )


@settings(max_examples=200, deadline=None)
@given(batches(prefix=30, length=12), tilings())
def test_they_are_those_of_the_rows_if_branches_see_the_whole_block(case, tiling):
    flat = Flat(*case)
    rows, begins = RowColumns.of(flat.packed_rows), begins_of(flat)
    if not tiling.exact:
        whole = np.zeros(1 + rows.request.max(), np.int32)
        np.maximum.at(whole, rows.request, rows.length * rows.causal)
        rows = rows._replace(stem=np.where(rows.causal, 0, whole[rows.request]))
    found, keys = tiles_of_all(flat.structure, begins, tiling)
    _, expected = tiles_of(rows, tiling.tokens)
    np.testing.assert_array_equal(found, expected)
    flying = expected[:, work.DRAFT_END] - expected[:, work.DRAFT]
    blocks = [-(-cached // tiling.keys) - -others // tiling.keys for cached, others in keys]
    assert blocks == blocks_of(expected[:, work.CACHED], flying, tiling).tolist()


@settings(max_examples=200, deadline=None)
@given(batches(prefix=30, length=12), tilings())
def test_lists_meet_the_keys_that_the_rows_alone_give_and_no_block_more_than_a_stem_holds(case, tiling):
    flat = Flat(*case)
    listed = work_of(flat.structure, begins_of(flat), tiling)
    order, fresh = work_list(RowColumns.of(flat.packed_rows), tiling)
    for column in (work.TOKEN, work.OWN):
        np.testing.assert_array_equal(flat.structure.order[:, column], order[:, column])
    found, expected = by_tile(listed, tiling), by_tile(fresh, tiling)
    assert found.keys() == expected.keys()
    for tile, items in found.items():
        ends = [0, *(item[work.END] for item in items)]
        assert [item[work.BEGIN] for item in items] == ends[:-1]
        more = ends[-1] - expected[tile][-1][work.END]
        assert 0 <= more <= (0 if tiling.exact else -(-12 // tiling.keys))


@settings(max_examples=50, deadline=None)
@given(st.lists(batches(prefix=30, length=12), min_size=2, max_size=4), tilings())
def test_what_is_kept_stays_as_it_was(cases, tiling):
    made = []
    for _ in range(2):
        for case in cases:
            flat = Flat(*case)
            made.append(work_of(flat.structure, begins_of(flat), tiling))
    for first, again in zip(made[: len(cases)], made[len(cases) :], strict=True):
        np.testing.assert_array_equal(first, again)
