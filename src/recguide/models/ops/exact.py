"""Batch-invariant operations: a token's bits depend on its own numbers alone.

A product is cut in one way whatever the number of tokens: same tile, same order of sums. So a token's result
is the same alone, among others, at any place and beside any padding. Tokens that the adapter touches take
merged weights, whether the forward is mixed or not.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from recguide.models.adapter import Delta
from recguide.models.kernels import launch
from recguide.models.kernels.multiply import Tile, multiply
from recguide.models.ops import Touched
from recguide.models.ops.detours import by_weights

TILE = Tile(outputs=64, tokens=64, depth=64, stages=4)
PROGRAMS = 256
"""About as many as occupy a large GPU: narrow products are split until they have so many."""
FEWEST_STEPS = 4
"""Steps below which splitting further gains nothing."""


class ExactOps:
    """`Ops` for float32 and half precision on a GPU."""

    folds = True

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def begin(self, x: Tensor) -> Tensor:
        return x

    def project(self, normed: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        matrix, detour = by_weights(matrix, delta, on)
        return multiply(normed, matrix, TILE, detour=detour)

    def gated(self, normed: Tensor, gate_up: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        gate_up, detour = by_weights(gate_up, delta, on)
        return multiply(normed, gate_up, TILE, detour=detour, gated=True)

    def residual(
        self, x: Tensor, y: Tensor, matrix: Tensor, norm: Tensor, delta: Delta | None, on: Touched
    ) -> tuple[Tensor, Tensor]:
        matrix, detour = by_weights(matrix, delta, on)
        tile = split_tile(*matrix.shape)
        partials = multiply(y, matrix, tile, detour=detour, out_dtype=torch.float32)
        return launch.summed_norm(x, partials, norm, self._eps)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return launch.norm(x, weight, self._eps)

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        return multiply(hidden, head.t(), TILE, out_dtype=torch.float32)


def split_tile(inputs: int, outputs: int) -> Tile:
    """The tile of a product whose sums are added elsewhere; it depends on the matrix alone."""
    columns = -(-outputs // TILE.outputs)
    steps = -(-inputs // TILE.depth)
    return replace(TILE, split=max(1, min(PROGRAMS // columns, steps // FEWEST_STEPS)))
