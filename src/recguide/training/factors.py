"""The trainable side of an adapter: LoRA factors of all layers, stacked, and the weights they amount to.

While training, a step's noisy half is one large batch under one adapter, so the deltas are merged into the
weights once a step (W + scale · B·A, in the factors' precision) instead of being added to every token. The
gradient of
the merged weights reaches A and B by the chain rule: the same numbers as per-token deltas, at a fraction of
the memory traffic. The finished adapter is an ordinary per-token one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor, nn

from recguide.core import ParameterError
from recguide.models.adapter import Adapter, LoraRank
from recguide.models.config import ModelConfig
from recguide.models.layout import Part, parts
from recguide.training.config import LoraConfig
from recguide.training.network import Backbone, LayerWeights


@dataclass(frozen=True, slots=True)
class Stack:
    """Layers whose module `part` has the same rank; their factors lie in one tensor each."""

    part: Part
    layers: tuple[int, ...]
    rank: int
    scale: float


class Factors(nn.Module):
    """A [n, rank, in] and B [n, out, rank] of each stack, and the mask embedding [hidden], all float32.

    A is Kaiming uniform, B zero, so that the delta starts at zero; the mask embedding starts at `mask_start`.
    """

    def __init__(self, config: ModelConfig, lora: LoraConfig, mask_start: Tensor, seed: int) -> None:
        super().__init__()
        self.stacks = tuple(_stacks(config, lora))
        generator = torch.Generator().manual_seed(seed)
        inner: list[nn.Parameter] = []
        outer: list[nn.Parameter] = []
        for stack in self.stacks:
            count, bound = len(stack.layers), stack.part.inputs**-0.5
            uniform = torch.rand(count, stack.rank, stack.part.inputs, generator=generator)
            inner.append(nn.Parameter((uniform * 2 - 1) * bound))
            outer.append(nn.Parameter(torch.zeros(count, stack.part.outputs, stack.rank)))
        self.inner = nn.ParameterList(inner)
        self.outer = nn.ParameterList(outer)
        self.mask_embedding = nn.Parameter(mask_start.detach().float().cpu().clone())

    def merged(self, backbone: Backbone) -> list[LayerWeights]:
        """Weights of all layers with the deltas in them, in the backbone's precision, differentiable."""
        groups = [layer._asdict() for layer in backbone.layers]
        for name in sorted({stack.part.group for stack in self.stacks}):
            for layer, weight in enumerate(self._merged_group(backbone, name)):
                groups[layer][name] = weight
        return [LayerWeights(**group) for group in groups]

    def _merged_group(self, backbone: Backbone, group: str) -> list[Tensor]:
        """One fused matrix of every layer: the base plus the deltas of its modules."""
        base = torch.stack([getattr(layer, group) for layer in backbone.layers])
        pieces = {
            part.module: base[:, part.start : part.start + part.outputs] for part in _group(backbone, group)
        }
        for stack, inner, outer in self._triples():
            if stack.part.group == group:
                piece = pieces[stack.part.module]
                delta = torch.bmm(outer, inner) * stack.scale
                if len(stack.layers) == piece.shape[0]:
                    pieces[stack.part.module] = (piece + delta).to(piece.dtype)
                else:
                    where = torch.tensor(stack.layers, device=piece.device)
                    summed = (piece[where] + delta).to(piece.dtype)
                    pieces[stack.part.module] = piece.index_copy(0, where, summed)
        whole = torch.cat(list(pieces.values()), 1) if len(pieces) > 1 else next(iter(pieces.values()))
        return list(whole.unbind(0))

    def _triples(self) -> Iterator[tuple[Stack, Tensor, Tensor]]:
        return zip(
            self.stacks, cast("list[Tensor]", self.inner), cast("list[Tensor]", self.outer), strict=True
        )

    def ranks(self) -> dict[tuple[int, str], LoraRank]:
        """(layer, module) → rank and scale."""
        return {
            (layer, stack.part.module): LoraRank(stack.rank, stack.scale)
            for stack in self.stacks
            for layer in stack.layers
        }

    @torch.no_grad()
    def take(self, adapter: Adapter) -> None:
        """Takes over the values of an adapter of the same ranks; without a mask embedding, its own stays."""
        values = adapter.factors()
        for stack, inner, outer in self._triples():
            for place, layer in enumerate(stack.layers):
                a, b = values[layer, stack.part.module]
                inner[place].copy_(a)
                outer[place].copy_(b)
        if adapter.mask_embedding is not None:
            self.mask_embedding.copy_(adapter.mask_embedding)

    def adapter(
        self, config: ModelConfig, mask_token: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> Adapter:
        """The factors as an adapter that the decoder applies per token."""
        adapter = Adapter(
            config,
            self.ranks(),
            mask_embedding=True,
            mask_token_id=mask_token,
            dtype=dtype,
            device=torch.device(device),
        )
        targets = adapter.factors()
        for stack, inner, outer in self._triples():
            for place, layer in enumerate(stack.layers):
                a, b = targets[layer, stack.part.module]
                a.copy_(inner.detach()[place])
                b.copy_(outer.detach()[place])
        assert adapter.mask_embedding is not None
        adapter.mask_embedding.data.copy_(self.mask_embedding.detach())
        return adapter


def _group(backbone: Backbone, group: str) -> list[Part]:
    return [part for part in parts(backbone.decoder.config) if part.group == group]


def _stacks(config: ModelConfig, lora: LoraConfig) -> Iterator[Stack]:
    used: set[str] = set()
    for part in parts(config):
        if part.short not in lora.targets:
            continue
        by_rank: dict[int, list[int]] = {}
        for layer in range(config.layers):
            rank = _rank(f"layers.{layer}.{part.module}", lora, used)
            by_rank.setdefault(rank, []).append(layer)
        for rank, layers in by_rank.items():
            yield Stack(part, tuple(layers), rank, lora.scale)
    unused = set(lora.rank_pattern) - used
    if unused:
        raise ParameterError("rank_pattern", f"{sorted(unused)[0]!r} matches no targeted module")


def _rank(module: str, lora: LoraConfig, used: set[str]) -> int:
    for pattern, rank in lora.rank_pattern.items():
        if re.match(rf"(.*\.)?({pattern})$", module):
            used.add(pattern)
            return rank
    return lora.rank
