"""What goes wrong under load, as clients see it: nothing hangs, no page is lost, no other text changes."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from itertools import cycle
from pathlib import Path

import httpx
import pytest
from tests import fake
from tests.engine.test_faults import ANSWER, ILL, SCRIPTS, NanIn, OutIn
from tests.serving.conftest import assert_all_free
from tests.serving.processes import TINY, Serving
from tests.serving.site import app_of, client_of, events, fake_app, server_of, wait_until

from recguide.core import ParameterError, SamplingParams
from recguide.engine.assembly import assemble
from recguide.engine.config import EngineConfig
from recguide.engine.engine import Engine
from recguide.llm import LLM

ROUTE = "/v1/completions"
ILL_SCRIPT = fake.Script((ILL, *range(60)), ANSWER)
SICKNESSES = {
    "nan at once": (NanIn, ("prefill",), "NaN"),
    "nan later": (NanIn, ("verify",), "NaN"),
    "memory": (OutIn, (), "memory"),
}
PROMPTS = ("Once upon a time", "In a hole in the ground", "x")


def body_of(at, tokens):
    """A request of these tests: every second one streams, and no two say the same."""
    return {
        "model": "tiny",
        "prompt": PROMPTS[at % len(PROMPTS)],
        "max_tokens": tokens,
        "temperature": 0.8,
        "seed": at,
        "ignore_eos": True,
        "stream": at % 2 == 0,
    }


def plain_texts(llm, bodies):
    """What plain decoding says to these requests."""
    taken = ("max_tokens", "temperature", "seed", "ignore_eos")
    each = [SamplingParams(method="ar", **{name: body[name] for name in taken}) for body in bodies]
    return [done.completions[0].text for done in llm.generate([body["prompt"] for body in bodies], each)]


class Load:
    """Clients of a server; `begun` counts the streams that have said something."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.begun = 0

    async def ask(self, body):
        """The text of an answer, or its error."""
        if not body["stream"]:
            answer = (await self.http.post(ROUTE, json=body)).json()
            return answer.get("error") or answer["choices"][0]["text"]
        text = ""
        async with self.http.stream("POST", ROUTE, json=body) as response:
            if response.status_code != 200:
                return json.loads(await response.aread())["error"]
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line.removeprefix("data: "))
                if "error" in event:
                    return event["error"]
                self.begun += not text
                text += event["choices"][0]["text"]
        return text


def under_load(url, bodies, then):
    """What became of these requests; `then(load)` runs as soon as a stream has begun."""

    async def run():
        async with httpx.AsyncClient(base_url=url, timeout=100, limits=httpx.Limits()) as http:
            load = Load(http)
            asked = [asyncio.create_task(load.ask(body)) for body in bodies]
            while not load.begun:
                await asyncio.sleep(0.01)
            try:
                await then(load)
            finally:
                answers = await asyncio.gather(*asked)
            return answers

    return asyncio.run(run())


# --- processes ----------------------------------------------------------------------------------------------


def test_a_killed_engine_fails_every_request_at_once_and_ends_the_server(tiny_folder):
    bodies = [body_of(at, 1500) for at in range(12)]
    with Serving(tiny_folder, *TINY, "--max-running=4") as server:

        async def kill(_):
            os.kill(server.engine_pid(), signal.SIGKILL)

        found = under_load(server.url, bodies, kill)
        assert [error["code"] for error in found] == ["engine_failed"] * len(bodies)
        assert all("ended unexpectedly (signal 9)" in error["message"] for error in found)
        assert server.end() == 1
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{server.url}/health")
        assert "signal 9" in server.log()


def test_a_stopping_server_finishes_what_runs_and_a_full_disk_costs_the_trace_alone(
    llm, tiny_folder, tmp_path
):
    bodies, file = [body_of(at, 100) for at in range(8)], tmp_path / "rounds.jsonl.zst"
    options = ("--dtype=float64", f"--trace={file}", "--log-level=warning")
    with Serving(tiny_folder, *TINY, *options, drain=100.0, largest_file=2048) as server:

        async def stop(load):
            while load.begun < 4:
                await asyncio.sleep(0.01)
            server.process.send_signal(signal.SIGTERM)
            while (await load.http.get("/ready")).status_code == 200:
                await asyncio.sleep(0.01)
            refused = await load.http.post(ROUTE, json=body_of(0, 1))
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "draining")
            assert (await load.http.get("/health")).status_code == 200

        assert under_load(server.url, bodies, stop) == plain_texts(llm, bodies)
        assert server.end() == 0
        assert f"{file} ends here" in server.log()


