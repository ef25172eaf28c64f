"""Views of matrices, as one operation each where indexing would make three: a CPU has many to make."""

from __future__ import annotations

from torch import Tensor


def columns(x: Tensor, which: slice) -> Tensor:
    """x[:, which], of x [N, width] whose rows may lie apart but whose columns may not."""
    tokens, width = x.shape
    wide = which.stop - which.start
    if wide == width:
        return x
    return x.as_strided((tokens, wide), (x.stride(0), 1), x.storage_offset() + which.start)


def tail(x: Tensor, start: int) -> Tensor:
    """x[start:], of the same x."""
    tokens, width = x.shape
    apart = x.stride(0)
    return x.as_strided((tokens - start, width), (apart, 1), x.storage_offset() + start * apart)
