"""Requests to an application without a socket: whole answers, streams, and clients that go."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from recguide.engine.client import EngineError
from recguide.serving.deploy.calls import Call, Head, answer, begun_well


def application(closed):
    app = FastAPI()

    @app.post("/echo")
    async def echo(request: Request) -> dict[str, str]:
        return {"body": (await request.body()).decode(), "query": request.url.query}

    @app.get("/stream")
    async def stream() -> StreamingResponse:
        async def numbers():
            try:
                for number in range(1000):
                    yield f"{number}\n"
                    await asyncio.sleep(0)
            finally:
                closed.append(True)

        return StreamingResponse(numbers())

    @app.get("/broken")
    async def broken() -> None:
        raise ZeroDivisionError

    return app


def call(path, body=b"", method="GET"):
    return Call(method, path, b"a=1", ((b"content-type", b"text/plain"),), body)


async def parts_of(app, wanted):
    return [part async for part in answer(app, wanted)]


def test_a_request_is_answered_whole():
    head, *body = asyncio.run(parts_of(application([]), call("/echo", b"hello", "POST")))
    assert isinstance(head, Head)
    assert head.status == 200
    assert (b"content-type", b"application/json") in head.headers
    assert b"".join(body) == b'{"body":"hello","query":"a=1"}'


def test_a_stream_comes_in_order_whatever_is_joined():
    _, *body = asyncio.run(parts_of(application([]), call("/stream")))
    assert b"".join(body) == b"".join(b"%d\n" % number for number in range(1000))


def test_a_client_that_goes_ends_the_work():
    closed = []

    async def leave():
        parts = answer(application(closed), call("/stream"))
        await anext(parts)
        await anext(parts)
        assert not closed
        await parts.aclose()

    asyncio.run(leave())
    assert closed == [True]


def test_an_application_that_fails_has_said_so_and_fails_here():
    async def whole():
        parts = answer(application([]), call("/broken"))
        head = await anext(parts)
        with pytest.raises(ZeroDivisionError):
            async for _ in parts:
                pass
        return head

    assert asyncio.run(whole()).status == 500


def test_nothing_is_told_of_an_answer_that_began_while_its_engine_ended():
    closed, healthy = [], iter((True, False))

    def check():
        if not next(healthy):
            raise EngineError("gone")

    async def both():
        well = begun_well(answer(application(closed), call("/stream")), check)
        said = [await anext(well), await anext(well)]
        await well.aclose()
        spoilt = begun_well(answer(application(closed), call("/stream")), check)
        with pytest.raises(EngineError):
            await anext(spoilt)
        return said

    head, first = asyncio.run(both())
    assert head.status == 200
    assert first.startswith(b"0\n")
    assert closed == [True, True]
