"""Launches of the kernels on tensors, with the shapes and strides that they rely on."""

# Triton ships no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import triton
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from recguide.attention.rotation import Rotation
from recguide.models.config import QueryScale
from recguide.models.kernels.product import product
from recguide.models.kernels.rows import add_norm, gate
from recguide.models.kernels.turn import turn

GATE_COLUMNS = 1024
SHARED_BYTES = 216 * 1024
"""Of the memory that a program's steps in flight may take; a multiprocessor has 227 KiB."""


@dataclass(frozen=True, slots=True)
class Tile:
    """How one product is cut up.

    Attributes:
        outputs: matrix columns a program computes (of gates and of ups each); at least 64 fill a tensor core.
        tokens: tokens a program computes, a power of two, at least 16.
        depth: inputs that are multiplied at a time.
        split: programs that share the inputs of one output; their sums are added by whoever reads them.
        stages: steps whose data are in flight.
        warps: groups of 32 threads a program has.
        ahead: inputs of every output that are fetched before the tokens are there.
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
    """What a product does for the tokens `on` [N] bool, beside its matrix.

    Either they take `merged` [in, out] instead of it, or all get low [N, R] · outer [R, out] on top, where
    low is zero for the others.
    """

    on: Tensor | None = None
    merged: Tensor | None = None
    low: Tensor | None = None
    outer: Tensor | None = None


PLAIN = Detour()


def multiply(
    x: Tensor,
    matrix: Tensor,
    tile: Tile,
    *,
    detour: Detour = PLAIN,
    gated: bool = False,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x [N, in] · matrix [in, out], which is stored by columns.

    Returns [N, out], or [N, out / 2] if `gated` (SiLU of the first half times the second), in `out_dtype`
    (x's if None); if the tile is split, the partial sums [split, N, out] in float32.

    A `detour` with `on` alone makes other tokens zero.
    """
    x = x.contiguous()
    tokens, inputs = x.shape
    outputs = matrix.shape[1] // 2 if gated else matrix.shape[1]
    shape = (tile.split, tokens, outputs) if tile.split > 1 else (tokens, outputs)
    y = x.new_empty(shape, dtype=torch.float32 if tile.split > 1 else out_dtype or x.dtype)
    if tokens == 0:
        return y
    box = [tile.outputs, tile.depth]
    dual = detour.merged is not None
    step_bytes = ((1 + gated) * (1 + dual) * tile.outputs + tile.tokens) * tile.depth * x.element_size()
    programs = triton.cdiv(tokens, tile.tokens) * triton.cdiv(outputs, tile.outputs) * tile.split
    launch: Any = cast("Any", product)[(programs,)]
    launch(
        _by_rows(x, [tile.tokens, tile.depth]),
        _by_columns(matrix, box),
        _by_columns(detour.merged, box),
        None if detour.low is None else _by_rows(detour.low, [tile.tokens, tile.depth]),
        _by_columns(detour.outer, box),
        matrix,
        None if detour.on is None else detour.on.view(torch.uint8),
        y,
        tokens,
        outputs,
        inputs,
        0 if detour.low is None else detour.low.shape[1],
        tile.split,
        tile.ahead,
        BO=tile.outputs,
        TOK=tile.tokens,
        BK=tile.depth,
        GATED=gated,
        DUAL=dual,
        EXTRA=detour.low is not None,
        ZERO_OFF=detour.on is not None and not dual,
        STAGES=max(1, min(tile.stages, SHARED_BYTES // step_bytes)),
        LANES=32 * tile.warps,
        num_warps=tile.warps,
        **_dependent(x),
    )
    return y


def _by_rows(x: Tensor, box: list[int]) -> TensorDescriptor:
    # A single row may have any stride between rows.
    return TensorDescriptor(x, list(x.shape), [x.shape[1], 1], box)


def _by_columns(matrix: Tensor | None, box: list[int]) -> TensorDescriptor | None:
    return None if matrix is None else TensorDescriptor.from_tensor(matrix.t(), box)


def _dependent(x: Tensor) -> dict[str, bool]:
    """Programmatic dependent launch, where there is a device that knows it."""
    return {"PDL": x.is_cuda, **({"launch_pdl": True} if x.is_cuda else {})}


def summed_norm(x: Tensor, partials: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """x [N, size] + Σ partials [splits, N, size] (or [N, size]), and that sum's RMSNorm under `weight`."""
    total, normed = torch.empty_like(x), torch.empty_like(x)
    splits = partials.shape[0] if partials.dim() == 3 else 1
    _launch_norm(x, partials, weight, total, normed, eps, splits)
    return total, normed


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of x [N, size] under weight [size]."""
    normed = torch.empty_like(x)
    _launch_norm(x, x, weight, x, normed, eps, 0)
    return normed


def _launch_norm(
    x: Tensor, partials: Tensor, weight: Tensor, total: Tensor, normed: Tensor, eps: float, splits: int
) -> None:
    tokens, size = x.shape
    block = triton.next_power_of_2(size)
    launch: Any = cast("Any", add_norm)[(tokens,)]
    launch(
        x,
        partials,
        weight,
        total,
        normed,
        tokens,
        eps,
        SIZE=size,
        BLOCK=block,
        SPLIT=splits,
        num_warps=max(1, min(block // 512, 16)),
        **_dependent(x),
    )


def silu_gate(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of gate_up [N, 2·size] times the second, [N, size]."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty(tokens, size)
    launch: Any = cast("Any", gate)[(tokens, triton.cdiv(size, GATE_COLUMNS))]
    launch(gate_up, y, SIZE=size, BLOCK=GATE_COLUMNS, num_warps=4, **_dependent(gate_up))
    return y


def rotation(
    positions: Tensor, frequencies: Tensor, factor: float, scale: QueryScale | None, dtype: torch.dtype
) -> Rotation:
    """Rotation of positions [N] by frequencies [head_dim / 2] float32; cos and sin are times `factor`."""
    tokens, half = positions.shape[0], frequencies.shape[0]
    cos, sin = frequencies.new_empty(2, tokens, 1, 2 * half, dtype=dtype)
    scales = None if scale is None else cos.new_empty(tokens, 1, 1)
    launch: Any = cast("Any", turn)[(tokens,)]
    launch(
        positions,
        frequencies,
        cos,
        sin,
        scales,
        factor,
        0.0 if scale is None else scale.beta,
        1 if scale is None else scale.original_max_positions,
        HALF=half,
        BLOCK=triton.next_power_of_2(half),
        SCALED=scale is not None,
        num_warps=1,
        **_dependent(positions),
    )
    return Rotation(cos, sin, scales, half)
