"""One reader's view of a request: everything that came, in order, then its end or its error."""

from __future__ import annotations

import asyncio
import time

import pytest

from recguide.core import Chunk, Completion, FinishReason, RoundStats
from recguide.engine.chunks import Chunks
from recguide.engine.client import RequestError
from recguide.engine.errors import DeadlineExceeded


def chunk(text, *, last=False, index=0):
    done = Completion(index, text, (1,), (), None, FinishReason.LENGTH, None, 0, RoundStats())
    return Chunk(index, text, (1,), (), None, done if last else None)


def reading(test, deadline=None):
    """Runs a test with chunks; afterwards every request has been left once. Returns who left how."""
    left: list[tuple[int, bool]] = []

    async def whole():
        chunks = Chunks(deadline, lambda number, *, done: left.append((number, done)))
        await test(chunks)
        chunks.close()

    asyncio.run(whole())
    return left


def texts(arrived):
    return [(prompt, chunk.text) for prompt, chunk in arrived]


def test_what_is_there_comes_together_and_the_end_is_empty():
    async def test(chunks):
        chunks.expect(7, n=2)
        chunks.expect(9, n=1)
        chunks.put(7, None)
        chunks.put(7, chunk("early"))
        chunks.put(9, None)
        await chunks.accepted()
        assert texts(await chunks.arrived()) == [(0, "early")]
        waiting = asyncio.create_task(chunks.arrived())
        await asyncio.sleep(0)
        for number, item in (
            (9, chunk("b", last=True)),
            (7, chunk("a", last=True)),
            (7, chunk("c", index=1)),
        ):
            chunks.put(number, item)
        assert texts(await waiting) == [(1, "b"), (0, "a"), (0, "c")]
        chunks.put(7, chunk("d", index=1, last=True))
        assert texts(await chunks.arrived()) == [(0, "d")]
        assert await chunks.arrived() == []

    assert reading(test) == [(9, True), (7, True)]


def test_an_error_comes_behind_what_came_before_it_and_ends_all():
    async def test(chunks):
        chunks.expect(1, n=1)
        chunks.expect(2, n=1)
        for number in (1, 2):
            chunks.put(number, None)
        chunks.put(1, chunk("a"))
        chunks.put(2, RequestError("broken"))
        chunks.put(1, chunk("too late", last=True))
        assert texts(await chunks.arrived()) == [(0, "a")]
        for _ in range(2):
            with pytest.raises(RequestError, match="broken"):
                await chunks.arrived()

    assert reading(test) == [(2, False), (1, False)]


def test_a_refusal_is_raised_to_who_waits_for_all_to_be_taken():
    async def test(chunks):
        chunks.expect(1, n=1)
        chunks.expect(2, n=1)
        chunks.put(1, None)
        waiting = asyncio.create_task(chunks.accepted())
        await asyncio.sleep(0)
        chunks.put(2, RequestError("no"))
        with pytest.raises(RequestError):
            await waiting

    assert reading(test) == [(2, False), (1, False)]


def test_a_deadline_ends_the_waiting():
    async def test(chunks):
        chunks.expect(1, n=1)
        chunks.put(1, None)
        chunks.put(1, chunk("a"))
        assert texts(await chunks.arrived()) == [(0, "a")]
        with pytest.raises(DeadlineExceeded):
            await chunks.arrived()

    assert reading(test, deadline=time.time() + 0.05) == [(1, False)]


def test_a_reader_who_was_cancelled_may_read_again():
    async def test(chunks):
        chunks.expect(1, n=1)
        chunks.put(1, None)
        waiting = asyncio.create_task(chunks.arrived())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
        chunks.put(1, chunk("a", last=True))
        assert texts(await chunks.arrived()) == [(0, "a")]

    assert reading(test) == [(1, True)]
