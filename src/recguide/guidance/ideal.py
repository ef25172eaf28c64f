"""An engine without waste, as a cost table: matrix products, KV bytes at copy speed, half a millisecond more.

It says what budgets are worth where no engine's own losses hide it. Measured on one NVIDIA H200 in bfloat16
under a CUDA graph: all linear layers and the head of the NLD shapes, random weights.
"""

from __future__ import annotations

from recguide.core import ParameterError
from recguide.guidance.conditions import Conditions
from recguide.guidance.cost import CostTable

BYTES_PER_MS = 4.29e9
"""A device-to-device copy, bytes read plus written."""
REST_MS = 0.48
"""Everything in a forward that is neither a matrix product nor a read of the KV cache."""

_TOKENS = (1, 8, 16, 32, 64, 80, 96, 128, 160, 192, 256, 384, 512, 1024, 2048, 4096)
_PRODUCTS = {
    "ideal-8b": (
        *(4.26, 4.29, 4.35, 4.44, 4.60, 4.67, 4.80, 4.99),
        *(5.34, 6.05, 7.32, 9.94, 12.6, 24.6, 49.7, 96.1),
    ),
    "ideal-14b": (
        *(6.73, 6.77, 6.85, 6.83, 7.05, 7.19, 7.31, 7.67),
        *(8.58, 9.65, 11.5, 16.1, 21.1, 40.5, 79.6, 158.0),
    ),
}
_KV_BYTES = {"ideal-8b": 139_264, "ideal-14b": 163_840}
"""Per cached token."""

IDEALS = tuple(_PRODUCTS)


def ideal_cost(name: str) -> CostTable:
    """The table of an ideal engine; ParameterError if there is none of that name."""
    if name not in _PRODUCTS:
        raise ParameterError("cost", f"{name!r} is not one of {', '.join(IDEALS)}")
    return CostTable(
        tokens=_TOKENS,
        base_ms=tuple(ms + REST_MS for ms in _PRODUCTS[name]),
        spread_ms=(0.0,) * len(_TOKENS),
        prefix_ms=_KV_BYTES[name] / BYTES_PER_MS,
        pair_ms=0.0,
        stepped=False,
        residual=0.0,
        conditions=Conditions(name, name, "NVIDIA H200", {}, {}),
        measured_at="",
    )
