"""Layers of any width for tests of operations: matrices stored by columns, as a GPU's are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from recguide.models.adapter import Delta, LoraRank
from recguide.models.folding import folded_delta
from recguide.models.layout import Part


@dataclass(frozen=True)
class Maker:
    """Random tensors of one dtype and device, the same for the same seed."""

    dtype: torch.dtype
    device: str = "cpu"
    seed: int = 0

    def tensor(self, *shape: int, scale: float = 1.0) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed + sum(shape))
        return (torch.randn(*shape, generator=generator) * scale).to(self.device, self.dtype)

    def matrix(self, inputs: int, outputs: int) -> Tensor:
        return self.tensor(outputs, inputs, scale=inputs**-0.5).t()

    def delta(self, matrix: Tensor, splits: tuple[int, ...], rank: int = 5) -> Delta:
        """A folded delta of modules that are `splits` outputs wide, each of another rank."""
        inputs, pieces, start = matrix.shape[0], [], 0
        for i, outputs in enumerate(splits):
            part = Part(f"module_{i}", "group", start, outputs, inputs)
            pieces.append((part, LoraRank(rank * (i + 1), 0.5 + i)))
            start += outputs
        delta = Delta(pieces, self.dtype, torch.device(self.device))
        for parameter in delta.parameters():
            parameter.data.copy_(self.tensor(*parameter.shape, scale=parameter.shape[0] ** -0.5))
        delta.folded = folded_delta(delta, matrix)
        return delta
