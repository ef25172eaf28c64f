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
EVERY = 32
"""Forwards after which it is looked which sizes were not met for long: whoever was deterred from a size by a
bad hour tries it again."""


class Pace:
    """Args: sizes: the table's numbers of query tokens, rising. A forward counts as the next one that is no
    smaller, to which graphs are padded."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self._sizes = np.array(sizes)
        self._met = [Lately() for _ in sizes]
        self._said = np.ones(len(sizes))
        self._forwards = 0

    def add(self, tokens: int, times: float) -> bool:
        """A forward took so many times what the table says. Whether `of` says something else from now on."""
        if not 1 / FURTHEST < times < FURTHEST:
            return False
        self._forwards += 1
        news = self._met[int(self._place(tokens))].add(times, MOVED)
        if self._forwards % EVERY == 0:
            forgotten = [met.pass_over(EVERY) for met in self._met]
            news |= any(forgotten)
        return news and self._say()

    def of(self, tokens: Ints) -> Floats:
        """Times that the table's are to be taken. What was not met lies between its neighbours that were;
        large forwards are like the nearest one, and one token takes no longer than the table says, so that
        smaller ones are tried where those that are chosen take longer."""
        return self._said[self._place(tokens)]

    def _place(self, tokens: Ints | int) -> Ints:
        return np.minimum(self._sizes.searchsorted(tokens), len(self._sizes) - 1)

    def _say(self) -> bool:
        """Whether that is something else."""
        known = {place: met.value for place, met in enumerate(self._met) if met.is_known}
        known = {0: min(1.0, known[min(known)])} | known if known else {0: 1.0}
        found = np.interp(np.arange(len(self._met)), [*known], [*known.values()])
        moved = bool((abs(found - self._said) > MOVED).any())
        if moved:
            self._said = found
        return moved
