"""The engine as an asyncio program sees it: prompts go in, chunks come out, and its health is known."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import suppress
from itertools import count
from typing import Protocol, TypeVar

from recguide.core import Chunk, ParameterError, RecGuideError, SamplingParams
from recguide.engine.chunks import Chunks
from recguide.engine.errors import DeadlineExceeded, QueueFull
from recguide.engine.reports import StepReport
from recguide.engine.wire import (
    Abort,
    Brought,
    Facts,
    Failure,
    Fault,
    Loading,
    Logged,
    Notice,
    Order,
    Piece,
    Ready,
    Stop,
    Submit,
)

__all__ = ["Ask", "AsyncEngine", "EngineError", "Link", "LinkError", "RequestError"]

T = TypeVar("T")

Ask = tuple[Sequence[int], SamplingParams]
"""A prompt's token ids, and how it is continued."""

PATIENCE_S = 10.0
"""How long an engine that was told to stop may take for its last step."""

UNREAD_REPORTS = 10_000
"""Reports that wait for a reader at most; a slower one misses the oldest."""


class EngineError(RecGuideError):
    """The engine is gone, and with it every request that it had."""


class RequestError(RecGuideError):
    """The engine gave one request up, and goes on with the others."""


class LinkError(RecGuideError):
    """Nothing more comes through a link; says why."""


class Link(Protocol):
    """How orders reach an engine and its notices come back."""

    def send(self, order: Order) -> None:
        """Never waits."""
        ...

    async def start(self) -> None: ...

    async def receive(self) -> Notice:
        """The next notice; LinkError if none can come any more."""
        ...

    async def close(self, patience_s: float) -> None:
        """Returns when the engine is gone; one that does not leave in time is made to."""
        ...


