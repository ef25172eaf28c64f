"""The rule against a dense mask written row by row from the design's table."""

import torch
from hypothesis import given, settings
from tests.attention.batches import batches

from recguide.attention.packing import pack
from recguide.attention.visibility import visible
from recguide.core import Row


def dense_mask(batch):
    """[N, N], block by block: a square for each row, and a stem's columns below its draft rows."""
    mask = torch.zeros(len(batch.tokens), len(batch.tokens), dtype=torch.bool)
    for row, start in zip(batch.rows, batch.row_starts, strict=True):
        length = len(row.tokens)
        own = torch.ones(length, length, dtype=torch.bool)
        mask[start : start + length, start : start + length] = own.tril() if row.causal else own
        for other, at in zip(batch.rows, batch.row_starts, strict=True):
            if other.causal and not row.causal and other.request == row.request:
                mask[start : start + length, at : at + row.stem] = True
    return mask


@settings(max_examples=200, deadline=None)
@given(batches())
def test_rule_equals_dense_mask(case):
    batch = pack(*case)
    assert torch.equal(visible(batch), dense_mask(batch))


@settings(max_examples=50, deadline=None)
@given(batches())
def test_part_of_the_rule_is_the_rule_of_the_part(case):
    batch = pack(*case)
    among = (batch.request == batch.request[0]).nonzero().squeeze(1)
    assert torch.equal(visible(batch, among), visible(batch)[among][:, among])


@settings(max_examples=50, deadline=None)
@given(batches())
def test_every_token_sees_itself_and_no_other_request(case):
    batch = pack(*case)
    seen = visible(batch)
    assert seen.diagonal().all()
    strangers = batch.request[:, None] != batch.request[None, :]
    assert not (seen & strangers).any()


def test_a_round_of_four_rows():
    verify = Row(0, 10, (1, 2, 3), True)
    correction = Row(0, 10, (7, 0), False, stem=2, adapter=True)
    continuation = Row(0, 10, (0, 0), False, stem=3, adapter=True)
    seen = visible(pack([verify, correction, continuation], [[0, 1]], 8))
    expected = [
        "1000000",
        "1100000",
        "1110000",
        "1101100",
        "1101100",
        "1110011",
        "1110011",
    ]
    assert ["".join(str(int(x)) for x in row) for row in seen] == expected
