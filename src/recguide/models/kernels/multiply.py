"""Launches of products and deltas on tensors, with the shapes and strides that they rely on."""

# Triton ships no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from recguide.models.kernels.delta import spread
from recguide.models.kernels.product import product
from recguide.models.kernels.tensors import dependent, empty_rows, rows_held

SHARED_BYTES = 216 * 1024
"""Of the memory that a program's steps in flight may take; a multiprocessor has 227 KiB."""
MOST_RANKS = 128
"""Ranks that an outer product takes at a time."""
RANK_STEP = 32
"""Ranks that it takes at a time within another product, where registers are few."""
SEEN = 256
"""Tokens that are looked at at a time for the first that is touched."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one product is cut up.

    Of a program's loops over steps one runs, so they share the memory for steps in flight.

    Attributes:
        outputs: matrix columns a program computes (of gates and of ups each); at least 64 fill a tensor core.
        tokens: tokens a program computes, a power of two, at least 16.
        depth: inputs that are multiplied at a time.
        split: programs that share the inputs of one output; their sums are added by whoever reads them.
        stages: steps whose data are in flight.
        warps: groups of 32 threads a program has.
        ahead: steps whose weights are asked for while the kernel before still runs.
    """

    outputs: int
    tokens: int
    depth: int
    split: int = 1
    stages: int = 4
    warps: int = 4
    ahead: int = 0


@dataclass(frozen=True, slots=True)
class Detour:
    """What a product does for the tokens `on` [N] bool alone.

    Either they get Σ low [splits, N, R] · outer [R, out] on top, or they take `merged` [in, out] instead of
    its matrix: then they must be the last ones, and what follows the first of them is padding or one of them.
    """

    on: Tensor
    merged: Tensor | None = None
    low: Tensor | None = None
    outer: Tensor | None = None


