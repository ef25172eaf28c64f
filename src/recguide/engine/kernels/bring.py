"""A copy by a kernel: a graph of nothing but kernels starts sooner than one that waits for a copy engine."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

from typing import Any, cast

import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def copy_block(source, target, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # Not by way of a cache, which would not know that the host has written.
    tl.store(target + at, tl.load(source + at, volatile=True))


def bring(source: Tensor, target: Tensor, block: int) -> None:
    """Copies pinned memory of the host to the device, int32 words of so many whole blocks each; can be
    captured."""
    # Triton's stubs, where it is installed, know neither launches nor plain integers as constants.
    cast("Any", copy_block)[(len(source) // block,)](source, target, BLOCK=block, num_warps=4)
