"""The product of few tokens with a large matrix, at the speed at which the matrix is read.

Tensor cores want one side of a product to be 64 wide; here that is the matrix, and the tokens are the side
that may be narrow: outputs [OUT, tokens] = matrix [OUT, K] · tokens [K, tokens]. So one token costs hardly
less than sixteen, and nothing passes through registers on its way to them.

What makes the difference at this speed is the gap between kernels. Each one lets the next start as soon as
all of its own programs run (programmatic dependent launch), and what starts early can ask for its weights,
which no kernel writes.
"""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, ANN202, N803

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda

from recguide.attention.kernels.fetch import fetch
from recguide.models.kernels.delta import touched_low


@triton.jit
def _one(
    x,
    matrix,
    first,
    OUT,
    first_token,
    start,
    stop,
    BO: tl.constexpr,
    TOK: tl.constexpr,
    BK: tl.constexpr,
    GATED: tl.constexpr,
    STAGES: tl.constexpr,
):
    """Sums over steps [start, stop) of a matrix, and those OUT rows below if GATED."""
    acc = tl.zeros((BO, TOK), tl.float32)
    acc_up = tl.zeros((BO, TOK), tl.float32)
    for step in tl.range(start, stop, num_stages=STAGES):
        at = step * BK
        column = x.load([first_token, at]).T
        acc = tl.dot(matrix.load([first, at]), column, acc, input_precision="ieee")
        if GATED:
            acc_up = tl.dot(matrix.load([OUT + first, at]), column, acc_up, input_precision="ieee")
    return acc, acc_up


@triton.jit
def _untouched(on, tokens, SEEN: tl.constexpr):
    """Tokens before the first that is `on` [tokens]."""
    first = tokens
    for at in tl.range(0, tokens, SEEN):
        token = at + tl.arange(0, SEEN)
        touched = tl.load(on + token, mask=token < tokens, other=0) != 0
        first = tl.minimum(first, tl.min(tl.where(touched, token, tokens), 0))
    return first


