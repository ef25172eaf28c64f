"""The outer product of a delta: what the inner one left, summed, for the touched tokens only."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def touched_low(
    low, on, first, at, tokens, R, LOW_SPLIT: tl.constexpr, TOK: tl.constexpr, RANKS: tl.constexpr
):
    """Σ low [LOW_SPLIT, tokens, R], in that order: ranks from `at` by tokens from `first`, [RANKS, TOK].

    Tokens that are not `on` [tokens] are zero.
    """
    token = first + tl.arange(0, TOK)
    rank = at + tl.arange(0, RANKS)
    chosen = tl.load(on + token, mask=token < tokens, other=0) != 0
    inside = (rank < R)[:, None] & chosen[None, :]
    total = tl.zeros((RANKS, TOK), tl.float32)
    for split in tl.static_range(LOW_SPLIT):
        place = (split * tokens + token)[None, :] * R + rank[:, None]
        total += tl.load(low + place, mask=inside, other=0.0)
    return total


@triton.jit(do_not_specialize=["tokens"])
def spread(
    low,
    outer,
    on,
    y,
    tokens,
    OUT,
    R,
    LOW_SPLIT: tl.constexpr,
    BO: tl.constexpr,
    TOK: tl.constexpr,
    RANKS: tl.constexpr,
    CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """y [tokens, OUT] float32 = Σ low [LOW_SPLIT, tokens, R] · outer [OUT, R], zero for tokens not `on`."""
    blocks = tl.cdiv(tokens, TOK)
    first = (tl.program_id(0) % blocks) * TOK
    output = (tl.program_id(0) // blocks) * BO + tl.arange(0, BO)
    rank = tl.arange(0, RANKS)
    place = outer + output.to(tl.int64)[:, None] * R + rank[None, :]
    if PDL:
        cuda.gdc_launch_dependents()
    weight = tl.load(place, mask=(output < OUT)[:, None] & (rank < R)[None, :], other=0.0)
    if PDL:
        cuda.gdc_wait()
    acc = tl.zeros((BO, TOK), tl.float32)
    for chunk in tl.static_range(CHUNKS):
        at = chunk * RANKS
        if chunk > 0:
            inside = (output < OUT)[:, None] & (at + rank < R)[None, :]
            weight = tl.load(place + at, mask=inside, other=0.0)
        ranks = touched_low(low, on, first, at, tokens, R, LOW_SPLIT, TOK, RANKS)
        acc = tl.dot(weight, ranks.to(weight.dtype), acc, input_precision="ieee")
    token = first + tl.arange(0, TOK)
    inside = (output < OUT)[:, None] & (token < tokens)[None, :]
    tl.store(y + token.to(tl.int64)[None, :] * OUT + output[:, None], acc, mask=inside)
