"""Draft adapters: PEFT-format LoRA on any linear layers, plus an optional learned mask embedding.

The delta is added per token to a tail slice of a forward, so one forward mixes rows with and without it and
the base weights never change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from recguide.core import RecGuideError
from recguide.models.config import ModelConfig
from recguide.models.layout import Part, parts
from recguide.models.views import columns
from recguide.models.weights import matrix, table

Ranks = Mapping[tuple[int, str], "LoraRank"]
"""(layer, module name below it) → rank and alpha; modules that are absent have no delta."""


@dataclass(frozen=True, slots=True)
class LoraRank:
    """Rank of one module's delta and the factor it is multiplied by (alpha / rank)."""

    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class Piece:
    """One module's share of a fused delta: `ranks` of the inner product go to `outputs` of the result."""

    part: Part
    lora: LoraRank
    ranks: slice
    outputs: slice


@dataclass(frozen=True, slots=True)
class Folded:
    """A fused delta as kernels want it, stored by columns in the model's precision, scales included.

    Attributes:
        merged: [in, out], the model's matrix plus the delta.
        inner: [in, R], R being Σ rank and zeros up to a width that kernels like.
        outer: [R, out], zero where a module's ranks do not reach.
    """

    merged: Tensor
    inner: Tensor
    outer: Tensor


class Delta(nn.Module):
    """Low-rank deltas of the modules of one fused product: Σ scale · (x Aᵀ) Bᵀ, each on its own outputs.

    `inner` holds the Aᵀ side by side [in, Σ rank]; `outer` one Bᵀ [rank, out] for each piece. `folded` is
    None until `recguide.models.folding` makes it.
    """

    def __init__(
        self, pieces: Sequence[tuple[Part, LoraRank]], dtype: torch.dtype, device: torch.device
    ) -> None:
        super().__init__()
        self.pieces = tuple(_lay_out(pieces))
        inputs, ranks = pieces[0][0].inputs, sum(lora.rank for _, lora in pieces)
        self.inner = matrix(inputs, ranks, dtype, device)
        self.folded: Folded | None = None
        self.outer = nn.ParameterList(matrix(lora.rank, part.outputs, dtype, device) for part, lora in pieces)

    def add(self, x: Tensor, y: Tensor) -> None:
        """Adds the deltas of x [n, in] to y [n, fused out] in place; computed in the adapter's precision."""
        # A view costs a CPU as much as a small operation: none is made that can be done without.
        same = x.dtype == self.inner.dtype
        inner = torch.mm(x if same else x.to(self.inner.dtype), self.inner)
        for piece, outer in zip(self.pieces, self.outer, strict=True):
            low = columns(inner, piece.ranks)
            target = columns(y, piece.outputs)
            if target.dtype == outer.dtype:
                target.addmm_(low, outer, alpha=piece.lora.scale)
            else:
                target.add_(torch.mm(low, outer), alpha=piece.lora.scale)


def _lay_out(pieces: Sequence[tuple[Part, LoraRank]]) -> Iterator[Piece]:
    start = 0
    for part, lora in pieces:
        yield Piece(part, lora, slice(start, start + lora.rank), slice(part.start, part.start + part.outputs))
        start += lora.rank


class Adapter(nn.Module):
    """A draft adapter of one model. Parameters are allocated, not initialised, and frozen.

    Attributes:
        config: the model it belongs to.
        ranks: which modules have a delta, of what rank and scale.
        mask_embedding: [hidden] or None; replaces the embedding of MASK slots.
        mask_token_id: id that fills MASK slots, if the adapter's file names one.
        deltas: for each layer, fused group → delta.
        arranged: as of the decoder that it is for.
    """

    def __init__(
        self,
        config: ModelConfig,
        ranks: Ranks,
        *,
        mask_embedding: bool,
        mask_token_id: int | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        super().__init__()
        self.config = config
        self.ranks = dict(ranks)
        self.mask_token_id = mask_token_id
        self.arranged = False
        self.mask_embedding = table(config.hidden_size, dtype, device) if mask_embedding else None
        self.layers = nn.ModuleList(
            nn.ModuleDict(_layer_deltas(config, layer, ranks, dtype, device))
            for layer in range(config.layers)
        )
        self.deltas = tuple(
            dict(cast("Mapping[str, Delta]", cast("nn.ModuleDict", layer)).items()) for layer in self.layers
        )

    def factors(self) -> dict[tuple[int, str], tuple[Tensor, Tensor]]:
        """(layer, module) → its A [rank, in] and B [out, rank]: views without gradient, to read or fill.

        Raises RecGuideError if it is arranged: then they are no longer those of a file.
        """
        if self.arranged:
            raise RecGuideError("adapter: its weights are arranged for inference; load it anew")
        return {
            (layer, piece.part.module): (delta.inner.data.t()[piece.ranks], outer.data.t())
            for layer, deltas in enumerate(self.deltas)
            for delta in deltas.values()
            for piece, outer in zip(delta.pieces, delta.outer, strict=True)
        }


def _layer_deltas(
    config: ModelConfig, layer: int, ranks: Ranks, dtype: torch.dtype, device: torch.device
) -> dict[str, Delta]:
    groups: dict[str, list[tuple[Part, LoraRank]]] = {}
    for part in parts(config):
        lora = ranks.get((layer, part.module))
        if lora is not None:
            groups.setdefault(part.group, []).append((part, lora))
    return {group: Delta(pieces, dtype, device) for group, pieces in groups.items()}
