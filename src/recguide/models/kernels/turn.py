"""One forward's rotary encoding in one kernel instead of twenty."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def turn(
    positions,
    frequencies,
    cos,
    sin,
    scale,
    factor,
    beta,
    period,
    HALF: tl.constexpr,
    BLOCK: tl.constexpr,
    SCALED: tl.constexpr,
    PDL: tl.constexpr,
):
    """cos, sin [N, 2·HALF] of positions [N] times frequencies [HALF], and the queries' scale [N].

    One program a token. The first half of sin is negative; `scale` is 1 + beta · ln(1 + ⌊position / period⌋).
    """
    token = tl.program_id(0)
    pair = tl.arange(0, BLOCK)
    inside = pair < HALF
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    position = tl.load(positions + token)
    angle = position.to(tl.float32) * tl.load(frequencies + pair, mask=inside, other=0.0)
    along = tl.cos(angle) * factor
    across = tl.sin(angle) * factor
    place = token * 2 * HALF + pair
    tl.store(cos + place, along.to(cos.dtype.element_ty), mask=inside)
    tl.store(cos + place + HALF, along.to(cos.dtype.element_ty), mask=inside)
    tl.store(sin + place, (-across).to(sin.dtype.element_ty), mask=inside)
    tl.store(sin + place + HALF, across.to(sin.dtype.element_ty), mask=inside)
    if SCALED:
        times = (position // period).to(tl.float32)
        tl.store(scale + token, (1.0 + beta * tl.log(1.0 + times)).to(scale.dtype.element_ty))
