"""Published checkpoints as shapes: what a decoder of that name is, without its weights.

Sizes, encodings and special ids of Nemotron-Labs-Diffusion (arXiv 2607.05722) 3B, 8B and 14B, instruct. With
random weights such a decoder costs what the real one costs, and says nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from recguide.core import ParameterError
from recguide.models.adapter import LoraRank
from recguide.models.config import ModelConfig, QueryScale, RopeConfig, YarnScaling

TRAINED_POSITIONS = 16_384
"""Of the pretraining before YaRN stretched them sixteenfold."""


def _nemotron(*, hidden_size: int, intermediate_size: int, layers: int, theta: float) -> ModelConfig:
    """The sizes share heads and vocabulary; head_dim is 128 whatever hidden_size is."""
    return ModelConfig(
        family="nemotron_labs_diffusion",
        vocab_size=131_072,
        hidden_size=hidden_size,
        intermediate_size=intermediate_size,
        layers=layers,
        heads=32,
        kv_heads=8,
        head_dim=128,
        norm_eps=1e-5,
        rope=RopeConfig(
            theta=theta,
            scaling=YarnScaling(
                factor=16.0, original_max_positions=TRAINED_POSITIONS, mscale=1.0, mscale_all_dim=1.0
            ),
        ),
        query_scale=QueryScale(beta=0.1, original_max_positions=TRAINED_POSITIONS),
        tie_embeddings=False,
        max_positions=262_144,
        bos_token_id=1,
        eos_token_ids=(11,),
        mask_token_id=100,
        block_size=32,
        native_drafts=True,
    )


SHAPES: Mapping[str, ModelConfig] = {
    "nld-3b": _nemotron(hidden_size=3072, intermediate_size=9216, layers=26, theta=1e6),
    "nld-8b": _nemotron(hidden_size=4096, intermediate_size=14_336, layers=34, theta=1e6),
    "nld-14b": _nemotron(hidden_size=5120, intermediate_size=16_384, layers=40, theta=1e9),
}

DRAFT_LORA = LoraRank(rank=128, scale=4.0)
"""Their draft adapter: this delta on every layer's output projection."""
ADAPTED = "self_attn.o_proj"


def shape_of(name: str) -> ModelConfig:
    """Raises ParameterError for a name that is none of SHAPES."""
    if name not in SHAPES:
        raise ParameterError(
            "model", f"{name!r} is no published shape; with load_format dummy {', '.join(SHAPES)} are"
        )
    return SHAPES[name]


def encode(text: str) -> list[int]:
    """Something to prompt a model without a tokenizer with: its bytes as token ids."""
    return list(text.encode())


def decode(ids: Sequence[int]) -> str:
    """Token ids as text for a model without a tokenizer: their numbers."""
    return "".join(f"{token} " for token in ids)
