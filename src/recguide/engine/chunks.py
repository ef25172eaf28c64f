"""What one request's reader reads: chunks of all its prompts and choices in the order in which they came."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from recguide.core import Chunk, RecGuideError
from recguide.engine.errors import DeadlineExceeded


class Leave(Protocol):
    def __call__(self, number: int, *, done: bool) -> None:
        """Nothing more of this request is read, because it is done or because its reader has gone."""
        ...


class Chunks:
    """Takes what comes of a request's prompts, and gives it to its one reader; `close` it at the end.

    Args:
        deadline: seconds since the epoch by when all must be done; None is never.
        leave: is told of each request once.
    """

    def __init__(self, deadline: float | None, leave: Leave) -> None:
        self._leave = leave
        self._prompts: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._untaken = 0
        self._unread: list[tuple[int, Chunk]] = []
        self._error: RecGuideError | None = None
        self._loop = asyncio.get_running_loop()
        self._reader: asyncio.Future[None] | None = None
        self._timer = None if deadline is None else self._loop.call_later(deadline - time.time(), self._end)

    # --- who brings them ------------------------------------------------------------------------------------

    def expect(self, number: int, n: int) -> None:
        """One more prompt of n choices, under that number."""
        self._prompts[number] = len(self._prompts)
        self._left[number] = n
        self._untaken += 1

    def put(self, number: int, item: Chunk | RecGuideError | None) -> None:
        """What came of a request; None says that the engine has taken it. Nothing counts after an error."""
        if self._error is not None:
            return
        if item is None:
            self._untaken -= 1
        elif isinstance(item, Chunk):
            self._unread.append((number, item))
        else:
            self._error = item
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _end(self) -> None:
        self.put(0, DeadlineExceeded("the request was not done within its time"))

    # --- who reads them -------------------------------------------------------------------------------------

    async def accepted(self) -> None:
        """Returns when the engine has taken every prompt; chunks that come before that are kept.

        Raises what came instead.
        """
        while self._untaken:
            await self._something()

    async def arrived(self) -> list[tuple[int, Chunk]]:
        """(index of the prompt, chunk) of all that has come since the last time: one at least, or none when
        every choice of every prompt has ended.

        Raises, behind the chunks before it, the error that came.
        """
        while self._left and not self._unread:
            await self._something()
        unread, self._unread = self._unread, []
        for number, chunk in unread:
            if chunk.completion is not None:
                self._left[number] -= 1
                if not self._left[number]:
                    del self._left[number]
                    self._leave(number, done=True)
        return [(self._prompts[number], chunk) for number, chunk in unread]

    def close(self) -> None:
        """Aborts what is left."""
        if self._timer is not None:
            self._timer.cancel()
        while self._left:
            number, _ = self._left.popitem()
            self._leave(number, done=False)

    async def _something(self) -> None:
        if self._error is not None:
            raise self._error
        self._reader = self._loop.create_future()
        await self._reader
