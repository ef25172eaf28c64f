import pytest
import torch
from hypothesis import given, settings
from tests.attention.batches import batches

from recguide.attention.packing import pack
from recguide.core import RecGuideError, Row


@settings(max_examples=100, deadline=None)
@given(batches())
def test_every_token_carries_its_rows_facts(case):
    rows, tables, page_size = case
    batch = pack(rows, tables, page_size)
    assert sorted(map(id, batch.rows)) == sorted(map(id, rows))
    at = 0
    for index, (row, start) in enumerate(zip(batch.rows, batch.row_starts, strict=True)):
        assert start == at
        for slot, token in enumerate(row.tokens):
            assert batch.tokens[at] == token
            assert batch.positions[at] == row.prefix + row.stem + slot
            assert batch.row[at] == index
            assert batch.request[at] == row.request
            assert batch.slot[at] == slot
            assert batch.stem[at] == row.stem
            assert batch.prefix[at] == row.prefix
            assert batch.causal[at] == row.causal
            assert batch.masked[at] == (slot in row.masked)
            assert (at < batch.written) == row.causal
            assert (at >= batch.adapter_start) == row.adapter == bool(batch.adapter_on[at])
            at += 1
    assert at == len(batch.tokens)


@settings(max_examples=100, deadline=None)
@given(batches())
def test_wanted_follows_the_rows_as_given(case):
    rows, tables, page_size = case
    batch = pack(rows, tables, page_size)
    start_of = {id(row): start for row, start in zip(batch.rows, batch.row_starts, strict=True)}
    expected = [start_of[id(row)] + slot for row in rows for slot in row.wanted]
    assert batch.wanted.tolist() == expected


@settings(max_examples=100, deadline=None)
@given(batches())
def test_kv_goes_behind_the_prefix_and_nowhere_twice(case):
    rows, tables, page_size = case
    batch = pack(rows, tables, page_size)
    at = 0
    for row in (row for row in batch.rows if row.causal):
        for slot in range(len(row.tokens)):
            page, offset = divmod(row.prefix + slot, page_size)
            assert batch.kv_slots[at] == tables[row.request][page] * page_size + offset
            at += 1
    assert at == batch.written
    assert len(set(batch.kv_slots[:at].tolist())) == at
    assert (batch.kv_slots[at:] == -1).all()
    for table, packed in zip(tables, batch.block_tables.tolist(), strict=True):
        assert packed[: len(table)] == table
        assert not any(packed[len(table) :])


def test_everything_lies_in_one_buffer_of_integers_of_32_bits():
    batch = pack([Row(0, 0, (1, 2), True, wanted=(1,))], [[0]], 4)
    tensors = {
        name: value for name in batch.__slots__ if isinstance(value := getattr(batch, name), torch.Tensor)
    }
    flags = {"causal", "masked", "adapter_on"}
    assert {name: tensor.dtype for name, tensor in tensors.items()} == {
        name: torch.bool if name in flags else torch.int32 for name in tensors
    }
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == 1
    assert all(tensor.data_ptr() % 16 == 0 for tensor in tensors.values())


CAUSAL = Row(0, 4, (1, 2), True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no rows"),
        ([CAUSAL, CAUSAL], "two causal rows"),
        ([CAUSAL, Row(0, 5, (1,), False)], "different prefixes"),
        ([CAUSAL, Row(0, 4, (1,), False, stem=3)], "stem 3 exceeds its causal row's 2"),
        ([Row(0, 4, (1,), False, stem=1)], "stem 1 exceeds its causal row's 0"),
        ([Row(0, 4, (1,), False, stem=1), Row(1, 0, (1, 2), True)], "stem 1 exceeds its causal row's 0"),
        ([Row(0, 4, (), True)], "no tokens"),
        ([Row(2, 0, (1,), True)], "no block table"),
        ([Row(0, 7, (1, 2), True)], "needs 9 cached tokens, its pages hold 8"),
        ([Row(0, 9, (1,), False)], "needs 9 cached tokens, its pages hold 8"),
        ([Row(0, 4, (1,), True, stem=1)], "causal and has a stem"),
        ([Row(0, 4, (1,), True, adapter=True)], "causal and asks for the adapter"),
        ([Row(0, 4, (1,), True, masked=(0,))], "causal and has mask slots"),
        ([Row(0, 4, (1,), False, masked=(1,))], "mask slot outside"),
        ([Row(0, 4, (1,), True, wanted=(1,))], "wants a slot outside"),
        ([Row(0, -1, (1,), True)], "negative"),
    ],
)
def test_rows_that_cannot_run_together_are_refused(rows, message):
    with pytest.raises(RecGuideError, match=message):
        pack(rows, [[0, 1], [2, 3]], 4)
