"""The reference backend against attention written token by token."""

import torch
from hypothesis import given, settings
from tests.attention.batches import batches
from tests.attention.test_visibility import dense_mask

from recguide.attention.packing import pack
from recguide.attention.reference import ReferenceAttention, as_slice
from recguide.core import KVShape, Row
from recguide.kv.cache import KVCache

HEADS, KV_HEADS, DIM = 6, 2, 4


def filled_cache(pages, page_size, layers=2):
    """A cache full of noise: reading any slot that is not the request's own shows."""
    shape = KVShape(layers, KV_HEADS, DIM, torch.float64, torch.device("cpu"))
    cache = KVCache(shape, pages, page_size)
    cache.keys.normal_()
    cache.values.normal_()
    return cache


def projections(tokens):
    return (
        torch.randn(tokens, HEADS, DIM, dtype=torch.float64),
        torch.randn(tokens, KV_HEADS, DIM, dtype=torch.float64),
        torch.randn(tokens, KV_HEADS, DIM, dtype=torch.float64),
    )


def token_by_token(batch, tables, keys, values, page_size, q, k, v):
    """Softmax over the keys that each token sees: the prefix out of the cache, the rest in flight."""
    mask = dense_mask(batch)
    out = torch.empty_like(q)
    for t, row in enumerate(batch.rows[i] for i in batch.row.tolist()):
        table = tables[row.request]
        cached = [table[i // page_size] * page_size + i % page_size for i in range(row.prefix)]
        seen_k = torch.cat([keys[cached], k[mask[t]]])
        seen_v = torch.cat([values[cached], v[mask[t]]])
        for head in range(HEADS):
            group = head // (HEADS // KV_HEADS)
            weights = (seen_k[:, group] @ q[t, head] / DIM**0.5).softmax(0)
            out[t, head] = weights @ seen_v[:, group]
    return out


def check(rows, tables, page_size):
    batch = pack(rows, tables, page_size)
    cache = filled_cache(1 + max([0, *(page for table in tables for page in table)]), page_size)
    attend = ReferenceAttention(cache).plan(batch)
    for layer in (1, 0):
        keys, values = cache.keys.clone(), cache.values.clone()
        q, k, v = projections(len(batch.tokens))
        out = attend(layer, q, k, v)
        expected = token_by_token(batch, tables, keys[layer], values[layer], page_size, q, k, v)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)

        keys[layer, batch.kv_slots] = k[: batch.written]
        values[layer, batch.kv_slots] = v[: batch.written]
        assert torch.equal(cache.keys, keys)
        assert torch.equal(cache.values, values)


@settings(max_examples=80, deadline=None)
@given(batches())
def test_equals_attention_token_by_token(case):
    check(*case)


def test_prefill_chunk_aligns_at_the_bottom_right():
    check([Row(0, 13, tuple(range(20)), True)], [list(range(9))], 4)
    check([Row(0, 0, tuple(range(20)), True)], [list(range(5))], 4)


def test_a_request_alone_equals_the_request_among_others():
    verify = Row(0, 6, (1, 2, 3), True)
    branch = Row(0, 6, (4, 5), False, stem=2, adapter=True)
    others = [Row(1, 3, (1,), True), Row(2, 0, (1, 2), False)]
    tables, page_size = [[3, 1, 2], [0, 4], []], 4
    q, k, v = projections(8)
    outputs = []
    for rows in ([verify, branch], [verify, others[0], others[1], branch]):
        batch = pack(rows, tables, page_size)
        mine = batch.request == 0
        torch.manual_seed(0)
        cache = filled_cache(5, page_size)
        if len(rows) == 2:
            mine_q, mine_k, mine_v = q[:5], k[:5], v[:5]
        else:
            mine_q, mine_k, mine_v = (torch.randn(8, x.shape[1], DIM, dtype=torch.float64) for x in (q, k, v))
            mine_q[mine], mine_k[mine], mine_v[mine] = q[:5], k[:5], v[:5]
        outputs.append(ReferenceAttention(cache).plan(batch)(0, mine_q, mine_k, mine_v)[mine])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-13, atol=1e-13)


def test_pages_side_by_side_are_read_as_a_view():
    assert as_slice(torch.tensor([4, 5, 6])) == slice(4, 7)
    assert as_slice(torch.tensor([], dtype=torch.int64)) == slice(0, 0)
    scattered = torch.tensor([4, 6, 5])
    assert as_slice(scattered) is scattered
