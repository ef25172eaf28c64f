"""What one request's reader reads: chunks of all its prompts and choices in the order in which they came."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Protocol

from recguide.core import Chunk, RecGuideError
from recguide.engine.errors import DeadlineExceeded

Feed = asyncio.Queue[tuple[int, Chunk | RecGuideError | None]]
"""(number of a request, what came of it); None says that the engine has taken it."""


class Leave(Protocol):
    def __call__(self, number: int, *, done: bool) -> None:
        """Nothing more of this request is read, because it is done or because its reader has gone."""
        ...


class Chunks:
    """An async iterator of (index of the prompt, chunk); ends when every choice of every prompt has.

    Args:
        deadline: seconds since the epoch by when all must be done; None is never.
        leave: is told of each request once.
    """

    def __init__(self, deadline: float | None, leave: Leave) -> None:
        self._deadline = deadline
        self._leave = leave
        self._feed: Feed = asyncio.Queue()
        self._early: deque[tuple[int, Chunk]] = deque()
        self._prompts: dict[int, int] = {}
        self._left: dict[int, int] = {}

    def expect(self, number: int, n: int) -> Feed:
        """One more prompt of n choices, under that number; its pieces go where this says."""
        self._prompts[number] = len(self._prompts)
        self._left[number] = n
        return self._feed

    async def accepted(self) -> None:
        """Returns when the engine has taken every prompt; chunks that come before that are kept."""
        waiting = len(self._left)
        while waiting:
            number, chunk = await self._next()
            if chunk is None:
                waiting -= 1
            else:
                self._early.append((number, chunk))

    def __aiter__(self) -> Chunks:
        return self

    async def __anext__(self) -> tuple[int, Chunk]:
        if not self._left:
            raise StopAsyncIteration
        number, chunk = self._early.popleft() if self._early else await self._next()
        assert chunk is not None, "a request is taken once"
        if chunk.completion is not None:
            self._left[number] -= 1
            if not self._left[number]:
                del self._left[number]
                self._leave(number, done=True)
        return self._prompts[number], chunk

    @property
    def at_hand(self) -> bool:
        """Whether the next chunk is there already."""
        return bool(self._left) and (bool(self._early) or not self._feed.empty())

    def close(self) -> None:
        """Aborts what is left."""
        while self._left:
            number, _ = self._left.popitem()
            self._leave(number, done=False)

    async def _next(self) -> tuple[int, Chunk | None]:
        number, item = await self._within_deadline()
        if isinstance(item, RecGuideError):
            raise item
        return number, item

    async def _within_deadline(self) -> tuple[int, Chunk | RecGuideError | None]:
        if self._deadline is None:
            return await self._feed.get()
        try:
            async with asyncio.timeout(self._deadline - time.time()):
                return await self._feed.get()
        except TimeoutError as error:
            raise DeadlineExceeded("the request was not done within its time") from error
