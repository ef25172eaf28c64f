"""Engines whose picks and verdicts are made beside the logits, as on a GPU, with PyTorch as the device."""

from __future__ import annotations

from recguide.engine.engine import Engine, EngineConfig
from recguide.speculation.slots import torch_picker


def device_engine(backbone, decode, **config):
    return Engine(backbone, decode, EngineConfig(**config), torch_picker(backbone.vocabulary))
