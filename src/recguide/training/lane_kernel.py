"""The Triton kernel of `lane_attention`: each lane and key/value head reads that lane's tokens once.

Importing this file needs Triton.
"""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false

from __future__ import annotations

from typing import Any, cast

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64
"""Cached tokens read at a time."""
MIN_ROWS = 16
"""Fewest rows that a matrix product takes; queries of one key/value head are padded to it."""


@triton.jit
def _attend(  # noqa: ANN202
    q_ptr,  # noqa: ANN001
    k_ptr,  # noqa: ANN001
    v_ptr,  # noqa: ANN001
    lengths_ptr,  # noqa: ANN001
    out_ptr,  # noqa: ANN001
    q_lane,  # noqa: ANN001
    kv_lane,  # noqa: ANN001
    kv_position,  # noqa: ANN001
    scale,  # noqa: ANN001
    GROUP: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    ROWS: tl.constexpr,  # noqa: N803
    TOKENS: tl.constexpr,  # noqa: N803
):
    lane = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    length = tl.load(lengths_ptr + lane).to(tl.int32)
    row = tl.arange(0, ROWS)
    column = tl.arange(0, DIM)
    near = tl.arange(0, TOKENS)
    where = (head * GROUP + row)[:, None] * DIM + column[None]
    q = tl.load(q_ptr + lane * q_lane + where, mask=row[:, None] < GROUP, other=0.0)
    peak = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    mixed = tl.zeros((ROWS, DIM), tl.float32)
    base = lane * kv_lane + head * DIM
    for start in range(0, length, TOKENS):
        index = start + near
        inside = index < length
        offset = base + index[:, None] * kv_position + column[None]
        k = tl.load(k_ptr + offset, mask=inside[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale
        scores = tl.where(inside[None], scores, float("-inf"))
        higher = tl.maximum(peak, tl.max(scores, 1))
        shrink = tl.exp(peak - higher)
        share = tl.exp(scores - higher[:, None])
        v = tl.load(v_ptr + offset, mask=inside[:, None], other=0.0)
        total = total * shrink + tl.sum(share, 1)
        mixed = mixed * shrink[:, None] + tl.dot(share.to(v.dtype), v)
        peak = higher
    mixed = mixed / total[:, None]
    tl.store(out_ptr + lane * q_lane + where, mixed.to(out_ptr.dtype.element_ty), mask=row[:, None] < GROUP)


def lane_attention(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """As `lane_attention.reference`; k and v are read in place, whatever their lane and position strides."""
    lanes, heads, dim = q.shape
    kv_heads = k.shape[2]
    q = q.contiguous()
    out = torch.empty_like(q)
    # Triton's stubs, where it is installed, know neither launches nor plain integers as constants.
    launch: Any = cast("Any", _attend)[(lanes, kv_heads)]
    launch(
        q,
        k,
        v,
        lengths,
        out,
        q.stride(0),
        k.stride(0),
        k.stride(1),
        dim**-0.5,
        GROUP=heads // kv_heads,
        DIM=dim,
        ROWS=max(MIN_ROWS, triton.next_power_of_2(heads // kv_heads)),
        TOKENS=BLOCK,
    )
    return out
