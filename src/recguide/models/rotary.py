"""Rotary position encoding: frequencies of one head, and the rotation that they make of positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from recguide.attention.rotation import PairRotation, Rotation
from recguide.models.config import Llama3Scaling, ModelConfig, QueryScale, RopeConfig, YarnScaling
from recguide.models.ops.choice import HALF, has_kernels


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Tensor:
    """Radians per position of each pair, [head_dim / 2] float64."""
    pairs = torch.arange(0, head_dim, 2, dtype=torch.float64)
    frequencies = rope.theta ** (-pairs / head_dim)
    match rope.scaling:
        case None:
            return frequencies
        case YarnScaling() as yarn:
            return _yarn(frequencies, yarn, rope.theta, head_dim)
        case Llama3Scaling() as llama3:
            return _llama3(frequencies, llama3)
        case linear:
            return frequencies / linear.factor


def yarn_range(yarn: YarnScaling, theta: float, head_dim: int) -> tuple[float, float]:
    """Pairs at which the ramp from kept to divided frequencies begins and ends.

    A pair turns `rotations` times within the original context at dimension
    head_dim · ln(original / (2π · rotations)) / (2 · ln theta).
    """

    def pair_turning(rotations: float) -> float:
        turns = math.log(yarn.original_max_positions / (2 * math.pi * rotations))
        return head_dim * turns / (2 * math.log(theta))

    low, high = pair_turning(yarn.beta_fast), pair_turning(yarn.beta_slow)
    if yarn.truncate:
        low, high = math.floor(low), math.ceil(high)
    return max(low, 0), min(high, head_dim - 1)


def _yarn(frequencies: Tensor, yarn: YarnScaling, theta: float, head_dim: int) -> Tensor:
    low, high = yarn_range(yarn, theta, head_dim)
    width = high - low if high != low else 0.001  # a ramp of no width is a step, not a division by zero
    pairs = torch.arange(head_dim // 2, dtype=torch.float64)
    ramp = ((pairs - low) / width).clamp(0, 1)
    return frequencies / yarn.factor * ramp + frequencies * (1 - ramp)


def _llama3(frequencies: Tensor, llama3: Llama3Scaling) -> Tensor:
    """Frequencies that turn often within the original context stay, slow ones are divided, with a blend."""
    turns = llama3.original_max_positions * frequencies / (2 * math.pi)
    keep = (turns - llama3.low_freq_factor) / (llama3.high_freq_factor - llama3.low_freq_factor)
    keep = keep.clamp(0, 1)
    return frequencies / llama3.factor * (1 - keep) + frequencies * keep


def attention_factor(rope: RopeConfig) -> float:
    """What multiplies cos and sin; 1 except for YaRN files whose mscale does not cancel."""
    yarn = rope.scaling
    if not isinstance(yarn, YarnScaling):
        return 1.0
    if yarn.attention_factor is not None:
        return yarn.attention_factor
    if yarn.mscale and yarn.mscale_all_dim:
        return _mscale(yarn.factor, yarn.mscale) / _mscale(yarn.factor, yarn.mscale_all_dim)
    return _mscale(yarn.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def query_scale(scale: QueryScale, positions: Tensor) -> Tensor:
    """Multiplier of the queries at absolute positions [N], float64."""
    return 1 + scale.beta * torch.log1p((positions // scale.original_max_positions).to(torch.float64))


class Rotary:
    """Makes a rotation for any positions of one model, whose `pairs` may lie side by side in projections."""

    def __init__(
        self, config: ModelConfig, dtype: torch.dtype, device: torch.device, *, pairs: bool = False
    ) -> None:
        self._dtype = dtype
        # Angles are part of the model's definition in float32; a float64 model keeps float64 throughout.
        self._angle_dtype = torch.float64 if dtype == torch.float64 else torch.float32
        frequencies = inverse_frequencies(config.rope, config.head_dim)
        self._frequencies = frequencies.to(device, self._angle_dtype)
        self._factor = attention_factor(config.rope)
        self._query_scale = config.query_scale
        self._half = config.head_dim // 2
        self._pairs = pairs
        self._in_one_kernel = dtype in HALF and has_kernels(config, device)

    def at(self, positions: Tensor) -> Rotation | PairRotation:
        """Rotation for absolute positions [N], integers."""
        if self._in_one_kernel:
            from recguide.models.kernels.launch import rotation

            return rotation(positions, self._frequencies, self._factor, self._query_scale, self._dtype)
        angles = positions[:, None].to(self._angle_dtype) * self._frequencies
        scale = None
        if self._query_scale is not None:
            scale = query_scale(self._query_scale, positions).to(self._dtype)[:, None, None]
        if self._pairs:
            turns = torch.polar(torch.full_like(angles, self._factor), angles)
            return PairRotation(turns[:, None], scale)
        cos, sin = angles.cos() * self._factor, angles.sin() * self._factor
        return Rotation(
            cos=torch.cat((cos, cos), -1).to(self._dtype)[:, None],
            sin=torch.cat((-sin, sin), -1).to(self._dtype)[:, None],
            query_scale=scale,
            half=self._half,
        )
