"""HTTP as servers speak it: answers framed and cut in every way, and connections that are kept or break."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, closing

import pytest

from recguide.bench.load.connections import ConnectionLostError, Connections, Head, NoConnectionError

OK = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"
SIZED = OK + b"Content-Length: 7\r\n\r\nabcdefg"
CLOSED = OK + b"\r\nabcdefg"


@asynccontextmanager
async def answering(*answers: bytes, cut: int = 1 << 16, closes: bool = False):
    """Serves on loopback: request i gets answer i, `cut` bytes at a time; yields URL and requests."""
    asked: list[tuple[int, bytes]] = []
    opened = 0

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal opened
        opened += 1
        mine = opened
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                asked.append((mine, head + await reader.readexactly(length)))
                answer = answers[len(asked) - 1]
                for at in range(0, len(answer), cut):
                    writer.write(answer[at : at + cut])
                    await writer.drain()
                    await asyncio.sleep(0)
                if closes:
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(converse, "127.0.0.1", 0)
    try:
        yield "http://{}:{}".format(*server.sockets[0].getsockname()), asked
    finally:
        server.close()


def read_from(*answers: bytes, times: int = 1, read=None, **serving):
    """(head, body) of each answer, and what the server saw."""

    async def whole():
        async with answering(*answers, **serving) as (url, asked):
            with closing(Connections()) as connections:
                found = []
                for _ in range(times):
                    body = bytearray()
                    into = read or (lambda _, data, body=body: body.extend(data))
                    head = await connections.ask("POST", f"{url}/v1/it?x=1", {"A": "b"}, into, b"said")
                    found.append((head, bytes(body)))
                    await asyncio.sleep(0.02)
                return found, asked

    return asyncio.run(whole())


@pytest.mark.parametrize("cut", [1, 5, 1 << 16])
@pytest.mark.parametrize("answer", [CHUNKED, SIZED, CLOSED])
def test_an_answer_is_whole_however_it_is_framed_and_cut(answer, cut):
    ((head, body),), ((_, sent),) = read_from(answer, cut=cut, closes=answer is CLOSED)
    assert (head, body) == (Head(200, "text/plain"), b"abcdefg")
    assert sent.startswith(b"POST /v1/it?x=1 HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nContent-Length: 4\r\nA: b\r\n\r\nsaid" in sent


def test_a_connection_is_used_again_unless_the_server_closes_it():
    _, asked = read_from(CHUNKED, SIZED, SIZED, times=3)
    assert [connection for connection, _ in asked] == [1, 1, 1]
    closing_one = OK + b"Connection: close\r\nContent-Length: 0\r\n\r\n"
    _, asked = read_from(closing_one, SIZED, times=2)
    assert [connection for connection, _ in asked] == [1, 2]
    _, asked = read_from(SIZED, SIZED, times=2, closes=True)
    assert [connection for connection, _ in asked] == [1, 2]


def test_what_comes_before_the_answer_is_passed_over():
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n"
    (first, second), asked = read_from(early + SIZED, SIZED, times=2)
    assert first == second == (Head(200, "text/plain"), b"abcdefg")
    assert [connection for connection, _ in asked] == [1, 1]


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP at all\r\n\r\n",
        CHUNKED[:-5],
        SIZED[:-1],
        OK,
        OK + b"Transfer-Encoding: chunked\r\n\r\nx",
    ],
)
def test_an_answer_that_breaks_off_is_a_lost_connection(answer):
    with pytest.raises(ConnectionLostError):
        read_from(answer, closes=True)


def test_what_reading_raises_ends_the_answer_and_its_connection():
    class UnreadableError(Exception):
        pass

    def read(head, data):
        raise UnreadableError(head.status, data)

    with pytest.raises(UnreadableError, match="200"):
        read_from(CHUNKED, read=read)


def test_nobody_there():
    async def whole():
        with closing(Connections()) as connections:
            for url in ("http://127.0.0.1:9/x", "http://nobody.invalid/"):
                with pytest.raises(NoConnectionError):
                    await connections.ask("GET", url, {}, lambda *_: None)

    asyncio.run(whole())


def test_who_leaves_early_leaves_no_connection_to_be_used_again():
    async def whole():
        async with answering(SIZED[:-1], SIZED) as (url, asked):
            with closing(Connections()) as connections:
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(0.1):
                        await connections.ask("POST", url, {}, lambda *_: None)
                await connections.ask("POST", url, {}, lambda *_: None)
                return [connection for connection, _ in asked]

    assert asyncio.run(whole()) == [1, 2]
