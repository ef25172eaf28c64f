"""What a training step's tokens see: exactly what the same tokens would see while decoding.

A step has a clean half (whole texts, causal, adapter off) and a noisy half (blocks, adapter on). A block that
starts at position n of a text sees the clean tokens of that text before n, as it would see the cached prefix,
and every own slot. Blocks never see each other, and clean tokens never see blocks.

Texts lie one after the other, so what a token sees of the clean half is an interval of indices: the mask is
two comparisons, and so is the question which tiles of keys a tile of queries needs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812 (its customary name)
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from recguide.training.config import TILE

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Spans:
    """Visibility of a step as intervals.

    Attributes:
        clean_first: [C] int32, index of the first clean token of each clean token's own text.
        noisy_first, noisy_limit: [Q] int32; the noisy token sees clean tokens first ≤ index < limit.
        noisy_block: [Q] int32, which block each noisy token belongs to.
    """

    clean_first: Tensor
    noisy_first: Tensor
    noisy_limit: Tensor
    noisy_block: Tensor


def dense_clean(spans: Spans) -> Tensor:
    """Mask of the clean half, [C, C] bool."""
    index = torch.arange(spans.clean_first.shape[0], device=spans.clean_first.device)
    return (index[None] >= spans.clean_first[:, None]) & (index[None] <= index[:, None])


def dense_noisy(spans: Spans) -> Tensor:
    """Mask of the noisy half over [clean | noisy] keys, [Q, C + Q] bool."""
    index = torch.arange(spans.clean_first.shape[0], device=spans.clean_first.device)
    clean = (index[None] >= spans.noisy_first[:, None]) & (index[None] < spans.noisy_limit[:, None])
    own = spans.noisy_block[:, None] == spans.noisy_block[None]
    return torch.cat((clean, own), 1)


class BlockMasks:
    """The two masks as FlexAttention block masks whose tensors stay in place from step to step.

    Compiled attention guards on the mask object, so one object is refilled rather than made anew.
    """

    def __init__(self, clean_tokens: int, noisy_tokens: int, device: torch.device) -> None:
        self._spans = Spans(
            clean_first=torch.zeros(clean_tokens, dtype=torch.int32, device=device),
            noisy_first=torch.zeros(noisy_tokens, dtype=torch.int32, device=device),
            noisy_limit=torch.zeros(noisy_tokens, dtype=torch.int32, device=device),
            noisy_block=torch.zeros(noisy_tokens, dtype=torch.int32, device=device),
        )
        self._clean_rule = _clean_rule(self._spans)
        self._noisy_rule = _noisy_rule(self._spans, clean_tokens)
        self.clean = _block_mask(_clean_tiles(self._spans), self._clean_rule)
        self.noisy = _block_mask(_noisy_tiles(self._spans), self._noisy_rule)

    def fill(self, spans: Spans) -> None:
        """Takes over the visibility of the next step; its sizes are those of the constructor."""
        for name in ("clean_first", "noisy_first", "noisy_limit", "noisy_block"):
            getattr(self._spans, name).copy_(getattr(spans, name))
        _refill(self.clean, _block_mask(_clean_tiles(self._spans), self._clean_rule))
        _refill(self.noisy, _block_mask(_noisy_tiles(self._spans), self._noisy_rule))


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | BlockMask) -> Tensor:
    """Attention of q [Q, heads, dim] over k, v [K, kv_heads, dim] under a dense or a block mask."""
    query, key, value = (t.transpose(0, 1)[None] for t in (q, k, v))
    if isinstance(mask, BlockMask):
        out = flex_attention(query, key, value, block_mask=mask, enable_gqa=True)
        assert isinstance(out, Tensor)  # a tuple only with return_lse
    else:
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, enable_gqa=True)
    return out[0].transpose(0, 1)


def _clean_rule(spans: Spans) -> MaskFunction:
    first = spans.clean_first

    def rule(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key >= first[query]) & (key <= query)

    return rule


def _noisy_rule(spans: Spans, clean_tokens: int) -> MaskFunction:
    first, limit, block = spans.noisy_first, spans.noisy_limit, spans.noisy_block

    def rule(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        prefix = (key >= first[query]) & (key < limit[query])
        own = block[query] == block[(key - clean_tokens).clamp(min=0)]
        return prefix | ((key >= clean_tokens) & own)

    return rule


def _clean_tiles(spans: Spans) -> Tensor:
    """Which key tiles each query tile of the clean half may need, [C / TILE, C / TILE] bool."""
    tiles = spans.clean_first.shape[0] // TILE
    index = torch.arange(tiles, device=spans.clean_first.device)
    lowest = spans.clean_first.view(tiles, TILE).amin(1)
    return (index[None] <= index[:, None]) & ((index[None] + 1) * TILE > lowest[:, None])


def _noisy_tiles(spans: Spans) -> Tensor:
    """The same for the noisy half, [Q / TILE, (C + Q) / TILE] bool; block numbers rise."""
    clean, noisy = spans.clean_first.shape[0] // TILE, spans.noisy_first.shape[0] // TILE
    index = torch.arange(clean, device=spans.clean_first.device)
    first = spans.noisy_first.view(noisy, TILE).amin(1)[:, None]
    limit = spans.noisy_limit.view(noisy, TILE).amax(1)[:, None]
    prefix = ((index[None] + 1) * TILE > first) & (index[None] * TILE < limit)
    lowest, highest = spans.noisy_block.view(noisy, TILE).aminmax(dim=1)
    own = (lowest[None] <= highest[:, None]) & (highest[None] >= lowest[:, None])
    return torch.cat((prefix, own), 1)


def _block_mask(tiles: Tensor, rule: MaskFunction) -> BlockMask:
    counts = tiles.sum(1, dtype=torch.int32)
    # Needed tiles first, in order; what follows is never read.
    order = tiles.to(torch.int8).argsort(dim=1, descending=True, stable=True).to(torch.int32)
    lengths = (tiles.shape[0] * TILE, tiles.shape[1] * TILE)
    return BlockMask.from_kv_blocks(
        counts[None, None],
        order[None, None].contiguous(),
        BLOCK_SIZE=TILE,
        mask_mod=rule,
        seq_lengths=lengths,
    )


def _refill(target: BlockMask, source: BlockMask) -> None:
    for name in ("kv_num_blocks", "kv_indices", "q_num_blocks", "q_indices"):
        getattr(target, name).copy_(getattr(source, name))
