"""Runs rows: packs them, reads and writes the KV cache, returns logits."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from recguide.attention.packing import pack
from recguide.attention.reference import ReferenceAttention
from recguide.core import Backbone, Row
from recguide.kv.cache import KVCache
from recguide.kv.pages import PagePool


class Runner:
    """A backbone with its KV cache.

    Args:
        backbone: the model.
        pages, page_size: size of the KV cache; one page holds `page_size` tokens.
    """

    def __init__(self, backbone: Backbone, *, pages: int, page_size: int) -> None:
        self.backbone = backbone
        self.pool = PagePool(pages, page_size)
        self._cache = KVCache(backbone.kv_shape, pages, page_size)
        self._attention = ReferenceAttention(self._cache)

    @torch.inference_mode()
    def forward(self, rows: Sequence[Row], tables: Sequence[Sequence[int]]) -> Tensor:
        """Logits of the rows' wanted slots, [W, vocab], in the order of the rows and their slots."""
        batch = pack(rows, tables, self.pool.page_size, self.backbone.kv_shape.device)
        return self.backbone.forward(batch, self._attention.plan(batch))
