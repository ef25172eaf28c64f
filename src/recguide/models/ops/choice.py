"""Which operations a decoder gets, by what it is, where it runs and what was promised."""

from __future__ import annotations

import importlib.util

import torch

from recguide.core import ParameterError
from recguide.models.config import ModelConfig
from recguide.models.ops import Ops
from recguide.models.ops.torch_ops import TorchOps

HALF = (torch.bfloat16, torch.float16)
ALIGNED = 16
"""Widths are multiples of it, or tensors could not be fetched in blocks."""


def ops_for(config: ModelConfig, dtype: torch.dtype, device: torch.device, *, exact: bool = False) -> Ops:
    """The fastest operations, or the batch-invariant ones if `exact`.

    Raises ParameterError for a promise of exactness that cannot be kept there.
    """
    kernels = has_kernels(config, device)
    if exact:
        if not kernels or dtype not in (*HALF, torch.float32):
            raise ParameterError(
                "exact", f"needs Triton and an NVIDIA GPU of capability 9.0, and no {dtype} on {device.type}"
            )
        from recguide.models.ops.exact import ExactOps

        return ExactOps(config.norm_eps)
    if kernels and dtype in HALF:
        from recguide.models.ops.fast import FastOps

        return FastOps(config.norm_eps)
    return TorchOps(config.hidden_size, config.norm_eps, dtype, device)


def has_kernels(config: ModelConfig, device: torch.device) -> bool:
    """Whether Triton's kernels run on that device and fit that model."""
    widths = (config.hidden_size, config.intermediate_size, config.query_size, config.kv_size)
    return (
        device.type == "cuda"
        and torch.cuda.get_device_capability(device) >= (9, 0)
        and importlib.util.find_spec("triton") is not None
        and not any(width % ALIGNED for width in widths)
    )
