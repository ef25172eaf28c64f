"""The work list of a request that runs alone does what the one would that is made for its rows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.listing import RowColumns, work_list
from tests.attention.test_work import by_tile, merges_of

from recguide.attention import alone, work
from recguide.attention.alone import CUTS, MOST, SHAPES, SOON, WorkAlone
from recguide.attention.packing import Flat
from recguide.attention.work import Tiling, cut_evenly
from recguide.core import Row

FIXED = [work.QUERY, work.TOKENS, work.HEAD, work.REQUEST, work.DRAFT, work.DRAFT_END]
"""Of an item, what does not move with its rows."""


def tiling_of(*, programs=6, grain=1, exact=False, keys=4, resident=2):
    return Tiling(
        share=2,
        kv_heads=2,
        rows=8,
        keys=keys,
        programs=programs,
        resident=resident,
        grain=grain,
        exact=exact,
        partial_rows=2 * programs * 8,
    )


tilings = st.builds(
    tiling_of,
    programs=st.integers(1, 40),
    grain=st.integers(1, 2),
    keys=st.sampled_from((4, 16, 64)),
    resident=st.integers(1, 2),
)


@st.composite
def rounds(draw):
    """(rows, prefix) of one request, row by row (stem, causal, length)."""
    length = draw(st.integers(0, 12))
    rows = [(0, True, length)] if length else []
    for _ in range(draw(st.integers(0 if length else 1, 3))):
        rows.append((draw(st.integers(0, length)), False, draw(st.integers(1, 9))))
    return rows, draw(st.integers(0, 300))


def flat_of(rows, prefix=0, request=0):
    rows = [Row(request, prefix, (0,) * length, causal, stem=stem) for stem, causal, length in rows]
    return Flat(rows, [range(prefix + 10**4)] * (request + 1), 1)


def listed_by(known, rows, prefix, tiling):
    return known.work_list(flat_of(rows, prefix).structure, prefix, tiling)


@settings(max_examples=200, deadline=None)
@given(st.lists(rounds(), min_size=1, max_size=8), tilings, st.booleans())
def test_it_lists_what_the_rows_alone_give_and_few_blocks_more(met, tiling, refreshed):
    known = WorkAlone()
    step = 1 + -(-alone.SPARE // tiling.keys)
    for rows, prefix in met:
        now = RowColumns.of(flat_of(rows, prefix).packed_rows)
        listed = listed_by(known, rows, prefix, tiling)
        _, fresh = work_list(now, tiling)
        found, expected = by_tile(listed, tiling), by_tile(fresh, tiling)
        assert found.keys() == expected.keys()
        keys = now.length.sum() + now.length[now.causal].sum()  # that a tile may meet and another not
        for tile, items in found.items():
            assert all(item[FIXED].tolist() == expected[tile][0][FIXED].tolist() for item in items)
            ends = [0, *(item[work.END] for item in items)]
            assert [item[work.BEGIN] for item in items] == ends[:-1]
            assert 0 <= ends[-1] - expected[tile][-1][work.END] <= step + -(-keys // tiling.keys)
        _check_results(listed, found, tiling)
        if refreshed:
            known.refresh()


def _check_results(listed, found, tiling):
    """A tile's lie side by side, and apart from others'."""
    merges = {(item[work.QUERY], item[work.HEAD]): item for item in merges_of(listed, tiling)}
    used = []
    for tile, items in found.items():
        if len(items) == 1:
            assert items[0][work.PARTIAL] == -1
            assert tile not in merges
            continue
        assert (merges.pop(tile) == items[0]).all()
        size = items[0][work.TOKENS] * tiling.share
        home = items[0][work.HOME]
        assert {item[work.HOME] for item in items} == {home}
        assert {item[work.RESULTS] for item in items} == {len(items)}
        assert [item[work.PARTIAL] for item in items] == [home + at * size for at in range(len(items))]
        used.extend(range(home, home + len(items) * size))
    assert not merges
    assert len(set(used)) == len(used)
    assert max(used, default=-1) < tiling.partial_rows


def cuts_made(monkeypatch, known, met, tiling, *, refreshed):
    """Of each work list, how many cuts had to be made for it."""
    made, waited = [], []
    monkeypatch.setattr(alone, "cut_evenly", lambda *args: made.append(args) or cut_evenly(*args))
    for rows, prefix in met:
        before = len(made)
        listed_by(known, rows, prefix, tiling)
        waited.append(len(made) - before)
        if refreshed:
            known.refresh()
    return waited


def growing(turns, start=0):
    """Rounds of any shape that move a request on by some positions each."""
    shapes = [
        [(0, True, 1 + at % 7), *((min(1 + at % 7, slot), False, 8) for slot in range(at % 3))]
        for at in range(turns)
    ]
    return [(rows, start + 5 * at) for at, rows in enumerate(shapes)]


def test_shapes_share_cuts_while_a_text_grows(monkeypatch):
    waited = cuts_made(monkeypatch, WorkAlone(), growing(100), tiling_of(keys=64), refreshed=False)
    tiles = 6
    assert sum(waited) <= tiles * (1 + 500 // 128)


def test_who_refreshes_between_waits_only_for_what_was_never_met(monkeypatch):
    known, tiling = WorkAlone(), tiling_of(keys=64)
    first, later = growing(21), growing(200, start=105)
    cuts_made(monkeypatch, known, first, tiling, refreshed=True)
    assert sum(cuts_made(monkeypatch, known, later, tiling, refreshed=True)) == 0


def test_what_was_not_met_lately_is_not_cut_ahead(monkeypatch):
    known, tiling = WorkAlone(), tiling_of(keys=64)
    step, long = [(0, True, 1)], [(0, True, 30)]
    cuts_made(monkeypatch, known, [(long, 0), *((step, at) for at in range(1000))], tiling, refreshed=True)
    (of_long,) = (cuts for (tiles, _), cuts in known._cuts.items() if tiles > 1)
    assert max(of_long._known) * 128 <= alone.LATELY + SOON + 128 + 60


@given(rounds(), tilings, st.data())
def test_a_list_serves_whatever_stems_until_there_and_no_further(met, tiling, data):
    known, (rows, prefix) = WorkAlone(), met
    length = sum(tokens for _, causal, tokens in rows if causal)
    others = [(0 if causal else data.draw(st.integers(0, length)), causal, own) for _, causal, own in rows]
    lies = flat_of(rows).structure
    assert known.until(lies, tiling, prefix) == -1
    listed = known.work_list(lies, prefix, tiling)
    until = known.until(lies, tiling, prefix)
    assert until >= prefix
    for at, serves in ((prefix, True), (until, True), (until + 1, False)):
        assert (listed_by(known, others, at, tiling) is listed) == serves


def test_several_requests_long_chunks_and_exact_mode_are_for_others():
    known, tiling = WorkAlone(), tiling_of()
    one = [(0, True, 1)]
    two = Flat([Row(request, 5, (0,), True) for request in range(2)], [range(9)] * 2, 1)
    assert known.work_list(two.structure, 5, tiling) is None
    assert known.work_list(flat_of(one, request=1).structure, 0, tiling) is None
    assert listed_by(known, [(0, True, MOST + 1)], 0, tiling) is None
    assert listed_by(known, one, 0, tiling_of(exact=True)) is None
    assert known.until(flat_of(one).structure, tiling_of(exact=True), 0) == -1
    assert listed_by(known, one, 0, tiling) is not None


def test_only_so_much_is_kept():
    known, tiling = WorkAlone(), tiling_of(programs=2)
    for at in range(SHAPES + 10):
        rows = [(0, True, 1 + at % 3), *[(0, False, 1 + at // 3 % 7)] * (at // 21)]
        listed_by(known, rows, 100 * at, tiling)
    assert len(known._shapes) <= SHAPES
    assert all(len(cuts._known) <= CUTS for cuts in known._cuts.values())
