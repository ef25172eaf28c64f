"""The adapter that a run continues: read from its folder, and held to the shape that the run asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from recguide.core import ParameterError
from recguide.models import demo
from recguide.models.adapter import Adapter, LoraRank
from recguide.models.adapter_files import CONFIG, WEIGHTS, load_adapter
from recguide.models.config import ModelConfig
from recguide.models.fingerprint import file_fingerprint
from recguide.models.loading import SHIPPED_ADAPTERS

SHIPPED = "shipped"


@dataclass(frozen=True, slots=True)
class Start:
    """An adapter in float32, what its folder is called, and the fingerprint of its files."""

    adapter: Adapter
    name: str
    fingerprint: str

    @classmethod
    def read(cls, folder: Path, config: ModelConfig) -> Start:
        """Raises ParameterError for what is no folder, CheckpointError for a damaged or foreign adapter."""
        if not folder.is_dir():
            raise ParameterError("start", f"{folder} is no folder; a PEFT folder is")
        adapter = load_adapter(folder, config, torch.float32, "cpu")
        return cls(adapter, folder.resolve().name, file_fingerprint([folder / CONFIG, folder / WEIGHTS]))


def start_folder(text: str) -> Path:
    """A folder as the user names it; "shipped" is the demo model's own adapter."""
    return SHIPPED_ADAPTERS / demo.NAME if text == SHIPPED else Path(text).expanduser()


def require_same_shape(
    found: Mapping[tuple[int, str], LoraRank], asked: Mapping[tuple[int, str], LoraRank]
) -> None:
    """Raises ParameterError naming the setting in which an adapter to continue differs from the run's."""
    if set(found) != set(asked):
        raise ParameterError(
            "targets",
            f"the adapter to start from touches {_names(found)}, the run asks for {_names(asked)}",
        )
    for (layer, module), lora in found.items():
        other = asked[layer, module]
        where = f"at layers.{layer}.{module}"
        if lora.rank != other.rank:
            raise ParameterError(
                "rank", f"the adapter to start from has {lora.rank} {where}, the run asks for {other.rank}"
            )
        if abs(lora.scale - other.scale) > 1e-9 * other.scale:
            raise ParameterError(
                "alpha",
                f"the adapter to start from has {lora.rank * lora.scale:g} {where}, the run asks for "
                f"{other.rank * other.scale:g}",
            )


def require_same_mask(start: Start, mask_token: int) -> None:
    """Raises ParameterError if the adapter was trained with another mask token."""
    own = start.adapter.mask_token_id
    if own not in (None, mask_token):
        raise ParameterError(
            "mask_token_id", f"the adapter to start from has {own}, the run has {mask_token}; ask for {own}"
        )


def _names(modules: Mapping[tuple[int, str], LoraRank]) -> str:
    """Modules and the number of layers that have them: q_proj in 30 layers, ..."""
    counts = Counter(module.rpartition(".")[2] for _, module in modules)
    return ", ".join(f"{name} in {count} layers" for name, count in sorted(counts.items()))
