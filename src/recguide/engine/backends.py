"""Which attention runs a model, and whether the device can be left to itself for whole forwards."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Protocol

import torch

from recguide.attention.reference import ReferenceAttention
from recguide.attention.work import Tiling
from recguide.core import Attend, KVShape, PackedBatch
from recguide.kv.cache import KVCache


class Attention(Protocol):
    """Attention over a KV cache."""

    def tiling(self, tokens: int) -> Tiling | None:
        """How the work of a forward of so many tokens is cut; None if it needs no work list."""
        ...

    def plan(self, batch: PackedBatch) -> Attend:
        """The attention of one forward."""
        ...


def has_kernels(shape: KVShape) -> bool:
    """Whether there are kernels for this model's cache, which read nothing but device memory."""
    return (
        shape.device.type == "cuda"
        and shape.dtype in (torch.float32, torch.float16, torch.bfloat16)
        and shape.head_dim >= 16
        and shape.head_dim & (shape.head_dim - 1) == 0
        and find_spec("triton") is not None
    )


def attention_for(cache: KVCache, heads: int, *, exact: bool) -> Attention:
    """The kernels where there are some, PyTorch elsewhere; `heads` are the query heads."""
    if not has_kernels(cache.shape):
        return ReferenceAttention(cache)
    from recguide.attention.triton_backend import TritonAttention

    return TritonAttention(cache, heads, exact=exact)
