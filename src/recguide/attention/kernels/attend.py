"""Kernel 2: attention over work items (`attention.work`), some in each of a fixed number of programs."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, ANN202, N803, N806

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recguide.attention import work
from recguide.attention.kernels.softmax import floor_of, fold

FIELDS = tl.constexpr(work.FIELDS)
FIRST = tl.constexpr(work.FIRST)
QUERY = tl.constexpr(work.QUERY)
TOKENS = tl.constexpr(work.TOKENS)
HEAD = tl.constexpr(work.HEAD)
REQUEST = tl.constexpr(work.REQUEST)
CACHED = tl.constexpr(work.CACHED)
DRAFT = tl.constexpr(work.DRAFT)
DRAFT_END = tl.constexpr(work.DRAFT_END)
BEGIN = tl.constexpr(work.BEGIN)
END = tl.constexpr(work.END)
PARTIAL = tl.constexpr(work.PARTIAL)


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
    row_ptr,
    slot_ptr,
    causal_ptr,
    positions_ptr,
    tables_ptr,
    table_width,
    SCALE: tl.constexpr,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    PAGE: tl.constexpr,
    ROWS: tl.constexpr,
    FEW_ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STAGES: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """Items of up to FEW_ROWS query rows take a smaller product than the others, of ROWS; 0 for none.

    qkv [N, heads + 2·KV_HEADS, DIM], rotated; a layer of the cache, keys and values [slots, KV_HEADS, DIM];
    out [N, heads · DIM]; workspace mix [rows, DIM], peak and total [rows]; the rest as in PackedBatch.
    """
    if PDL:
        gdc_launch_dependents()
    mine = work_ptr + tl.program_id(0) * FIELDS + FIRST
    first = tl.load(mine)
    last = tl.load(mine + FIELDS)
    tensors = (qkv_ptr, keys_ptr, values_ptr, out_ptr, mix_ptr, peak_ptr, total_ptr)
    tokens = (order_ptr, row_ptr, slot_ptr, causal_ptr, positions_ptr)
    for item in tl.range(first, last, num_stages=1):
        item_ptr = work_ptr + item * FIELDS
        table_ptr = tables_ptr + tl.load(item_ptr + REQUEST) * table_width
        # fmt: off
        if FEW_ROWS == 0:
            _item(tensors, tokens, item_ptr, table_ptr, SCALE, KV_HEADS, SHARE, DIM, PAGE, ROWS, KEYS, STAGES,
                  EXACT, PDL)
        else:
            if tl.load(item_ptr + TOKENS) * SHARE <= FEW_ROWS:
                _item(tensors, tokens, item_ptr, table_ptr, SCALE, KV_HEADS, SHARE, DIM, PAGE, FEW_ROWS, KEYS,
                      STAGES, EXACT, PDL)
            else:
                _item(tensors, tokens, item_ptr, table_ptr, SCALE, KV_HEADS, SHARE, DIM, PAGE, ROWS, KEYS,
                      STAGES, EXACT, PDL)
        # fmt: on
    if PDL:
        gdc_wait()  # by idle programs too: the end of this kernel is then the end of those before it


@triton.jit
def _item(
    tensors,
    tokens,
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
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    qkv_ptr, keys_ptr, values_ptr, out_ptr, mix_ptr, peak_ptr, total_ptr = tensors
    order_ptr, row_ptr, slot_ptr, causal_ptr, positions_ptr = tokens
    WIDTH: tl.constexpr = KV_HEADS * (SHARE + 2) * DIM
    query = tl.load(item_ptr + QUERY)
    rows = tl.load(item_ptr + TOKENS) * SHARE
    head = tl.load(item_ptr + HEAD)
    cached = tl.load(item_ptr + CACHED)
    draft = tl.load(item_ptr + DRAFT)
    draft_end = tl.load(item_ptr + DRAFT_END)
    begin = tl.load(item_ptr + BEGIN)
    end = tl.load(item_ptr + END)
    partial = tl.load(item_ptr + PARTIAL)

    index = tl.arange(0, ROWS)
    there = index < rows
    token = tl.load(order_ptr + query + index // SHARE, mask=there, other=0)
    # The visibility rule: a causal token sees the cache up to itself and nothing in flight; a token of a
    # draft row sees the cache up to its stem, where its row begins, and that row.
    causal = tl.load(causal_ptr + token) != 0
    position = tl.load(positions_ptr + token)
    seen = tl.where(causal, position + 1, position - tl.load(slot_ptr + token))
    seen = tl.where(there, seen, 0)
    own_row = tl.where(there & (causal == 0), tl.load(row_ptr + token), -1)

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

    cached_blocks = tl.cdiv(cached, KEYS)
    # A block's page has to arrive before its keys can be asked for, so the compiler gives half of the stages
    # to either; it asks for nothing ahead if the page is carried from one round to the next instead.
    for block in tl.range(begin, tl.minimum(end, cached_blocks), num_stages=STAGES):
        key = block * KEYS + near
        held = (key < cached)[:, None]
        page = _pages(table_ptr, block, cached, PAGE, KEYS)
        if PAGE % KEYS == 0:
            start = (page * PAGE + block * KEYS % PAGE) * (KV_HEADS * DIM) + head * DIM
            at = start + near[:, None] * (KV_HEADS * DIM) + dim[None]
        else:
            at = ((page * PAGE + key % PAGE) * (KV_HEADS * DIM) + head * DIM)[:, None] + dim[None]
        k = tl.load(keys_ptr + at, mask=held, other=0.0)
        v = tl.load(values_ptr + at, mask=held, other=0.0)
        visible = key[None] < seen[:, None]
        peak, total, mix = _block(q, k, v, visible, peak, total, mix, SCALE, EXACT, apart)
        if apart:
            results = partial + (block - begin) * rows
            _store_partial(mix_ptr, peak_ptr, total_ptr, results, there, peak, total, mix, ROWS, DIM)

    # Few blocks, each gathered token by token.
    for block in tl.range(tl.maximum(begin, cached_blocks), end, num_stages=1):
        key = draft + (block - cached_blocks) * KEYS + near
        held = key < draft_end
        other = tl.load(order_ptr + key, mask=held, other=0)
        other_row = tl.load(row_ptr + other, mask=held, other=-2)
        at = (other.to(tl.int64) * WIDTH + (KV_HEADS * SHARE + head) * DIM)[:, None] + dim[None]
        k = tl.load(qkv_ptr + at, mask=held[:, None], other=0.0)
        v = tl.load(qkv_ptr + at + KV_HEADS * DIM, mask=held[:, None], other=0.0)
        visible = other_row[None] == own_row[:, None]
        peak, total, mix = _block(q, k, v, visible, peak, total, mix, SCALE, EXACT, apart)
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
def _pages(table_ptr, block, cached, PAGE: tl.constexpr, KEYS: tl.constexpr):
    """Page of a block, or of each of its keys; anything for keys that are not cached."""
    key = block * KEYS if PAGE % KEYS == 0 else block * KEYS + tl.arange(0, KEYS)
    return tl.load(table_ptr + key // PAGE, mask=key < cached, other=0).to(tl.int64)


@triton.jit
def _block(q, k, v, visible, peak, total, mix, SCALE: tl.constexpr, EXACT: tl.constexpr, apart):
    """The result with a block's keys too.

    In exact mode a block's own result is made first and then folded in; if apart, it is all there is.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (SCALE * 1.4426950408889634)
    scores = tl.where(visible, scores, float("-inf"))
    if EXACT:
        peak_b = tl.max(scores, 1)
        weights = tl.exp2(scores - floor_of(peak_b)[:, None])
        total_b = tl.sum(weights, 1)
        mix_b = tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        peak = tl.where(apart, float("-inf"), peak)
        total = tl.where(apart, 0.0, total)
        mix = tl.where(apart, 0.0, mix)
        peak, total, mix = fold(peak, total, mix, peak_b, total_b, mix_b)
    else:
        higher = tl.maximum(peak, tl.max(scores, 1))
        floor = floor_of(higher)
        shrink = tl.exp2(peak - floor)
        weights = tl.exp2(scores - floor[:, None])
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
