"""Llama-like checkpoints: `llama` (Llama 2 and 3.x, SmolLM2, …) and `mistral` without sliding window."""

from __future__ import annotations

from recguide.models.config import Fields, ModelConfig
from recguide.models.family import Family, read_decoder, read_rope
from recguide.models.layout import TensorNames


def _read_llama(fields: Fields) -> ModelConfig:
    if fields.text("model_type") == "mistral":
        _refuse_sliding_window(fields)
    fields.refuse("sliding_window")
    rope = read_rope(fields, default_theta=10_000.0)
    # Set by a joint AR + diffusion training, which leaves a checkpoint that drafts without an adapter.
    drafts = fields.flag("native_drafts", False)
    return read_decoder(fields, rope=rope, query_scale=None, native_drafts=drafts)


def _refuse_sliding_window(fields: Fields) -> None:
    """An absent field is not "none": the family's own default is a window of 4096."""
    if "sliding_window" not in fields.names or fields.get("sliding_window") is not None:
        raise fields.fail(
            "sliding_window",
            f"sliding-window attention is not supported (got {fields.get('sliding_window')!r}; absent means "
            "4096): every row sees its whole prefix. Use a checkpoint with sliding_window null",
        )


FAMILY = Family(
    model_types=("llama", "mistral"),
    read=_read_llama,
    names=TensorNames(body="model", head="lm_head.weight"),
)
