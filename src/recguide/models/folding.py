"""A fused delta in the forms that kernels want: merged into its matrix, or as one pair of factors."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor

from recguide.models.adapter import Adapter, Delta, Folded
from recguide.models.decoder import Decoder

ALIGNED = 16
"""Ranks are filled up with zeros to a multiple of it, so that factors can be fetched in blocks."""


def fold(adapter: Adapter, decoder: Decoder) -> None:
    """Folds every delta of an adapter with the decoder's matrices, in the decoder's precision.

    Merged matrices are a second copy of those that the adapter touches. The scale is in them and in `outer`.
    """
    for layer, deltas in zip(decoder.blocks, adapter.deltas, strict=True):
        for group, delta in deltas.items():
            delta.folded = folded_delta(delta, cast("Tensor", getattr(layer, group)))


@torch.no_grad()
def folded_delta(delta: Delta, matrix: Tensor) -> Folded:
    """The forms of one delta of a matrix [in, out]."""
    precise = torch.promote_types(matrix.dtype, torch.float32)
    ranks = -(-delta.inner.shape[1] // ALIGNED) * ALIGNED
    inner = F.pad(delta.inner.to(precise), (0, ranks - delta.inner.shape[1]))
    outer = torch.zeros(ranks, matrix.shape[1], dtype=precise, device=matrix.device)
    for piece, own in zip(delta.pieces, delta.outer, strict=True):
        outer[piece.ranks, piece.outputs] = own.to(precise) * piece.lora.scale
    merged = matrix.to(precise) + inner @ outer
    return Folded(
        merged=_by_columns(merged, matrix.dtype),
        inner=_by_columns(inner, matrix.dtype),
        outer=_by_columns(outer, matrix.dtype),
    )


def _by_columns(matrix: Tensor, dtype: torch.dtype) -> Tensor:
    """The matrix stored column by column, whatever its dtype was."""
    return matrix.detach().t().to(dtype).contiguous().t()
