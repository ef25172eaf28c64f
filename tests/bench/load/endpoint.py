"""A small OpenAI endpoint that answers as it is told, good or broken: the load client's counterpart in tests.

Plain asyncio: what goes over the wire, and when the connection breaks, is written down byte by byte.
"""

from __future__ import annotations

import asyncio
import json
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

Handler = Callable[["Wire", dict[str, Any]], Awaitable[None]]
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
SPECULATION = {
    "num_spec_steps": 3,
    "num_draft_tokens": 45,
    "num_accepted_draft_tokens": 5,
    "acceptance_histogram": [1, 0, 1, 1],
}


@dataclass
class Wire:
    """The answer's end of a connection."""

    writer: asyncio.StreamWriter

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def event(self, value: object) -> None:
        await self.send(b"data: " + json.dumps(value).encode() + b"\n\n")

    async def error(self, status: int, message: str) -> None:
        body = json.dumps({"error": {"message": message}}).encode()
        head = f"HTTP/1.1 {status} no\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    def reset(self) -> None:
        """Breaks the connection without a goodbye."""
        socket = self.writer.get_extra_info("socket")
        socket.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


@dataclass
class Endpoint:
    """Where it listens, and the bodies it was asked with."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


def chunk(text: str = "", finish: str | None = None, **more: object) -> dict[str, object]:
    """A chunk that either API understands."""
    return {
        "choices": [{"index": 0, "delta": {"content": text}, "text": text, "finish_reason": finish, **more}]
    }


def usage(output: int, prompt: int = 7) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}


def answering(
    words: Sequence[str] = ("one", " two", " three"),
    *,
    tokens: int | None = None,
    token_ids: bool = False,
    gap_s: float = 0.0,
    first_s: float = 0.0,
    speculation: dict[str, Any] | None = None,
) -> Handler:
    """A good answer; `tokens` None sends no usage. With token ids each word counts as its length's tokens."""

    async def answer(wire: Wire, body: dict[str, Any]) -> None:
        del body
        await wire.send(STREAM)
        await wire.event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
        await asyncio.sleep(first_s)
        for place, word in enumerate(words):
            await asyncio.sleep(gap_s if place else 0)
            await wire.event(chunk(word, **({"token_ids": list(range(len(word)))} if token_ids else {})))
        await wire.event(chunk("", "stop"))
        if tokens is not None:
            metrics = {"metrics": {"speculative_decoding": speculation}} if speculation else {}
            await wire.event({"choices": [], "usage": usage(tokens), **metrics})
        await wire.send(b"data: [DONE]\n\n")

    return answer


def sending(*data: bytes, reset: bool = False) -> Handler:
    """These bytes as the body of a stream, then the end, or a reset."""

    async def answer(wire: Wire, body: dict[str, Any]) -> None:
        del body
        await wire.send(STREAM)
        for part in data:
            await wire.send(part)
        if reset:
            await asyncio.sleep(0.02)
            wire.reset()

    return answer


def refusing(status: int, message: str = "not now") -> Handler:
    async def answer(wire: Wire, body: dict[str, Any]) -> None:
        del body
        await wire.error(status, message)

    return answer


@asynccontextmanager
async def listening(*handlers: Handler, model: str = "small"):
    """Serves on a free port of loopback; request number i gets handler i, the last one all later ones."""
    endpoint = Endpoint("")

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await _answer(reader, Wire(writer), endpoint, handlers, model)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client left
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    endpoint.url = "http://{}:{}".format(*server.sockets[0].getsockname())
    try:
        yield endpoint
    finally:
        server.close()


async def _answer(
    reader: asyncio.StreamReader, wire: Wire, endpoint: Endpoint, handlers: Sequence[Handler], model: str
) -> None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
    if head[0].startswith("GET /v1/models"):
        body = json.dumps({"data": [{"id": model}]}).encode()
        await wire.send(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + body)
        return
    body = json.loads(await reader.readexactly(int(headers["content-length"])))
    number = len(endpoint.bodies)
    endpoint.bodies.append(body)
    endpoint.headers.append(headers)
    await handlers[min(number, len(handlers) - 1)](wire, body)
