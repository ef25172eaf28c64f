"""Draft adapters on disk: a PEFT folder of adapter_config.json and adapter_model.safetensors.

Beside PEFT's own keys the config may hold `mask_token_id`, and the tensors one `mask_embedding` [hidden].
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from safetensors.torch import save_file
from torch import Tensor

from recguide.core import CheckpointError
from recguide.models.adapter import Adapter, LoraRank
from recguide.models.config import Fields, ModelConfig
from recguide.models.families import family_of
from recguide.models.layout import parts
from recguide.models.tensors import OpenTensors, open_tensors

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MASK_EMBEDDING = "mask_embedding"
PREFIX = "base_model.model."

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
class _Spec:
    """adapter_config.json: which module gets which rank."""

    fields: Fields
    ranks: Mapping[str, object]
    alphas: Mapping[str, object]

    def lora(self, module: str) -> LoraRank:
        """Rank and scale of a module by its full name, patterns first, as PEFT resolves them."""
        rank = _pattern(self.ranks, module, self.fields.positive("r"))
        alpha = _pattern(self.alphas, module, self.fields.number("lora_alpha"))
        for name, value in (("rank_pattern", rank), ("alpha_pattern", alpha)):
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise self.fields.fail(name, f"{value!r} for {module} is no positive number")
        root = math.sqrt(cast("int", rank)) if self.fields.flag("use_rslora", False) else cast("int", rank)
        return LoraRank(int(cast("int", rank)), float(cast("float", alpha)) / root)

    def targets(self, layer: int, name: str) -> bool:
        """Whether the module `name` of a layer is adapted."""
        only = self.fields.get("layers_to_transform")
        if only is not None and layer not in (only if isinstance(only, list) else [only]):
            return False
        if _matches(self.fields.get("exclude_modules"), name):
            return False
        wanted = self.fields.get("target_modules")
        return wanted == "all-linear" or _matches(wanted, name)


def _pattern(patterns: Mapping[str, object], module: str, default: object) -> object:
    for pattern, value in patterns.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            return value
    return default


def _matches(wanted: object, name: str) -> bool:
    """A list matches whole trailing components, a string is a regular expression for the whole name."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, name) is not None
    if isinstance(wanted, list):
        return any(name == suffix or name.endswith(f".{suffix}") for suffix in cast("list[str]", wanted))
    return False


def load_adapter(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device | str
) -> Adapter:
    """Reads an adapter for a model.

    Raises CheckpointError naming file and tensor (or field) for what is missing, unexpected, misshapen or not
    supported, and for an adapter of another model.
    """
    spec = _read_spec(folder / CONFIG)
    names = family_of(config.family).names
    ranks = {
        (layer, part.module): spec.lora(names.module(layer, part.module))
        for layer in range(config.layers)
        for part in parts(config)
        if spec.targets(layer, names.module(layer, part.module))
    }
    if not ranks:
        raise spec.fields.fail(
            "target_modules", f"{spec.fields.get('target_modules')!r} names no linear module"
        )
    with open_tensors(folder / WEIGHTS) as tensors:
        adapter = Adapter(
            config,
            ranks,
            mask_embedding=MASK_EMBEDDING in tensors.names,
            mask_token_id=_mask_token(spec.fields, config),
            dtype=dtype,
            device=torch.device(device),
        )
        _fill(adapter, tensors)
    return adapter


def _read_spec(file: Path) -> _Spec:
    fields = Fields.read(file)
    if fields.text("peft_type") != "LORA":
        raise fields.fail("peft_type", f"{fields.text('peft_type')!r} is not supported; LORA is")
    fields.refuse("bias", "none")
    for name in fields.names:
        # PEFT writes all of its options; those at rest change nothing.
        if name not in _UNDERSTOOD | _HARMLESS and fields.get(name):
            raise fields.fail(name, f"{fields.get(name)!r} is not supported by RecGuide's adapters")
    patterns = [fields.object(name) for name in ("rank_pattern", "alpha_pattern")]
    ranks, alphas = ({} if p is None else {name: p.get(name) for name in p.names} for p in patterns)
    return _Spec(fields, ranks, alphas)


