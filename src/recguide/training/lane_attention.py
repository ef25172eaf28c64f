"""Attention of one new token per lane over the lane's own cached tokens, as many as it has."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from torch import Tensor

LaneAttention = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(q [S, heads, dim], k and v [S, positions, kv_heads, dim], lengths [S]) → [S, heads, dim]."""


def reference(q: Tensor, k: Tensor, v: Tensor, lengths: Tensor) -> Tensor:
    """The definition, in torch: every lane reads all positions and masks those at or behind its length."""
    lanes, heads, dim = q.shape
    kv_heads = k.shape[2]
    grouped = q.reshape(lanes, kv_heads, heads // kv_heads, dim)
    scores = torch.einsum("skgd,snkd->skgn", grouped, k).float() * dim**-0.5
    behind = torch.arange(k.shape[1], device=q.device)[None] >= lengths[:, None]
    shares = scores.masked_fill(behind[:, None, None], float("-inf")).softmax(-1).to(v.dtype)
    return torch.einsum("skgn,snkd->skgd", shares, v).reshape(lanes, heads, dim)


def best(head_dim: int, device: torch.device) -> LaneAttention:
    """The Triton kernel where it runs (on a GPU, at a head dimension of 2^n), else `reference`."""
    power = head_dim >= 16 and head_dim & (head_dim - 1) == 0
    if not power or device.type != "cuda" or importlib.util.find_spec("triton") is None:
        return reference
    from recguide.training.lane_kernel import lane_attention  # Triton is there on GPU machines alone

    return lane_attention
