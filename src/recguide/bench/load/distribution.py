"""A sample in a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

SHARES = (50, 90, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Mean, percentiles and maximum of `count` values."""

    count: float
    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float], weights: Sequence[float] | None = None) -> Distribution | None:
        """None of no values. A value of weight w counts as w equal values; a percentile is one of the values.

        The p-th percentile is the smallest value that p % of the sample do not exceed.
        """
        if not values:
            return None
        order = np.argsort(values, kind="stable")
        ordered = np.asarray(values, np.float64)[order]
        weight = np.ones(len(ordered)) if weights is None else np.asarray(weights, np.float64)[order]
        reached = np.cumsum(weight)
        total = float(reached[-1])
        # A hair less than p %, so that rounding of the sums never skips a value.
        wanted = [share / 100 * total * (1 - 1e-12) for share in SHARES]
        found = [float(ordered[np.searchsorted(reached, least)]) for least in wanted]
        return cls(total, float(ordered @ weight) / total, *found, max=float(ordered[-1]))
