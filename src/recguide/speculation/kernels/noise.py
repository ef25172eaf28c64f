"""The noise of `speculation.noise` in Triton: the same words, and G in float64 or, closely, in fp32.

Importing this file needs Triton.
"""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportOptionalMemberAccess=false
# pyright: reportAttributeAccessIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import math

import triton
import triton.language as tl

from recguide.speculation import noise

ROUNDS = tl.constexpr(noise.ROUNDS)
FIRST = tl.constexpr(noise.MULTIPLIERS[0])
SECOND = tl.constexpr(noise.MULTIPLIERS[1])
FIRST_STEP = tl.constexpr(noise.WEYL[0])
SECOND_STEP = tl.constexpr(noise.WEYL[1])
SCALE = tl.constexpr(noise.SCALE)
LN2 = tl.constexpr(math.log(2))
LOG2E = tl.constexpr(1 / math.log(2))
QUICK = tl.constexpr(not triton.knobs.runtime.interpret)
"""Whether there is a device, whose instructions the interpreter lacks."""
SMALL = tl.constexpr(2.0**-5)
"""Below it, fp32's 1 - w has lost too much of w, and few terms of the series are enough."""


@triton.jit
def first_words(seed, position, tokens):
    """As `noise.first_words`, uint32: seed int64 and position int32 scalars, tokens int32.

    What the first rounds derive from the position alone stays scalar.
    """
    key0 = seed.to(tl.uint32)
    key1 = (seed >> 32).to(tl.uint32)
    c0 = position.to(tl.uint32)
    c1 = tokens.to(tl.uint32)
    c2 = c0 ^ c0
    c3 = c2
    for _ in tl.static_range(ROUNDS):
        p0 = c0.to(tl.uint64) * FIRST
        p1 = c2.to(tl.uint64) * SECOND
        c0 = (p1 >> 32).to(tl.uint32) ^ c1 ^ key0
        c2 = (p0 >> 32).to(tl.uint32) ^ c3 ^ key1
        c1 = p1.to(tl.uint32)
        c3 = p0.to(tl.uint32)
        key0 += FIRST_STEP
        key1 += SECOND_STEP
    return c0


@triton.jit
def gumbel(words):
    """As `noise.gumbel_of`, float64. 1 − w is exact, so its logarithm is as good as log1p."""
    rest = ((words ^ 0xFFFFFFFF).to(tl.float64) + 0.5) * SCALE
    return -tl.log(-tl.log(rest))


@triton.jit
def quick_log(x):
    """Natural logarithm of normal fp32 numbers by the device's own log2, within 2⁻²² of log2 or of x = 1."""
    if QUICK:
        exponent = tl.inline_asm_elementwise(
            "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        exponent = tl.log2(x)
    return exponent * LN2


@triton.jit
def quick_exp(x):
    """exp of fp32 numbers by the device's own exp2; what is below its least normal number is 0."""
    if QUICK:
        power = tl.inline_asm_elementwise(
            "ex2.approx.ftz.f32 $0, $1;", "=f,f", [x * LOG2E], dtype=tl.float32, is_pure=True, pack=1
        )
    else:
        power = tl.exp(x)
    return power


@triton.jit
def rough_gumbel(words):
    """G in fp32, within 2e-5."""
    w = (words.to(tl.float32) + 0.5) * SCALE
    rest = ((words ^ 0xFFFFFFFF).to(tl.float32) + 0.5) * SCALE
    series = w * (1 + w * (1 / 2 + w * (1 / 3 + w * (1 / 4 + w * (1 / 5 + w * (1 / 6))))))
    return -quick_log(tl.where(w < SMALL, series, -quick_log(rest)))
