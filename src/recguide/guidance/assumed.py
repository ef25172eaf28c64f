"""What a forward is assumed to cost where nobody has measured it: its shape over N, in arbitrary units.

Plans depend on ratios of times alone.
"""

from __future__ import annotations

import torch

from recguide.guidance.conditions import Conditions
from recguide.guidance.cost import CostTable
from recguide.guidance.ideal import ideal_cost

_CPU = {1: 1.0, 16: 3.5, 64: 4.3, 128: 8.5, 1024: 68.0}
"""A small model on a few cores: a vector through its matrices is bound by memory, more are arithmetic."""


def assumed_cost(device: torch.device) -> CostTable:
    """Of a decoder on a GPU that reads its weights once for some 150 query tokens, or on a CPU."""
    if device.type != "cpu":
        return ideal_cost("ideal-8b")
    return CostTable(
        tokens=tuple(_CPU),
        base_ms=tuple(_CPU.values()),
        spread_ms=(0.0,) * len(_CPU),
        prefix_ms=0.0,
        pair_ms=0.0,
        stepped=False,
        residual=0.0,
        conditions=Conditions("assumed", "assumed", device.type, {}, {}),
        measured_at="",
    )
