"""Root-mean-square normalisation."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor

ELSEWHERE = torch.empty(0)
"""In place of a norm's weight: what comes next multiplies by it, and by √size. See `models.arranging`."""


class RmsNorm:
    """weight · x / √(mean x² + eps) over the last dimension, in float32 at least, in x's dtype.

    PyTorch's own is one kernel on a GPU but eight on a CPU, a tenth of a one-token forward. There,
    √(mean x² + eps) = hypot(‖x‖, √(size·eps)) / √size takes four, or three with the weight ELSEWHERE, which
    only this form knows.
    """

    __slots__ = ("_eps", "_floor", "_nothing", "_root", "_shape")

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self._shape = (size,)
        self._eps = eps
        self._root = math.sqrt(size)
        full = device.type == "cpu" and dtype in (torch.float32, torch.float64)
        self._floor = torch.tensor(math.sqrt(size * eps), dtype=dtype) if full else None
        self._nothing = torch.zeros((), dtype=dtype)

    @property
    def few_kernels(self) -> bool:
        """Whether it is of the form for a CPU."""
        return self._floor is not None

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [N, size], weight [size] or ELSEWHERE → [N, size]."""
        if self._floor is None:
            return F.rms_norm(x, self._shape, weight, self._eps)
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        if weight is ELSEWHERE:
            return torch.div(x, length)
        # A product with a number besides tensors would make a tensor of it first.
        return torch.addcmul(self._nothing, x, weight, value=self._root).div_(length)
