"""One forward's rotary encoding, applied to fused projections.

The rotation is the half-split form: dimension j is paired with j + head_dim / 2.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin of one forward's positions, in the activations' dtype, made once for all layers.

    Attributes:
        cos: [N, 1, head_dim].
        sin: [N, 1, head_dim], negative in the first half, so that a swap of halves needs no sign.
        query_scale: [N, 1, 1] or None.
        half: head_dim / 2.
    """

    cos: Tensor
    sin: Tensor
    query_scale: Tensor | None
    half: int

    def turn(self, heads: Tensor) -> Tensor:
        """[N, any heads, head_dim] rotated to its positions."""
        return torch.addcmul(heads * self.cos, heads.roll(self.half, -1), self.sin)

    def split(self, qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [N, heads + 2·kv_heads, head_dim] → queries, keys and values [N, (kv_)heads, head_dim].

        Queries and keys are rotated, queries also scaled; values are a view.
        """
        turned = self.turn(qkv[:, : heads + kv_heads])
        q, k = turned[:, :heads], turned[:, heads:]
        if self.query_scale is not None:
            q = q * self.query_scale
        return q, k, qkv[:, heads + kv_heads :]
