"""How weights lie in memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from recguide.core import CheckpointError


@contextmanager
def allocating(file: Path, device: torch.device) -> Generator[None, None, None]:
    """Raises CheckpointError naming the file whose sizes there is no memory for."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:  # allocators differ in what they raise, and in nothing else
        reason = str(error).partition("\n")[0]
        raise CheckpointError(
            f"{file} asks for weights that do not fit on {device} ({reason}); check its sizes, or take a "
            "smaller model, dtype or another device"
        ) from error


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
