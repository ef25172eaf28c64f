"""A time that is measured again and again: what it was lately, as one number that seldom moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

WINDOW = 16
"""Of what is measured that is remembered."""
EVERY = 4
"""Between two looks at them."""
FORGOTTEN = 250
"""Measurements of others alone after which nothing is known of it, so that it is tried again; each time that
it was forgotten it takes twice as many, up to PATIENT times as many."""
PATIENT = 16
AGAIN = 4
"""Measurements that are enough for something to be said again of what was forgotten."""


class Lately:
    """Args: least: of what is measured before anything is said, at most WINDOW.

    Attributes:
        value: the mean of the middle half: what interrupts a step now and then does not count, and where some
            wait and others do not all do. It moves in strides, so that what was made of it stays good for a
            while. 0 until it is known.
    """

    def __init__(self, least: int = WINDOW) -> None:
        self.value = 0.0
        self._seen: deque[float] = deque(maxlen=WINDOW)
        self._least, self._added = least, 0
        self._others, self._patience = 0, 1

    @property
    def is_known(self) -> bool:
        return self._added >= self._least

    @property
    def was_forgotten(self) -> bool:
        """Whether it ever was."""
        return self._patience > 1

    def add(self, measured: float, stride: float) -> bool:
        """Whether another value is said from now on: it has moved by more than a stride."""
        self._seen.append(measured)
        self._added += 1
        self._others = 0
        if self._added < self._least or (self._added > self._least and self._added % EVERY):
            return False
        found = _middle(self._seen)
        if self._added > self._least and abs(found - self.value) <= stride:
            return False
        self.value = found
        return True

    def pass_over(self, others: int) -> bool:
        """So many others were measured. Whether it is forgotten from now on."""
        self._others += others
        if not self._added or self._others < self._patience * FORGOTTEN:
            return False
        self._patience = min(PATIENT, 2 * self._patience)
        self.value, self._added, self._least = 0.0, 0, min(self._least, AGAIN)
        self._seen.clear()
        return True


def _middle(seen: Iterable[float]) -> float:
    """Mean of all but the least quarter and the greatest."""
    rising = sorted(seen)
    cut = len(rising) // 4
    kept = rising[cut : len(rising) - cut]
    return sum(kept) / len(kept)
