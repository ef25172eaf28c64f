"""Operations for a CUDA GPU that decode at the speed at which its memory is read.

Few tokens go through our own product kernel, many through the vendor's library; the choice is by bucket of
tokens and shape, so forwards with and without adapter are computed alike. Only many tokens of which the
adapter touches some stay with our own where a matrix is small: the library would take four kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from recguide.models.adapter import Delta
from recguide.models.kernels import launch
from recguide.models.kernels.multiply import Detour, Tile, multiply, multiply_beside, outer_product
from recguide.models.ops import Touched
from recguide.models.ops.detours import by_weights, folded, mask
from recguide.models.ops.tiles import Kind, low_tile, tile_for
from recguide.models.ops.torch_ops import head_logits

SMALL_BYTES = 8 * 2**20
"""Below, reading a merged matrix beside the plain one costs less than another kernel for the delta."""


class FastOps:
    """`Ops` for half precision on a CUDA GPU of capability 9.0 or later."""

    folds = True

    def __init__(self, eps: float) -> None:
        self._eps = eps

    def begin(self, x: Tensor) -> Tensor:
        return x

    def project(self, normed: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        tile = _tile("plain", matrix, normed, delta, on)
        if tile is None:
            return _by_library(normed, matrix, delta, on)
        matrix, detour = _detour(normed, matrix, delta, on)
        return multiply(normed, matrix, tile, detour=detour)

    def gated(self, normed: Tensor, gate_up: Tensor, delta: Delta | None, on: Touched) -> Tensor:
        tile = _tile("gated", gate_up, normed, delta, on)
        if tile is None:
            return launch.silu_gate(_by_library(normed, gate_up, delta, on))
        gate_up, detour = _detour(normed, gate_up, delta, on)
        return multiply(normed, gate_up, tile, detour=detour, gated=True)

    def residual(
        self, x: Tensor, y: Tensor, matrix: Tensor, norm: Tensor, delta: Delta | None, on: Touched
    ) -> tuple[Tensor, Tensor]:
        partials, added = _partials(y, matrix, delta, on)
        return launch.summed_norm(x, partials, norm, self._eps, added)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return launch.norm(x, weight, self._eps)

    def logits(self, hidden: Tensor, head: Tensor) -> Tensor:
        tile = _tile("head", head.t(), hidden, None, None)
        if tile is None:
            return head_logits(hidden, head)
        return multiply(hidden, head.t(), tile, out_dtype=torch.float32)


def _tile(kind: Kind, matrix: Tensor, x: Tensor, delta: Delta | None, on: Touched) -> Tile | None:
    """None for the library."""
    inputs, outputs = matrix.shape
    merged = delta is not None and on is not None and not _by_factors(matrix, delta, on)
    outputs = outputs // 2 if kind == "gated" else outputs
    return tile_for(kind, inputs, outputs, x.shape[0], merged=merged)


def _by_factors(matrix: Tensor, delta: Delta | None, on: Touched) -> bool:
    """Whether a delta is added by its factors, because reading its merged matrix too would take longer."""
    return delta is not None and on is not None and matrix.nbytes > SMALL_BYTES


def _partials(y: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> tuple[Tensor, Tensor | None]:
    """Sums of y · matrix, and what a delta adds to them ([N, out], None for nothing).

    The inner product is computed beside the other one: it is as long, but has few outputs.
    """
    tile = _tile("summed", matrix, y, delta, on)
    if tile is None:
        return _partials_by_library(y, matrix, delta, on)
    if delta is not None and _by_factors(matrix, delta, on):
        factors = folded(delta)
        partials, low = multiply_beside(y, matrix, factors.inner, tile)
        return partials, outer_product(low, factors.outer, mask(on))
    matrix, detour = by_weights(matrix, delta, on)
    return multiply(y, matrix, tile, detour=detour, out_dtype=torch.float32), None


def _partials_by_library(
    y: Tensor, matrix: Tensor, delta: Delta | None, on: Touched
) -> tuple[Tensor, Tensor | None]:
    if delta is None or on is None:
        return torch.mm(y, by_weights(matrix, delta, on)[0]), None
    factors = folded(delta)
    return torch.mm(y, matrix), outer_product(_low(y, factors.inner), factors.outer, mask(on))


def _detour(x: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> tuple[Tensor, Detour | None]:
    """Reads both matrices where they are small; else the delta's factors, the inner product first."""
    if delta is None or not _by_factors(matrix, delta, on):
        return by_weights(matrix, delta, on)
    factors = folded(delta)
    return matrix, Detour(on=mask(on), low=_low(x, factors.inner), outer=factors.outer)


def _low(x: Tensor, inner: Tensor) -> Tensor:
    """x · inner [in, R] in sums [splits, N, R] float32."""
    low = multiply(x, inner, low_tile(*x.shape[::-1]), out_dtype=torch.float32)
    return low if low.dim() == 3 else low[None]


def _by_library(x: Tensor, matrix: Tensor, delta: Delta | None, on: Touched) -> Tensor:
    if delta is None or on is None:
        return torch.mm(x, by_weights(matrix, delta, on)[0])
    factors = folded(delta)
    low = torch.mm(x, factors.inner) * mask(on)[:, None]
    return torch.addmm(torch.mm(x, matrix), low, factors.outer)
