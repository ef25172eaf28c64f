"""The plain torch backend: one scaled dot-product attention for each request.

It is what other backends are tested against, and what a CPU runs. Whatever does not depend on the layer is
done once a forward, views of the cache included: on a CPU the many small steps around a layer's attention can
cost as much as the attention itself.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from recguide.attention.visibility import visible
from recguide.core import Attend, PackedBatch, Turn
from recguide.kv.cache import KVCache

Index = Tensor | slice

FEW = 2**16
"""Queries times keys of a request up to which attention is spelled out on a CPU."""


class ReferenceAttention:
    """Exact attention over the KV cache for every kind of batch, in the cache's own precision."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def tiling(self, tokens: int) -> None:  # noqa: ARG002
        """It needs no work list."""
        return

    def plan(self, batch: PackedBatch) -> Attend:
        """The attention of one forward. It writes the causal rows' KV, layer by layer, as it is called."""
        cache, written = self._cache, batch.written
        target = _Span(cache, as_slice(batch.kv_slots[:written])) if written else None
        requests = sorted({row.request for row in batch.rows})
        groups = [_group(batch, request, cache) for request in requests]

        kv_heads = cache.shape.kv_heads

        def attend(layer: int, qkv: Tensor, rotation: Turn) -> Tensor:
            q, k, v = rotation.split(qkv, qkv.shape[1] - 2 * kv_heads, kv_heads)
            if target is not None:
                target.write(layer, *((k, v) if written == len(k) else (k[:written], v[:written])))
            if len(groups) == 1:
                return groups[0].attend(layer, q, k, v)
            out = q.new_empty(q.shape[0], q.shape[1] * q.shape[2])
            for group in groups:
                out[group.queries] = group.attend(layer, q[group.queries], k, v)
            return out

        return attend


