"""The GPU backend: packed rows over paged keys and values in three Triton kernels a layer.

    rotate   queries and keys turned in place, the causal rows' keys and values written to the cache
    attend   work items, spread over a fixed number of programs (`attention.work`)
    merge    the results of split tiles

A request's cached keys are read once for a tile of its tokens, whatever rows they are of, and the causal
row's own keys come out of the cache like the prefix. Grids and shapes depend on the size of the batch alone
and all else is read from device memory, so a CUDA graph of one forward serves every batch of its size.

Small forwards spend their time on the way from one kernel to the next. So a kernel lets the one after it
start at once (programmatic dependent launch), and looks up what to do, and where keys lie, before it waits
for the one before it.

Importing this file needs Triton.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from recguide.attention.kernels.attend import attend as attend_kernel
from recguide.attention.kernels.merge import merge as merge_kernel
from recguide.attention.kernels.rotate import rotate_and_write as rotate_kernel
from recguide.attention.work import Tiling
from recguide.core import Attend, KVShape, PackedBatch, RecGuideError, Turn
from recguide.kv.cache import KVCache

# Triton's stubs know neither launches nor plain integers as constants.
_rotate, _attend, _merge = (cast("Any", kernel) for kernel in (rotate_kernel, attend_kernel, merge_kernel))

FEW_ROWS = 16
"""Fewest rows that a matrix product takes."""
BLOCK = 64
"""Rows that the memory of results is a multiple of."""


@dataclass(frozen=True, slots=True)
class Tuning:
    """What decides speed and nothing else. The defaults are for 16-bit elements on an H200.

    Attributes:
        rows: query rows of a tile.
        few: whether items of 16 rows or less take a product of their own size (never in exact mode).
        keys: keys of a block.
        whole: whether blocks that lie in one page, as they do if `keys` divides its size, are loaded whole by
            the tensor memory accelerator (never in exact mode).
        ahead, one_ahead, few_ahead: blocks that are fetched before they are needed; `one_ahead` if all tokens
            of the batch fit into one tile, `few_ahead` if all of its query rows fit into 16.
        warps: of a program of the attention kernel.
        resident, one_resident: programs of the attention kernel for each multiprocessor, at most, likewise.
        grain, few_grain: blocks of an item at least where a tile is split, likewise.
        heads_at_once: heads that one program of the first kernel rotates.
        merge_rows: query rows that a program merges at a time.
        merge_resident: programs of that kernel for each multiprocessor, at most.
        pdl_to: tokens of a forward up to which a kernel is launched while the one before it ends
            (programmatic dependent launch).
    """

    rows: int = 64
    few: bool = True
    keys: int = 64
    whole: bool = True
    ahead: int = 2
    one_ahead: int = 3
    few_ahead: int = 1
    warps: int = 4
    resident: int = 2
    one_resident: int = 1
    grain: int = 2
    few_grain: int = 1
    heads_at_once: int = 8
    merge_rows: int = 4
    merge_resident: int = 8
    pdl_to: int = 256


FLOAT32 = Tuning(rows=16, few=False, keys=32, ahead=1, one_ahead=1)
"""Float32 products go without tensor cores, in registers."""
NARROW = Tuning(keys=32, one_ahead=2, one_resident=2)
"""For a head_dim up to 64: smaller blocks are as quick to load, and spread more evenly."""
EXACT = Tuning(ahead=1, one_ahead=1)
"""Results of a block of their own leave less shared memory."""


class TritonAttention:
    """Attention over the KV cache for every kind of batch.

    Args:
        cache: in float32, float16 or bfloat16, with a head_dim of 16, 32, 64 or 128.
        heads: query heads, a multiple of the cache's.
        exact: whether a causal token's result is the same to the last bit whatever else runs beside it,
            wherever its row begins and however the work is split.
        tuning: see there.
        programs: programs side by side, at most; None for the tuning's number on each multiprocessor.

    Raises RecGuideError for a cache that the kernels do not cover.
    """

    def __init__(
        self,
        cache: KVCache,
        heads: int,
        *,
        exact: bool = False,
        tuning: Tuning | None = None,
        programs: int | None = None,
    ) -> None:
        shape = cache.shape
        _check(cache, heads)
        self._tuning = tuning or _tuning(shape, exact=exact)
        self._cache = cache
        self._heads = heads
        self._exact = exact
        self._layers = [(cache.keys[i], cache.values[i]) for i in range(shape.layers)]
        # Blocks that lie in one page each are loaded whole.
        self._whole = self._tuning.whole and not exact and cache.page_size % self._tuning.keys == 0
        self._blocks = [self._descriptors(*layer) if self._whole else layer for layer in self._layers]
        self._share = heads // shape.kv_heads
        self._tile_rows = max(self._tuning.rows, 1 << (self._share - 1).bit_length())
        self._processors = _processors(shape.device)
        self._most = programs or self._tuning.resident * self._processors
        # A program leaves at most two parts of tiles, but exact mode keeps the blocks of a part.
        self._partial_rows = 2 * self._most * self._tile_rows * (8 if exact else 1)
        device = shape.device
        self._mix = torch.empty(self._partial_rows, shape.head_dim, dtype=torch.float32, device=device)
        self._peak = torch.empty(self._partial_rows, dtype=torch.float32, device=device)
        self._total = torch.empty(self._partial_rows, dtype=torch.float32, device=device)

    def tiling(self, tokens: int) -> Tiling:
        """How the work of a forward of so many tokens, padding included, has to be cut."""
        return Tiling(
            share=self._share,
            kv_heads=self._cache.shape.kv_heads,
            rows=self._tile_rows,
            keys=self._tuning.keys,
            programs=self._programs(tokens),
            resident=self._resident(tokens),
            grain=self._tuning.few_grain if self._few(tokens) else self._tuning.grain,
            exact=self._exact,
            partial_rows=self._partial_rows,
        )

    def plan(self, batch: PackedBatch) -> Attend:
        """The attention of one forward, for a batch packed with `tiling` of its size.

        It rotates queries and keys in place and writes the causal rows' KV, layer by layer, as it is called.
        """
        shape, tuning = self._cache.shape, self._tuning
        tokens = batch.tokens.shape[0]
        rows, few_rows = self._products(tokens)
        launched = self._launched(tokens)
        constants: dict[str, Any] = {
            "KV_HEADS": shape.kv_heads, "SHARE": self._share, "DIM": shape.head_dim, "EXACT": self._exact,
            **launched,
        }  # fmt: skip
        groups = -(-min(rows, tokens * self._share) // tuning.merge_rows)
        programs = self._programs(tokens)
        merge_units = min(programs, tokens * shape.kv_heads) * groups
        ahead = tuning.one_ahead if self._fit_into_one(tokens) else tuning.ahead
        ahead = tuning.few_ahead if self._few(tokens) else ahead

        def attend(layer: int, qkv: Tensor, rotation: Turn) -> Tensor:
            keys, values = self._layers[layer]
            self._turn(batch, qkv, rotation, keys, values, launched)
            # The product that reads it takes blocks of rows, and is slow where they end past the memory.
            out = qkv.new_empty(-(-tokens // BLOCK) * BLOCK, self._heads * shape.head_dim)[:tokens]
            _attend[(programs,)](
                qkv, keys, values, out, self._mix, self._peak, self._total,
                batch.work, batch.order, batch.block_tables, batch.block_tables.stride(0),
                *self._blocks[layer],
                SCALE=shape.head_dim**-0.5, PAGE=self._cache.page_size, ROWS=rows, FEW_ROWS=few_rows,
                KEYS=tuning.keys, STAGES=2 * ahead + 1, WHOLE=self._whole,
                num_warps=tuning.warps, **constants,
            )  # fmt: skip
            _merge[(min(merge_units, tuning.merge_resident * self._processors),)](
                out, self._mix, self._peak, self._total, batch.work, batch.order, programs,
                GROUP=tuning.merge_rows, AT_ONCE=self._parts(tokens), num_warps=4, **constants,
            )  # fmt: skip
            return out

        return attend

    def _turn(
        self,
        batch: PackedBatch,
        qkv: Tensor,
        rotation: Turn,
        keys: Tensor,
        values: Tensor,
        launched: dict[str, Any],
    ) -> None:
        shape, tuning = self._cache.shape, self._tuning
        scale = rotation.query_scale
        tokens, heads, dim = qkv.shape
        _rotate[(tokens, -(-heads // tuning.heads_at_once))](
            qkv, rotation.cos, rotation.sin, rotation.cos if scale is None else scale, batch.kv_slots,
            keys, values,
            HEADS=self._heads, KV_HEADS=shape.kv_heads, HALF=dim // 2, GROUP=tuning.heads_at_once,
            SCALED=scale is not None, num_warps=4, **launched,
        )  # fmt: skip

    def _descriptors(self, *layer: Tensor) -> list[TensorDescriptor]:
        """Of a layer's keys and values [slots, kv_heads, head_dim]: how blocks of one head are loaded."""
        flat = [x.flatten(1) for x in layer]
        block = [self._tuning.keys, self._cache.shape.head_dim]
        return [TensorDescriptor(x, list(x.shape), list(x.stride()), block) for x in flat]

    def _parts(self, tokens: int) -> int:
        """Into how many parts a tile is cut if the tokens are of one request, up to a power of two. Where two
        programs share a multiprocessor they are more, but hardly ever above four."""
        tiles = -(-tokens * self._share // self._tile_rows) * self._cache.shape.kv_heads
        alone = self._programs(tokens) // self._resident(tokens)
        return min(16, max(4, 1 << (alone // tiles - 1).bit_length()))

    def _programs(self, tokens: int) -> int:
        return min(self._most, self._resident(tokens) * self._processors)

    def _resident(self, tokens: int) -> int:
        """Programs for each multiprocessor. Where all is one tile for each head they have so little to do
        that a second one only takes the place of kernels that could start early."""
        return self._tuning.one_resident if self._fit_into_one(tokens) else self._tuning.resident

    def _fit_into_one(self, tokens: int) -> bool:
        """Whether all query rows of a key/value head fit into one tile, if they are of one request."""
        return tokens * self._share <= self._tile_rows

    def _few(self, tokens: int) -> bool:
        """Whether all query rows of a key/value head fit into the smallest product."""
        return tokens * self._share <= FEW_ROWS

    def _products(self, tokens: int) -> tuple[int, int]:
        """Rows of the attention kernel's products, and of its smaller ones; 0 for none."""
        rows = self._tile_rows
        if self._exact or not self._tuning.few:
            return rows, 0
        return (FEW_ROWS, 0) if self._few(tokens) else (rows, FEW_ROWS)

    def _launched(self, tokens: int) -> dict[str, Any]:
        """Whether a kernel waits for the one before it by itself, and the launch options that ask for it.

        In exact mode products and sums are fused only where a kernel says so: left to itself the compiler
        does it in some places and not in others.
        """
        rounding = {"enable_fp_fusion": False} if self._exact else {}
        early = tokens <= self._tuning.pdl_to and self._cache.keys.is_cuda
        return rounding | ({"PDL": True, "launch_pdl": True} if early else {"PDL": False})


def _tuning(shape: KVShape, *, exact: bool) -> Tuning:
    if shape.dtype == torch.float32:
        return FLOAT32
    if exact:
        return EXACT
    return NARROW if shape.head_dim <= 64 else Tuning()


def _check(cache: KVCache, heads: int) -> None:
    shape = cache.shape
    if shape.dtype not in (torch.float32, torch.float16, torch.bfloat16):
        raise RecGuideError(
            f"attention: the Triton backend runs float32, float16 and bfloat16, not {shape.dtype}"
        )
    if shape.head_dim not in (16, 32, 64, 128):
        raise RecGuideError(
            f"attention: the Triton backend runs head_dim 16, 32, 64 and 128, not {shape.head_dim}"
        )
    if heads % shape.kv_heads:
        raise RecGuideError(
            f"attention: {heads} query heads do not share {shape.kv_heads} key/value heads evenly"
        )


def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; a few where there is no GPU and an interpreter takes its place."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4
