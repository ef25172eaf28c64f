"""Kernel 2: attention over work items (`attention.work`), some in each of a fixed number of programs."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806, SIM102

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recguide.attention import work
from recguide.attention.kernels.fetch import fetch
from recguide.attention.kernels.softmax import floor_of, fold

FIELDS = tl.constexpr(work.FIELDS)
QUERY = tl.constexpr(work.QUERY)
TOKENS = tl.constexpr(work.TOKENS)
HEAD = tl.constexpr(work.HEAD)
REQUEST = tl.constexpr(work.REQUEST)
CACHED = tl.constexpr(work.CACHED)
DRAFT = tl.constexpr(work.DRAFT)
DRAFT_END = tl.constexpr(work.DRAFT_END)
OPEN = tl.constexpr(work.OPEN)
BEGIN = tl.constexpr(work.BEGIN)
END = tl.constexpr(work.END)
PARTIAL = tl.constexpr(work.PARTIAL)
NEXT = tl.constexpr(work.NEXT)
TOKEN = tl.constexpr(work.TOKEN)
SEEN = tl.constexpr(work.SEEN)
OWN = tl.constexpr(work.OWN)


@triton.jit(do_not_specialize=["table_width"])
def attend(
    qkv_ptr,
    keys_ptr,
    values_ptr,
    out_ptr,
    mix_ptr,
    peak_ptr,
    total_ptr,
    work_ptr,
    order_ptr,
    tables_ptr,
    table_width,
    key_blocks,
    value_blocks,
    SCALE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    FEW_ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Items of up to FEW_ROWS query rows take a smaller product than the others, of ROWS; 0 for none.

    qkv [N, heads + 2·KV_HEADS, DIM], rotated; a layer of the cache, keys and values [slots, KV_HEADS, DIM];
    out [N, heads · DIM]; workspace mix [rows, DIM], peak and total [rows]; the rest as in PackedBatch.
    WHOLE: blocks lie in one page each, and `key_blocks` and `value_blocks` are tensor descriptors of the
    cache [slots, KV_HEADS · DIM] that load them; not in exact mode.
    """
    if PDL:
        gdc_launch_dependents()
    tensors = (qkv_ptr, keys_ptr, values_ptr, out_ptr, key_blocks, value_blocks)
    workspace = (mix_ptr, peak_ptr, total_ptr)
    item_ptr = work_ptr + tl.program_id(0) * FIELDS
    tokens = tl.load(item_ptr + TOKENS)
    if PDL:
        _fetch_ahead(keys_ptr, values_ptr, tables_ptr, table_width, item_ptr, KV_HEADS, DIM, PAGE, KEYS)
    more = tokens > 0
    while more:
        table_ptr = tables_ptr + tl.load(item_ptr + REQUEST) * table_width
        # fmt: off
        if FEW_ROWS == 0:
            _item(tensors, workspace, order_ptr, item_ptr, table_ptr, SCALE, KV_HEADS, SHARE, DIM, PAGE, ROWS,
                  KEYS, STAGES, WHOLE, EXACT, PDL)
        else:
            if tl.load(item_ptr + TOKENS) * SHARE <= FEW_ROWS:
                _item(tensors, workspace, order_ptr, item_ptr, table_ptr, SCALE, KV_HEADS, SHARE, DIM, PAGE,
                      FEW_ROWS, KEYS, STAGES, WHOLE, EXACT, PDL)
            else:
                _item(tensors, workspace, order_ptr, item_ptr, table_ptr, SCALE, KV_HEADS, SHARE, DIM, PAGE,
                      ROWS, KEYS, STAGES, WHOLE, EXACT, PDL)
        # fmt: on
        following = tl.load(item_ptr + NEXT)
        item_ptr = work_ptr + following * FIELDS
        more = following > 0
    if PDL:
        # The end of this kernel has to be the end of those before it, for which one program is enough; idle
        # ones make room for those of the next kernel.
        if tl.program_id(0) == 0:
            gdc_wait()