# --- clients ------------------------------------------------------------------------------------------------


def leave(address, phase, rudely):
    """Goes while it connects, in the headers, in the body, in the queue, after some or after more words."""
    body = json.dumps({**body_of(2 * phase, 300)}).encode()
    head = f"POST {ROUTE} HTTP/1.1\r\nHost: here\r\nContent-Type: application/json\r\n"
    whole = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    sent = (0, 40, len(whole) - 30, len(whole), len(whole), len(whole))[phase]
    with socket.create_connection(address, timeout=100) as client:
        if rudely:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.sendall(whole[:sent])
        read = (0, 0, 0, 0, 1, 1500)[phase]
        while read > 0 and (data := client.recv(4096)):
            read -= len(data)


def test_hundreds_of_clients_that_leave_in_any_phase_harm_nobody(served, llm):
    app, bodies = app_of(served), [body_of(at, 120) for at in range(4)]
    service = app.state.service
    with server_of(app) as url, ThreadPoolExecutor(16) as crowd:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        phases = zip(range(300), cycle(range(6)), cycle([False, False, True, True, True]), strict=False)

        async def come_and_go(_):
            gone = [crowd.submit(leave, address, phase, rudely) for _, phase, rudely in phases]
            await asyncio.gather(*map(asyncio.wrap_future, gone))

        assert under_load(url, bodies, come_and_go) == plain_texts(llm, bodies)
        wait_until(lambda: service.engine.pending == 0 and service.active == 0)
        wait_until(lambda: not served.engine.busy)


def test_three_times_the_caches_demand_is_all_answered(tiny_folder, llm):
    crowded = LLM(str(tiny_folder), device="cpu", dtype="float64")
    config = EngineConfig(kv_cache_tokens=320, page_size=8, max_running=32)
    crowded.engine = assemble(crowded.model, config)
    bodies = [body_of(at, 50) for at in range(16)]
    assert sum(len(body["prompt"]) + body["max_tokens"] for body in bodies) > 3 * 320

    async def nothing(_):
        pass

    with server_of(app_of(crowded)) as url:
        assert under_load(url, bodies, nothing) == plain_texts(llm, bodies)
    assert crowded.engine._scheduler.preemptions > 0
    assert_all_free(crowded.engine)


# --- the model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("sickness", SICKNESSES)
def test_what_the_model_cannot_do_fails_one_request_and_no_other(sickness, stream):
    kind, how, reason = SICKNESSES[sickness]
    scripts = [SCRIPTS[0], ILL_SCRIPT, *SCRIPTS[2:]]
    engine = Engine(kind(*how, *scripts), fake.decode, EngineConfig())
    with client_of(fake_app(engine)) as client, ThreadPoolExecutor(8) as pool:

        def ask(script):
            body = {"model": "tiny", "prompt": [*script.prompt], "max_tokens": 30, "temperature": 0}
            body |= {"stream": stream, "speculation": {"method": "recguide", "block_size": 8}}
            return client.post(ROUTE, json=body)

        for script, answer in zip(scripts * 3, pool.map(ask, scripts * 3), strict=True):
            said = events(answer.text) if stream else [answer.json()]
            if script is ILL_SCRIPT:
                error = said[-1]["error"]
                assert (error["type"], error["code"]) == ("server_error", "request_failed")
                assert reason in error["message"]
                assert stream or answer.status_code == 500
            else:
                text = "".join(event["choices"][0]["text"] for event in said)
                assert text == fake.decode(script.answer[:30])
        assert client.get("/health").status_code == 200
    assert_all_free(engine)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is full")
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_trace_is_refused_where_the_disk_is_full_already():
    with pytest.raises(ParameterError, match="No space left") as error:
        Engine(fake.FakeBackbone(SCRIPTS[0]), fake.decode, EngineConfig(trace=Path("/dev/full")))
    assert error.value.parameter == "trace"
