"""Operations for a CUDA GPU that decode at the speed at which its memory is read.

Few tokens go through our own product kernel, many through the vendor's library; the choice is by bucket of
tokens and shape, so forwards with and without adapter are computed alike.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from recguide.models.adapter import Delta
from recguide.models.kernels import launch
from recguide.models.kernels.launch import Detour, Tile, multiply
from recguide.models.ops import Touched
from recguide.models.ops.detours import by_weights, folded, mask
from recguide.models.ops.tiles import MOST_TOKENS, Kind, low_tile, tile_for
from recguide.models.ops.torch_ops import head_logits

SMALL_BYTES = 8 * 2**20
"""Below, reading a merged matrix beside the plain one costs less than another kernel for the delta."""


class FastOps:
    """`Ops` for half precision on a CUDA GPU of capability 9.0 or later."""

    folds = True

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def project(self, normed: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        tile = _tile("plain", matrix, normed)
        if tile is None:
            return _by_library(normed, matrix, delta, on)
        matrix, detour = _detour(normed, matrix, delta, on)
        return multiply(normed, matrix, tile, detour=detour)

    def gated(self, normed: Tensor, gate_up: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        tile = _tile("gated", gate_up, normed)
        if tile is None:
            return launch.silu_gate(_by_library(normed, gate_up, delta, on))
        gate_up, detour = _detour(normed, gate_up, delta, on)
        if detour.merged is not None and tile.tokens == MOST_TOKENS:
            tile = replace(tile, warps=8)  # four sums of that width are too many for the registers of four
        return multiply(normed, gate_up, tile, detour=detour, gated=True)

    def residual(
        self, x: Tensor, y: Tensor, matrix: Tensor, norm: Tensor, delta: Delta | None, on: Touched
    ) -> tuple[Tensor, Tensor]:
        tile = _tile("summed", matrix, y)
        if tile is None:
            partials = _by_library(y, matrix, delta, on)
        else:
            matrix, detour = _detour(y, matrix, delta, on)
            partials = multiply(y, matrix, tile, detour=detour, out_dtype=torch.float32)
        return launch.summed_norm(x, partials, norm, self._eps)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return launch.norm(x, weight, self._eps)

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        tile = _tile("head", head.t(), hidden)
        if tile is None:
            return head_logits(hidden, head)
        return multiply(hidden, head.t(), tile, out_dtype=torch.float32)


def _tile(kind: Kind, matrix: Tensor, x: Tensor) -> Tile | None:
    inputs, outputs = matrix.shape
    return tile_for(kind, inputs, outputs // 2 if kind == "gated" else outputs, x.shape[0])


def _detour(x: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> tuple[Tensor, Detour]:
    """Reads both matrices where they are small; else the delta's factors, the inner product first."""
    if delta is None or on is None or matrix.nbytes <= SMALL_BYTES:
        return by_weights(matrix, delta, on)
    factors = folded(delta)
    tile = low_tile(x.shape[0])
    low = multiply(x, factors.inner, tile, detour=Detour(on=mask(on)))
    return matrix, Detour(low=low, outer=factors.outer)


def _by_library(x: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
    if delta is None:
        return torch.mm(x, matrix)
    factors = folded(delta)
    if on is None:
        return torch.mm(x, factors.merged)
    low = torch.mm(x, factors.inner) * mask(on)[:, None]
    return torch.addmm(torch.mm(x, matrix), low, factors.outer)
