"""Which requests have run out of time."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from recguide.engine.request import Request


class Deadlines:
    """Remembers until when requests have to be done, in seconds of `time.monotonic`."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Request]] = []
        self._kept = 64
        """More are looked through for requests that have ended, so that they are not kept for long."""

    def add(self, request: Request, deadline: float) -> None:
        heappush(self._heap, (deadline, request.arrival, request))
        if len(self._heap) > self._kept:
            self._heap = [entry for entry in self._heap if entry[2].finish_reason is None]
            heapify(self._heap)
            self._kept = max(64, 2 * len(self._heap))

    def passed(self, now: float) -> Iterator[Request]:
        """Those whose time is over and that have not ended; each is named once."""
        while self._heap and self._heap[0][0] <= now:
            request = heappop(self._heap)[2]
            if request.finish_reason is None:
                yield request
