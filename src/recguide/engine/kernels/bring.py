"""A copy by a kernel: a graph of nothing but kernels starts sooner than one that waits for a copy engine."""

# Triton ships no types, and kernels are not Python that a type checker could follow.
# pyright: basic, reportMissingImports=false, reportGeneralTypeIssues=false
# ruff: noqa: ANN001, ANN201, N803

from __future__ import annotations

from typing import Any, cast

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 512
"""Words of a program, four for each of its threads."""


@triton.jit(do_not_specialize=["words"])
def copy_words(source, target, words, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    there = at < words
    # Not by way of a cache, which would not know that the host has written.
    tl.store(target + at, tl.load(source + at, mask=there, cache_modifier=".cv"), mask=there)


def bring(source: Tensor, target: Tensor) -> None:
    """Copies pinned memory of the host to as many int32 words of the device; can be captured."""
    words = len(target)
    if words:
        # Triton's stubs, where it is installed, know neither launches nor plain integers as constants.
        cast("Any", copy_words)[(triton.cdiv(words, BLOCK),)](source, target, words, BLOCK=BLOCK, num_warps=4)
