"""How weights lie in memory."""

from __future__ import annotations

import torch
from torch import nn


def matrix(inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An uninitialised, frozen weight [inputs, outputs] for x @ weight.

    On a CPU it is stored row by row, which BLAS streams fastest at one token and packs cheapest at many; on a
    GPU column by column, the order of the checkpoint.
    """
    if device.type == "cpu":
        weight = torch.empty(inputs, outputs, dtype=dtype, device=device)
    else:
        weight = torch.empty(outputs, inputs, dtype=dtype, device=device).t()
    return nn.Parameter(weight, requires_grad=False)


def table(shape: int | tuple[int, ...], dtype: torch.dtype, device: torch.device) -> nn.Parameter:
    """An uninitialised, frozen, contiguous weight: a norm, or an embedding that is read by row."""
    return nn.Parameter(torch.empty(shape, dtype=dtype, device=device), requires_grad=False)
