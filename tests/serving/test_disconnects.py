"""Clients that leave by the hundreds: nothing of theirs goes on, and those who stay notice nothing."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import urlsplit

import httpx
import pytest
from tests.fake import Script, encode, engine
from tests.serving.site import fake_app, server_of, wait_until

ANSWER = "the quick brown fox jumps over the lazy dog. "
SCRIPTS = [Script((65 + at, *encode("sk: ")), tuple(encode(ANSWER * 80))) for at in range(4)]
BODY = {"temperature": 0, "max_tokens": 3000, "ignore_eos": True}


async def ask_and_leave(url: str, number: int) -> None:
    """Sends a request and goes away: at once, while it waits, or in the middle of its stream."""
    place = urlsplit(url)
    body = json.dumps({**BODY, "prompt": f"{chr(65 + number % 4)}sk: ", "stream": number % 2 == 0}).encode()
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    head = ("POST /v1/completions HTTP/1.1", "host: x", "content-type: application/json")
    writer.write("\r\n".join([*head, f"content-length: {len(body)}", "", ""]).encode() + body)
    await writer.drain()
    if number % 3:
        await asyncio.sleep(0.01 * (number % 7))
    if number % 6 == 4:
        await reader.read(200)
    writer.close()


@pytest.mark.parametrize("clients", [60, pytest.param(600, marks=pytest.mark.slow)])
def test_what_nobody_waits_for_is_not_computed(clients):
    machine = engine(*SCRIPTS, max_running=8)
    app = fake_app(machine)

    async def crowd(url):
        async with httpx.AsyncClient(timeout=120) as staying:
            body = {**BODY, "prompt": "Ask: ", "max_tokens": 90}
            stay = asyncio.create_task(staying.post(f"{url}/v1/completions", json=body))
            for start in range(0, clients, 60):
                await asyncio.gather(*(ask_and_leave(url, start + at) for at in range(60)))
            return (await stay).json()

    with server_of(app) as url:
        stayed = asyncio.run(crowd(url))
        wait_until(lambda: app.state.service.engine.pending == 0)
    assert stayed["choices"][0]["text"] == (ANSWER * 2)[:90]
    assert not machine.busy
    assert machine.runner.pool.used_pages == 0
    assert app.state.service.active == 0
