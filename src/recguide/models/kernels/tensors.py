"""What all launches share: rows that products may read past, and launches that overlap."""

from __future__ import annotations

import torch
from torch import Tensor

ROOM = 64
"""Tokens come in blocks, so tensors of tokens are stored in multiples of it."""


def empty_rows(like: Tensor, tokens: int, size: int, dtype: torch.dtype | None = None) -> Tensor:
    """[tokens, size] whose storage goes on up to a whole block of rows.

    A block that reaches past a tensor's last row would be filled with zeros as it is fetched, which takes far
    longer than fetching what lies there; that only reaches results of tokens that are not.
    """
    return like.new_empty(-(-tokens // ROOM) * ROOM, size, dtype=dtype)[:tokens]


def rows_held(x: Tensor) -> int:
    """Rows of its width that the storage of x [n, size] holds, from x's first on; at least n."""
    held = x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()
    return held // x.shape[1]


def dependent(x: Tensor) -> dict[str, bool]:
    """Programmatic dependent launch, where there is a device that knows it."""
    return {"PDL": x.is_cuda, **({"launch_pdl": True} if x.is_cuda else {})}
