"""A decoder layer as a pure function of its weights: training merges deltas into them and compiles it.

`recguide.models.decoder` is the definition; this is the same arithmetic on weights that are arguments. Both
halves of a training step and the continuation writer run through it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor

from recguide.attention.rotation import Rotation
from recguide.core import RecGuideError
from recguide.models.decoder import Decoder

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [N, heads, dim], k [N, kv_heads, dim], v [N, kv_heads, dim]) → [N, heads, dim]."""


class LayerWeights(NamedTuple):
    """One layer: norms [hidden], matrices [out, in] (views of the decoder's, which are [in, out])."""

    attention_norm: Tensor
    qkv: Tensor
    output: Tensor
    mlp_norm: Tensor
    gate_up: Tensor
    down: Tensor


class Shape(NamedTuple):
    """What a layer must know beside its weights."""

    heads: int
    kv_heads: int
    head_dim: int
    eps: float


@dataclass(frozen=True, slots=True)
class Backbone:
    """The frozen weights of a decoder: layers, embedding and head [vocab, hidden], final norm [hidden]."""

    decoder: Decoder
    layers: tuple[LayerWeights, ...]
    embedding: Tensor
    head: Tensor
    norm: Tensor
    shape: Shape

    @classmethod
    def of(cls, decoder: Decoder) -> Backbone:
        """Views of the decoder's parameters, nothing is copied.

        Raises RecGuideError if it is arranged for inference.
        """
        if decoder.arranged:
            raise RecGuideError("decoder: its weights are arranged for inference; load it anew to train")
        config = decoder.config
        layers = tuple(
            LayerWeights(*(_outputs_first(getattr(layer, name)) for name in LayerWeights._fields))
            for layer in decoder.layers
        )
        return cls(
            decoder=decoder,
            layers=layers,
            embedding=decoder.embedding.detach(),
            head=decoder.head.detach(),
            norm=decoder.norm.detach(),
            shape=Shape(config.heads, config.kv_heads, config.head_dim, config.norm_eps),
        )

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype

    def rotation(self, positions: Tensor) -> Rotation:
        rotation = self.decoder.rotary.at(positions)
        assert isinstance(rotation, Rotation), "the decoder is not arranged"
        return rotation

    def final(self, x: Tensor) -> Tensor:
        """The norm before the head, [N, hidden] → [N, hidden]."""
        return rms_norm(x, self.norm, self.shape.eps)


def _outputs_first(weight: Tensor) -> Tensor:
    return weight.detach().t() if weight.dim() == 2 else weight.detach()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def project(
    x: Tensor, weights: LayerWeights, cos: Tensor, sin: Tensor, query_scale: Tensor | None, shape: Shape
) -> tuple[Tensor, Tensor, Tensor]:
    """Rotated queries [N, heads, dim], rotated keys and values [N, kv_heads, dim] of x [N, hidden]."""
    heads, kv_heads, dim, eps = shape
    qkv = F.linear(rms_norm(x, weights.attention_norm, eps), weights.qkv)
    qkv = qkv.unflatten(-1, (heads + 2 * kv_heads, dim))
    qk = qkv[:, : heads + kv_heads]
    swapped = torch.cat((qk[..., dim // 2 :], qk[..., : dim // 2]), -1)
    turned = torch.addcmul(qk * cos, swapped, sin)
    q, k = turned[:, :heads], turned[:, heads:]
    if query_scale is not None:
        q = q * query_scale
    return q, k, qkv[:, heads + kv_heads :]


def finish(x: Tensor, attended: Tensor, weights: LayerWeights, shape: Shape) -> Tensor:
    """What follows attention in a layer: output projection, residual, MLP. [N, hidden] → [N, hidden]."""
    x = x + F.linear(attended.flatten(-2), weights.output)
    gate, up = F.linear(rms_norm(x, weights.mlp_norm, shape.eps), weights.gate_up).chunk(2, -1)
    return x + F.linear(F.silu(gate) * up, weights.down)
