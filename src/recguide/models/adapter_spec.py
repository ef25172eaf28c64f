"""adapter_config.json in PEFT's spelling: which modules an adapter touches, at which rank and scale.

PEFT's names may be regular expressions, its ranks and alphas may differ by module, and it writes all of its
options into the file: those at rest change nothing, any other that is not understood is refused.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from recguide.models.adapter import LoraRank
from recguide.models.config import Fields, ModelConfig

_UNDERSTOOD = frozenset(
    (
        "peft_type",
        "r",
        "lora_alpha",
        "bias",
        "target_modules",
        "exclude_modules",
        "rank_pattern",
        "alpha_pattern",
        "use_rslora",
        "layers_to_transform",
        "mask_token_id",
    )
)
_HARMLESS = frozenset(
    (
        "task_type",
        "base_model_name_or_path",
        "revision",
        "auto_mapping",
        "inference_mode",
        "lora_dropout",
        "init_lora_weights",
        "peft_version",
        "qalora_group_size",
        "megatron_core",
        "loftq_config",
        "eva_config",
        "corda_config",
        "runtime_config",
        "block_sizes",
    )
)
"""Keys that say where an adapter came from or how it was trained, not what it computes."""


@dataclass(frozen=True, slots=True)
class AdapterSpec:
    """What one adapter_config.json asks for. Modules are called by their full names in the checkpoint."""

    fields: Fields

    @classmethod
    def read(cls, file: Path) -> AdapterSpec:
        """Raises CheckpointError naming the field for another kind of adapter or an option not understood."""
        fields = Fields.read(file)
        if fields.text("peft_type") != "LORA":
            raise fields.fail("peft_type", f"{fields.text('peft_type')!r} is not supported; LORA is")
        fields.refuse("bias", "none")
        for name in fields.names:
            if name not in _UNDERSTOOD | _HARMLESS and fields.get(name):
                raise fields.fail(name, f"{fields.get(name)!r} is not supported by RecGuide's adapters")
        return cls(fields)

    def targets(self, layer: int, module: str) -> bool:
        """Whether the adapter touches a module of a layer."""
        only = self.fields.get("layers_to_transform")
        if only is not None and layer not in (only if isinstance(only, list) else [only]):
            return False
        if self._named_by("exclude_modules", module):
            return False
        return self.fields.get("target_modules") == "all-linear" or self._named_by("target_modules", module)

    def lora(self, module: str) -> LoraRank:
        """Rank and scale (alpha / rank, or alpha / √rank) of a module; patterns come before the defaults."""
        rank_at, rank_name = self._pattern("rank_pattern", module) or (self.fields, "r")
        alpha_at, alpha_name = self._pattern("alpha_pattern", module) or (self.fields, "lora_alpha")
        rank, alpha = rank_at.positive(rank_name), alpha_at.number(alpha_name)
        return LoraRank(rank, alpha / (math.sqrt(rank) if self.fields.flag("use_rslora", False) else rank))

    def mask_token(self, config: ModelConfig) -> int | None:
        """The id that fills MASK slots, if the file names one; it must not contradict the model's."""
        token = self.fields.token("mask_token_id")
        if token is None:
            return None
        if not 0 <= token < config.vocab_size:
            raise self.fields.fail(
                "mask_token_id", f"{token} lies outside the vocabulary of {config.vocab_size} tokens"
            )
        if token in config.reserved_token_ids:
            raise self.fields.fail("mask_token_id", f"{token} begins or ends texts; it cannot be the mask")
        if config.mask_token_id not in (None, token):
            raise self.fields.fail(
                "mask_token_id",
                f"{token} is not the model's ({config.mask_token_id}): another model's adapter",
            )
        return token

    def _named_by(self, field: str, module: str) -> bool:
        """A list names whole trailing components, a string is a regular expression for the whole name."""
        wanted = self.fields.get(field)
        if isinstance(wanted, str):
            return self._match(field, wanted, module)
        if isinstance(wanted, list):
            return any(module == end or module.endswith(f".{end}") for end in cast("list[object]", wanted))
        return False

    def _pattern(self, field: str, module: str) -> tuple[Fields, str] | None:
        """Where the first pattern that fits a module's name, or its end, stands."""
        patterns = self.fields.object(field)
        for pattern in () if patterns is None else patterns.names:
            if self._match(field, rf"(.*\.)?({pattern})", module):
                return cast("Fields", patterns), pattern
        return None

    def _match(self, field: str, pattern: str, module: str) -> bool:
        try:
            return re.fullmatch(pattern, module) is not None
        except re.error as error:
            raise self.fields.fail(field, f"{pattern!r} is no regular expression ({error})") from error
