"""What is computed row by row between products: sums, norms, and the gate of a product done elsewhere."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import cuda


@triton.jit(do_not_specialize=["tokens"])
def add_norm(
    x,
    partials,
    delta,
    weight,
    total,
    normed,
    tokens,
    eps,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    SPLIT: tl.constexpr,
    DELTA: tl.constexpr,
    PDL: tl.constexpr,
):
    """total = x + Σ partials [SPLIT, tokens, SIZE], in that order; normed = weight · total / √(mean total²).

    One program a row. DELTA: delta [tokens, SIZE] is added last. With SPLIT = 0 there is nothing to add and
    `total` is not written.
    """
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < SIZE
    if PDL:
        cuda.gdc_launch_dependents()
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if PDL:
        cuda.gdc_wait()
    value = tl.load(x + row * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    if SPLIT > 0:
        added = tl.zeros((BLOCK,), tl.float32)
        for split in tl.static_range(SPLIT):
            place = partials + (split * tokens + row) * SIZE + column
            added += tl.load(place, mask=inside, other=0.0).to(tl.float32)
        if DELTA:
            added += tl.load(delta + row * SIZE + column, mask=inside, other=0.0)
        rounded = (value + added).to(total.dtype.element_ty)
        tl.store(total + row * SIZE + column, rounded, mask=inside)
        value = rounded.to(tl.float32)
    root = tl.rsqrt(tl.sum(value * value, 0) / SIZE + eps)
    tl.store(normed + row * SIZE + column, (value * root * scale).to(normed.dtype.element_ty), mask=inside)


@triton.jit
def gate(gate_up, y, SIZE: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """y [N, SIZE] = SiLU(gate) · up of gate_up [N, 2·SIZE]; a program for each row and BLOCK columns."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < SIZE
    if PDL:
        cuda.gdc_launch_dependents()
        cuda.gdc_wait()
    gates = tl.load(gate_up + row * 2 * SIZE + column, mask=inside, other=0.0).to(tl.float32)
    ups = tl.load(gate_up + row * 2 * SIZE + SIZE + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * SIZE + column, (gates * tl.sigmoid(gates) * ups).to(y.dtype.element_ty), mask=inside)