@triton.jit
def _ahead(weights, first, rows, at, K, BO: tl.constexpr, AHEAD: tl.constexpr, PIECES: tl.constexpr):
    """Asks for AHEAD numbers from `at` on of BO rows of weights [rows, K] from `first` on, each in PIECES."""
    row = tl.minimum(first + tl.arange(0, BO), rows - 1).to(tl.int64)
    column = tl.minimum(at, K - AHEAD) + tl.arange(0, PIECES) * (AHEAD // PIECES)
    pointers = weights + row[:, None] * K + column[None, :]
    fetch(pointers, AHEAD // PIECES * (weights.dtype.element_ty.primitive_bitwidth // 8))


@triton.jit
def _store(y, acc, first, OUT, first_token, end, tokens, split, BO: tl.constexpr, TOK: tl.constexpr):
    """acc [BO, TOK] into y [splits, tokens, OUT], tokens before `end`."""
    output = first + tl.arange(0, BO)
    token = first_token + tl.arange(0, TOK)
    inside = (output[:, None] < OUT) & (token[None, :] < end)
    place = (split * tokens + token).to(tl.int64)[None, :] * OUT + output[:, None]
    tl.store(y + place, acc.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["tokens", "splits"])
def product(
    x,
    matrix,
    second,
    weights,
    second_weights,
    low,
    outer,
    on,
    y,
    tokens,
    OUT,
    K,
    R,
    splits,
    BO: tl.constexpr,
    TOK: tl.constexpr,
    BK: tl.constexpr,
    GATED: tl.constexpr,
    DUAL: tl.constexpr,
    EXTRA: tl.constexpr,
    BESIDE: tl.constexpr,
    LOW_SPLIT: tl.constexpr,
    RANKS: tl.constexpr,
    SEEN: tl.constexpr,
    AHEAD: tl.constexpr,
    PIECES: tl.constexpr,
    STAGES: tl.constexpr,
    SECOND_STAGES: tl.constexpr,
    PDL: tl.constexpr,
):
    """y [tokens, OUT], or its partial sums [splits, tokens, OUT], of x [tokens, K] · matrix [OUT, K].

    x, matrix, second, outer are tensor descriptors. weights and second_weights point to the first two
    matrices if AHEAD numbers of each row are to be asked for early.

    GATED: the matrix has 2·OUT rows, gates before ups; y = SiLU(gate) · up.
    DUAL: from the first token that is `on` [tokens], all take `second` instead of `matrix`.
    EXTRA: tokens that are `on` get Σ low [LOW_SPLIT, tokens, R] · outer [OUT, R], RANKS at a time (both
    halves when GATED).
    BESIDE: further programs, the first ones, compute low [splits, tokens, R] = x · second [R, K]; y is
    float32 like low, and there is no other variant.
    """
    pid = tl.program_id(0)
    if PDL:
        cuda.gdc_launch_dependents()
    blocks = tl.cdiv(tokens, TOK)
    own, end, width = pid, tokens, OUT
    by_second = False
    if BESIDE:
        beside = tl.cdiv(R, BO) * splits * blocks
        by_second = pid < beside
        own = tl.where(by_second, pid, pid - beside)
        width = tl.where(by_second, R, OUT)
    if DUAL:
        # No kernel that this one overlaps with writes what is read here.
        untouched = _untouched(on, tokens, SEEN)
        blocks += 1
    first_token = (own % blocks) * TOK
    if DUAL:
        # Where touched tokens begin, a block does: each reads one matrix.
        before = tl.cdiv(untouched, TOK) * TOK
        by_second = first_token >= before
        end = tl.where(by_second, tokens, untouched)
        first_token = tl.where(by_second, first_token - before + untouched, first_token)
    split = (own // blocks) % splits
    first = (own // blocks // splits) * BO
    steps = tl.cdiv(K, BK)
    start = split * steps // splits
    stop = (split + 1) * steps // splits
    if PDL:
        if AHEAD > 0:
            if DUAL or BESIDE:
                weights = tl.where(by_second, second_weights, weights)
            _ahead(weights, first, width, start * BK, K, BO, AHEAD, PIECES)
            if GATED:
                _ahead(weights, OUT + first, 2 * OUT, start * BK, K, BO, AHEAD, PIECES)
        cuda.gdc_wait()
    if DUAL or BESIDE:
        if DUAL:
            stop = tl.where(first_token < end, stop, start)
        # With as many stages these branches would be alike, and the compiler would make one of them that
        # holds the memory of both.
        if by_second:
            acc, acc_up = _one(
                x, second, first, width, first_token, start, stop, BO, TOK, BK, GATED, SECOND_STAGES
            )
        else:
            acc, acc_up = _one(x, matrix, first, width, first_token, start, stop, BO, TOK, BK, GATED, STAGES)
    else:
        acc, acc_up = _one(x, matrix, first, width, first_token, start, stop, BO, TOK, BK, GATED, STAGES)
    if EXTRA and split == splits - 1:
        # One step at a time: those before left no memory for more.
        for step in tl.range(tl.cdiv(R, RANKS), num_stages=1):
            at = step * RANKS
            ranks = touched_low(low, on, first_token, at, tokens, R, LOW_SPLIT, TOK, RANKS)
            weight = outer.load([first, at])
            column = ranks.to(weight.dtype)
            acc = tl.dot(weight, column, acc, input_precision="ieee")
            if GATED:
                weight = outer.load([OUT + first, at])
                acc_up = tl.dot(weight, column, acc_up, input_precision="ieee")
    if GATED:
        acc = acc * tl.sigmoid(acc) * acc_up
    if BESIDE:
        _store(tl.where(by_second, low, y), acc, first, width, first_token, end, tokens, split, BO, TOK)
    else:
        _store(y, acc, first, width, first_token, end, tokens, split, BO, TOK)
