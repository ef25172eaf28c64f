"""How weights lie in memory."""

from __future__ import annotations

import torch
from torch import nn


def linear_weight(outputs: int, inputs: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An uninitialised, frozen weight [outputs, inputs] for `F.linear`.

    On a CPU it is stored input-major: BLAS then reads it row by row at one token and packs it faster at many.
    """
    if device.type == "cpu":
        weight = torch.empty(inputs, outputs, dtype=dtype, device=device).t()
    else:
        weight = torch.empty(outputs, inputs, dtype=dtype, device=device)
    return nn.Parameter(weight, requires_grad=False)


def vector_weight(shape: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An uninitialised, frozen, contiguous weight: a norm, or a table read by row."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
