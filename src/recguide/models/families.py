"""Registry of model families. A new family is one file with a `FAMILY`, and its name here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from recguide.core import CheckpointError
from recguide.models import llama, nemotron_labs_diffusion
from recguide.models.config import Fields, ModelConfig
from recguide.models.family import Family

FAMILIES: tuple[Family, ...] = (llama.FAMILY, nemotron_labs_diffusion.FAMILY)


def family_of(model_type: str) -> Family:
    """Raises CheckpointError for a family RecGuide does not know."""
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.model_types)
    raise CheckpointError(f"model_type {model_type!r} is not supported; supported families: {known}")


def read_config(folder: Path) -> ModelConfig:
    """config.json of a checkpoint; generation_config.json, where present, says what ends a text."""
    fields = Fields.read(folder / "config.json")
    try:
        family = family_of(fields.text("model_type"))
    except CheckpointError as error:
        raise CheckpointError(f"{fields.file}: {error}") from None
    config = family.read(fields)
    generation = folder / "generation_config.json"
    if generation.is_file():
        config = _with_generation(config, Fields.read(generation))
    if config.mask_token_id is not None and config.mask_token_id in config.reserved_token_ids:
        raise fields.fail(
            "mask_token_id", f"{config.mask_token_id} begins or ends texts; it cannot be the mask"
        )
    return config


def _with_generation(config: ModelConfig, generation: Fields) -> ModelConfig:
    eos = generation.tokens("eos_token_id")
    for token in eos:
        if not 0 <= token < config.vocab_size:
            raise generation.fail(
                "eos_token_id", f"{token} lies outside the vocabulary of {config.vocab_size} tokens"
            )
    return replace(config, eos_token_ids=eos) if eos else config
