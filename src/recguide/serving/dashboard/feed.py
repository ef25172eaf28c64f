"""Steps in, half-second frames out, to as many dashboards as are open."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, Callable
from time import time

from recguide.engine.reports import StepReport
from recguide.serving.dashboard.frames import Window
from recguide.serving.dashboard.timelines import Timelines

SECONDS = 0.5
"""What a frame covers at least."""
PATIENCE_S = 5.0
"""A frame waits so long for a step to end; then it says that there was none."""
HISTORY = 600
"""Frames that a dashboard is shown when it opens: five minutes."""
UNREAD = 20
"""Frames that wait for a slow dashboard at most; it is dropped then, and connects anew."""


class Feed:
    """Reads an engine's reports as long as `run` runs.

    Args:
        seconds: what a frame covers at least.
        clock: seconds since the epoch.
    """

    def __init__(self, seconds: float = SECONDS, clock: Callable[[], float] = time) -> None:
        self._seconds = seconds
        self._clock = clock
        self._window = Window()
        self._timelines = Timelines()
        self._frames: deque[dict[str, object]] = deque(maxlen=HISTORY)
        self._readers: set[asyncio.Queue[str | None]] = set()
        self._since = clock()

    def add(self, report: StepReport) -> None:
        self._window.add(report)
        self._timelines.add(report)

    async def run(self) -> None:
        """Makes frames for ever."""
        self._since = self._clock()
        while True:
            await asyncio.sleep(self._seconds)
            self.beat()

    def beat(self) -> None:
        """Makes a frame of what came since the last one, and hands it out; not in the middle of a step."""
        now = self._clock()
        if self._window.unfinished and now - self._since < PATIENCE_S:
            return
        frame = self._window.frame(now, max(now - self._since, 1e-3))
        self._since = now
        self._frames.append(frame)
        event = _event("frame", {"frame": frame, "rounds": self._timelines.fresh()})
        for reader in list(self._readers):
            if reader.qsize() >= UNREAD:
                self._readers.discard(reader)
                reader.put_nowait(None)
            else:
                reader.put_nowait(event)

    async def events(self) -> AsyncGenerator[str, None]:
        """Server-sent events: what has been, then every new frame."""
        reader: asyncio.Queue[str | None] = asyncio.Queue()
        self._readers.add(reader)
        try:
            yield _event("history", {"frames": list(self._frames), "rounds": self._timelines.all()})
            while (event := await reader.get()) is not None:
                yield event
        finally:
            self._readers.discard(reader)


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data, separators=(',', ':'))}\n\n"
