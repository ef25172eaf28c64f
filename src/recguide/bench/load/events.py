"""Server-sent events, strictly: what OpenAI's streams are made of.

Of the standard's fields only `data` carries anything here; `event`, `id` and `retry` are allowed, comments
skipped. Everything else in the stream is an error: a client that forgives hides a broken server.
"""

from __future__ import annotations

import re

_LINE_END = re.compile(rb"\r\n|\n|\r")
_IGNORED = (b"event", b"id", b"retry")


class MalformedStreamError(Exception):
    """Bytes that are no event stream, or an event that is no chunk."""


class EventParser:
    """Bytes in, the data of finished events out, however the network cut them."""

    __slots__ = ("_after_return", "_data", "_rest")

    def __init__(self) -> None:
        self._rest = b""
        self._after_return = False  # the last byte was a carriage return: a line feed next ends no other line
        self._data: list[bytes] = []

    def feed(self, data: bytes) -> list[bytes]:
        """The data of every event that these bytes finish. Raises MalformedStreamError."""
        return [event for line in self._lines(data) if (event := self._take(line)) is not None]

    def close(self) -> None:
        """The stream has ended; raises MalformedStreamError where an event is unfinished."""
        if self._rest or self._data:
            raise MalformedStreamError("the stream ends inside an event")

    def _lines(self, data: bytes) -> list[bytes]:
        if not data:
            return []
        new = data.removeprefix(b"\n") if self._after_return else data
        self._after_return = data.endswith(b"\r")
        *lines, self._rest = _LINE_END.split(self._rest + new)
        return lines

    def _take(self, line: bytes) -> bytes | None:
        if not line:
            event = b"\n".join(self._data) if self._data else None
            self._data.clear()
            return event
        field, _, value = line.partition(b":")
        if field == b"data":
            self._data.append(value.removeprefix(b" "))
        elif field and field not in _IGNORED:
            raise MalformedStreamError(f"a line that is no field of an event: {line[:80]!r}")
        return None