class _Span:
    """Some tokens' keys and values in the cache, as views of every layer where they lie side by side."""

    def __init__(self, cache: KVCache, index: Index) -> None:
        self._cache = cache
        self._index = index
        if isinstance(index, slice):
            self._keys, self._values = cache.keys[:, index].unbind(0), cache.values[:, index].unbind(0)

    def write(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Puts keys and values [n, kv_heads, dim] of a layer into the cache."""
        if isinstance(self._index, slice):
            self._keys[layer].copy_(keys)
            self._values[layer].copy_(values)
        else:
            self._cache.write(layer, self._index, keys, values)

    def read(self, layer: int, keys: Tensor, values: Tensor) -> None:
        """Copies a layer's out of the cache into keys and values [n, kv_heads, dim]."""
        if isinstance(self._index, slice):
            keys.copy_(self._keys[layer])
            values.copy_(self._values[layer])
        else:
            torch.index_select(self._cache.keys[layer], 0, self._index, out=keys)
            torch.index_select(self._cache.values[layer], 0, self._index, out=values)


class _InPlace:
    """All keys of a request read where they lie, for a causal row alone on pages side by side."""

    def __init__(self, cache: KVCache, index: slice) -> None:
        self._keys = _by_head(cache.keys[:, index]).unbind(0)
        self._values = _by_head(cache.values[:, index]).unbind(0)

    def load(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        return self._keys[layer], self._values[layer]


class _BroughtTogether:
    """Keys out of the cache, then those of draft rows, in one piece that the layers share."""

    def __init__(self, cache: KVCache, held: _Span, count: int, drafts: Index, flying: int) -> None:
        shape = (2, count + flying, cache.shape.kv_heads, cache.shape.head_dim)
        keys, values = cache.keys.new_empty(shape)
        self._held = held
        self._drafts = drafts
        self._out_of_cache = keys[:count], values[:count]
        self._flying = (keys[count:], values[count:]) if flying else None
        self._ready = _by_head(keys), _by_head(values)

    def load(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self._held.read(layer, *self._out_of_cache)
        if self._flying is not None:
            self._flying[0].copy_(k[self._drafts])
            self._flying[1].copy_(v[self._drafts])
        return self._ready


def _by_head(x: Tensor) -> Tensor:
    """[..., keys, kv_heads, dim] → [..., kv_heads, 1, keys, dim]."""
    return x.transpose(-3, -2).unsqueeze(-3)


@dataclass(frozen=True, slots=True)
class _Group:
    """One request's share of a forward.

    Attributes:
        queries: the request's n tokens among the batch's.
        memory: its keys: the prefix, its causal row, which is written before it is read, and its draft rows.
        mask: [n, keys] added to the scores; None if every query sees every key, or for `square`.
        square: whether the rule is that of a lone causal row without prefix.
        spelled_out: whether two products and a softmax take the place of PyTorch's fused attention, which
            on a CPU costs twice as much where there are few scores.
    """

    queries: Index
    memory: _InPlace | _BroughtTogether
    mask: Tensor | None
    square: bool
    spelled_out: bool

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[n, heads · dim] for queries q [n, heads, dim]; k and v are the whole batch's."""
        keys, values = self.memory.load(layer, k, v)
        tokens, heads, dim = q.shape
        kv_heads = len(keys)
        # kv_heads serves as the batch and the query heads that share one as its heads: keys and values are
        # read where they lie instead of being repeated for every query head.
        shared = q.view(tokens, kv_heads, heads // kv_heads, dim)
        if self.spelled_out:
            return self._spelled_out(shared, keys.squeeze(1), values.squeeze(1))
        with _backend(masked=self.mask is not None and q.is_cuda):
            out = scaled_dot_product_attention(
                shared.permute(1, 2, 0, 3),
                keys.expand(-1, heads // kv_heads, -1, -1),
                values.expand(-1, heads // kv_heads, -1, -1),
                attn_mask=self.mask,
                is_causal=self.square,
            )
        return out.permute(2, 0, 1, 3).reshape(tokens, heads * dim)

    def _spelled_out(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """The same of q [n, kv_heads, share, dim] and keys [kv_heads, keys, dim] as two products."""
        tokens, kv_heads, share, dim = q.shape
        flat = q.transpose(0, 1).reshape(kv_heads, tokens * share, dim)
        # Times beta = 0: only a factor is wanted.
        scores = torch.baddbmm(flat[:, :1, :1], flat, keys.transpose(1, 2), beta=0, alpha=dim**-0.5)
        if self.mask is not None:
            scores.view(kv_heads, tokens, share, -1).add_(self.mask[:, None])
        out = torch.bmm(scores.softmax(-1), values)
        return out.view(kv_heads, tokens, share * dim).transpose(0, 1).reshape(tokens, -1)


def _backend(*, masked: bool) -> AbstractContextManager[object]:
    """What PyTorch may use for attention on a GPU.

    Its fused kernel for masks was off where heads share keys without copies of them and the number of keys
    was one more than a multiple of 32, as reported in pytorch/pytorch#191937.
    """
    return sdpa_kernel(SDPBackend.MATH) if masked else nullcontext()


def _group(batch: PackedBatch, request: int, cache: KVCache) -> _Group:
    tokens = (batch.request == request).nonzero().squeeze(1)
    drafts = tokens[~batch.causal[tokens]]
    rows = [row for row in batch.rows if row.request == request]
    prefix = rows[0].prefix
    count = prefix + len(tokens) - len(drafts)
    index = torch.arange(count, device=tokens.device)
    pages = batch.block_tables[request]
    held = as_slice(pages[index // cache.page_size] * cache.page_size + index % cache.page_size)
    if isinstance(held, slice) and len(drafts) == 0:
        memory = _InPlace(cache, held)
    else:
        memory = _BroughtTogether(cache, _Span(cache, held), count, as_slice(drafts), len(drafts))
    spelled_out = cache.keys.device.type == "cpu" and len(tokens) * (prefix + len(tokens)) <= FEW
    square = not spelled_out and len(rows) == 1 and rows[0].causal and prefix == 0 and len(tokens) > 1
    return _Group(
        queries=as_slice(tokens),
        memory=memory,
        mask=None if square else _mask(batch, tokens, prefix, cache.keys),
        square=square,
        spelled_out=spelled_out,
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
