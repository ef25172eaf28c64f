"""Bins of margins by look-up: thousands of slots a step make a search of each expensive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recguide.guidance.arrays import Floats, Ints

FINENESS = 4096
"""Pieces of [0, 1]; most hold no edge, the others are looked at once more for each of theirs."""


class MarginBins:
    """`Evidence.bins` of margins in [0, 1]. Args: edges: rising."""

    def __init__(self, edges: Sequence[float]) -> None:
        known = np.array(edges, np.float64)
        starts = np.arange(FINENESS + 1) / FINENESS
        self._below = np.searchsorted(known, starts, side="right").astype(np.int64)
        inside = np.append(self._below[1:], len(known)) - self._below
        self._edges = [
            np.where(
                inside > number,
                np.append(known, np.inf)[np.minimum(self._below + number, len(known))],
                np.inf,
            )
            for number in range(int(inside.max(initial=0)))
        ]

    def of(self, margins: Floats) -> Ints:
        """Of any shape."""
        piece = (margins * FINENESS).astype(np.int64)
        found = self._below.take(piece)
        for edge in self._edges:
            found += margins >= edge.take(piece)
        return found
