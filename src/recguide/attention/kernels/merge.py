"""Kernel 3: the results of split tiles, folded in order of their keys."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recguide.attention import work
from recguide.attention.kernels.softmax import fold

FIELDS = tl.constexpr(work.FIELDS)
MERGE_QUERY = tl.constexpr(work.MERGE_QUERY)
MERGE_TOKENS = tl.constexpr(work.MERGE_TOKENS)
MERGE_HEAD = tl.constexpr(work.MERGE_HEAD)
MERGE_PARTIAL = tl.constexpr(work.MERGE_PARTIAL)
MERGE_COUNT = tl.constexpr(work.MERGE_COUNT)
MERGES = tl.constexpr(work.MERGES)
MERGE_MOST = tl.constexpr(work.MERGE_MOST)


@triton.jit
def merge(
    out_ptr,
    mix_ptr,
    peak_ptr,
    total_ptr,
    work_ptr,
    order_ptr,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    PARTS: tl.constexpr,
    PDL: tl.constexpr,
):
    """ROWS query rows of a split tile at a time; out and workspace as in `attend`.

    PARTS results are read before the first of them is folded, so that their latencies overlap.
    """
    if PDL:
        gdc_launch_dependents()
    merges = tl.load(work_ptr + MERGES)
    groups = tl.cdiv(tl.load(work_ptr + MERGE_MOST) * SHARE, ROWS)
    if PDL:
        gdc_wait()
    # The first rows of all tiles come first: what lies beyond the end of smaller ones is met last.
    for unit in tl.range(tl.program_id(0), merges * groups, tl.num_programs(0), num_stages=1):
        merge_ptr = work_ptr + unit % merges * FIELDS
        query = tl.load(merge_ptr + MERGE_QUERY)
        rows = tl.load(merge_ptr + MERGE_TOKENS) * SHARE
        head = tl.load(merge_ptr + MERGE_HEAD)
        partial = tl.load(merge_ptr + MERGE_PARTIAL)
        count = tl.load(merge_ptr + MERGE_COUNT)
        row = unit // merges * ROWS + tl.arange(0, ROWS)
        there = row < rows
        token = tl.load(order_ptr + query + row // SHARE, mask=there, other=0)
        dim = tl.arange(0, DIM)
        peak = tl.full((ROWS,), float("-inf"), tl.float32)
        total = tl.zeros((ROWS,), tl.float32)
        mix = tl.zeros((ROWS, DIM), tl.float32)
        count = tl.where(unit // merges * ROWS < rows, count, 0)
        for first in tl.range(0, count, PARTS, num_stages=1):
            parts = ()
            for nth in tl.static_range(PARTS):
                live = there & (first + nth < count)
                at = partial + (first + nth) * rows + row
                mix_at = at.to(tl.int64)[:, None] * DIM + dim[None]
                parts += (
                    (
                        tl.load(peak_ptr + at, mask=live, other=float("-inf")),
                        tl.load(total_ptr + at, mask=live, other=0.0),
                        tl.load(mix_ptr + mix_at, mask=live[:, None], other=0.0),
                    ),
                )
            for nth in tl.static_range(PARTS):
                peak, total, mix = fold(peak, total, mix, parts[nth][0], parts[nth][1], parts[nth][2])
        query_head = head * SHARE + row % SHARE
        out_at = (token.to(tl.int64) * (KV_HEADS * SHARE * DIM) + query_head * DIM)[:, None] + dim[None]
        attended = mix / tl.where(there, total, 1.0)[:, None]
        tl.store(out_ptr + out_at, attended.to(out_ptr.dtype.element_ty), mask=there[:, None])
