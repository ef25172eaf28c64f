"""The plain torch backend: one scaled dot-product attention for each request.

It is what other backends are tested against, and what a CPU runs. Whatever does not depend on the layer is
done once a forward, views of the cache included: on a CPU the many small steps around a layer's attention can
cost as much as the attention itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from recguide.attention.rotation import PairRotation
from recguide.attention.visibility import visible
from recguide.core import Attend, PackedBatch, Turn
from recguide.kv.cache import KVCache, Span

Index = Tensor | slice


class ReferenceAttention:
    """Exact attention over the KV cache for every kind of batch, in the cache's own precision."""

    def __init__(self, cache: KVCache) -> None:
        self._cache = cache

    def tiling(self, tokens: int) -> None:  # noqa: ARG002
        """It needs no work list."""
        return

    def plan(self, batch: PackedBatch) -> Attend:
        """The attention of one forward. It writes the causal rows' KV, layer by layer, as it is called.

        A layer's result may lie where that of the layer before lay.
        """
        layers: _Layers | None = None

        def attend(layer: int, qkv: Tensor, rotation: Turn) -> Tensor:
            nonlocal layers
            if layers is None:
                layers = _Layers(batch, self._cache, qkv, rotation)
            return layers.attend(layer, qkv)

        return attend


class _Layers:
    """A forward's attention, ready for every layer, made for the first one's projections."""

    def __init__(self, batch: PackedBatch, cache: KVCache, qkv: Tensor, rotation: Turn) -> None:
        slots = as_slice(batch.kv_slots[: batch.written]) if batch.written else None
        self._turned = _turned(rotation, qkv, cache, slots)
        requests = sorted({row.request for row in batch.rows})
        self._groups = [_group(batch, request, cache, self._turned) for request in requests]

    def attend(self, layer: int, qkv: Tensor) -> Tensor:
        """[N, heads · dim] for projections [N, heads + 2·kv_heads, dim]."""
        self._turned.take(layer, qkv)
        if len(self._groups) == 1:
            return self._groups[0][1].attend(layer)
        _, heads, tokens, dim = self._turned.queries.shape
        out = qkv.new_empty(tokens, heads * dim)
        for queries, group in self._groups:
            out[queries] = group.attend(layer)
        return out


def _turned(rotation: Turn, qkv: Tensor, cache: KVCache, slots: Index | None) -> _Turned | _TurnedIntoCache:
    """How a forward's projections turn; `slots` of the cache take the KV of the first tokens."""
    _, every, dim = qkv.shape
    kv_heads = cache.shape.kv_heads
    whole = rotation.over(every - 2 * kv_heads, kv_heads, dim**-0.5)
    if isinstance(whole, PairRotation) and isinstance(slots, slice) and slots.stop - slots.start == len(qkv):
        return _TurnedIntoCache(whole, qkv, cache, slots)
    return _Turned(whole, qkv, cache, slots)


class _Turned:
    """A layer's rotated projections, in one piece that the layers share with all views of it.

    Attributes:
        queries: [1, heads, N, dim], scaled.
        kv: [N, 2, kv_heads, dim].
    """

    def __init__(self, whole: Turn, qkv: Tensor, cache: KVCache, slots: Index | None) -> None:
        tokens, every, dim = qkv.shape
        kv_heads = cache.shape.kv_heads
        out = qkv.new_empty(qkv.shape)
        self._turn = _pairs(whole, out) if isinstance(whole, PairRotation) else _halves(whole, out)
        queries, kv = out.split((every - 2 * kv_heads, 2 * kv_heads), 1)
        self.queries = _by_head(queries)[None]
        self.kv = kv.view(tokens, 2, kv_heads, dim)
        self._span = None if slots is None else Span(cache, slots)
        self._written = self.kv if self._span is None else self.kv[: self._span.slots]

    def take(self, layer: int, qkv: Tensor) -> None:
        """Turns projections [N, heads + 2·kv_heads, dim] and writes what is cached of them."""
        self._turn(qkv)
        if self._span is not None:
            self._span.write(layer, self._written)


class _TurnedIntoCache:
    """The same where the KV of all tokens is cached in slots side by side: it turns on its way there.

    `kv` is None: nobody is in flight whose could be asked for.
    """

    kv = None

    def __init__(self, whole: PairRotation, qkv: Tensor, cache: KVCache, slots: slice) -> None:
        tokens, every, dim = qkv.shape
        kv_heads, half = cache.shape.kv_heads, dim // 2
        self._heads = every - 2 * kv_heads
        self._dtype = whole.turns.dtype
        queries = qkv.new_empty(tokens, self._heads, dim)
        self.queries = _by_head(queries)[None]
        self._out = queries.view(self._dtype)
        of_queries, of_kv = whole.turns.split((self._heads, 2 * kv_heads), 1)
        self._turns = of_queries.contiguous(), of_kv.reshape(tokens, 2, kv_heads, half)
        self._layers = cache.both.view(self._dtype)[:, :, slots].transpose(1, 2).unbind(0)
        self._look(qkv)

    def _look(self, qkv: Tensor) -> None:
        """Keeps views of projections; they hold them, so that nothing else comes to lie there."""
        queries, kv = qkv.view(self._dtype).tensor_split((self._heads,), 1)
        self._pairs = queries, kv.unflatten(1, (2, -1))
        self._lie = qkv.data_ptr()

    def take(self, layer: int, qkv: Tensor) -> None:
        """As `_Turned.take`; it is quickest if all layers' projections lie in the same place."""
        if qkv.data_ptr() != self._lie:
            self._look(qkv)
        queries, kv = self._pairs
        of_queries, of_kv = self._turns
        torch.mul(queries, of_queries, out=self._out)
        torch.mul(kv, of_kv, out=self._layers[layer])


