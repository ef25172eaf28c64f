"""A request on its way to a replica, and its answer on the way back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message

Headers = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Call:
    """An HTTP request, whole.

    Attributes:
        blocks: names of its prompt's beginnings, for who chooses the replica.
    """

    method: str
    path: str
    query: bytes
    headers: Headers
    body: bytes
    blocks: tuple[int, ...] = ()

    def scope(self) -> dict[str, Any]:
        """What an ASGI application is told of it."""
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.encode(),
            "query_string": self.query,
            "root_path": "",
            "headers": list(self.headers),
            "client": None,
            "server": None,
            "state": {},
        }


@dataclass(frozen=True, slots=True)
class Head:
    """How an answer begins."""

    status: int
    headers: Headers


Part = Head | bytes
"""An answer is a head, then bytes."""


async def answer(app: ASGIApp, call: Call) -> AsyncGenerator[Part, None]:
    """What an application answers. Left early, it sees its client go."""
    parts: asyncio.Queue[Part | None] = asyncio.Queue()
    task = asyncio.create_task(_run(app, call, parts))
    try:
        while (part := await parts.get()) is not None:
            yield _with_more(part, parts) if isinstance(part, bytes) else part
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)  # what it raised has been raised above


async def begun_well(
    parts: AsyncGenerator[Part, None], check: Callable[[], None]
) -> AsyncGenerator[Part, None]:
    """An answer of which nothing is told before its first bytes are there and `check` has raised nothing.

    What ends an engine may come to be known after a request was given to it; another can still answer then.
    """
    async with aclosing(parts):
        head, first = await anext(parts), await anext(parts, b"")
        check()
        yield head
        yield first
        async for part in parts:
            yield part


def _with_more(data: bytes, parts: asyncio.Queue[Part | None]) -> bytes:
    """Bytes together with those that are there already: fewer messages between processes."""
    pieces = [data]
    while not parts.empty():
        part = parts.get_nowait()
        if not isinstance(part, bytes):
            parts.put_nowait(part)  # the end, which stands alone in the queue
            break
        pieces.append(part)
    return b"".join(pieces)


async def _run(app: ASGIApp, call: Call, parts: asyncio.Queue[Part | None]) -> None:
    unread = [{"type": "http.request", "body": call.body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await asyncio.Event().wait()  # a client that goes cancels all of this
        raise AssertionError

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = tuple((bytes(name), bytes(value)) for name, value in message.get("headers", ()))
            parts.put_nowait(Head(message["status"], headers))
        elif message.get("body"):
            parts.put_nowait(bytes(message["body"]))

    try:
        await app(call.scope(), receive, send)
    finally:
        parts.put_nowait(None)
