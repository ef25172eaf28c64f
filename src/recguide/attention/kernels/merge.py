"""Kernel 3: the results of split tiles, put together."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, ANN202, N803, SIM102

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recguide.attention import work
from recguide.attention.kernels.softmax import floor_of, fold

FIELDS = tl.constexpr(work.FIELDS)
QUERY = tl.constexpr(work.QUERY)
TOKENS = tl.constexpr(work.TOKENS)
HEAD = tl.constexpr(work.HEAD)
HOME = tl.constexpr(work.HOME)
RESULTS = tl.constexpr(work.RESULTS)
MERGE = tl.constexpr(work.MERGE)
MERGES = tl.constexpr(work.MERGES)
MERGE_MOST = tl.constexpr(work.MERGE_MOST)
TOKEN = tl.constexpr(work.TOKEN)


@triton.jit
def merge(
    out_ptr,
    mix_ptr,
    peak_ptr,
    total_ptr,
    work_ptr,
    order_ptr,
    programs,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """GROUP query rows of a split tile at a time; the list is of `programs`; the rest as in `attend`."""
    if PDL:
        gdc_launch_dependents()
    about = work_ptr + programs * FIELDS
    merges = tl.load(about + MERGES)
    groups = tl.cdiv(tl.load(about + MERGE_MOST) * SHARE, GROUP)
    # The first rows of all tiles come first: what lies beyond the end of smaller ones is met last.
    for unit in tl.range(tl.program_id(0), merges * groups, tl.num_programs(0), num_stages=1):
        item_ptr = work_ptr + tl.load(work_ptr + unit % merges * FIELDS + MERGE) * FIELDS
        # fmt: off
        _merge_rows((mix_ptr, peak_ptr, total_ptr), out_ptr, order_ptr, item_ptr, unit // merges * GROUP,
                    KV_HEADS, SHARE, DIM, GROUP, AT_ONCE, EXACT, PDL)
        # fmt: on
    if PDL:
        if tl.program_id(0) == 0:
            gdc_wait()  # whatever it had to do: the end of this kernel is then the end of those before it


@triton.jit
def _merge_rows(
    workspace,
    out_ptr,
    order_ptr,
    item_ptr,
    first_row,
    KV_HEADS: tl.constexpr,
    SHARE: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    EXACT: tl.constexpr,
    PDL: tl.constexpr,
):
    """GROUP query rows of an item's tile, from `first_row` on: AT_ONCE results at a time, in their order.

    In exact mode one at a time, as if no item had ended between them.
    """
    mix_ptr, peak_ptr, total_ptr = workspace
    rows = tl.load(item_ptr + TOKENS) * SHARE
    home = tl.load(item_ptr + HOME)
    results = tl.load(item_ptr + RESULTS)
    head = tl.load(item_ptr + HEAD)
    row = first_row + tl.arange(0, GROUP)
    there = row < rows
    about = order_ptr + (tl.load(item_ptr + QUERY) + row // SHARE) * 3
    token = tl.load(about + TOKEN, mask=there, other=0).to(tl.int64)
    if PDL:
        gdc_wait()
    dim = tl.arange(0, DIM)
    peak = tl.full((GROUP,), float("-inf"), tl.float32)
    total = tl.zeros((GROUP,), tl.float32)
    mix = tl.zeros((GROUP, DIM), tl.float32)
    if EXACT:
        for nth in tl.range(0, results, num_stages=4):
            at = home + nth * rows + row
            mix_at = at.to(tl.int64)[:, None] * DIM + dim[None]
            peak_b = tl.load(peak_ptr + at, mask=there, other=float("-inf"), cache_modifier=".cg")
            total_b = tl.load(total_ptr + at, mask=there, other=0.0, cache_modifier=".cg")
            mix_b = tl.load(mix_ptr + mix_at, mask=there[:, None], other=0.0, cache_modifier=".cg")
            peak, total, mix = fold(peak, total, mix, peak_b, total_b, mix_b)
    else:
        for first in tl.range(0, results, AT_ONCE, num_stages=1):
            # All are asked for before the first is used. A thread has the same elements of each, so nothing
            # passes between threads.
            parts = ()
            higher = peak
            for ahead in tl.static_range(AT_ONCE):
                live = there & (first + ahead < results)
                at = home + (first + ahead) * rows + row
                mix_at = at.to(tl.int64)[:, None] * DIM + dim[None]
                # Read past the first cache, which may hold what lay there a layer ago.
                peak_b = tl.load(peak_ptr + at, mask=live, other=float("-inf"), cache_modifier=".cg")
                total_b = tl.load(total_ptr + at, mask=live, other=0.0, cache_modifier=".cg")
                mix_b = tl.load(mix_ptr + mix_at, mask=live[:, None], other=0.0, cache_modifier=".cg")
                parts += ((peak_b, total_b, mix_b),)
            for ahead in tl.static_range(AT_ONCE):
                higher = tl.maximum(higher, parts[ahead][0])
            floor = floor_of(higher)
            shrink = tl.exp2(peak - floor)
            total = total * shrink
            mix = mix * shrink[:, None]
            for ahead in tl.static_range(AT_ONCE):
                shrink = tl.exp2(parts[ahead][0] - floor)
                total += parts[ahead][1] * shrink
                mix += parts[ahead][2] * shrink[:, None]
            peak = higher
    at = (token * (KV_HEADS * SHARE) + head * SHARE + row % SHARE)[:, None] * DIM + dim[None]
    attended = mix / tl.where(there, total, 1.0)[:, None]
    tl.store(out_ptr + at, attended.to(out_ptr.dtype.element_ty), mask=there[:, None])