def _pairs(whole: PairRotation, out: Tensor) -> Callable[[Tensor], None]:
    """Turns projections whose pairs lie side by side into `out`."""
    turns, dtype = whole.turns, whole.turns.dtype
    pairs = out.view(dtype)

    def turn(qkv: Tensor) -> None:
        torch.mul(qkv.view(dtype), turns, out=pairs)

    return turn


def _halves(whole: Turn, out: Tensor) -> Callable[[Tensor], None]:
    """Turns projections whose pairs are half a head apart into `out`."""
    tokens, every, dim = out.shape
    cos, sin, partners = whole.cos, whole.sin, _partners(every, dim, out.device)
    flat = out.new_empty(tokens, every * dim)
    swapped = flat.view_as(out)

    def turn(qkv: Tensor) -> None:
        torch.index_select(qkv.view(flat.shape), 1, partners, out=flat)
        torch.mul(qkv, cos, out=out).addcmul_(swapped, sin)

    return turn


@lru_cache(maxsize=8)
def _partners(heads: int, dim: int, device: torch.device) -> Tensor:
    """[heads · dim] columns of whole projections in whose place their partners' stand.

    Picking them is one kernel; a roll by half a head is four on a CPU.
    """
    return torch.arange(heads * dim, device=device).view(heads, dim).roll(dim // 2, 1).flatten()


class _InPlace:
    """All keys of a request read where they lie, for a causal row alone on pages side by side."""

    def __init__(self, cache: KVCache, index: slice, *, one_token: bool) -> None:
        views = _views(cache.keys[:, index], cache.values[:, index], one_token=one_token)
        self._layers = list(zip(*(view.unbind(0) for view in views), strict=True))

    def load(self, layer: int) -> tuple[Tensor, Tensor]:
        """A layer's keys and values, as `_views` has them."""
        return self._layers[layer]


class _BroughtTogether:
    """Keys out of the cache, then those of draft rows in flight, in one piece that the layers share."""

    def __init__(
        self,
        cache: KVCache,
        held: Span,
        count: int,
        drafts: Index,
        kv: Tensor | None,
        flying: int,
        *,
        one_token: bool,
    ) -> None:
        """For `count` slots of the cache, and `flying` of all tokens' `kv`: those of `drafts`."""
        both = cache.both.new_empty(count + flying, 2, cache.shape.kv_heads, cache.shape.head_dim)
        self._held = held
        self._out_of_cache = held.layout(both[:count])
        self._kv, self._drafts = kv, drafts
        self._flying = both[count:] if flying else None
        self._ready = _views(both[:, 0], both[:, 1], one_token=one_token)

    def load(self, layer: int) -> tuple[Tensor, Tensor]:
        self._held.read(layer, self._out_of_cache)
        if self._flying is not None:
            assert self._kv is not None, "what is in flight is not in the cache alone"
            self._flying.copy_(self._kv[self._drafts])
        return self._ready


def _views(keys: Tensor, values: Tensor, *, one_token: bool) -> tuple[Tensor, Tensor]:
    """Of [..., keys, kv_heads, dim], what `_OneToken` or `_Several` wants."""
    keys, values = _by_head(keys), _by_head(values)
    return (keys.mT, values) if one_token else (keys.unsqueeze(-4), values.unsqueeze(-4))


def _by_head(x: Tensor) -> Tensor:
    """[..., tokens, heads, dim] → [..., heads, tokens, dim]."""
    return x.transpose(-3, -2)


class _OneToken:
    """A request's attention where it has one token, on a CPU.

    Two products and a softmax are as fast there as PyTorch's fused attention, or faster; for more tokens they
    are half as fast.
    """

    def __init__(
        self, queries: Tensor, memory: _InPlace | _BroughtTogether, keys: int, kv_heads: int
    ) -> None:
        """For queries [1, heads, 1, dim] that the layers share, and so many keys."""
        self._memory = memory
        self._queries = queries.view(kv_heads, -1, queries.shape[3])
        self._scores = self._queries.new_empty(*self._queries.shape[:2], keys)
        self._weights = torch.empty_like(self._scores)
        self._attended = torch.empty_like(self._queries)
        self._out = self._attended.view(1, -1)

    def attend(self, layer: int) -> Tensor:
        """[1, heads · dim], valid until the next layer's."""
        keys, values = self._memory.load(layer)  # [kv_heads, dim, keys] and [kv_heads, keys, dim]
        torch.bmm(self._queries, keys, out=self._scores)
        torch.softmax(self._scores, -1, out=self._weights)
        torch.bmm(self._weights, values, out=self._attended)
        return self._out


@dataclass(frozen=True, slots=True)
class _Several:
    """A request's attention in general.

    Attributes:
        queries: [1, heads, n, dim], scaled, that the layers share; those of all tokens if n are picked.
        picked: the request's tokens among the batch's if they are not side by side.
        memory: its keys: the prefix, its causal row, which is written before it is read, and its draft rows.
        mask: [1, 1, n, keys] added to the scores; None if every query sees every key, or for `square`.
        square: whether the rule is that of a lone causal row without prefix.
    """

    queries: Tensor
    picked: Tensor | None
    memory: _InPlace | _BroughtTogether
    mask: Tensor | None
    square: bool

    def attend(self, layer: int) -> Tensor:
        """[n, heads · dim]."""
        q = self.queries if self.picked is None else self.queries[:, :, self.picked]
        keys, values = self.memory.load(layer)  # both [1, kv_heads, keys, dim]
        with _backend(masked=self.mask is not None and q.is_cuda):
            out = scaled_dot_product_attention(
                q, keys, values, attn_mask=self.mask, is_causal=self.square, scale=1.0, enable_gqa=True
            )
        return out.transpose(1, 2).reshape(q.shape[2], -1)


def _backend(*, masked: bool) -> AbstractContextManager[object]:
    """What PyTorch may use for attention on a GPU.

    Its fused kernel for masks was off where heads share keys without copies of them and the number of keys
    was one more than a multiple of 32, as reported in pytorch/pytorch#191937.
    """
    return sdpa_kernel(SDPBackend.MATH) if masked else nullcontext()


def _group(
    batch: PackedBatch, request: int, cache: KVCache, turned: _Turned | _TurnedIntoCache
) -> tuple[Index, _OneToken | _Several]:
    """A request's tokens among the batch's, and their attention."""
    ranges = [
        (row.causal, range(start, start + len(row.tokens)))
        for start, row in zip(batch.row_starts, batch.rows, strict=True)
        if row.request == request
    ]
    drafts = [own for causal, own in ranges if not causal]
    flying = sum(map(len, drafts))
    tokens = sum(len(own) for _, own in ranges)
    prefix = next(row.prefix for row in batch.rows if row.request == request)
    count = prefix + tokens - flying
    held = _slots(batch.block_tables[request], count, cache.page_size)
    device = batch.tokens.device
    one_token = tokens == 1 and device.type == "cpu"
    if isinstance(held, slice) and not flying:
        memory = _InPlace(cache, held, one_token=one_token)
    else:
        index = _index(drafts, device)
        memory = _BroughtTogether(
            cache, Span(cache, held), count, index, turned.kv, flying, one_token=one_token
        )
    queries = _index([own for _, own in ranges], device)
    picked = None if isinstance(queries, slice) else queries
    own = turned.queries[:, :, queries] if isinstance(queries, slice) else turned.queries
    if one_token:
        return queries, _OneToken(own, memory, count + flying, cache.shape.kv_heads)
    alone, causal = len(ranges) == 1, not flying
    square = alone and causal and prefix == 0
    sees_all = alone and not causal
    mask = None if square or sees_all else _mask(batch, queries, prefix, cache.keys)
    return queries, _Several(own, picked, memory, mask, square)


def _mask(batch: PackedBatch, tokens: Index, prefix: int, like: Tensor) -> Tensor | None:
    """[1, 1, n, prefix + n] zeros where a query sees a key and -inf elsewhere; None if nothing is hidden.

    The whole rule is written out because a backend's own causal flag aligns at the top left, which is right
    only without a prefix.
    """
    seen = visible(batch, tokens)
    if bool(seen.all()):
        return None
    mask = like.new_zeros(len(seen), prefix + len(seen))
    mask[:, prefix:].masked_fill_(~seen, float("-inf"))
    return mask[None, None]


def _slots(pages: Tensor, count: int, page_size: int) -> Index:
    """The first `count` slots of a request's pages; a slice if they lie side by side."""
    used = as_slice(pages[: -(-count // page_size)])
    if isinstance(used, slice):
        return slice(used.start * page_size, used.start * page_size + count)
    return (used[:, None] * page_size + torch.arange(page_size, device=pages.device)).flatten()[:count]


def _index(ranges: Sequence[range], device: torch.device) -> Index:
    """Tokens of these ranges, one after another; a slice if they lie side by side."""
    if all(one.stop == other.start for one, other in pairwise(ranges)):
        return slice(ranges[0].start, ranges[-1].stop) if ranges else slice(0, 0)
    return torch.cat([torch.arange(own.start, own.stop, device=device) for own in ranges])


def as_slice(index: Tensor) -> Index:
    """The same index as a slice if it counts up by one, so that it selects a view."""
    values = index.tolist()
    if not values:
        return slice(0, 0)
    counting = range(values[0], values[0] + len(values))
    return slice(counting.start, counting.stop) if values == list(counting) else index
