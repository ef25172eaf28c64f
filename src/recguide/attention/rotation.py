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
        cos: [N, 1, head_dim]; [N, all heads, head_dim] after `over`.
        sin: as cos, negative in the first half, so that a swap of halves needs no sign.
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

    def over(self, heads: int, kv_heads: int, scale: float = 1.0) -> Rotation:
        """The rotation of whole projections [N, heads + 2·kv_heads, head_dim].

        Queries are also multiplied by `scale` and the query scale, and values stay as they are: slices of
        the projections would cost a CPU more than turning the values by nothing.
        """
        queries = scale if self.query_scale is None else scale * self.query_scale
        counts = (heads, kv_heads, kv_heads)

        def side_by_side(*parts: Tensor) -> Tensor:
            return torch.cat([x.expand(-1, count, -1) for x, count in zip(parts, counts, strict=True)], 1)

        cos = side_by_side(self.cos * queries, self.cos, torch.ones_like(self.cos))
        sin = side_by_side(self.sin * queries, self.sin, torch.zeros_like(self.sin))
        return Rotation(cos, sin, None, self.half)

    def split(self, qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [N, heads + 2·kv_heads, head_dim] → queries, keys and values [N, (kv_)heads, head_dim].

        Queries and keys are rotated, queries also scaled.
        """
        q, k, v = self.over(heads, kv_heads).turn(qkv).split((heads, kv_heads, kv_heads), 1)
        return q, k, v
