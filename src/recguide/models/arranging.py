"""Weights as a CPU has the least to do beside its products.

At few tokens every small operation between two products costs a CPU as much as a hundredth of a layer, so
what weights can do beforehand they do:

- the weight of a norm, and √hidden, are in the matrices behind it: the norm only divides by a length;
- the two dimensions that the rotation turns as a pair stand side by side: one product of complex numbers
  turns all heads.

The last norm keeps its weight, since the head behind it may be the embedding. The decoder computes the same
but for last bits, and its weights are no longer those of a checkpoint.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recguide.models.adapter import Adapter, Delta
from recguide.models.decoder import Decoder
from recguide.models.norm import ELSEWHERE
from recguide.models.ops.torch_ops import TorchOps
from recguide.models.rotary import Rotary

ROTATED = ("q_proj", "k_proj")


@torch.no_grad()
def arrange(decoder: Decoder, adapter: Adapter | None) -> None:
    """Arranges weights in place, once, where a CPU computes in full precision; elsewhere they stay."""
    if not isinstance(decoder.ops, TorchOps) or not decoder.ops.norm.few_kernels:
        return
    if not decoder.arranged:
        _arrange_decoder(decoder)
    if adapter is not None and not adapter.arranged:
        _arrange_adapter(adapter, decoder)


def _arrange_decoder(decoder: Decoder) -> None:
    config = decoder.config
    rotated = config.query_size + config.kv_size
    for layer in decoder.blocks:
        layer.qkv.mul_(_in_front(layer.attention_norm))
        layer.gate_up.mul_(_in_front(layer.mlp_norm))
        _pair_up(layer.qkv[:, :rotated], config.head_dim)
    decoder.norms = (*(ELSEWHERE,) * (2 * config.layers), decoder.norm)
    decoder.rotary = Rotary(config, decoder.dtype, decoder.device, pairs=True)
    decoder.arranged = True


def _arrange_adapter(adapter: Adapter, decoder: Decoder) -> None:
    for layer, deltas in zip(decoder.blocks, adapter.deltas, strict=True):
        for group, norm in (("qkv", layer.attention_norm), ("gate_up", layer.mlp_norm)):
            if group in deltas:
                _arrange_delta(deltas[group], _in_front(norm), decoder.config.head_dim)
    adapter.arranged = True


def _arrange_delta(delta: Delta, in_front: Tensor, head_dim: int) -> None:
    delta.inner.mul_(in_front)
    for piece, outer in zip(delta.pieces, delta.outer, strict=True):
        if piece.part.short in ROTATED:
            _pair_up(outer, head_dim)


def _in_front(norm: Tensor) -> Tensor:
    """[hidden, 1], what the norm leaves to the matrix behind it."""
    return norm[:, None] * math.sqrt(len(norm))


def _pair_up(columns: Tensor, head_dim: int) -> None:
    """Moves columns [in, heads · head_dim]: those of dimensions j and j + head_dim / 2 side by side."""
    halves = columns.unflatten(1, (-1, 2, head_dim // 2))
    columns.copy_(halves.transpose(2, 3).flatten(1))
