"""A tiny random model and texts that it wrote, for the training tests."""

from __future__ import annotations

import json

import torch

from recguide.core import Turn
from recguide.models.config import ModelConfig, QueryScale, RopeConfig
from recguide.models.decoder import Decoder
from recguide.training.corpus import Corpus
from recguide.training.lanes import Lanes
from recguide.training.network import Backbone

MASK = 3
END = 2


def config(**changes: object) -> ModelConfig:
    fields: dict[str, object] = {
        "family": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 8,
        "norm_eps": 1e-5,
        "rope": RopeConfig(theta=10_000.0),
        "query_scale": None,
        "tie_embeddings": True,
        "max_positions": 512,
        "bos_token_id": 1,
        "eos_token_ids": (END,),
        "mask_token_id": None,
        "block_size": None,
        "native_drafts": False,
    }
    return ModelConfig(**{**fields, **changes})  # type: ignore[arg-type]


def backbone(dtype: torch.dtype = torch.float32, *, query_scale: bool = False, seed: int = 0) -> Backbone:
    scale = QueryScale(beta=0.1, original_max_positions=16) if query_scale else None
    decoder = Decoder(config(query_scale=scale), dtype, torch.device("cpu"))
    decoder.randomise(seed)
    return Backbone.of(decoder)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 12, (count,), generator=generator).tolist()
    return [torch.randint(4, 64, (n,), generator=generator).tolist() for n in lengths]


def lanes(backbone: Backbone, count: int = 8, new: int = 40) -> Lanes:
    return Lanes(
        backbone, lanes=count, positions=16 + new, max_new_tokens=new, end_tokens=(END,), mask_token=MASK
    )


def corpus(backbone: Backbone, count: int = 24, new: int = 40, seed: int = 0) -> Corpus:
    """Greedy texts."""
    asked = prompts(count, seed)
    texts = {w.index: w for w in lanes(backbone, 8, new).write(asked, 0.0, 0)}
    return Corpus.of(
        [[*asked[i], *texts[i].tokens] for i in range(count)],
        [len(p) for p in asked],
        chances=[texts[i].chances for i in range(count)],
    )


def causal(mask: torch.Tensor):
    """An `Attend` for the decoder under one dense mask."""

    def attend(layer: int, qkv: torch.Tensor, rotation: Turn) -> torch.Tensor:
        del layer
        kv_heads = config().kv_heads
        split = rotation.split(qkv, qkv.shape[1] - 2 * kv_heads, kv_heads)
        heads = (t.transpose(0, 1)[None] for t in split)
        out = torch.nn.functional.scaled_dot_product_attention(*heads, attn_mask=mask, enable_gqa=True)
        return out[0].transpose(0, 1).flatten(1)

    return attend


def decoder_logits(backbone: Backbone, tokens: list[int]) -> torch.Tensor:
    """Plain causal logits of one text by the decoder itself."""
    n = len(tokens)
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    hidden = backbone.decoder.hidden(torch.tensor(tokens), torch.arange(n), causal(mask))
    return backbone.decoder.logits(hidden)


def write_config(folder):
    """config.json of a checkpoint whose decoder has `config()`."""
    fields = {
        "model_type": "llama",
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10_000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
        "eos_token_id": END,
        "bos_token_id": 1,
    }
    (folder / "config.json").write_text(json.dumps(fields))
