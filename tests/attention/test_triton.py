"""The Triton backend against the reference, in Triton's interpreter where there is no GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.attention.batches import batches

from recguide.attention.columns import Columns
from recguide.attention.packing import BatchShape, Flat, batch_of, pack
from recguide.attention.places import places_of
from recguide.attention.recent import RecentWork
from recguide.attention.reference import ReferenceAttention
from recguide.attention.rotation import Rotation
from recguide.core import KVShape, RecGuideError, Row
from recguide.kv.cache import KVCache

pytest.importorskip("triton")

from recguide.attention.triton_backend import TritonAttention, Tuning

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DIM = 16
SMALL = Tuning(rows=32, keys=16, heads_at_once=16)
"""Sizes that make many tiles and blocks of little."""
FINE = replace(SMALL, merge_rows=2, grain=1)


def cache_of(pages, page_size, kv_heads=2, dim=DIM, dtype=torch.float32, layers=1, device=DEVICE):
    """A cache full of noise: reading any slot that is not the request's own shows."""
    cache = KVCache(KVShape(layers, kv_heads, dim, dtype, device), pages, page_size)
    cache.keys.normal_()
    cache.values.normal_()
    return cache


def copy_of(cache):
    copy = KVCache(cache.shape, cache.keys.shape[1] // cache.page_size, cache.page_size)
    copy.keys.copy_(cache.keys)
    copy.values.copy_(cache.values)
    return copy


def rotation_at(positions, dim=DIM, dtype=torch.float32, scaled=True):
    frequencies = 10_000.0 ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    angles = positions.double().cpu()[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    scale = (1 + positions.double().cpu() / 100)[:, None, None].to(positions.device, dtype)
    return Rotation(
        cos=torch.cat((cos, cos), -1)[:, None].to(positions.device, dtype),
        sin=torch.cat((-sin, sin), -1)[:, None].to(positions.device, dtype),
        query_scale=scale if scaled else None,
        half=dim // 2,
    )


def packed(attention, rows, tables, page_size, device=DEVICE, recent=None):
    tokens = sum(len(row.tokens) for row in rows)
    return pack(rows, tables, page_size, device, attention.tiling(tokens), recent)


def projections(batch, heads, kv_heads, dim=DIM, dtype=torch.float32):
    return torch.randn(len(batch.tokens), heads + 2 * kv_heads, dim, device=batch.tokens.device).to(dtype)


def pages_of(tables):
    return 1 + max([0, *(page for table in tables for page in table)])


def tables_of(rows, page_size):
    """Pages in random order for every request, and those that none holds."""
    needed = {}
    for row in rows:
        held = row.prefix + (len(row.tokens) if row.causal else 0)
        needed[row.request] = max(needed.get(row.request, 0), -(-held // page_size))
    pages = torch.randperm(sum(needed.values()) + 2).tolist()
    return [[pages.pop() for _ in range(needed[request])] for request in sorted(needed)]


def check(
    rows,
    tables,
    page_size,
    *,
    heads=6,
    kv_heads=2,
    dim=DIM,
    dtype=torch.float32,
    atol=5e-6,
    grown=0,
    **options,
):
    """One layer of both backends: what comes out, and what they leave in the cache.

    With `grown` its work list is one that served for prefixes shorter by so much.
    """
    cache = cache_of(pages_of(tables), page_size, kv_heads, dim, dtype, layers=2)
    before, other = copy_of(cache), copy_of(cache)
    attention = TritonAttention(cache, heads, **options)
    recent = RecentWork() if grown else None
    before_it = [replace(row, prefix=max(0, row.prefix - grown)) for row in rows]
    for _ in range(2):
        packed(attention, before_it, tables, page_size, recent=recent)
    batch = packed(attention, rows, tables, page_size, recent=recent)
    qkv = projections(batch, heads, kv_heads, dim, dtype)
    rotation = rotation_at(batch.positions, dim, dtype, scaled=len(rows) % 2 == 1)
    expected = ReferenceAttention(other).plan(batch)(1, qkv.clone(), rotation)
    out = attention.plan(batch)(1, qkv, rotation)
    torch.testing.assert_close(out, expected, rtol=0, atol=atol)
    torch.testing.assert_close(cache.keys, other.keys, rtol=0, atol=atol)
    assert torch.equal(cache.values, other.values)
    written = torch.zeros(cache.keys.shape[1], dtype=torch.bool, device=cache.keys.device)
    written[batch.kv_slots[: batch.written]] = True
    assert torch.equal(cache.keys[1, ~written], before.keys[1, ~written])
    assert torch.equal(cache.keys[0], before.keys[0])


def wide(cache, of=lambda x: x):
    """A cache of the same elements in float32, values through `of`."""
    copy = KVCache(
        replace(cache.shape, dtype=torch.float32), cache.keys.shape[1] // cache.page_size, cache.page_size
    )
    copy.keys.copy_(cache.keys)
    copy.values.copy_(of(cache.values))
    return copy


def expected_within(cache, batch, qkv, rotation, heads):
    """[N, heads · dim] twice: the results from rotated and rounded queries and keys, and what may be off.

    Rounding to a unit roundoff u moves each weight by its u-th part at most, so the mix of values by u times
    the mix of their magnitudes; then the result is rounded. Half of that again is for the keys that rotation
    in another order of operations rounds the other way.
    """
    kv_heads, dim = cache.shape.kv_heads, cache.shape.head_dim
    wider = replace(rotation, cos=rotation.cos.float(), sin=rotation.sin.float())
    if rotation.query_scale is not None:
        wider = replace(wider, query_scale=rotation.query_scale.float())
    turned = torch.cat(wider.split(qkv.float(), heads, kv_heads), 1).to(qkv.dtype).float()
    still = Rotation(torch.ones_like(wider.cos), torch.zeros_like(wider.sin), None, dim // 2)
    expected = ReferenceAttention(wide(cache)).plan(batch)(0, turned.clone(), still)
    turned[:, heads + kv_heads :].abs_()
    magnitude = ReferenceAttention(wide(cache, torch.abs)).plan(batch)(0, turned, still)
    unit = torch.finfo(qkv.dtype).eps / 2
    return expected, 1.5 * unit * (magnitude + expected.abs())


def assert_within(out, expected, bound):
    over = (out.float() - expected).abs() - bound
    assert over.max() <= 0, (
        f"{(over > 0).sum()} of {over.numel()} results are off by {over.max():.3g} too much"
    )


page_sizes = st.sampled_from((1, 3, 8, 16, 32))
"""Pages that blocks of SMALL do not divide, fit and are larger than."""


tunings = st.sampled_from((SMALL, FINE))
programs = st.sampled_from((1, 2, 3, 4, 5, 6, 40))
"""Few take long stretches; many cut tiles into more results than are merged at a time, or as many."""


@settings(max_examples=20, deadline=None)
@given(batches(prefix=70, length=12, page_sizes=page_sizes), programs, st.booleans(), tunings)
def test_equals_the_reference_in_float32(case, programs, exact, tuning):
    check(*case, exact=exact, programs=programs, tuning=tuning)


@settings(max_examples=20, deadline=None)
@given(batches(prefix=70, length=12, page_sizes=page_sizes), programs, st.booleans(), st.integers(1, 40))
def test_work_lists_that_are_used_again_change_no_result(case, programs, exact, grown):
    check(*case, exact=exact, programs=programs, tuning=FINE, grown=grown)


@settings(max_examples=20, deadline=None)
@given(batches(requests=1, prefix=150, length=12, page_sizes=page_sizes), programs, tunings)
def test_work_lists_of_single_requests_made_of_parts_change_no_result(case, programs, tuning):
    check(*case, programs=programs, tuning=tuning, grown=1)


@settings(max_examples=10, deadline=None)
@given(batches(prefix=70, length=12, page_sizes=page_sizes), programs, st.booleans(), tunings)
def test_float16_is_off_by_its_roundings_at_most(case, programs, exact, tuning):
    rows, tables, page_size = case
    cache = cache_of(pages_of(tables), page_size, dtype=torch.float16)
    attention = TritonAttention(cache, 6, exact=exact, programs=programs, tuning=tuning)
    batch = packed(attention, rows, tables, page_size)
    qkv = projections(batch, 6, 2, dtype=torch.float16)
    rotation = rotation_at(batch.positions, dtype=torch.float16)
    within = expected_within(cache, batch, qkv, rotation, 6)
    assert_within(attention.plan(batch)(0, qkv, rotation), *within)


VERIFY = [
    Row(0, 40, (1, 2, 3, 4, 5), True),
    Row(0, 40, (6, 7), False, stem=2, adapter=True),
    Row(0, 40, (8, 9, 10), False, stem=5),
    Row(1, 3, (1,), True),
]
TABLES = [[2, 0, 3, 5], [4]]


@pytest.mark.parametrize("heads", [2, 6, 8, 34])
def test_any_number_of_query_heads_shares_a_key_head(heads):
    check(VERIFY, TABLES, 16, heads=heads, programs=3, tuning=replace(SMALL, rows=16))


@pytest.mark.parametrize(
    "tuning",
    [
        Tuning(),
        Tuning(few=False),
        replace(SMALL, few=False, grain=1),
        FINE,
        replace(SMALL, whole=False),
    ],
)
def test_tuning_changes_no_result(tuning):
    check(VERIFY, TABLES, 16, tuning=tuning)


def test_forwards_of_one_tile_leave_room_for_the_next_kernel():
    cache = KVCache(KVShape(1, 2, 16, torch.float32, torch.device("cpu")), 4, 16)
    attention = TritonAttention(cache, 4, tuning=Tuning(rows=64, keys=32, resident=3, one_resident=1))
    one, more = attention.tiling(32), attention.tiling(33)  # two query heads share a key head
    assert 3 * one.programs == more.programs
    assert (one.resident, more.resident) == (1, 3)


def test_one_token_alone():
    check([Row(0, 0, (1,), True)], [[0]], 16, tuning=SMALL)
    check([Row(0, 0, (1,), False)], [[]], 16, tuning=SMALL)
    for programs in (9, 64):
        check([Row(0, 60, (1,), True)], [[1, 3, 2, 0]], 16, tuning=FINE, programs=programs)


def padded(batch, tokens):
    """The batch with tokens as in a CUDA graph's bucket at its end."""

    def fill(x, value=0):
        return torch.cat((x, x.new_full((tokens - len(x),), value)))

    names = ("tokens", "positions", "row", "request", "slot", "stem", "prefix", "causal")
    return replace(
        batch, kv_slots=fill(batch.kv_slots, -1), **{name: fill(getattr(batch, name)) for name in names}
    )


def test_padding_neither_writes_nor_disturbs():
    cache = cache_of(6, 16)
    other = copy_of(cache)
    attention, plain = TritonAttention(cache, 6, tuning=SMALL), TritonAttention(other, 6, tuning=SMALL)
    batch = packed(plain, VERIFY, TABLES, 16)
    qkv = projections(batch, 6, 2)
    longer = torch.cat((qkv, torch.randn_like(qkv[:5])))
    expected = plain.plan(batch)(0, qkv, rotation_at(batch.positions))
    bucket = padded(batch, len(longer))
    out = attention.plan(bucket)(0, longer, rotation_at(bucket.positions))
    torch.testing.assert_close(out[: len(expected)], expected, rtol=0, atol=1e-6)
    assert torch.equal(cache.keys, other.keys)
    assert torch.equal(cache.values, other.values)


def test_what_a_page_held_before_does_not_leak_into_it():
    cache = cache_of(6, 16)
    for x in (cache.keys, cache.values):
        x.fill_(float("nan"))
        for page, held in ((2, 16), (0, 16), (3, 8), (4, 3)):
            x[:, page * 16 : page * 16 + held] = 1.0
    attention = TritonAttention(cache, 6, tuning=SMALL)
    batch = packed(attention, VERIFY, TABLES, 16)
    out = attention.plan(batch)(0, projections(batch, 6, 2), rotation_at(batch.positions))
    assert out.isfinite().all()


@pytest.mark.parametrize(
    ("shape", "heads", "message"),
    [
        ((2, 16, torch.float64), 4, "not torch.float64"),
        ((2, 24, torch.float32), 4, "not 24"),
        ((2, 16, torch.float32), 5, "5 query heads"),
    ],
)
def test_what_the_kernels_do_not_cover_is_refused(shape, heads, message):
    cache = cache_of(1, 16, *shape)
    with pytest.raises(RecGuideError, match=message):
        TritonAttention(cache, heads)


# --- exact mode ---------------------------------------------------------------------------------------------


class Story:
    """The tokens of one request, and one layer's projections of them, to be run in any steps."""

    def __init__(self, length, heads=4, kv_heads=2, dim=DIM, dtype=torch.float32, seed=0):
        self.shape = heads, kv_heads, dim
        self.dtype = dtype
        self.length = length
        generator = torch.Generator().manual_seed(seed)
        self.qkv = torch.randn(length, heads + 2 * kv_heads, dim, generator=generator).to(DEVICE, dtype)

    def run(self, steps, *, page_size=16, beside=(), branches=0, tuning=SMALL, programs=5):
        """[length, heads · dim]: its results when `steps` tokens at a time run, other rows beside them."""
        heads, kv_heads, dim = self.shape
        tables = tables_of([Row(0, 0, (0,) * self.length, True), *beside], page_size)
        cache = cache_of(pages_of(tables), page_size, kv_heads, dim, self.dtype)
        attention = TritonAttention(cache, heads, exact=True, tuning=tuning, programs=programs)
        results = []
        for step in steps:
            done = sum(map(len, results))
            draft = [Row(0, done, (1, 2, 3), False, stem=min(i, step)) for i in range(branches)]
            rows = [*draft, Row(0, done, (0,) * step, True), *beside]
            batch = packed(attention, rows, tables, page_size)
            mine = (batch.request == 0) & batch.causal
            qkv = projections(batch, heads, kv_heads, dim, self.dtype)
            qkv[mine] = self.qkv[done : done + step]
            out = attention.plan(batch)(0, qkv, rotation_at(batch.positions, dim, self.dtype))
            results.append(out[mine])
        return torch.cat(results)


@st.composite
def ways(draw, length):
    """Steps that add up to `length`, and what else runs."""
    steps = []
    while sum(steps) < length:
        steps.append(min(draw(st.sampled_from((1, 7, 16, 33))), length - sum(steps)))
    beside = [Row(1, draw(st.integers(0, 40)), (1,) * draw(st.integers(1, 5)), True)]
    return {
        "steps": steps,
        "page_size": draw(st.sampled_from((4, 16, 64))),
        "beside": beside if draw(st.booleans()) else [],
        "branches": draw(st.integers(0, 2)),
        "programs": draw(st.integers(1, 9)),
        "tuning": draw(tunings),
    }


LENGTH = 40


@pytest.fixture(scope="module", params=[torch.float32, torch.float16], ids=str)
def story(request):
    story = Story(LENGTH, dtype=request.param)
    return story, story.run([1] * LENGTH)


@settings(max_examples=8, deadline=None)
@given(way=ways(LENGTH))
def test_exact_results_are_the_same_to_the_last_bit_however_they_come_about(story, way):
    told, one_by_one = story
    assert torch.equal(told.run(**way), one_by_one)


def test_exact_results_are_those_of_the_default_mode():
    story = Story(LENGTH)
    batch_rows = [Row(0, 0, (0,) * LENGTH, True)]
    attention = TritonAttention(cache_of(3, 16), 4, tuning=SMALL)
    batch = packed(attention, batch_rows, [[0, 1, 2]], 16)
    out = attention.plan(batch)(0, story.qkv.clone(), rotation_at(batch.positions))
    torch.testing.assert_close(story.run([LENGTH]), out, rtol=0, atol=1e-6)


# --- on a GPU -----------------------------------------------------------------------------------------------

on_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def round_of(request, prefix, block, branches=0, causal=True):
    """A verification with branches, or branches alone."""
    verify = [Row(request, prefix, (0,) * block, True)] if causal else []
    stems = range(1, 1 + branches) if causal else [0] * branches
    return verify + [Row(request, prefix, (0,) * block, False, stem=s, adapter=True) for s in stems]


def rounds(*each):
    return [row for args in each for row in round_of(*args)]


GPU_MIXES = {
    "one AR step": rounds((0, 1024, 1)),
    "one verification with branches": rounds((0, 1000, 16, 3)),
    "a draft alone": rounds((0, 4096, 32, 1, False)),
    "64 AR steps": rounds(*((i, 61 * i, 1) for i in range(64))),
    "a chunk": rounds((0, 0, 700)),
    "a later chunk": rounds((0, 2048, 513)),
    "everything at once": rounds(
        (0, 4096, 33, 3),
        (1, 17, 300),
        *((i, 40 * i, 1, 1) for i in range(2, 20)),
        *((i, 1000, 8, 2) for i in range(20, 30)),
        *((i, 500, 16, 1, False) for i in range(30, 34)),
    ),
}


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "dim", "page_size"),
    [(32, 8, 128, 64), (32, 8, 128, 16), (9, 3, 64, 16), (8, 8, 64, 64), (6, 2, 128, 16)],
)
@pytest.mark.parametrize("mix", GPU_MIXES)
class TestBfloat16:
    pytestmark = on_gpu

    def test_equals_the_reference(self, mix, heads, kv_heads, dim, page_size, exact):
        rows = GPU_MIXES[mix]
        tables = tables_of(rows, page_size)
        cache = cache_of(pages_of(tables), page_size, kv_heads, dim, torch.bfloat16)
        attention = TritonAttention(cache, heads, exact=exact)
        batch = packed(attention, rows, tables, page_size)
        qkv = projections(batch, heads, kv_heads, dim, torch.bfloat16)
        rotation = rotation_at(batch.positions, dim, torch.bfloat16)
        within = expected_within(cache, batch, qkv, rotation, heads)
        assert_within(attention.plan(batch)(0, qkv, rotation), *within)


@pytest.mark.parametrize(("heads", "kv_heads", "dim"), [(32, 8, 128), (9, 3, 64)])
class TestExactBfloat16:
    pytestmark = on_gpu
    LENGTH = 300

    def test_results_are_the_same_to_the_last_bit_however_they_come_about(self, heads, kv_heads, dim):
        story = Story(self.LENGTH, heads, kv_heads, dim, torch.bfloat16)
        ordinary = {"tuning": None, "programs": None}
        one_by_one = story.run([1] * self.LENGTH, **ordinary)
        beside = rounds(*((i, 40 * i, 1 + i % 3, i % 2) for i in range(1, 64)))
        for way in (
            {"steps": [self.LENGTH]},
            {"steps": [100, 1, 99, 100], "programs": 7},
            {"steps": [16] * 18 + [12], "branches": 3},
            {"steps": [16] * 18 + [12], "branches": 3, "programs": 1000},
            {"steps": [1] * 20 + [280], "beside": beside},
            {"steps": [33] * 9 + [3], "beside": beside, "branches": 2, "page_size": 64},
        ):
            assert torch.equal(story.run(**(ordinary | way)), one_by_one), way


class TestGraphs:
    pytestmark = on_gpu

    def test_one_graph_serves_every_batch_of_its_size(self):
        heads, kv_heads, dim, page_size, dtype = 32, 8, 128, 16, torch.bfloat16
        cache = cache_of(2048, page_size, kv_heads, dim, dtype)
        attention = TritonAttention(cache, heads)
        tiling = attention.tiling(64)
        shape = BatchShape(64, 1, 64, 300, page_size, tiling)
        columns = Columns(shape.columns())
        device = torch.zeros(columns.size, dtype=torch.uint8, device=DEVICE)
        tensors = columns.tensors(device)
        place, bucket = places_of(tensors, page_size, tiling), batch_of(tensors, shape)
        bucket.row.fill_(-1)
        bucket.kv_slots.fill_(-1)
        given = torch.randn(64, heads + 2 * kv_heads, dim, device=DEVICE).to(dtype)
        turn = rotation_at(torch.arange(64, device=DEVICE), dim, dtype)
        qkv = torch.empty_like(given)
        attend = attention.plan(bucket)

        def forward():
            place()
            qkv.copy_(given)
            return attend(0, qkv, turn)

        forward()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = forward()
        for rows in (
            rounds((0, 4096, 16, 3)),
            rounds(*((i, 20 * i, 1) for i in range(50))),
            rounds((0, 9, 60)),
        ):
            tables = tables_of(rows, page_size)
            flat = Flat(rows, tables, page_size)
            host = np.zeros(columns.size, np.uint8)
            flat.fill(columns.arrays(host), tables, tiling)
            device.copy_(torch.from_numpy(host))
            batch = packed(attention, rows, tables, page_size)
            n = len(batch.tokens)
            cut = replace(turn, cos=turn.cos[:n], sin=turn.sin[:n], query_scale=turn.query_scale[:n])
            within = expected_within(cache, batch, given[:n], cut, heads)
            graph.replay()
            assert_within(out[:n], *within)
