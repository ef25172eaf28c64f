"""Memory asked for ahead of its use: it comes as far as the L2 cache, where later writes still reach it."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def fetch(pointers, BYTES: tl.constexpr):
    """BYTES, a multiple of 16, from each of the pointers on, which must be aligned alike."""
    size = tl.full(pointers.shape, BYTES, tl.int32)
    tl.inline_asm_elementwise(
        "cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0;",
        "=r,l,r",
        [pointers.to(tl.uint64, bitcast=True), size],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def touch(pointers):
    """What the pointers lead to, and what lies beside it."""
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [pointers.to(tl.uint64, bitcast=True)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
