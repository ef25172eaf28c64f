"""Engines and prompts for measurements where no text matters."""

from __future__ import annotations

import torch

from recguide.bench.acceptance.picker import ReplayPicker
from recguide.bench.acceptance.process import AcceptanceReplay
from recguide.core import Vocabulary
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.models import published
from recguide.models.loading import Model
from recguide.speculation.fused import FusedPicker
from recguide.speculation.slots import Picker, torch_picker


def random_prompts(count: int, length: int, vocabulary: int) -> list[list[int]]:
    """The same token ids for the same arguments, beyond those that may be special."""
    generator = torch.Generator().manual_seed(length)
    low = min(1000, vocabulary // 2)
    drawn: list[list[int]] = torch.randint(low, vocabulary, (count, length), generator=generator).tolist()
    return drawn


def replay_engine(model: Model, process: AcceptanceReplay, config: EngineConfig) -> Engine:
    """An engine that computes everything and says what the process says."""
    picker = ReplayPicker(_real_picker(model.vocabulary, model.kv_shape.device), process, model.vocabulary)
    return Engine(model, published.decode, config, picker=picker, joins=True)


def _real_picker(vocabulary: Vocabulary, device: torch.device) -> Picker:
    return FusedPicker(vocabulary, device) if device.type == "cuda" else torch_picker(vocabulary)
