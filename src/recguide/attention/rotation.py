"""One forward's rotary encoding, applied to fused projections.

Dimension j of a head and dimension j + head_dim / 2 are a pair that a position turns by an angle.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.core import Turn


class _Splits:
    """What rotations of either kind do with whole projections."""

    __slots__ = ()

    def split(self: Turn, qkv: Tensor, heads: int, kv_heads: int) -> tuple[Tensor, Tensor, Tensor]:
        """qkv [N, heads + 2·kv_heads, head_dim] → queries, keys and values [N, (kv_)heads, head_dim].

        Queries and keys are rotated, queries also scaled.
        """
        q, k, v = self.over(heads, kv_heads).turn(qkv).split((heads, kv_heads, kv_heads), 1)
        return q, k, v


@dataclass(frozen=True, slots=True)
class Rotation(_Splits):
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
        cos = _side_by_side(counts, self.cos * queries, self.cos, torch.ones_like(self.cos))
        sin = _side_by_side(counts, self.sin * queries, self.sin, torch.zeros_like(self.sin))
        return Rotation(cos, sin, None, self.half)


@dataclass(frozen=True, slots=True)
class PairRotation(_Splits):
    """The same for projections in which the two dimensions of a pair lie side by side.

    A pair is then a complex number, and one product turns it.

    Attributes:
        turns: [N, 1, head_dim / 2] complex; [N, all heads, head_dim / 2] after `over`.
        query_scale: [N, 1, 1] or None.
    """

    turns: Tensor
    query_scale: Tensor | None

    @property
    def cos(self) -> Tensor:
        """Of each pair."""
        return self.turns.real

    @property
    def sin(self) -> Tensor:
        """Of each pair."""
        return self.turns.imag

    def turn(self, heads: Tensor) -> Tensor:
        """[N, any heads, head_dim] rotated to its positions."""
        pairs = torch.view_as_complex(heads.unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns).flatten(-2)

    def over(self, heads: int, kv_heads: int, scale: float = 1.0) -> PairRotation:
        """As `Rotation.over`."""
        queries = scale if self.query_scale is None else scale * self.query_scale
        turns = self.turns
        counts = (heads, kv_heads, kv_heads)
        return PairRotation(_side_by_side(counts, turns * queries, turns, torch.ones_like(turns)), None)


def _side_by_side(counts: tuple[int, ...], *parts: Tensor) -> Tensor:
    """Each part [N, 1, width], repeated for so many heads."""
    return torch.cat([x.expand(-1, count, -1) for x, count in zip(parts, counts, strict=True)], 1)
