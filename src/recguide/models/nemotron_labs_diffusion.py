"""Nemotron-Labs-Diffusion (arXiv 2607.05722): a Ministral-3 backbone trained to draft by diffusion too.

Its parameters differ between sizes and revisions (a YaRN factor below 1 included), so all are read from the
file and none has a default.
"""

from __future__ import annotations

from recguide.models.config import Fields, ModelConfig, QueryScale
from recguide.models.family import Family, read_decoder, read_rope
from recguide.models.layout import TensorNames


def _read_nemotron_labs_diffusion(fields: Fields) -> ModelConfig:
    fields.refuse("sliding_window")
    fields.refuse("dlm_paradigm", "bidirectional", "autoregressive", "block_diff")
    fields.positive("head_dim")  # never hidden_size / num_attention_heads: it must be there
    if fields.integer("mask_token_id") < 0:
        raise fields.fail(
            "mask_token_id", f"{fields.get('mask_token_id')} is no token; this family cannot draft"
        )
    # The file may repeat max_position_embeddings beside the scaling; it changes nothing.
    rope = read_rope(fields, family_fields=("llama_4_scaling_beta", "max_position_embeddings"))
    return read_decoder(fields, rope=rope, query_scale=_read_query_scale(fields), native_drafts=True)


def _read_query_scale(fields: Fields) -> QueryScale | None:
    rope = fields.object("rope_parameters") or fields.object("rope_scaling")
    if rope is None or rope.get("llama_4_scaling_beta") is None:
        return None
    return QueryScale(
        beta=rope.number("llama_4_scaling_beta"),
        original_max_positions=rope.positive("original_max_position_embeddings"),
    )


FAMILY = Family(
    model_types=("nemotron_labs_diffusion",),
    read=_read_nemotron_labs_diffusion,
    names=TensorNames(body="encoder", head="diffusion_head.weight"),
)
