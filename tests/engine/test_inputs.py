"""One buffer for a forward's whole input: whatever lay there, what is filled in is what is read."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.batches import batches
from tests.attention.listing import RowColumns, work_list
from tests.attention.test_work import by_tile
from tests.engine.device import PER_TOKEN

from recguide.attention import work
from recguide.attention.packing import BatchShape, Flat, pack
from recguide.attention.recent import RecentWork
from recguide.attention.work import Tiling
from recguide.core import AdapterUse, Row
from recguide.engine.docket import Docket
from recguide.engine.flight import Ready
from recguide.engine.inputs import Inputs, Room
from recguide.engine.request import Sampling
from recguide.engine.shaped import Shaped
from recguide.speculation.rows import Branch, BranchKind, verify
from recguide.speculation.slots import INERT
from recguide.speculation.step import Judged, SettleShape

TILING = Tiling(
    share=2,
    kv_heads=2,
    rows=16,
    keys=4,
    programs=4,
    resident=2,
    grain=1,
    exact=False,
    partial_rows=2 * 4 * 16,
)


def inputs_of(room, use=AdapterUse.NONE):
    """Inputs whose two buffers are full of rubbish."""
    columns = room.columns()
    host = torch.randint(0, 255, (columns.size,), dtype=torch.uint8)
    device = torch.randint(0, 255, (columns.size,), dtype=torch.uint8)
    return Inputs(room, columns, host, device, use)


@settings(max_examples=60, deadline=None)
@given(batches(), st.integers(0, 7), st.integers(0, 3), st.integers(0, 2), st.integers(0, 3))
def test_a_padded_batch_is_the_batch_and_padding(case, tokens, wanted, requests, pages):
    rows, tables, page_size = case
    exact = pack(rows, tables, page_size, tiling=TILING)
    n, w, r = len(exact.tokens), len(exact.wanted), len(tables)
    shape = BatchShape(
        n + tokens, w + wanted, r + requests, exact.block_tables.shape[1] + pages, page_size, TILING
    )
    filled = inputs_of(Room(shape, SettleShape(1, 1, 1, 1)), exact.use)
    flat = Flat(rows, tables, page_size)
    filled.fill(flat, tables, [Sampling(0, 0.0)] * len(tables), ())
    filled.send()
    filled.place()
    batch = filled.batch
    for name in PER_TOKEN:
        assert torch.equal(getattr(batch, name)[:n], getattr(exact, name)), name
    assert torch.equal(batch.wanted[:w], exact.wanted)
    for index, table in enumerate(tables):
        assert batch.block_tables[index, : len(table)].tolist() == table
    order, _ = work_list(RowColumns.of(exact.rows), TILING)
    assert torch.equal(batch.order[:n], torch.from_numpy(order))
    listed = int(exact.work[TILING.programs, work.LISTED])
    assert torch.equal(batch.work[:listed], exact.work[:listed])
    assert not batch.tokens[n:].any()
    assert not batch.positions[n:].any()
    assert (batch.kv_slots[n:] == -1).all()
    assert (batch.row[n:] == -1).all()
    assert (batch.request[n:] == -1).all()
    assert not batch.masked[n:].any()
    assert not batch.causal[n:].any()
    assert batch.adapter_on[n:].all() == (exact.use is AdapterUse.ALL or not tokens)
    assert not batch.wanted[w:].any()
    known = filled.batch_with(flat)
    assert (known.rows, known.written, known.use) == (exact.rows, exact.written, exact.use)


def test_tables_and_verdicts_travel_in_the_same_copy():
    filled = inputs_of(Room(BatchShape(4, 4, 2, 3, 4), SettleShape(2, 4, 2, 1)))
    filled.clear()
    assert (filled.slots.position == INERT).all()
    assert not filled.settle.words.any()
    assert (filled.batch.kv_slots == -1).all()
    flat = Flat([Row(0, 2, (5, 6), True, wanted=(0, 1))], [[7]], 4)
    filled.fill(flat, [[7]], [Sampling(9, 0.5)], [Judged((5, 6), 0, 10, False, (1,))])
    assert (filled.slots.position == INERT).all()
    filled.send()
    for _ in range(2):  # a graph may run again over the same input
        filled.place()
    assert filled.slots.position.tolist() == [3, 4, INERT, INERT]
    assert filled.slots.seed.tolist()[:2] == [9, 9]
    assert filled.batch.block_tables[0, 0] == 7
    assert filled.settle.words[:6].tolist() == [2, 10, 0, 0, 5, 6]


def test_what_was_read_stays_though_the_next_forward_writes_to_the_same_place():
    inputs = inputs_of(Room(BatchShape(4, 4, 2, 3, 4), SettleShape(2, 4, 2, 1)))
    words = np.arange(inputs.output_words, dtype=np.int32)
    said = inputs.read(words)
    words[:] = -1
    assert said.verdicts.ravel().tolist() + said.integers.ravel().tolist() == list(range(18 + 16))


def test_what_was_saved_can_be_filled_in_again():
    filled = inputs_of(Room(BatchShape(4, 4, 2, 3, 4), SettleShape(2, 4, 2, 1)))
    filled.fill(Flat([Row(0, 2, (5, 6), True)], [[7]], 4), [[7]], [Sampling(0, 0.0)], ())
    saved = filled.saved()
    filled.fill(Flat([Row(0, 0, (1, 2, 3, 4), False)], [[2]], 4), [[2]], [Sampling(0, 0.0)], ())
    filled.restore(saved)
    filled.send()
    filled.place()
    assert filled.batch.tokens.tolist() == [5, 6, 0, 0]
    assert filled.batch.kv_slots.tolist() == [30, 31, -1, -1]


@given(st.lists(st.integers(0, 20), min_size=1, max_size=30), st.integers(1, 5), st.integers(1, 6))
def test_a_step_further_is_what_its_rows_alone_give(prefixes, page_size, steps):
    """Step after step, each in the other of two buffers, and with new pages where they are needed."""
    count, last = len(prefixes), max(prefixes) + steps
    pages = [[19 * at + page for page in range(last // page_size + 1)] for at in range(count)]
    shape = BatchShape(count + 1, count, count, len(pages[0]), page_size, TILING)
    both = [inputs_of(Room(shape, SettleShape(count, 1, 1, 1))) for _ in range(3)]

    def filled_at(inputs, step):
        rows = [Row(at, prefix + step, (7,), True, wanted=(0,)) for at, prefix in enumerate(prefixes)]
        tables = [mine[: row.prefix // page_size + 1] for mine, row in zip(pages, rows, strict=True)]
        flat = Flat(rows, tables, page_size)
        judged = [Judged((7,), at, 9 + at - step, False, (1,)) for at in range(count)]
        inputs.fill(flat, tables, [Sampling(at, 0.5) for at in range(count)], judged)
        return flat, tables

    flat, tables = filled_at(both[0], 0)
    for step in range(1, steps + 1):
        before, now = both[(step + 1) % 2], both[step % 2]
        _, longer = filled_at(both[2], step)
        grown = [(at, np.array(longer[at])) for at in range(count) if len(longer[at]) > len(tables[at])]
        flat, tables = flat.moved(1), longer
        now.fill_step(before, flat, grown)
        assert now.fewest_left == 9 - step
        assert flat.prefix_tokens == sum(prefixes) + step * count
        for inputs in (now, both[2]):
            inputs.send()
            inputs.place()
        for name in PER_TOKEN:
            assert torch.equal(getattr(now.batch, name), getattr(both[2].batch, name)), name
        for at, table in enumerate(tables):
            assert now.batch.block_tables[at, : len(table)].tolist() == table
        for column in ("seed", "position", "start", "slot", "temperature", "draft"):
            assert torch.equal(getattr(now.slots, column), getattr(both[2].slots, column)), column
        assert torch.equal(now.settle.words, both[2].settle.words)
        assert torch.equal(now.batch.order[:count], both[2].batch.order[:count])


def listed(inputs):
    rows = inputs.batch.work.numpy()
    return rows[: rows[TILING.programs, work.LISTED]]


BRANCHES = st.lists(
    st.tuples(st.integers(1, 6), st.integers(2, 7), st.integers(0, 50)), min_size=1, max_size=4
)


def corrections(branches, block):
    return [Branch(BranchKind.CORRECTION, min(slot, block - 1), size, head) for slot, size, head in branches]


@given(
    st.lists(
        st.tuples(st.integers(0, 60), st.lists(st.integers(0, 50), min_size=7, max_size=7), BRANCHES),
        min_size=2,
        max_size=5,
    ),
    st.integers(2, 7),
    st.integers(1, 5),
    st.booleans(),
)
def test_another_forward_of_a_shape_is_what_its_rows_alone_give(rounds, block, page_size, kept):
    """Wherever it stands, whatever branches of the same lengths it has; with a kept work list, too."""
    sizes = [size for _, size, _ in rounds[0][2]]
    pages = 80 // page_size + 1
    shape = BatchShape(7 + 4 * 7 + 3, 7 + 4 * 7 + 1, 2, pages, page_size, TILING)
    again, fresh = (inputs_of(Room(shape, SettleShape(2, 8, 3, 4))) for _ in range(2))
    recent = RecentWork() if kept else None
    shaped, until, table = None, -1, np.arange(pages, dtype=np.int32) + 5
    one = SimpleNamespace(request=SimpleNamespace(table=SimpleNamespace(array=table)))
    for prefix, tokens, drawn in rounds:
        drawn = (drawn * 4)[: len(sizes)]
        branches = corrections(
            [(slot, size, head) for (slot, _, head), size in zip(drawn, sizes, strict=True)], block
        )
        layout = verify(0, prefix, tokens[:block], branches, mask=3, adapter=True)
        flat = Flat(layout.rows, [table], page_size)
        judged = Judged(layout.block, 0, 9 + prefix, False, (1, 2), layout.branches, [block] * len(branches))
        fresh.fill(flat, [table], [Sampling(4, 0.5)], [judged])
        if shaped is None:
            again.fill(flat, [table], [Sampling(4, 0.5)], [judged], recent)
            docket = Docket([[slice(0, flat.wanted)]], [block], [0])
            shaped = Shaped(Ready([one], docket, flat, None, again), until)
        else:
            drafted = np.array(layout.block[1:], np.int32)
            flat = shaped.write(prefix, judged.cap, layout.block[0], drafted, layout.branches).flat
            if prefix > until:
                again.move(flat, recent)
        if recent is not None:
            until = max(until, recent.until(flat.structure, TILING, prefix))
        assert flat.prefix_tokens == prefix
        shaped.read_from(table[: 1 + prefix % pages])
        for inputs in (again, fresh):
            inputs.send()
            inputs.place()
        for name in (*PER_TOKEN, "wanted"):
            assert torch.equal(getattr(again.batch, name), getattr(fresh.batch, name)), name
        for column in ("seed", "position", "start", "slot", "temperature", "draft"):
            used = flat.wanted
            assert torch.equal(getattr(again.slots, column)[:used], getattr(fresh.slots, column)[:used])
        assert torch.equal(again.slots.position, fresh.slots.position)
        assert torch.equal(again.settle.words, fresh.settle.words)
        assert again.batch.block_tables[0].tolist() == table.tolist()
        assert torch.equal(again.batch.order[: flat.tokens], fresh.batch.order[: flat.tokens])
        found, expected = (by_tile(listed(inputs), TILING) for inputs in (again, fresh))
        assert found.keys() == expected.keys()
        for tile, items in found.items():
            same = [work.TOKENS, work.REQUEST, work.CACHED, work.DRAFT, work.DRAFT_END, work.OPEN]
            assert all(item[same].tolist() == expected[tile][0][same].tolist() for item in items)
            assert items[-1][work.END] >= expected[tile][-1][work.END]