class AsyncEngine:
    """An engine behind a link, for one event loop.

    Attributes:
        facts: what it serves; None until it is ready.
        fault: why it is gone; None while it is not.
        refusal: whether it never started because an argument or a file cannot be honoured.
        loading: what it does until it is ready.
    """

    def __init__(self, link: Link) -> None:
        self.facts: Facts | None = None
        self.fault: str | None = None
        self.refusal = False
        self.loading = Loading("starting", 0, 0)
        self._link = link
        self._numbers = count(1)
        self._readers: dict[int, Chunks] = {}
        self._watchers: set[asyncio.Queue[StepReport | None]] = set()
        self._changed = asyncio.Event()
        self._reader: asyncio.Task[None] | None = None

    @property
    def healthy(self) -> bool:
        return self.fault is None

    @property
    def ready(self) -> bool:
        return self.facts is not None and self.healthy

    @property
    def pending(self) -> int:
        """Prompts that are not done."""
        return len(self._readers)

    async def start(self) -> None:
        await self._link.start()
        self._reader = asyncio.create_task(self._read(), name="engine notices")

    async def until_ready(self) -> Facts:
        """Raises EngineError if it never will be."""
        while self.facts is None and self.fault is None:
            await self._changed.wait()
        if self.facts is None or self.fault is not None:
            raise EngineError(self.fault or "")
        return self.facts

    async def until_fault(self) -> str:
        """Returns why the engine is gone as soon as it is."""
        while self.fault is None:
            await self._changed.wait()
        return self.fault

    async def close(self) -> None:
        """Ends the engine, and whatever it still runs."""
        self.fail("the engine was stopped")
        if self._reader is not None:
            self._reader.cancel()
            with suppress(asyncio.CancelledError):
                await self._reader
        self._link.send(Stop())
        await self._link.close(PATIENCE_S if self.facts is not None else 0.0)

    async def submit(
        self,
        asks: Sequence[Ask],
        *,
        request_id: str,
        deadline: float | None = None,
    ) -> Chunks:
        """Returns as soon as the engine has taken all prompts; close what it returns.

        Args:
            asks: (token ids, parameters) of each prompt.
            request_id: what the client calls it.
            deadline: seconds since the epoch by when it has to be done.

        Raises:
            ParameterError: the engine cannot honour a prompt or the parameters.
            QueueFull: as many requests wait as may.
            DeadlineExceeded, RequestError: this request ended early.
            EngineError: the engine is gone.
        """
        if self.fault is not None:
            raise EngineError(self.fault)
        chunks = Chunks(deadline, self._leave)
        try:
            for prompt, params in asks:
                number = next(self._numbers)
                chunks.expect(number, params.n)
                self._readers[number] = chunks
                self._link.send(Submit(number, request_id, tuple(prompt), params, time.time(), deadline))
            await chunks.accepted()
        except BaseException:
            chunks.close()
            raise
        return chunks

    async def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        *,
        request_id: str,
        deadline: float | None = None,
    ) -> AsyncGenerator[Chunk, None]:
        """Chunks of all n choices of one prompt as they come; closing it aborts what is left.

        Raises as `submit` does.
        """
        chunks = await self.submit([(prompt, params)], request_id=request_id, deadline=deadline)
        try:
            while arrived := await chunks.arrived():
                for _, chunk in arrived:
                    yield chunk
        finally:
            chunks.close()

    def _leave(self, number: int, *, done: bool) -> None:
        """Nobody reads this request any more."""
        del self._readers[number]
        if not done and self.healthy:
            self._link.send(Abort(number))

    async def reports(self) -> AsyncIterator[StepReport]:
        """What each step was, from now on until the engine is gone."""
        queue: asyncio.Queue[StepReport | None] = asyncio.Queue(UNREAD_REPORTS)
        self._watchers.add(queue)
        try:
            while self.healthy and (report := await queue.get()) is not None:
                yield report
        finally:
            self._watchers.discard(queue)

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._link.receive())
        except LinkError as closed:
            self.fail(str(closed))

    def _take(self, notice: Notice) -> None:
        match notice:
            case Brought(pieces, reports):
                # Watchers first: who has read an answer finds its steps counted.
                for queue in self._watchers:
                    for report in reports:
                        _put(queue, report)
                for piece in pieces:
                    self._deliver(piece)
            case Fault(message, refusal):
                self.refusal = refusal
                self.fail(message)
            case Ready(facts):
                self.facts = facts
                self._change()
            case Logged(logger, level, message):
                logging.getLogger(logger).log(level, "%s", message)
            case Loading():
                self.loading = notice

    def _deliver(self, piece: Piece) -> None:
        """Late pieces of a request that was aborted find no reader."""
        chunks = self._readers.get(piece.number)
        if chunks is not None:
            chunks.put(piece.number, piece.chunk if piece.failure is None else _error(piece.failure))

    def fail(self, message: str) -> None:
        """Fails every request at once; the first reason stands."""
        if self.fault is not None:
            return
        self.fault = message
        for number, chunks in self._readers.items():
            chunks.put(number, EngineError(message))
        for queue in self._watchers:
            _put(queue, None)
        self._change()

    def _change(self) -> None:
        """Wakes whoever waits for readiness or a fault."""
        self._changed.set()
        self._changed = asyncio.Event()


def _put(queue: asyncio.Queue[T], item: T) -> None:
    """Puts an item, in place of the oldest if the queue is full."""
    if queue.full():
        queue.get_nowait()
    queue.put_nowait(item)


def _error(failure: Failure) -> RecGuideError:
    """The error that a failure tells of."""
    if failure.kind == ParameterError.__name__ and failure.parameter is not None:
        return ParameterError(failure.parameter, failure.message)
    if failure.kind == DeadlineExceeded.__name__:
        return DeadlineExceeded(failure.message)
    if failure.kind == QueueFull.__name__ and failure.retry_after_s is not None:
        return QueueFull(failure.message, failure.retry_after_s)
    return RequestError(failure.message)