@triton.jit
def _fetch_ahead(
    keys_ptr,
    values_ptr,
    tables_ptr,
    table_width,
    item_ptr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
):
    """Asks for an item's first cached keys and values, while kernels before this one still run."""
    cached = tl.load(item_ptr + CACHED)
    begin = tl.load(item_ptr + BEGIN) * KEYS
    end = tl.minimum(tl.load(item_ptr + END) * KEYS, cached)
    if begin < end:
        key = tl.minimum(begin + tl.arange(0, 2 * KEYS), end - 1)
        page = tl.load(tables_ptr + tl.load(item_ptr + REQUEST) * table_width + key // PAGE).to(tl.int64)
        at = ((page * PAGE + key % PAGE) * KV_HEADS + tl.load(item_ptr + HEAD)) * DIM
        fetch(keys_ptr + at, DIM * keys_ptr.dtype.element_ty.primitive_bitwidth // 8)
        fetch(values_ptr + at, DIM * values_ptr.dtype.element_ty.primitive_bitwidth // 8)


@triton.jit
def _item(
    tensors,
    workspace,
    order_ptr,
    item_ptr,
    table_ptr,
    SCALE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    WHOLE: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    qkv_ptr, keys_ptr, values_ptr, out_ptr, key_blocks, value_blocks = tensors
    mix_ptr, peak_ptr, total_ptr = workspace
    WIDTH: tl.constexpr = KV_HEADS * (SHARE + 2) * DIM
    query = tl.load(item_ptr + QUERY)
    rows = tl.load(item_ptr + TOKENS) * SHARE
    head = tl.load(item_ptr + HEAD)
    cached = tl.load(item_ptr + CACHED)
    draft = tl.load(item_ptr + DRAFT)
    draft_end = tl.load(item_ptr + DRAFT_END)
    open_keys = tl.load(item_ptr + OPEN)
    begin = tl.load(item_ptr + BEGIN)
    end = tl.load(item_ptr + END)
    if not EXACT:
        end = tl.minimum(end, tl.cdiv(cached + draft_end - draft, KEYS))  # the list may have some to spare
    partial = tl.load(item_ptr + PARTIAL)

    # The visibility rule: a causal token sees the cache up to itself and nothing in flight; a token of a
    # draft row sees the cache up to its stem, where its row begins, and that row.
    index = tl.arange(0, ROWS)
    there = index < rows
    about = order_ptr + (query + index // SHARE) * 3
    token = tl.load(about + TOKEN, mask=there, other=0)
    seen = tl.load(about + SEEN, mask=there, other=0)
    own_row = tl.load(about + OWN, mask=there, other=-1)

    dim = tl.arange(0, DIM)
    near = tl.arange(0, KEYS)
    query_head = head * SHARE + index % SHARE
    if PDL:
        gdc_wait()
    q_at = (token.to(tl.int64) * WIDTH + query_head * DIM)[:, None] + dim[None]
    q = tl.load(qkv_ptr + q_at, mask=there[:, None], other=0.0)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mix = tl.zeros((ROWS, DIM), tl.float32)
    # Exact mode: the results of later parts of a tile stay apart, so that the merge can go on where the first
    # part ends, block by block in one order whatever the split.
    apart = EXACT and (partial >= 0) and (begin > 0)

    # Blocks that all tokens see, without any mask. A block's page has to arrive before its keys can be asked
    # for, so the compiler gives half of the stages to either; it asks for nothing ahead if the page is
    # carried from one round to the next instead.
    # Exact mode takes all cached blocks here and masks them: which blocks all tokens see depends on a token's
    # company, and other code might round otherwise.
    cached_blocks = tl.cdiv(cached, KEYS)
    plain = tl.minimum(end, cached_blocks if EXACT else open_keys // KEYS)
    for block in tl.range(begin, plain, num_stages=STAGES):
        if EXACT:
            key = block * KEYS + near
            held = key < cached
            page = tl.load(table_ptr + key // PAGE, mask=held, other=0).to(tl.int64)
            at = (((page * PAGE + key % PAGE) * KV_HEADS + head) * DIM)[:, None] + dim[None]
            k = tl.load(keys_ptr + at, mask=held[:, None], other=0.0)
            v = tl.load(values_ptr + at, mask=held[:, None], other=0.0)
        elif WHOLE:
            page = tl.load(table_ptr + block * KEYS // PAGE)
            slot = page * PAGE + block * KEYS % PAGE
            k = key_blocks.load([slot, head * DIM])
            v = value_blocks.load([slot, head * DIM])
        else:
            key = block * KEYS + near
            page = tl.load(table_ptr + key // PAGE).to(tl.int64)
            at = (((page * PAGE + key % PAGE) * KV_HEADS + head) * DIM)[:, None] + dim[None]
            k = tl.load(keys_ptr + at)
            v = tl.load(values_ptr + at)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        if EXACT:
            scores = tl.where(key[None] < seen[:, None], scores, float("-inf"))
        peak, total, mix = _block(scores, v, peak, total, mix, SCALE, EXACT, apart)
        if apart:
            results = partial + (block - begin) * rows
            _store_partial(mix_ptr, peak_ptr, total_ptr, results, there, peak, total, mix, ROWS, DIM)

    # The others, few: at the end of the cached keys, then in flight. Keys are gathered one by one.
    in_flight_from = cached_blocks * KEYS if EXACT else cached
    for block in tl.range(tl.maximum(begin, plain), end, num_stages=1):
        key = block * KEYS + near
        flying = draft + key - in_flight_from
        in_cache = key < cached
        in_flight = (key >= in_flight_from) & (flying < draft_end)
        page = tl.load(table_ptr + key // PAGE, mask=in_cache, other=0).to(tl.int64)
        other = tl.load(order_ptr + flying * 3 + TOKEN, mask=in_flight, other=0).to(tl.int64)
        other_row = tl.load(order_ptr + flying * 3 + OWN, mask=in_flight, other=-2)
        cache_at = ((page * PAGE + key % PAGE) * KV_HEADS + head) * DIM
        flight_at = other * WIDTH + (KV_HEADS * SHARE + head) * DIM
        k_ptr = tl.where(in_cache, keys_ptr + cache_at, qkv_ptr + flight_at)
        v_ptr = tl.where(in_cache, values_ptr + cache_at, qkv_ptr + flight_at + KV_HEADS * DIM)
        held = (in_cache | in_flight)[:, None]
        k = tl.load(k_ptr[:, None] + dim[None], mask=held, other=0.0)
        v = tl.load(v_ptr[:, None] + dim[None], mask=held, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee")
        visible = tl.where(in_cache[None], key[None] < seen[:, None], other_row[None] == own_row[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        peak, total, mix = _block(scores, v, peak, total, mix, SCALE, EXACT, apart)
        if apart:
            results = partial + (block - begin) * rows
            _store_partial(mix_ptr, peak_ptr, total_ptr, results, there, peak, total, mix, ROWS, DIM)

    if partial < 0:
        out_at = (token.to(tl.int64) * (KV_HEADS * SHARE * DIM) + query_head * DIM)[:, None] + dim[None]
        attended = mix / tl.where(there, total, 1.0)[:, None]
        tl.store(out_ptr + out_at, attended.to(out_ptr.dtype.element_ty), mask=there[:, None])
    elif not apart:
        _store_partial(mix_ptr, peak_ptr, total_ptr, partial, there, peak, total, mix, ROWS, DIM)


@triton.jit
def _block(scores, v, peak, total, mix, SCALE: tl.constexpr, EXACT: tl.constexpr, apart):
    """The result with a block's keys too; scores are products of queries and keys, −inf for unseen ones.

    In exact mode a block's own result is made first and then folded in; if apart, it is all there is.
    """
    UNIT: tl.constexpr = SCALE * 1.4426950408889634
    peak_b = tl.max(scores, 1) * UNIT
    if EXACT:
        weights = tl.exp2(tl.fma(scores, UNIT, -floor_of(peak_b)[:, None]))
        total_b = tl.sum(weights, 1)
        mix_b = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = tl.where(apart, float("-inf"), peak)
        total = tl.where(apart, 0.0, total)
        mix = tl.where(apart, 0.0, mix)
        peak, total, mix = fold(peak, total, mix, peak_b, total_b, mix_b)
    else:
        higher = tl.maximum(peak, peak_b)
        floor = floor_of(higher)
        shrink = tl.exp2(peak - floor)
        weights = tl.exp2(tl.fma(scores, UNIT, -floor[:, None]))
        total = total * shrink + tl.sum(weights, 1)
        mix = tl.dot(weights.to(v.dtype), v, mix * shrink[:, None], input_precision="ieee")
        peak = higher
    return peak, total, mix


@triton.jit
def _store_partial(
    mix_ptr, peak_ptr, total_ptr, at, there, peak, total, mix, ROWS: tl.constexpr, DIM: tl.constexpr
):
    row = at + tl.arange(0, ROWS)
    tl.store(peak_ptr + row, peak, mask=there)
    tl.store(total_ptr + row, total, mask=there)
    mix_at = row.to(tl.int64)[:, None] * DIM + tl.arange(0, DIM)[None]
    tl.store(mix_ptr + mix_at, mix, mask=there[:, None])
