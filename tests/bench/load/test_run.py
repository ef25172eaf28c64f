"""Loads against a small endpoint, good and broken."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from dataclasses import replace
from itertools import islice

import pytest
from tests.bench.load.endpoint import (
    SPECULATION,
    STREAM,
    answering,
    chunk,
    listening,
    refusing,
    sending,
)

from recguide.bench.load.arrivals import Burst, Poisson
from recguide.bench.load.drive import ClosedLoop, Limit, OpenLoop, Turn
from recguide.bench.load.endpoint import Asking, Endpoint
from recguide.bench.load.prompts import Prompt, built_in
from recguide.bench.load.run import EndpointError, Plan, first_model, run
from recguide.bench.load.summary import summarise
from recguide.core import ParameterError


def plan(load=None, *, requests=4, duration_s=None, warm_up=0, turns=1, asking=None):
    return Plan(
        load=load or ClosedLoop(2),
        limit=Limit(requests, duration_s),
        prompts=built_in(),
        asking=asking or Asking(),
        warm_up=warm_up,
        turns=turns,
        seed=0,
    )


def load_one(*handlers, api="chat", timeout_s=20.0, api_key=None, **options):
    """Records of a load on an endpoint with these handlers, and the endpoint."""

    async def whole():
        async with listening(*handlers) as served:
            endpoint = Endpoint("it", served.url, "small", api, api_key, timeout_s=timeout_s)
            (outcome,) = await run([endpoint], plan(**options), lambda *_: None)
            return outcome.records, served

    return asyncio.run(whole())


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_a_good_endpoint_is_counted_by_its_usage(api):
    records, served = load_one(answering(tokens=12, speculation=SPECULATION), api=api, api_key="secret")
    assert [record.error for record in records] == [None] * 4
    assert {record.text for record in records} == {"one two three"}
    summary = summarise(records, [], None)
    assert (summary.tokens.output, summary.tokens.prompt) == (48, 28)
    assert summary.counted_by == "characters"
    assert summary.speculation is not None
    assert summary.speculation.acceptance == {1: 4, 3: 4, 4: 4}
    assert {headers["authorization"] for headers in served.headers} == {"bearer secret"}


def test_token_ids_tell_a_chunks_tokens():
    records, _ = load_one(answering(tokens=13, token_ids=True), requests=1)
    assert [arrival.tokens for arrival in records[0].arrivals] == [3, 4, 6]
    assert summarise(records, [], None).counted_by == "server"


def test_missing_usage_is_unknown_not_zero():
    records, _ = load_one(answering(), requests=2)
    assert [record.output_tokens for record in records] == [None, None]
    assert records[0].error is None


@pytest.mark.parametrize(
    ("handler", "kind", "detail"),
    [
        (refusing(500, "out of luck"), "http 500", "out of luck"),
        (refusing(429), "http 429", "not now"),
        (sending(b"data: {}\n\n"), "malformed stream", "choices"),
        (sending(b"<html>busy</html>\n\n"), "malformed stream", "no field"),
        (sending(b"data: {broken\n\n"), "malformed stream", "not JSON"),
        (sending(b'data: {"choices": []}\n'), "malformed stream", "ends inside"),
        (sending(b'data: {"choices": []}\n\n'), "unfinished stream", "DONE"),
        (sending(b'data: {"choices": []}\n\ndata: [DONE]\n\n'), "unfinished stream", "finish reason"),
        (sending(b'data: {"error": {"message": "engine died"}}\n\n'), "error in stream", "engine died"),
        (sending(b'data: {"choices": []}\n\n', reset=True), "connection lost", ""),
    ],
)
def test_broken_answers_are_failures_of_their_kind(handler, kind, detail):
    records, _ = load_one(handler, answering(tokens=3), requests=2, load=ClosedLoop(1))
    assert [record.error for record in records] == [kind, None]
    assert detail in records[0].detail


def test_an_answer_that_is_no_stream_is_a_failure():
    async def plain(wire, body):
        del body
        await wire.send(STREAM.replace(b"text/event-stream", b"application/json") + b"{}")

    records, _ = load_one(plain, requests=1)
    assert records[0].error == "no stream"


def test_a_slow_answer_is_cut_off_and_keeps_what_came():
    async def stuck(wire, body):
        del body
        await wire.send(STREAM)
        await wire.event(chunk("first"))
        await asyncio.sleep(30)

    records, _ = load_one(stuck, requests=1, timeout_s=0.3)
    assert records[0].error == "timeout"
    assert records[0].text == "first"


def test_a_closed_door_is_no_connection():
    async def whole():
        async with listening(answering()) as served:
            url = served.url
        (outcome,) = await run([Endpoint("it", url, "m")], plan(requests=1), lambda *_: None)
        return outcome.records

    assert asyncio.run(whole())[0].error == "no connection"


def test_a_closed_loop_keeps_its_concurrency():
    at_once, most = 0, 0
    good = answering(tokens=3, gap_s=0.005)

    async def counted(wire, body):
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await good(wire, body)
        at_once -= 1

    records, _ = load_one(counted, load=ClosedLoop(3), requests=12)
    assert most == 3
    assert [record.number for record in records] == list(range(12))


def test_a_stall_shows_in_the_latencies_of_the_requests_behind_it():
    """An open loop goes on sending, and a client that got late still counts from the due time."""

    async def blocking(wire, body):
        import time

        time.sleep(0.3)  # the server shares the client's event loop: nothing is sent meanwhile
        await answering(tokens=3)(wire, body)

    load = OpenLoop(Burst(rate=50.0, size=1))
    records, _ = load_one(blocking, answering(tokens=3), load=load, requests=10)
    held_up = [record for record in records if 0.05 < record.scheduled_s - records[0].scheduled_s < 0.15]
    assert len(held_up) >= 3
    assert all(record.sent_s - record.scheduled_s > 0.1 for record in held_up)
    assert all(record.arrivals[0].at_s - record.scheduled_s > 0.1 for record in held_up)


def test_a_schedule_depends_on_seed_and_turn_alone():
    loop = OpenLoop(Poisson(10.0))

    def times(seed, number):
        return list(loop.schedule(Turn(number, built_in(), seed, Limit(None, 5.0))))

    assert times(1, 0) == times(1, 0)
    assert times(1, 0) != times(1, 1)
    assert times(1, 0) != times(2, 0)
    assert times(1, 0)[-1] < 5.0
    law = random.Random("1/0/arrivals")
    assert times(1, 0)[:5] == list(islice(Poisson(10.0).times(law), 5))


def test_requests_are_split_evenly_over_turns():
    limit = Limit(10, 6.0)
    assert [limit.share(turn, 4) for turn in range(4)] == [
        Limit(3, 1.5),
        Limit(3, 1.5),
        Limit(2, 1.5),
        Limit(2, 1.5),
    ]
    with pytest.raises(ParameterError, match="requests"):
        Limit(None, None)


def test_two_endpoints_take_turns_and_are_asked_the_same():
    order = []

    def noting(name):
        async def answer(wire, body):
            order.append(name)
            await answering(tokens=3)(wire, body)

        return answer

    async def whole():
        async with listening(noting("a")) as a, listening(noting("b")) as b:
            endpoints = [Endpoint("a", a.url, "m"), Endpoint("b", b.url, "m")]
            asking = Asking(temperature=1.0)
            await run(endpoints, plan(ClosedLoop(1), turns=2, asking=asking), lambda *_: None)
            return a.bodies, b.bodies

    one, other = asyncio.run(whole())
    assert order == ["a", "a", "b", "b", "b", "b", "a", "a"]
    assert one == other
    assert len({body["seed"] for body in one}) == 4


def test_a_warm_up_is_not_counted_and_must_get_through_once():
    records, served = load_one(refusing(503), answering(tokens=3), warm_up=3)
    assert len(served.bodies) == 7
    assert len(records) == 4
    with pytest.raises(EndpointError, match="http 503: not now"):
        load_one(refusing(503), warm_up=2)


def test_a_duration_ends_the_sending_not_the_answers():
    records, _ = load_one(
        answering(tokens=3, first_s=0.2), requests=None, duration_s=0.05, load=ClosedLoop(2)
    )
    assert [record.error for record in records] == [None, None]


def test_a_prompt_that_an_api_cannot_take_is_refused_before_anything_is_sent():
    chat = Prompt(0, ({"role": "user", "content": "hi"},))
    with pytest.raises(ParameterError, match="--api chat"):
        asyncio.run(
            run(
                [Endpoint("it", "http://127.0.0.1:9", "m", "completions")],
                replace(plan(), prompts=(chat,)),
                lambda *_: None,
            )
        )


def test_the_first_model_is_asked_for():
    async def whole():
        async with listening(answering(), model="tiny") as served:
            name = await first_model(served.url, None)
        with pytest.raises(EndpointError, match="is the server up"):
            await first_model(served.url, None)
        return name

    assert asyncio.run(whole()) == "tiny"


def test_a_load_from_first_request_to_report_needs_no_torch():
    code = (
        "import sys\nimport recguide.bench.load.result, recguide.bench.load.report.page\n"
        "from recguide.cli import app, bench, bench_options, bench_summary\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