def multiply(
    x: Tensor,
    matrix: Tensor,
    tile: Tile,
    *,
    detour: Detour | None = None,
    gated: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [N, in] · matrix [in, out], which is stored by columns.

    Returns [N, out], or [N, out / 2] if `gated` (SiLU of the first half times the second), in `out_dtype`
    (x's if None); if the tile is split, the partial sums [split, N, out] in float32.
    """
    outputs = matrix.shape[1] // 2 if gated else matrix.shape[1]
    tokens = x.shape[0]
    if tile.split > 1:
        y = x.new_empty(tile.split, tokens, outputs, dtype=torch.float32)
    else:
        y = empty_rows(x, tokens, outputs, out_dtype or x.dtype)
    low = None if detour is None else detour.low
    _launch(x, matrix, y, tile, gated=gated, detour=detour, low=low)
    return y


def multiply_beside(x: Tensor, matrix: Tensor, inner: Tensor, tile: Tile) -> tuple[Tensor, Tensor]:
    """x · matrix [in, out] and, in programs beside, x · inner [in, R].

    The first is what `multiply` returns, bit for bit, in float32; the second [split, N, R] in float32.
    """
    tokens = x.shape[0]
    shape = (tile.split, tokens, matrix.shape[1]) if tile.split > 1 else (tokens, matrix.shape[1])
    y = x.new_empty(shape, dtype=torch.float32)
    low = x.new_empty(tile.split, tokens, inner.shape[1], dtype=torch.float32)
    _launch(x, matrix, y, tile, inner=inner, low=low)
    return y, low


def outer_product(low: Tensor, outer: Tensor, on: Tensor) -> Tensor:
    """Σ low [splits, N, R] · outer [R, out], which is stored by columns: [N, out] float32.

    Tokens that are not `on` [N] get zeros. The sum is rounded to outer's precision before.
    """
    splits, tokens, ranks = low.shape
    outputs = outer.shape[1]
    y = low.new_empty(tokens, outputs)
    if tokens == 0:
        return y
    width = max(16, min(64, triton.next_power_of_2(tokens)))
    chunk = max(16, min(MOST_RANKS, triton.next_power_of_2(ranks)))
    launch: Any = cast("Any", spread)[(triton.cdiv(tokens, width) * triton.cdiv(outputs, 64),)]
    launch(
        low,
        outer.t(),
        on.view(torch.uint8),
        y,
        tokens,
        outputs,
        ranks,
        LOW_SPLIT=splits,
        BO=64,
        TOK=width,
        RANKS=chunk,
        CHUNKS=triton.cdiv(ranks, chunk),
        num_warps=4,
        **dependent(low),
    )
    return y


def _launch(
    x: Tensor,
    matrix: Tensor,
    y: Tensor,
    tile: Tile,
    *,
    gated: bool = False,
    detour: Detour | None = None,
    inner: Tensor | None = None,
    low: Tensor | None = None,
) -> None:
    x = x.contiguous()
    tokens, inputs = x.shape
    if tokens == 0:
        return
    outputs = y.shape[-1]
    merged, outer = (None, None) if detour is None else (detour.merged, detour.outer)
    second = merged if inner is None else inner
    ranks = 0 if low is None else low.shape[-1]
    box = [tile.outputs, tile.depth]
    blocks = triton.cdiv(tokens, tile.tokens) + (merged is not None)
    columns = triton.cdiv(outputs, tile.outputs) + (0 if inner is None else triton.cdiv(ranks, tile.outputs))
    stages = stages_of(tile, 1 + gated, x.element_size())
    ahead = _ahead(tile, matrix, second)
    launch: Any = cast("Any", product)[(blocks * columns * tile.split,)]
    launch(
        _by_rows(x, [tile.tokens, tile.depth]),
        _by_columns(matrix, box),
        _by_columns(second, box),
        matrix.t() if ahead else None,
        second.t() if ahead and second is not None else None,
        low,
        _by_columns(outer, [tile.outputs, RANK_STEP]),
        None if detour is None else detour.on.view(torch.uint8),
        y,
        tokens,
        outputs,
        inputs,
        ranks,
        tile.split,
        BO=tile.outputs,
        TOK=tile.tokens,
        BK=tile.depth,
        GATED=gated,
        DUAL=merged is not None,
        EXTRA=outer is not None,
        BESIDE=inner is not None,
        LOW_SPLIT=1 if outer is None or low is None else low.shape[0],
        RANKS=RANK_STEP,
        SEEN=SEEN,
        AHEAD=ahead,
        PIECES=pieces_of(tile.outputs, ahead),
        STAGES=stages,
        SECOND_STAGES=max(1, stages - 1),
        num_warps=tile.warps,
        **dependent(x),
    )


def _ahead(tile: Tile, *matrices: Tensor | None) -> int:
    """Numbers of each row that are asked for early: whole steps, of matrices whose rows are neighbours."""
    given = [matrix.t() for matrix in matrices if matrix is not None]
    together = all(matrix.is_contiguous() for matrix in given)
    return tile.depth * min(tile.ahead, given[0].shape[1] // tile.depth) if together else 0


def pieces_of(outputs: int, ahead: int) -> int:
    """Parts, a power of two, in which so many numbers of a row are asked for.

    So that there are as many as threads of four warps, of 8 numbers at least (16 bytes).
    """
    return max(1, min(128 // outputs, (ahead & -ahead) // 8))


def stages_of(tile: Tile, blocks: int, element_size: int) -> int:
    """Steps in flight, each of so many blocks of matrices, as the memory allows."""
    return max(1, min(tile.stages, SHARED_BYTES // step_bytes(tile, blocks, element_size)))


def step_bytes(tile: Tile, blocks: int, element_size: int) -> int:
    """Shared memory of one step: blocks of matrices [outputs, depth] and one of tokens."""
    return (blocks * tile.outputs + tile.tokens) * tile.depth * element_size


def _by_rows(x: Tensor, box: list[int]) -> TensorDescriptor:
    """x [n, size], going on up to a whole box where its storage does."""
    tokens, size = x.shape
    rows = min(-(-tokens // box[0]) * box[0], rows_held(x))
    # A single row may have any stride between rows.
    return TensorDescriptor(x, [rows, size], [size, 1], box)


def _by_columns(matrix: Tensor | None, box: list[int]) -> TensorDescriptor | None:
    return None if matrix is None else TensorDescriptor.from_tensor(matrix.t(), box)