def _mask_token(fields: Fields, config: ModelConfig) -> int | None:
    token = fields.token("mask_token_id")
    if token is None:
        return None
    if not 0 <= token < config.vocab_size:
        raise fields.fail(
            "mask_token_id", f"{token} lies outside the vocabulary of {config.vocab_size} tokens"
        )
    if config.mask_token_id not in (None, token):
        raise fields.fail(
            "mask_token_id",
            f"{token} is not the model's ({config.mask_token_id}); the adapter is another model's",
        )
    return token


def _fill(adapter: Adapter, tensors: OpenTensors) -> None:
    targets = named_tensors(adapter)
    for name in sorted(tensors.names):
        target = targets.pop(name, None)
        if target is None:
            raise CheckpointError(
                f"{tensors.file}: tensor {name} is unexpected: {CONFIG} does not target it, or it is another "
                "model's"
            )
        target.copy_(tensors.read(name, tuple(target.shape), asked_by=CONFIG))
    if targets:
        raise CheckpointError(
            f"{tensors.file}: tensor {next(iter(targets))} is missing ({len(targets)} are); {CONFIG} "
            "targets it"
        )


def named_tensors(adapter: Adapter) -> dict[str, Tensor]:
    """The adapter's parameters under their names in a PEFT file; views, not copies."""
    names = family_of(adapter.config.family).names
    found: dict[str, Tensor] = {}
    for (layer, module), (inner, outer) in adapter.factors().items():
        stem = f"{PREFIX}{names.module(layer, module)}"
        found[f"{stem}.lora_A.weight"] = inner
        found[f"{stem}.lora_B.weight"] = outer
    if adapter.mask_embedding is not None:
        found[MASK_EMBEDDING] = adapter.mask_embedding.data
    return found


def save_adapter(
    adapter: Adapter,
    folder: Path,
    *,
    base: str,
    dtype: torch.dtype | None = None,
    notes: Mapping[str, object] = {},
) -> None:
    """Writes a PEFT folder.

    Args:
        base: name of the base model, for readers.
        dtype: precision of the file; None keeps the adapter's.
        notes: further keys of adapter_config.json that only readers care about (block_sizes).
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: tensor.to("cpu", dtype or tensor.dtype).contiguous()
        for name, tensor in named_tensors(adapter).items()
    }
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    text = json.dumps({**_config_of(adapter, base), **notes}, indent=1) + "\n"
    (folder / CONFIG).write_text(text, encoding="utf-8")


def _config_of(adapter: Adapter, base: str) -> dict[str, object]:
    names = family_of(adapter.config.family).names
    counts = Counter((lora.rank, lora.rank * lora.scale) for lora in adapter.ranks.values())
    rank, alpha = counts.most_common(1)[0][0]
    odd = {
        names.module(layer, module): lora
        for (layer, module), lora in adapter.ranks.items()
        if (lora.rank, lora.rank * lora.scale) != (rank, alpha)
    }
    config: dict[str, object] = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
        "target_modules": _target_modules(adapter),
        "rank_pattern": {name: lora.rank for name, lora in odd.items()},
        "alpha_pattern": {name: lora.rank * lora.scale for name, lora in odd.items()},
    }
    if adapter.mask_token_id is not None:
        config["mask_token_id"] = adapter.mask_token_id
    return config


def _target_modules(adapter: Adapter) -> list[str]:
    """Short names where every layer has the module, else full names."""
    names = family_of(adapter.config.family).names
    layers = range(adapter.config.layers)
    found: list[str] = []
    for part in parts(adapter.config):
        adapted = [layer for layer in layers if (layer, part.module) in adapter.ranks]
        whole = len(adapted) == len(layers)
        found += [part.short] if whole else [names.module(layer, part.module) for layer in adapted]
    return found
