"""Pace: how long forwards take while requests run, against what the cost table says of them.

A table is measured in a few minutes of its own. At another hour a device may be warmer, or draw all the power
that it may, and then large forwards take longer and small ones do not. So each size is held to what it took
lately.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recguide.guidance.arrays import Floats, Ints
from recguide.guidance.lately import Lately

MOVED = 0.02
"""Share by which what was found must have moved before another number is said."""
FURTHEST = 4.0
"""Times longer or shorter than the table says, beyond which something else was timed."""


class Pace:
    """Args: sizes: the table's numbers of query tokens, rising. A forward counts as the next one that is no
    smaller, to which graphs are padded."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = np.array(sizes)
        self._met = [Lately() for _ in sizes]
        self._ones = np.ones(len(sizes))

    def add(self, tokens: int, times: float) -> bool:
        """A forward took so many times what the table says. Whether `of` says something else from now on."""
        return 1 / FURTHEST < times < FURTHEST and self._met[self._size(tokens)].add(times, MOVED)

    def of(self, tokens: Ints) -> Floats:
        """Times that the table's are to be taken. What was not met lies between its neighbours that were;
        large forwards are like the nearest one, and one token takes no longer than the table says, so that
        smaller ones are tried where those that are chosen take longer."""
        known = {size: met.value for size, met in enumerate(self._met) if met.is_known}
        if known:
            known = {0: min(1.0, known[min(known)])} | known
        found = np.interp(np.arange(len(self._met)), [*known], [*known.values()]) if known else self._ones
        return found[np.minimum(self._sizes.searchsorted(tokens), len(found) - 1)]

    def _size(self, tokens: int) -> int:
        return min(int(self._sizes.searchsorted(tokens)), len(self._met) - 1)
