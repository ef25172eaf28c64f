"""What a model family has to say: how its config.json maps to a `ModelConfig`, and how it names tensors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from recguide.models.config import (
    Fields,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    QueryScale,
    RopeConfig,
    YarnScaling,
)
from recguide.models.layout import TensorNames

MOST_LAYERS = 2**14
MOST_WIDE = 2**24
"""Far above any model: a wider one is a damaged file, and sums of widths stay within 64 bits."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row of the registry.

    Attributes:
        model_types: values of `model_type` that belong to the family.
        read: config.json → what the decoder must be; raises CheckpointError by field for what it cannot be.
        names: tensor names.
    """

    model_types: tuple[str, ...]
    read: Callable[[Fields], ModelConfig]
    names: TensorNames


_SCALING_FIELDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": (
        "factor",
        "original_max_position_embeddings",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "attention_factor",
        "truncate",
    ),
}
_COMMON_FIELDS = ("rope_type", "type", "rope_theta", "partial_rotary_factor")


def read_rope(
    fields: Fields, default_theta: float | None = None, family_fields: tuple[str, ...] = ()
) -> RopeConfig:
    """Rotary encoding from `rope_parameters` (or the older `rope_scaling`), theta there or at top level.

    `family_fields` are entries that the family reads itself; any other that is not understood is refused.
    """
    nested = fields.object("rope_parameters") or fields.object("rope_scaling")
    if nested is None:
        return RopeConfig(theta=fields.number("rope_theta", default_theta))
    source = nested if nested.get("rope_theta") is not None else fields
    theta = source.number("rope_theta", default_theta)
    return RopeConfig(theta=theta, scaling=_read_scaling(nested, family_fields))


def _read_scaling(
    rope: Fields, family_fields: tuple[str, ...]
) -> LinearScaling | Llama3Scaling | YarnScaling | None:
    rope.refuse("partial_rotary_factor", 1, 1.0)
    kind = rope.text("rope_type", rope.text("type", "default"))
    understood = (*_COMMON_FIELDS, *_SCALING_FIELDS.get(kind, rope.names), *family_fields)
    for name in rope.names:
        if name not in understood:
            rope.refuse(name)
    match kind:
        case "default":
            return None
        case "linear":
            return LinearScaling(factor=rope.number("factor"))
        case "llama3":
            return _read_llama3(rope)
        case "yarn":
            return _read_yarn(rope)
        case _:
            raise rope.fail("rope_type", f"{kind!r} is not supported; default, linear, llama3 and yarn are")


def _read_llama3(rope: Fields) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.fail("high_freq_factor", f"must exceed low_freq_factor ({high} ≤ {low})")
    return Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_positions=rope.positive("original_max_position_embeddings"),
    )


def _read_yarn(rope: Fields) -> YarnScaling:
    return YarnScaling(
        factor=rope.number("factor"),
        original_max_positions=rope.positive("original_max_position_embeddings"),
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        mscale=rope.optional_number("mscale"),
        mscale_all_dim=rope.optional_number("mscale_all_dim"),
        attention_factor=rope.optional_number("attention_factor"),
        truncate=rope.flag("truncate", True),
    )


def read_decoder(
    fields: Fields, *, rope: RopeConfig, query_scale: QueryScale | None, native_drafts: bool
) -> ModelConfig:
    """The fields that all families spell alike; refuses by name what the decoder does not compute."""
    fields.refuse("hidden_act", "silu")
    for name in ("attention_bias", "mlp_bias"):
        fields.refuse(name, False)
    for name in ("quantization_config", "num_local_experts", "num_experts"):
        fields.refuse(name)
    hidden = fields.positive("hidden_size", most=MOST_WIDE)
    heads = fields.positive("num_attention_heads", most=MOST_WIDE)
    kv_heads = fields.positive("num_key_value_heads", heads)
    if heads % kv_heads:
        raise fields.fail("num_key_value_heads", f"{kv_heads} does not divide {heads} query heads")
    return ModelConfig(
        family=fields.text("model_type"),
        vocab_size=fields.positive("vocab_size", most=MOST_WIDE),
        hidden_size=hidden,
        intermediate_size=fields.positive("intermediate_size", most=MOST_WIDE),
        layers=fields.positive("num_hidden_layers", most=MOST_LAYERS),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=_head_dim(fields, hidden, heads),
        norm_eps=fields.number("rms_norm_eps", 1e-6),
        rope=rope,
        query_scale=query_scale,
        tie_embeddings=fields.flag("tie_word_embeddings", False),
        max_positions=fields.positive("max_position_embeddings"),
        bos_token_id=_special(fields, "bos_token_id", fields.token("bos_token_id")),
        eos_token_ids=tuple(_special(fields, "eos_token_id", t) or 0 for t in fields.tokens("eos_token_id")),
        mask_token_id=_special(fields, "mask_token_id", fields.token("mask_token_id")),
        block_size=None if fields.get("block_size") is None else fields.positive("block_size"),
        native_drafts=native_drafts,
    )


def _head_dim(fields: Fields, hidden: int, heads: int) -> int:
    if fields.get("head_dim") is None and hidden % heads:
        raise fields.fail("head_dim", f"is missing, and {heads} heads do not divide hidden_size {hidden}")
    head_dim = fields.positive("head_dim", hidden // heads, most=MOST_WIDE)
    if head_dim % 2:
        raise fields.fail("head_dim", f"must be even for rotary encoding (got {head_dim})")
    return head_dim


def _special(fields: Fields, name: str, token: int | None) -> int | None:
    size = fields.positive("vocab_size")
    if token is not None and not 0 <= token < size:
        raise fields.fail(name, f"{token} lies outside the vocabulary of {size} tokens")
    return token
