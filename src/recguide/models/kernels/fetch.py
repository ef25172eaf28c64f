"""Keeps the memory busy between products: the end of one asks for the beginning of the next one's matrix."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportIndexIssue=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl

FETCHERS = tl.constexpr(128)
"""The last programs of a launch do it, about one on each multiprocessor: earlier ones are too early."""


@triton.jit
def fetch(matrix, rows, K, parts, depth, reach, LANES: tl.constexpr):
    """Asks for matrix [rows, K] in L2: of each row, `reach` inputs from the start of each of its parts on.

    Parts are those of a product that is split, in steps of `depth`. `reach` is a multiple of 16 bytes.
    """
    programs = tl.num_programs(0)
    share = tl.minimum(programs, FETCHERS)
    mine = tl.program_id(0) - (programs - share)
    pieces = rows * parts
    steps = tl.cdiv(K, depth)
    element: tl.constexpr = matrix.dtype.element_ty.primitive_bitwidth // 8
    if mine >= 0:
        for first in range(mine * LANES, pieces, share * LANES):
            piece = tl.minimum(first + tl.arange(0, LANES), pieces - 1)
            start = (piece % parts) * steps // parts * depth
            place = (piece // parts).to(tl.int64) * K + start
            tl.inline_asm_elementwise(
                "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
                "=r,l,r",
                [(matrix + place).to(tl.uint64, bitcast=True), tl.minimum(reach, K - start) * element],
                dtype=tl.int32,
                is_pure=False,
                pack=1,
            )
