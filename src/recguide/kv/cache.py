"""The memory that holds keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from recguide.core import KVShape


class KVCache:
    """Keys and values of every layer, addressed by slot = page × page_size + offset.

    Attributes:
        keys, values: [layers, pages × page_size, kv_heads, head_dim].
    """

    def __init__(self, shape: KVShape, pages: int, page_size: int) -> None:
        self.shape = shape
        self.page_size = page_size
        size = (shape.layers, pages * page_size, shape.kv_heads, shape.head_dim)
        self.keys = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self.values = torch.zeros(size, dtype=shape.dtype, device=shape.device)

    def write(self, layer: int, slots: Tensor | slice, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values [n, kv_heads, head_dim] into `slots` [n] of a layer."""
        self.keys[layer, slots] = keys
        self.values[layer, slots] = values
