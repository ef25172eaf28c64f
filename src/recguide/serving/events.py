"""Server-sent events, and answers that stop when nobody reads them any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from fastapi import Response
from starlette.types import Receive, Scope, Send

from recguide.serving.errors import ApiError, encoded

T = TypeVar("T")

DONE = b"data: [DONE]\n\n"
CLIENT_GONE = 499
"""What logs call an answer that nobody waited for."""


def event(body: msgspec.Struct) -> bytes:
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


def error_event(error: ApiError) -> bytes:
    return b"data: " + encoded(error.error) + b"\n\n"


class EventStream(Response):
    """Sends what a generator yields; closes it when it ends or the client goes."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None], close: Callable[[], None]) -> None:
        """`close` is called however the stream ends, also before its first event."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._events = events
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        del scope
        try:
            await while_connected(receive, lambda: self._stream(send))
        finally:
            self._close()

    async def _stream(self, send: Send) -> None:
        async with aclosing(self._events) as events:
            start = {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            await send(start)
            async for data in events:
                await send({"type": "http.response.body", "body": data, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def while_connected(receive: Receive, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
    """Does the work; cancels it and returns None if the client goes before it is done."""
    doing = asyncio.create_task(work())
    leaving = asyncio.create_task(_until_gone(receive))
    try:
        await asyncio.wait((doing, leaving), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        leaving.cancel()
        await asyncio.gather(doing, leaving, return_exceptions=True)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
