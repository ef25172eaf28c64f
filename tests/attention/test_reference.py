"""The reference backend against attention written token by token."""

import torch
from hypothesis import given, settings
from tests.attention.batches import batches
from tests.attention.test_visibility import dense_mask

from recguide.attention.packing import pack
from recguide.attention.reference import ReferenceAttention, as_slice
from recguide.attention.rotation import PairRotation, Rotation
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
    return torch.randn(tokens, HEADS + 2 * KV_HEADS, DIM, dtype=torch.float64)


def rotation(tokens):
    """Any angles and scales: the backend has to apply them, not to know them."""
    angles = torch.randn(tokens, 1, DIM // 2, dtype=torch.float64)
    return Rotation(
        cos=torch.cat((angles.cos(), angles.cos()), -1),
        sin=torch.cat((-angles.sin(), angles.sin()), -1),
        query_scale=torch.rand(tokens, 1, 1, dtype=torch.float64) + 0.5,
        half=DIM // 2,
    )


def turned_by_hand(qkv, rotation):
    """Queries, keys and values: dimension j and its partner turned by their angle, queries scaled."""
    first, second = qkv.chunk(2, -1)
    cos, sin = rotation.cos[..., : DIM // 2], rotation.sin[..., DIM // 2 :]
    turned = torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
    return (
        turned[:, :HEADS] * rotation.query_scale,
        turned[:, HEADS : HEADS + KV_HEADS],
        qkv[:, HEADS + KV_HEADS :],
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
    return out.flatten(1)


def paired(heads):
    """[..., DIM] in the other order: the two dimensions of a pair side by side."""
    return heads.unflatten(-1, (2, DIM // 2)).transpose(-2, -1).flatten(-2)


def with_pairs(qkv, turn):
    """The same projections and rotation for a model whose pairs lie side by side."""
    rotated = HEADS + KV_HEADS
    turns = torch.complex(turn.cos[..., : DIM // 2], turn.sin[..., DIM // 2 :])
    return torch.cat((paired(qkv[:, :rotated]), qkv[:, rotated:]), 1), PairRotation(turns, turn.query_scale)


def check(rows, tables, page_size):
    for pairs in (False, True):
        check_one(rows, tables, page_size, pairs)


def check_one(rows, tables, page_size, pairs):
    batch = pack(rows, tables, page_size)
    cache = filled_cache(1 + max([0, *(page for table in tables for page in table)]), page_size)
    attend = ReferenceAttention(cache).plan(batch)
    turn = rotation(len(batch.tokens))
    as_cached = paired if pairs else torch.clone
    for layer in (1, 0):
        keys, values = cache.keys.clone(), cache.values.clone()
        cache.keys.copy_(as_cached(keys))
        qkv = projections(len(batch.tokens))
        q, k, v = turned_by_hand(qkv, turn)
        out = attend(layer, *(with_pairs(qkv, turn) if pairs else (qkv.clone(), turn)))
        expected = token_by_token(batch, tables, keys[layer], values[layer], page_size, q, k, v)
        torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)

        keys[layer, batch.kv_slots[: batch.written]] = k[: batch.written]
        values[layer, batch.kv_slots[: batch.written]] = v[: batch.written]
        torch.testing.assert_close(cache.keys, as_cached(keys), rtol=1e-12, atol=1e-12)
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
    qkv, turn = projections(8), rotation(8)
    outputs = []
    for rows in ([verify, branch], [verify, others[0], others[1], branch]):
        batch = pack(rows, tables, page_size)
        mine = batch.request == 0
        torch.manual_seed(0)
        cache = filled_cache(5, page_size)
        order = torch.empty(len(batch.tokens), dtype=torch.int64)
        order[mine], order[~mine] = torch.arange(5), torch.arange(5, len(order))
        ordered = Rotation(turn.cos[order], turn.sin[order], turn.query_scale[order], turn.half)
        outputs.append(ReferenceAttention(cache).plan(batch)(0, qkv[order], ordered)[mine])
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-13, atol=1e-13)


def test_pages_side_by_side_are_read_as_a_view():
    assert as_slice(torch.tensor([4, 5, 6])) == slice(4, 7)
    assert as_slice(torch.tensor([], dtype=torch.int64)) == slice(0, 0)
    scattered = torch.tensor([4, 6, 5])
    assert as_slice(scattered) is scattered
