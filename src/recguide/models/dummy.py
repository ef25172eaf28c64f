"""Random weights of unit gain, made where they stay: a model of any size in a second, activations finite."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recguide.models.adapter import Adapter
from recguide.models.config import ModelConfig
from recguide.models.decoder import Decoder
from recguide.models.published import ADAPTED, DRAFT_LORA


def fill_decoder(decoder: Decoder, seed: int = 0) -> None:
    """Matrices keep the size of what they multiply, and all layers together add as much as the embedding.

    So the residual stream stays of order 1 at any depth, and logits have deviation 1.
    """
    config = decoder.config
    generator = torch.Generator(device=decoder.device).manual_seed(seed)
    damped = 1 / math.sqrt(2 * config.layers)
    _fill(decoder.embedding, 1.0, generator)
    for layer in decoder.blocks:
        layer.attention_norm.data.fill_(1)
        layer.mlp_norm.data.fill_(1)
        _fill(layer.qkv, 1 / math.sqrt(config.hidden_size), generator)
        _fill(layer.output, damped / math.sqrt(config.query_size), generator)
        _fill(layer.gate_up, 1 / math.sqrt(config.hidden_size), generator)
        _fill(layer.down, damped / math.sqrt(config.intermediate_size), generator)
    decoder.norm.data.fill_(1)
    if not config.tie_embeddings:
        _fill(decoder.head, 1 / math.sqrt(config.hidden_size), generator)


def draft_adapter(config: ModelConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> Adapter:
    """A draft adapter of the published shape whose deltas are about as large as what they are added to."""
    adapter = Adapter(
        config,
        {(layer, ADAPTED): DRAFT_LORA for layer in range(config.layers)},
        mask_embedding=False,
        mask_token_id=None,
        dtype=dtype,
        device=device,
    )
    generator = torch.Generator(device=device).manual_seed(seed)
    damped = 1 / math.sqrt(2 * config.layers)
    for inner, outer in adapter.factors().values():
        _fill(inner, 1 / math.sqrt(inner.shape[1]), generator)
        _fill(outer, damped / (DRAFT_LORA.scale * math.sqrt(outer.shape[1])), generator)
    return adapter


def _fill(weight: Tensor, deviation: float, generator: torch.Generator) -> None:
    weight.data.normal_(0.0, deviation, generator=generator)
