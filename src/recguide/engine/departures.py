"""How fast requests end, to tell those that find the queue full when to come back."""

from __future__ import annotations

from collections import deque

REMEMBERED = 64
SHORTEST_S, LONGEST_S = 1.0, 60.0
"""What a client is told at least, and at most: what is said of a later time is a guess."""


class Departures:
    """When the last requests ended, in seconds of `time.monotonic`."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=REMEMBERED)

    def note(self, now: float) -> None:
        self._times.append(now)

    def wait_s(self, requests: int, now: float) -> float:
        """Seconds until so many requests will have ended, at the rate of the last ones."""
        if len(self._times) < 2:
            return SHORTEST_S
        each = (now - self._times[0]) / len(self._times)
        return min(max(requests * each, SHORTEST_S), LONGEST_S)
