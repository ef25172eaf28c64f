"""The memory that holds keys and values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recguide.core import KVShape


class KVCache:
    """Keys and values of every layer, addressed by slot = page × page_size + offset.

    Attributes:
        both: [layers, 2, pages × page_size, kv_heads, head_dim], of each layer first keys, then values.
        keys, values: [layers, pages × page_size, kv_heads, head_dim], views of it.
        rows: of each layer [2 × pages × page_size, kv_heads · head_dim], a view of both.
    """

    def __init__(self, shape: KVShape, pages: int, page_size: int) -> None:
        self.shape = shape
        self.page_size = page_size
        size = (shape.layers, 2, pages * page_size, shape.kv_heads, shape.head_dim)
        self.both = torch.zeros(size, dtype=shape.dtype, device=shape.device)
        self.keys, self.values = self.both.unbind(1)
        self.rows = self.both.flatten(3).flatten(1, 2).unbind(0)

    @torch.inference_mode()
    def copy(self, pages: Sequence[int], start: int) -> None:
        """Copies what `pages` hold to as many others, which follow one another from page `start` on."""
        index = torch.tensor(pages, device=self.shape.device)
        for layer in self.both.unflatten(2, (-1, self.page_size)).unbind(0):
            layer[:, start : start + len(pages)] = layer[:, index]


class Span:
    """Some slots [n] of a cache, as a slice where they lie side by side.

    One copy takes a layer's keys and values, [n, 2, kv_heads, head_dim].

    Attributes:
        slots: n.
    """

    def __init__(self, cache: KVCache, slots: Tensor | slice) -> None:
        if isinstance(slots, slice):
            self._rows = None
            self.slots = slots.stop - slots.start
            self._layers = cache.both[:, :, slots].transpose(1, 2).unbind(0)
        else:
            self.slots = len(slots)
            self._rows = torch.stack((slots, slots + cache.keys.shape[1]), 1).flatten().long()
            self._layers = cache.rows

    def write(self, layer: int, kv: Tensor) -> None:
        """Puts keys and values into the slots of a layer."""
        if self._rows is None:
            self._layers[layer].copy_(kv)
        else:
            self._layers[layer].index_copy_(0, self._rows, kv.flatten(2).flatten(0, 1))

    def layout(self, kv: Tensor) -> Tensor:
        """The view of contiguous keys and values that `read` wants; one serves all layers."""
        return kv if self._rows is None else kv.flatten(2).flatten(0, 1)

    def read(self, layer: int, out: Tensor) -> None:
        """Copies a layer's keys and values out of the cache."""
        if self._rows is None:
            out.copy_(self._layers[layer])
        else:
            torch.index_select(self._layers[layer], 0, self._rows, out=out)
