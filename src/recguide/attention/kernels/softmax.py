"""Softmax in pieces: how results over some of the keys become the result over all of them.

A result is a peak [rows], a total [rows] and a mix [rows, dim], float32: the greatest score, Σ 2^(score −
peak), and the values mixed with those weights; scores are in units of log 2. No key at all is peak −inf,
total 0 and mix 0, and changes nothing that it is folded into, to the last bit.
"""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def floor_of(peak):
    """What to subtract from scores: their peak, or 0 where there is none and −inf − −inf would be NaN."""
    return tl.where(peak == float("-inf"), 0.0, peak)


@triton.jit
def fold(peak, total, mix, peak_b, total_b, mix_b):
    """The result over the keys of both. Fused explicitly, so that every kernel rounds alike."""
    higher = tl.maximum(peak, peak_b)
    floor = floor_of(higher)
    shrink = tl.exp2(peak - floor)
    shrink_b = tl.exp2(peak_b - floor)
    total = tl.fma(total_b, shrink_b, total * shrink)
    mix = tl.fma(mix_b, shrink_b[:, None], mix * shrink[:, None])
    return higher, total, mix
