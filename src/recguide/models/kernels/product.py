"""The product of few tokens with a large matrix, at the speed at which the matrix is read.

Tensor cores want one side of a product to be 64 wide; here that is the matrix, and the tokens are the side
that may be narrow: outputs [OUT, tokens] = matrix [OUT, K] · tokens [K, tokens]. So one token costs hardly
less than sixteen, and nothing passes through registers on its way to them.

What makes the difference at this speed is the gap between kernels. Each one lets the next start as soon as
all of its own programs run (programmatic dependent launch), and each fetches the beginning of its matrix into
the L2 cache before it waits for the tokens, which the kernel before it still computes.
"""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: ANN001, ANN201, N803, SIM102

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit
def early_fetch(rows, count, K, start, stop, ROWS: tl.constexpr, LANES: tl.constexpr):
    """Asks for columns [start, stop) of ROWS rows of a matrix [count, K], from pointer `rows` on, in L2."""
    lane = tl.arange(0, LANES)
    share: tl.constexpr = LANES // ROWS
    row = tl.minimum(lane // share, count - 1)
    bytes_each = rows.dtype.element_ty.primitive_bitwidth // 8
    piece = tl.cdiv((stop - start) * bytes_each, 16 * share) * 16
    offset = start * bytes_each + (lane % share) * piece
    size = tl.maximum(tl.minimum(piece, K * bytes_each - offset), 16)
    offset = tl.minimum(offset, K * bytes_each - 16)
    address = (rows + row.to(tl.int64) * K).to(tl.uint64, bitcast=True) + offset.to(tl.uint64)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [address, size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit(do_not_specialize=["tokens", "splits", "ahead"])
def product(
    x,
    matrix,
    merged,
    low,
    outer,
    raw,
    on,
    y,
    tokens,
    OUT,
    K,
    R,
    splits,
    ahead,
    BO: tl.constexpr,
    TOK: tl.constexpr,
    BK: tl.constexpr,
    GATED: tl.constexpr,
    DUAL: tl.constexpr,
    EXTRA: tl.constexpr,
    ZERO_OFF: tl.constexpr,
    STAGES: tl.constexpr,
    PDL: tl.constexpr,
    LANES: tl.constexpr,
):
    """y [tokens, OUT], or its partial sums [splits, tokens, OUT], of x [tokens, K] · matrix [OUT, K].

    x, matrix, merged, low, outer are tensor descriptors.

    GATED: the matrix has 2·OUT rows, gates before ups; y = SiLU(gate) · up.
    DUAL: tokens that are `on` [tokens] take `merged` instead of `matrix`.
    EXTRA: adds low [tokens, R] · outer [OUT, R] (both halves when GATED).
    ZERO_OFF: tokens that are not `on` yield zero.
    ahead: inputs fetched into L2 before the tokens are waited for; `raw` points at the matrix.
    """
    blocks = tl.cdiv(tokens, TOK)
    pid = tl.program_id(0)
    first_token = (pid % blocks) * TOK
    split = (pid // blocks) % splits
    first = (pid // blocks // splits) * BO
    steps = tl.cdiv(K, BK)
    start = split * steps // splits
    stop = (split + 1) * steps // splits
    if PDL:
        cuda.gdc_launch_dependents()
        if ahead > 0:
            end = tl.minimum(tl.minimum(start * BK + ahead, stop * BK), K)
            early_fetch(raw + first.to(tl.int64) * K, OUT - first, K, start * BK, end, BO, LANES)
            if GATED:
                ups = raw + (OUT + first).to(tl.int64) * K
                early_fetch(ups, OUT - first, K, start * BK, end, BO, LANES)
        cuda.gdc_wait()
    acc = tl.zeros((BO, TOK), tl.float32)
    acc_up = tl.zeros((BO, TOK), tl.float32)
    acc_on = tl.zeros((BO, TOK), tl.float32)
    acc_up_on = tl.zeros((BO, TOK), tl.float32)
    for step in tl.range(start, stop, num_stages=STAGES):
        at = step * BK
        column = x.load([first_token, at]).T
        acc = tl.dot(matrix.load([first, at]), column, acc, input_precision="ieee")
        if GATED:
            acc_up = tl.dot(matrix.load([OUT + first, at]), column, acc_up, input_precision="ieee")
        if DUAL:
            acc_on = tl.dot(merged.load([first, at]), column, acc_on, input_precision="ieee")
            if GATED:
                acc_up_on = tl.dot(merged.load([OUT + first, at]), column, acc_up_on, input_precision="ieee")
    if EXTRA:
        if split == splits - 1:
            for step in range(tl.cdiv(R, BK)):
                column = low.load([first_token, step * BK]).T
                acc = tl.dot(outer.load([first, step * BK]), column, acc, input_precision="ieee")
                if GATED:
                    weight = outer.load([OUT + first, step * BK])
                    acc_up = tl.dot(weight, column, acc_up, input_precision="ieee")
    token = first_token + tl.arange(0, TOK)
    if DUAL or ZERO_OFF:
        chosen = tl.load(on + token, mask=token < tokens, other=0)[None, :] != 0
        if ZERO_OFF:
            acc = tl.where(chosen, acc, 0.0)
        else:
            acc = tl.where(chosen, acc_on, acc)
            acc_up = tl.where(chosen, acc_up_on, acc_up)
    if GATED:
        acc = acc * tl.sigmoid(acc) * acc_up
    output = first + tl.arange(0, BO)
    inside = (output[:, None] < OUT) & (token[None, :] < tokens)
    place = (split * tokens + token).to(tl.int64)[None, :] * OUT + output[:, None]
    tl.store(y + place, acc.to(y.dtype.element_ty), mask=inside)
