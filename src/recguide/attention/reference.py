"""The plain torch backend: one scaled dot-product attention for each request.

It is what other backends are tested against, and what a CPU runs. Masks, gather indices and workspaces are
made once a forward and shared by its layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from recguide.attention.visibility import visible
from recguide.core import Attend, PackedBatch
from recguide.kv.cache import KVCache

Index = Tensor | slice


class ReferenceAttention:
    """Exact attention over the KV cache for every kind of batch, in the cache's own precision."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def plan(self, batch: PackedBatch) -> Attend:
        """The attention of one forward. It writes the causal rows' KV, layer by layer, as it is called."""
        cache = self._cache
        groups = [_group(batch, request, cache) for request in sorted({row.request for row in batch.rows})]
        kv_slots = as_slice(batch.kv_slots)

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            if batch.written:
                cache.write(layer, kv_slots, k[: batch.written], v[: batch.written])
            if len(groups) == 1:
                return groups[0].attend(cache.keys[layer], cache.values[layer], q, k, v)
            out = torch.empty_like(q)
            for group in groups:
                mine = group.queries
                out[mine] = group.attend(cache.keys[layer], cache.values[layer], q[mine], k, v)
            return out

        return attend


@dataclass(frozen=True, slots=True)
class _Group:
    """One request's share of a forward; its keys are those in the cache, then its draft rows'.

    Attributes:
        queries: the request's n tokens among the batch's.
        cached: cache slots of the prefix and of the causal row, which is written before it is read.
        drafts: those of its tokens that stand in draft rows; None without any.
        space: [2, keys, kv_heads, dim] where keys and values are brought together; None if they already lie
            in the cache in one piece.
        mask: [n, keys] added to the scores; None if every query sees every key, or for `square`.
        square: whether the rule is that of a lone causal row without prefix.
    """

    queries: Index
    cached: Index
    drafts: Index | None
    space: Tensor | None
    mask: Tensor | None
    square: bool

    def attend(self, cache_k: Tensor, cache_v: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[n, heads, dim] for queries q [n, heads, dim]; k and v are the whole batch's."""
        keys, values = self._keys(0, cache_k, k), self._keys(1, cache_v, v)
        tokens, heads, dim = q.shape
        kv_heads = keys.shape[1]
        share = heads // kv_heads
        # kv_heads serves as the batch and the query heads that share one as its heads: keys and values are
        # read where they lie instead of being repeated for every query head.
        out = scaled_dot_product_attention(
            q.view(tokens, kv_heads, share, dim).permute(1, 2, 0, 3),
            keys.permute(1, 0, 2)[:, None].expand(-1, share, -1, -1),
            values.permute(1, 0, 2)[:, None].expand(-1, share, -1, -1),
            attn_mask=self.mask,
            is_causal=self.square,
        )
        return out.permute(2, 0, 1, 3).reshape(tokens, heads, dim)

    def _keys(self, which: int, cached: Tensor, flying: Tensor) -> Tensor:
        """This request's keys (values) of one layer, [keys, kv_heads, dim]."""
        if self.space is None:
            return cached[self.cached]
        space = self.space[which]
        held = len(space) if self.drafts is None else len(space) - len(flying[self.drafts])
        if isinstance(self.cached, slice):
            space[:held] = cached[self.cached]
        else:
            torch.index_select(cached, 0, self.cached, out=space[:held])
        if self.drafts is not None:
            space[held:] = flying[self.drafts]
        return space


def _group(batch: PackedBatch, request: int, cache: KVCache) -> _Group:
    tokens = (batch.request == request).nonzero().squeeze(1)
    drafts = tokens[~batch.causal[tokens]]
    rows = [row for row in batch.rows if row.request == request]
    prefix = rows[0].prefix
    held = prefix + len(tokens) - len(drafts)
    index = torch.arange(held, device=tokens.device)
    pages = batch.block_tables[request]
    cached = as_slice(pages[index // cache.page_size] * cache.page_size + index % cache.page_size)
    together = isinstance(cached, slice) and len(drafts) == 0
    square = len(rows) == 1 and rows[0].causal and prefix == 0 and len(tokens) > 1
    size = (2, held + len(drafts), cache.shape.kv_heads, cache.shape.head_dim)
    return _Group(
        queries=as_slice(tokens),
        cached=cached,
        drafts=as_slice(drafts) if len(drafts) else None,
        space=None if together else cache.keys.new_empty(size),
        mask=None if square else _mask(batch, tokens, prefix, cache.keys),
        square=square,
    )


def _mask(batch: PackedBatch, tokens: Tensor, prefix: int, like: Tensor) -> Tensor | None:
    """[n, prefix + n] zeros where a query sees a key and -inf elsewhere; None if nothing is hidden.

    The whole rule is written out because a backend's own causal flag aligns at the top left, which is right
    only without a prefix.
    """
    seen = visible(batch, tokens)
    if bool(seen.all()):
        return None
    mask = like.new_zeros(len(tokens), prefix + len(tokens))
    mask[:, prefix:].masked_fill_(~seen, float("-inf"))
    return mask


def as_slice(index: Tensor) -> Index:
    """The same index as a slice if it counts up by one, so that it selects a view."""
    if len(index) == 0:
        return slice(0, 0)
    first = int(index[0])
    counting = torch.arange(first, first + len(index), device=index.device)
    return slice(first, first + len(index)) if torch.equal(index, counting) else index
