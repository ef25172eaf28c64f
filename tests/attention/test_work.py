"""The work list against what it is for: every key that a token sees met once, by programs of equal load."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.batches import batches
from tests.attention.listing import RowColumns, blocks_of, work_list

from recguide.attention import work
from recguide.attention.packing import pack
from recguide.attention.visibility import visible
from recguide.attention.work import Tiling, items_cap
from recguide.core import Row


def tiling_of(
    share=4,
    kv_heads=8,
    rows=64,
    keys=64,
    programs=264,
    grain=2,
    exact=False,
    partial_rows=2**17,
    resident=1,
):
    return Tiling(share, kv_heads, rows, keys, programs, resident, grain, exact, partial_rows)


@st.composite
def tilings(draw):
    share = draw(st.integers(1, 5))
    return tiling_of(
        share,
        draw(st.integers(1, 3)),
        draw(st.sampled_from((8, 16))),
        draw(st.integers(2, 5)),
        draw(st.integers(1, 12)),
        draw(st.integers(1, 3)),
        draw(st.booleans()),
        draw(st.sampled_from((0, 50, 10**4))),
        draw(st.integers(1, 3)),
    )


def items_of(listed, tiling):
    """[(program, item)], items as rows of the list."""
    items, met = [], set()
    for program in range(tiling.programs):
        row = program
        while listed[row, work.TOKENS]:
            items.append((program, listed[row]))
            met.add(row)
            row = listed[row, work.NEXT]
            if row == 0:
                break
            assert row > tiling.programs
    assert len(met) == len(items) == (listed[:, work.END] > 0).sum()
    return items


def merges_of(listed, tiling):
    """The first item of every split tile."""
    about = listed[tiling.programs]
    merges = [listed[row] for row in listed[: about[work.MERGES], work.MERGE]]
    assert about[work.MERGE_MOST] == max([0, *(item[work.TOKENS] for item in merges)])
    return merges


def by_tile(listed, tiling):
    """{(first token, head): items in order of their blocks}."""
    tiles = {}
    for _, item in items_of(listed, tiling):
        tiles.setdefault((item[work.QUERY], item[work.HEAD]), []).append(item)
    return {tile: sorted(items, key=lambda item: item[work.BEGIN]) for tile, items in tiles.items()}


@settings(max_examples=150, deadline=None)
@given(batches(prefix=20, length=12), tilings())
def test_every_key_that_a_token_sees_is_met_once_by_every_head(case, tiling):
    batch = pack(*case)
    order, listed = work_list(RowColumns.of(batch.rows), tiling)
    _check_order(order, batch)
    order = order[:, work.TOKEN]
    seen_in_flight = visible(batch)
    seen = batch.prefix + torch.where(batch.causal, batch.slot + 1, batch.stem)
    met = np.zeros((len(order), tiling.kv_heads), int)
    for (query, head), items in by_tile(listed, tiling).items():
        tokens = order[query : query + items[0][work.TOKENS]]
        met[tokens, head] += 1
        cached, draft, draft_end = items[0][work.CACHED : work.DRAFT_END + 1]
        blocks = int(blocks_of(np.array(cached), np.array(draft_end - draft), tiling))
        ends = [0, *(item[work.END] for item in items)]
        assert [item[work.BEGIN] for item in items] == ends[:-1]
        assert ends[-1] == blocks
        assert all(np.diff(ends) > 0)
        assert all(item[work.OPEN] == min(seen[token] for token in tokens) for item in items)
        for token in tokens:
            assert items[0][work.REQUEST] == batch.request[token]
            assert seen[token] <= cached
            others = np.flatnonzero(seen_in_flight[token])
            held = sum(bool(batch.causal[i]) for i in others) + batch.prefix[token]
            assert held <= cached
            drafts = {int(i) for i in others if not batch.causal[i]}
            assert drafts <= set(order[draft:draft_end].tolist())
            assert not any(batch.causal[i] for i in order[draft:draft_end])
    assert (met == 1).all()


def _check_order(order, batch):
    assert order[:, work.TOKEN].tolist() == np.argsort(batch.request.numpy(), kind="stable").tolist()
    token = torch.from_numpy(order[:, work.TOKEN])
    seen = batch.prefix + torch.where(batch.causal, batch.slot + 1, batch.stem)
    assert order[:, work.SEEN].tolist() == seen[token].tolist()
    assert order[:, work.OWN].tolist() == torch.where(batch.causal, -1, batch.row)[token].tolist()


@settings(max_examples=150, deadline=None)
@given(batches(prefix=30, length=12), tilings())
def test_results_of_split_tiles_lie_side_by_side_and_apart_from_others(case, tiling):
    rows = pack(*case).rows
    _, listed = work_list(RowColumns.of(rows), tiling)
    merges = {(item[work.QUERY], item[work.HEAD]): item for item in merges_of(listed, tiling)}
    used = []
    for tile, items in by_tile(listed, tiling).items():
        if len(items) == 1:
            assert items[0][work.PARTIAL] == -1
            assert tile not in merges
            continue
        assert (merges.pop(tile) == items[0]).all()
        size = items[0][work.TOKENS] * tiling.share
        home = at = items[0][work.HOME]
        for item in items:
            assert item[work.HOME] == home
            assert item[work.PARTIAL] == at
            apart = tiling.exact and item[work.BEGIN] > 0
            at += size * (item[work.END] - item[work.BEGIN] if apart else 1)
        assert all(item[work.RESULTS] * size == at - home for item in items)
        used.extend(range(home, at))
    assert not merges
    assert len(set(used)) == len(used)
    assert max(used, default=-1) < tiling.partial_rows


@settings(max_examples=100, deadline=None)
@given(batches(prefix=30, length=12), tilings())
def test_the_list_fits_its_cap(case, tiling):
    batch = pack(*case)
    _, listed = work_list(RowColumns.of(batch.rows), tiling)
    requests = len(set(batch.request.tolist()))
    assert len(listed) <= items_cap(len(batch.tokens), requests, tiling)
    assert listed.shape[1] == work.FIELDS
    assert listed.dtype == np.int32


def verify(request, prefix, block, branches):
    draft = [Row(request, prefix, (0,) * block, False, stem=1 + i, adapter=True) for i in range(branches)]
    return [Row(request, prefix, (0,) * block, True), *draft]


MIXES = {
    "one verification": verify(0, 1024, 16, 3),
    "8 verifications": [row for i in range(8) for row in verify(i, 1000, 8, 2)],
    "64 AR steps": [Row(i, 1000, (1,), True) for i in range(64)],
    "100 AR steps of any length": [Row(i, 37 * i, (1,), True) for i in range(100)],
    "128 verifications": [row for i in range(128) for row in verify(i, 1000, 8, 1)],
    "a chunk alone": [Row(0, 0, (1,) * 1024, True)],
    "a chunk, AR steps and a verification": [
        Row(0, 512, (1,) * 1024, True),
        *(Row(i, 1000, (1,), True) for i in range(1, 30)),
        *verify(30, 4000, 32, 3),
    ],
    "one long request among short ones": [
        Row(0, 100_000, (1,), True),
        *(Row(i, 200, (1,), True) for i in range(1, 100)),
    ],
}


@pytest.mark.parametrize("mix", MIXES)
def test_programs_get_equal_loads(mix):
    tiling = tiling_of()
    rows = sorted(MIXES[mix], key=lambda row: not row.causal)
    _, listed = work_list(RowColumns.of(rows), tiling)
    load = np.zeros(tiling.programs)
    for program, item in items_of(listed, tiling):
        load[program] += item[work.END] - item[work.BEGIN] + work.START
    assert load.max() <= 1.2 * load.sum() / tiling.programs + 2 * tiling.grain


@pytest.mark.parametrize(
    ("mix", "busy"),
    [
        ("one verification", (60, 132)),
        ("8 verifications", (200, 264)),
        ("64 AR steps", (264, 264)),
        ("a chunk alone", (264, 264)),
    ],
)
def test_programs_share_multiprocessors_where_there_is_much_to_do(mix, busy):
    rows = sorted(MIXES[mix], key=lambda row: not row.causal)
    _, listed = work_list(RowColumns.of(rows), tiling_of(resident=2))
    least, most = busy
    assert least <= len({program for program, _ in items_of(listed, tiling_of())}) <= most


@pytest.mark.parametrize("prefix", [63, 300, 1024, 5000])
def test_the_last_blocks_of_a_tile_are_shared_out_as_if_there_were_more_of_them(prefix):
    rows = [Row(0, prefix, (0,) * 16, causal=True), Row(0, prefix, (0,) * 16, causal=False, stem=16)]
    tiling = tiling_of(programs=64)
    _, listed = work_list(RowColumns.of(rows), tiling)
    items = [item for _, item in items_of(listed, tiling)]
    sizes = {item[work.BEGIN]: item[work.END] - item[work.BEGIN] for item in items}
    assert min(sizes.values()) > 0
    assert sizes[max(sizes)] <= sizes[0]  # the first piece has no masked keys
    assert sizes[max(sizes)] < sizes[0] or sizes[0] < 3


def test_one_token_with_a_short_prefix_occupies_the_device():
    _, listed = work_list(RowColumns.of([Row(0, 1024, (1,), True)]), tiling_of(grain=1))
    assert len({program for program, _ in items_of(listed, tiling_of())}) >= 132


def test_what_fills_the_device_is_not_split():
    rows = [Row(i, 60, (1,), True) for i in range(128)]
    _, listed = work_list(RowColumns.of(rows), tiling_of())
    assert not merges_of(listed, tiling_of())


def test_a_chunk_skips_the_keys_behind_it():
    tiling = tiling_of(kv_heads=1)
    _, listed = work_list(RowColumns.of([Row(0, 0, (1,) * 1024, True)]), tiling)
    blocks = sum(item[work.END] - item[work.BEGIN] for _, item in items_of(listed, tiling))
    assert blocks == sum(-(-end // tiling.keys) for end in range(16, 1025, 16))


def test_a_small_workspace_means_fewer_splits():
    rows = RowColumns.of([Row(0, 50_000, (1,), True)])
    roomy = work_list(rows, tiling_of(exact=True))[1]
    tight = work_list(rows, tiling_of(exact=True, partial_rows=20_000))[1]
    none = work_list(rows, tiling_of(exact=True, partial_rows=0))[1]
    counts = [len(items_of(listed, tiling_of())) for listed in (none, tight, roomy)]
    assert sorted(set(counts)) == counts
    assert not merges_of(none, tiling_of())


def test_columns_follow_the_rows():
    rows = [Row(1, 5, (1, 2), True), Row(1, 5, (3,), False, stem=2)]
    columns = RowColumns.of(rows)
    assert columns.request.tolist() == [1, 1]
    assert columns.prefix.tolist() == [5, 5]
    assert columns.stem.tolist() == [0, 2]
    assert columns.causal.tolist() == [True, False]
    assert columns.length.tolist() == [2, 1]
    assert torch.from_numpy(columns.length).dtype == torch.int32
