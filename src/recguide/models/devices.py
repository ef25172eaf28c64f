"""What a device calls itself."""

from __future__ import annotations

import platform

import torch


def device_name(device: torch.device) -> str:
    """The GPU's product name, or the CPU's architecture."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"CPU {platform.machine()}"
