"""Kernel 1: queries and keys rotated where they lie; the causal rows' keys and values into the cache."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from recguide.attention.kernels.fetch import touch


@triton.jit
def rotate_and_write(
    qkv_ptr,
    cos_ptr,
    sin_ptr,
    query_scale_ptr,
    kv_slots_ptr,
    keys_ptr,
    values_ptr,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HALF: tl.constexpr,
    GROUP: tl.constexpr,
    SCALED: tl.constexpr,
    PDL: tl.constexpr,
):
    """One token and GROUP of its HEADS + 2·KV_HEADS heads a program; tokens without a slot (−1) write none.

    qkv [N, HEADS + 2·KV_HEADS, 2·HALF]; cos and sin [N, 2·HALF], of which the second half is read; a layer of
    the cache, keys and values [slots, KV_HEADS, 2·HALF].
    """
    if PDL:
        gdc_launch_dependents()
    token = tl.program_id(0)
    head = tl.program_id(1) * GROUP + tl.arange(0, GROUP)
    pair = tl.arange(0, HALF)
    slot = tl.load(kv_slots_ptr + token).to(tl.int64)
    angle = token * (2 * HALF) + HALF + pair
    if PDL:
        touch(cos_ptr + angle)
        touch(sin_ptr + angle)
        gdc_wait()
    low = (token.to(tl.int64) * (HEADS + 2 * KV_HEADS) + head)[:, None] * (2 * HALF) + pair[None]
    there = (head < HEADS + 2 * KV_HEADS)[:, None]
    first = tl.load(qkv_ptr + low, mask=there, other=0.0)
    second = tl.load(qkv_ptr + low + HALF, mask=there, other=0.0)
    cos = tl.load(cos_ptr + angle).to(tl.float32)[None]
    sin = tl.load(sin_ptr + angle).to(tl.float32)[None]
    x, y = first.to(tl.float32), second.to(tl.float32)
    # Fused explicitly: keys are the same bits whichever way this kernel is launched.
    turned_x = tl.fma(-y, sin, x * cos)
    turned_y = tl.fma(x, sin, y * cos)
    if SCALED:
        scale = tl.load(query_scale_ptr + token).to(tl.float32)
        factor = tl.where(head < HEADS, scale, 1.0)[:, None]
        turned_x *= factor
        turned_y *= factor
    turned_x = turned_x.to(first.dtype)
    turned_y = turned_y.to(first.dtype)
    turns = (head < HEADS + KV_HEADS)[:, None]
    tl.store(qkv_ptr + low, turned_x, mask=turns)
    tl.store(qkv_ptr + low + HALF, turned_y, mask=turns)

    key_head = (head - HEADS)[:, None]
    key_at = slot * (KV_HEADS * 2 * HALF) + key_head * (2 * HALF) + pair[None]
    is_key = (key_head >= 0) & (key_head < KV_HEADS) & (slot >= 0)
    tl.store(keys_ptr + key_at, turned_x, mask=is_key)
    tl.store(keys_ptr + key_at + HALF, turned_y, mask=is_key)
    value_at = key_at - KV_HEADS * 2 * HALF
    is_value = (key_head >= KV_HEADS) & there & (slot >= 0)
    tl.store(values_ptr + value_at, first, mask=is_value)
    tl.store(values_ptr + value_at + HALF, second, mask=is_value)
