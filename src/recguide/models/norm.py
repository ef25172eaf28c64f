"""Root-mean-square normalisation."""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor
from torch import _weight_norm_interface as divided_by_lengths  # pyright: ignore

ELSEWHERE = torch.empty(0)
"""In place of a norm's weight: what comes next multiplies by it, and by √size. See `models.arranging`."""

ROOM = 16
"""Numbers that stand behind each token's: as many as a vector register has of float32."""


class RmsNorm:
    """weight · x / √(mean x² + eps) over the last dimension, in float32 at least, in x's dtype.

    PyTorch's own is one kernel on a GPU but eight on a CPU, a tenth of a one-token forward. There,
    √(mean x² + eps) = hypot(‖x‖, √(size·eps)) / √size takes four. With the weight ELSEWHERE, which only this
    form knows, one is left: numbers behind x (`begin`) whose squares sum to size·eps make that root the
    length of a longer vector, and dividing by lengths is a kernel of its own, made for weight normalisation.
    """

    __slots__ = ("_eps", "_floor", "_nothing", "_root", "_size")

    def __init__(self, size: int, eps: float, dtype: torch.dtype, device: torch.device) -> None:
        self._size = size
        self._eps = eps
        self._root = math.sqrt(size)
        full = device.type == "cpu" and dtype in (torch.float32, torch.float64)
        self._floor = torch.tensor(math.sqrt(size * eps), dtype=dtype) if full else None
        self._nothing = torch.zeros((), dtype=dtype)

    @property
    def few_kernels(self) -> bool:
        """Whether it is of the form for a CPU."""
        return self._floor is not None

    def begin(self, x: Tensor) -> Tensor:
        """x [N, size] as a norm with its weight ELSEWHERE needs it: in rows that go on behind it."""
        if self._floor is None:
            return x
        behind = math.sqrt(self._size * self._eps / ROOM)
        return F.pad(x, (0, ROOM), value=behind)[:, : self._size]

    def __call__(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [N, size], weight [size] or ELSEWHERE (then x is what `begin` made) → [N, size]."""
        if self._floor is None:
            return F.rms_norm(x, (self._size,), weight, self._eps)
        if weight is ELSEWHERE:
            return self._divided(x)
        length = torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self._floor)
        # A product with a number besides tensors would make a tensor of it first.
        return torch.addcmul(self._nothing, x, weight, value=self._root).div_(length)

    def _divided(self, x: Tensor) -> Tensor:
        tokens, width = len(x), self._size + ROOM
        whole = x.as_strided((tokens, width), (width, 1))
        divided, _ = divided_by_lengths(whole, _ones(tokens, x.dtype), 0)
        return divided.as_strided((tokens, self._size), (width, 1))


@lru_cache(maxsize=256)
def _ones(tokens: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(tokens, 1, dtype=dtype)
