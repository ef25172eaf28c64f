"""HTTP/1.1 as a load needs it: hundreds of answers at once, by a client that may share the server's machine.

What arrives is read where it arrives: no task wakes up for a chunk. Connections are kept and used again. No
proxy is asked, as its time would count as the endpoint's.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpResponseParser

BUFFER = 2**16
"""Bytes that a connection takes at once, always into the same place: memory of its own for each chunk would
cost as much time as all else that is done with it."""


class NoConnectionError(Exception):
    """Nobody answers there."""


class ConnectionLostError(Exception):
    """A connection that broke, or spoke no HTTP, before the answer was whole."""


@dataclass(frozen=True, slots=True)
class Head:
    """What an answer's status line and headers say."""

    status: int
    content_type: str


Read = Callable[[Head, bytes], None]
"""Is given an answer's body as it arrives."""


class Origin(NamedTuple):
    """Who is connected to."""

    host: str
    port: int
    secure: bool


class Connections:
    """As many connections as there are requests at a time; `close` them at the end."""

    def __init__(self) -> None:
        self._idle: defaultdict[Origin, list[_Connection]] = defaultdict(list)

    async def ask(
        self, method: str, url: str, headers: Mapping[str, str], read: Read, body: bytes = b""
    ) -> Head:
        """Sends a request and returns when its answer has been read to the end.

        What `read` raises breaks the answer off and is raised here. Leaving early (a timeout) breaks it off
        too.

        Raises:
            NoConnectionError: there is none to be had.
            ConnectionLostError: the answer broke off.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        origin = Origin(parts.hostname or "", parts.port or (443 if secure else 80), secure)
        path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
        fields = {"Host": parts.netloc.rpartition("@")[2], "Content-Length": str(len(body)), **headers}
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
        connection = self._kept(origin) or await self._opened(origin)
        try:
            return await connection.exchange("\r\n".join([*lines, "", ""]).encode() + body, read)
        finally:
            if connection.is_open:
                self._idle[origin].append(connection)
            else:
                connection.close()

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()

    def _kept(self, origin: Origin) -> _Connection | None:
        """One that was used before, the last one first: it is the least likely to have been closed."""
        idle = self._idle[origin]
        while idle:
            connection = idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _opened(self, origin: Origin) -> _Connection:
        loop = asyncio.get_running_loop()
        trust = self._trust if origin.secure else None
        try:
            _, connection = await loop.create_connection(_Connection, origin.host, origin.port, ssl=trust)
        except (OSError, UnicodeError) as error:
            raise NoConnectionError(str(error)) from error
        return connection

    @cached_property
    def _trust(self) -> ssl.SSLContext:
        return ssl.create_default_context()


class _Connection(asyncio.BufferedProtocol):
    """One connection, which has one exchange at a time; the parser calls its methods that begin with on_.

    Attributes:
        is_open: whether another exchange may follow.
    """

    def __init__(self) -> None:
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._answered: asyncio.Future[Head] | None = None
        self._read: Read = _nothing
        self._buffer = memoryview(bytearray(BUFFER))

    async def exchange(self, request: bytes, read: Read) -> Head:
        assert self._transport is not None, "a connection is made before it is used"
        self.is_open = False  # until the answer has been read to its end
        self._answered, self._read = asyncio.get_running_loop().create_future(), read
        self._parser = HttpResponseParser(self)
        self._begin()
        self._transport.write(request)
        return await self._answered

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _begin(self) -> None:
        """Of an answer nothing is known yet."""
        self._head: Head | None = None
        self._content_type = ""
        self._ends_by_closing = True

    # --- from the transport ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self.is_open = transport, True

    def get_buffer(self, sizehint: int) -> memoryview:
        del sizehint  # the rest is there the next time
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._answered is None or self._answered.done():
            self.is_open = False  # nobody asked
            return
        try:
            self._parser.feed_data(self._buffer[:nbytes])
        except HttpParserError as error:
            self._fail(ConnectionLostError(f"no HTTP answer: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if exc is None and self._head is not None and self._ends_by_closing:
            self._finish(self._head)
        else:
            self._fail(ConnectionLostError(str(exc) if exc else "it was closed before the answer's end"))

    # --- from the parser ------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        match name.lower():
            case b"content-type":
                self._content_type = value.decode("latin-1")
            case b"content-length" | b"transfer-encoding":
                self._ends_by_closing = False
            case _:
                pass

    def on_headers_complete(self) -> None:
        self._head = Head(self._parser.get_status_code(), self._content_type)

    def on_body(self, body: bytes) -> None:
        assert self._head is not None, "a body has a head"
        if self._answered is None or self._answered.done():
            return
        try:
            self._read(self._head, body)
        except Exception as error:  # noqa: BLE001  whoever waits for the answer is told
            self._fail(error)

    def on_message_complete(self) -> None:
        head = self._head
        assert head is not None, "an answer has a head"
        if head.status < 200:  # the answer itself comes later
            self._begin()
            return
        self.is_open = self._parser.should_keep_alive()
        self._finish(head)

    def _finish(self, head: Head) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_result(head)

    def _fail(self, error: Exception) -> None:
        self.is_open = False
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)


def _nothing(head: Head, data: bytes) -> None: ...
