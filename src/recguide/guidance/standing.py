"""How long a plan of plain steps stands: they run ahead of the host, so nobody is asked before each."""

from __future__ import annotations

KEPT, MOST_KEPT = 16, 128
"""Steps that a plan stands for at first, and when one after another was plain."""
OTHER = 0.25
"""Share by which the number of requests may change meanwhile."""


class Standing:
    """Attributes:
    requests: that the plan was made for.
    taken: plain steps behind the planned one that were taken unasked.
    """

    def __init__(self) -> None:
        self.requests = self.taken = 0
        self._length, self._plain, self._most = KEPT, False, 0

    def begin(self, requests: int, *, plain: bool, due: int) -> None:
        """A plan was made. It stands for twice as long as the one before if both are plain, but no longer
        than until something is `due`, in so many steps; 0 is now, so that it has been decided about."""
        self._length = min(2 * self._length, MOST_KEPT) if plain and self._plain else KEPT
        self._plain, self.requests, self.taken = plain, requests, 0
        self._most = min(self._length, due or KEPT)

    def again(self, requests: int) -> bool:
        """Whether it stands for one more plain step of so many requests."""
        if self.taken >= self._most or abs(requests - self.requests) > OTHER * self.requests:
            return False
        self.taken += 1
        return True
