"""Launches of what is computed row by row, on tensors."""

# Triton ships no types.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

from typing import Any, cast

import torch
import triton
from torch import Tensor

from recguide.attention.rotation import Rotation
from recguide.models.config import QueryScale
from recguide.models.kernels.rows import add_norm, gate
from recguide.models.kernels.tensors import dependent, empty_rows
from recguide.models.kernels.turn import turn

GATE_COLUMNS = 1024


def summed_norm(
    x: Tensor, partials: Tensor, weight: Tensor, eps: float, delta: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """x [N, size] + Σ partials [splits, N, size] (or [N, size]), and that sum's RMSNorm under `weight`.

    `delta` [N, size] float32 is the last of the sum.
    """
    tokens, size = x.shape
    total, normed = torch.empty_like(x), empty_rows(x, tokens, size)
    splits = partials.shape[0] if partials.dim() == 3 else 1
    _launch_norm(x, partials, delta, weight, total, normed, eps, splits)
    return total, normed


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm of x [N, size] under weight [size]."""
    normed = empty_rows(x, x.shape[0], x.shape[1])
    _launch_norm(x, x, None, weight, x, normed, eps, 0)
    return normed


def _launch_norm(
    x: Tensor,
    partials: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    total: Tensor,
    normed: Tensor,
    eps: float,
    splits: int,
) -> None:
    tokens, size = x.shape
    block = triton.next_power_of_2(size)
    launch: Any = cast("Any", add_norm)[(tokens,)]
    launch(
        x,
        partials,
        delta,
        weight,
        total,
        normed,
        tokens,
        eps,
        SIZE=size,
        BLOCK=block,
        SPLIT=splits,
        DELTA=delta is not None,
        num_warps=max(1, min(block // 256, 16)),
        **dependent(x),
    )


def silu_gate(gate_up: Tensor) -> Tensor:
    """SiLU of the first half of gate_up [N, 2·size] times the second, [N, size]."""
    tokens, size = gate_up.shape[0], gate_up.shape[1] // 2
    y = gate_up.new_empty(tokens, size)
    launch: Any = cast("Any", gate)[(tokens, triton.cdiv(size, GATE_COLUMNS))]
    launch(gate_up, y, SIZE=size, BLOCK=GATE_COLUMNS, num_warps=4, **dependent(gate_up))
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
        **dependent(positions),
    )
    return Rotation(cos, sin, scales, half)
