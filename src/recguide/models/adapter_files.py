"""Draft adapters on disk: a PEFT folder of adapter_config.json and adapter_model.safetensors.

Beside PEFT's own keys the config may hold `mask_token_id`, and the tensors one `mask_embedding` [hidden].
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from recguide.core import CheckpointError
from recguide.models.adapter import Adapter
from recguide.models.adapter_spec import AdapterSpec
from recguide.models.config import ModelConfig
from recguide.models.families import family_of
from recguide.models.layout import parts
from recguide.models.tensors import OpenTensors, open_tensors
from recguide.models.weights import allocating

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
MASK_EMBEDDING = "mask_embedding"
PREFIX = "base_model.model."


def load_adapter(
    folder: Path, config: ModelConfig, dtype: torch.dtype, device: torch.device | str
) -> Adapter:
    """Reads an adapter for a model.

    Raises CheckpointError naming file and tensor (or field) for what is missing, unexpected, misshapen or not
    supported, and for an adapter of another model.
    """
    spec = AdapterSpec.read(folder / CONFIG)
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
        mask_token = spec.mask_token(config)
        with allocating(folder / CONFIG, torch.device(device)):
            adapter = Adapter(
                config,
                ranks,
                mask_embedding=MASK_EMBEDDING in tensors.names,
                mask_token_id=mask_token,
                dtype=dtype,
                device=torch.device(device),
            )
        _fill(adapter, tensors)
    return adapter


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
